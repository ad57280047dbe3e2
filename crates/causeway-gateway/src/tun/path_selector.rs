//! Chooses the path of packets for a peer from the paths that answer probes: an address of the peer, or a relay.
//!
//! Input: addresses from the netmap, from the peer and from its messages; relays; replies to probes; the time. Output:
//! probes to send, and the selected path. Both gateways probe each other's addresses at the same time, which opens their
//! NATs. A direct path has precedence over a relay. While no path is selected, packets take the channel (`worker`). A peer
//! without traffic is not probed.

use std::fmt;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::probe_history::ProbeHistory;
use super::probe_ids::ProbeIds;
use super::relay_frame::RelayId;

/// Addresses of one peer: those of its interfaces, of the netmap, and as relays see it.
const CANDIDATES_MAX: usize = 20;
/// Relays that are tried for one peer.
pub const RELAYS_MAX: usize = 4;
/// The intervals of a search double from the first to the last. A NAT keeps a mapping for 30 seconds or more, so that
/// the probes of both ends meet.
const SEARCH_FIRST: Duration = Duration::from_millis(300);
const SEARCH_LAST: Duration = Duration::from_secs(15);
/// The number of rounds after which a search is taken for vain, about five seconds.
const ROUNDS_IN_VAIN: u32 = 5;
/// The interval at which the other addresses are compared with the selected one.
const COMPARE_PERIOD: Duration = Duration::from_secs(60);
/// The interval of a second comparison, before packets change to a better path.
const CONFIRM_PERIOD: Duration = Duration::from_secs(1);
/// Another path must be better in this number of rounds, and by a quarter and `MARGIN`.
const ROUNDS_BETTER: u32 = 3;
const MARGIN: Duration = Duration::from_millis(2);
/// A direct path replaces a relay after this number of replies in a row.
const ROUNDS_DIRECT: u32 = 2;
/// A path that loses more probes than the selected one by this, in per cent, is not better.
const LOSS_MARGIN: u32 = 10;
/// A probe without a reply for this time is lost.
const LOST_AFTER: Duration = Duration::from_secs(1);
/// NATs may forget a mapping after 30 seconds without a packet.
const STALE_AFTER: Duration = Duration::from_secs(20);
/// Messages from an address cause probes of it at most this often.
const RETRIGGER_MIN: Duration = Duration::from_millis(100);

/// Tells identifiers of these probes from those of `path_monitor`.
const ID_FLAG: u32 = 1 << 31;

/// The way that sealed packets take to a peer, except the channel.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PathTarget {
    Direct(SocketAddr),
    /// Inside a session with the relay.
    Relay(RelayId),
}

impl PathTarget {
    pub fn is_direct(self) -> bool {
        matches!(self, PathTarget::Direct(_))
    }
}

impl From<SocketAddr> for PathTarget {
    fn from(address: SocketAddr) -> PathTarget {
        PathTarget::Direct(address)
    }
}

impl From<RelayId> for PathTarget {
    fn from(relay: RelayId) -> PathTarget {
        PathTarget::Relay(relay)
    }
}

/// The way in which a path became known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CandidateSource {
    /// The netmap names it.
    Planned,
    /// The peer named it.
    Told,
    /// An authentic message came from it.
    Seen,
    /// The netmap names the relay.
    Relay,
}

#[derive(Clone, Copy, Debug)]
struct Candidate {
    target: PathTarget,
    source: CandidateSource,
    is_due: bool,
    probe: Option<SentProbe>,
    round_trip: Option<Duration>,
    /// Successive rounds in which it was better than the selected one.
    better: u32,
    history: ProbeHistory,
}

#[derive(Clone, Copy, Debug)]
struct SentProbe {
    id: u32,
    sent: Instant,
}

/// A probe of one path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TargetProbe {
    pub target: PathTarget,
    pub id: u32,
}

/// The reason for which no direct path is selected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotDirect {
    NoAddress,
    Searching,
    NoReply { addresses: usize },
}

impl fmt::Display for NotDirect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotDirect::NoAddress => write!(f, "no address of the peer is known"),
            NotDirect::Searching => write!(f, "addresses of the peer are being tried"),
            NotDirect::NoReply { addresses } => write!(
                f,
                "none of {addresses} addresses of the peer answers: a NAT or firewall between the gateways lets no packets pass"
            ),
        }
    }
}

#[derive(Debug)]
pub struct PathSelector {
    candidates: Vec<Candidate>,
    selected: Option<PathTarget>,
    /// The time of the last authentic message by the selected path.
    heard: Instant,
    next_round: Instant,
    /// Rounds since the search began.
    rounds: u32,
    ids: ProbeIds,
}

impl PathSelector {
    pub fn new(now: Instant) -> PathSelector {
        PathSelector {
            candidates: Vec::new(),
            selected: None,
            heard: now,
            next_round: now,
            rounds: 0,
            ids: ProbeIds::default(),
        }
    }

    pub fn selected(&self) -> Option<PathTarget> {
        self.selected
    }

    pub fn round_trip(&self) -> Option<Duration> {
        self.candidate(self.selected?)?.round_trip
    }

    /// Tells whether a NAT may have forgotten the selected path: packets should take another one as well.
    pub fn is_stale(&self, now: Instant) -> bool {
        self.selected.is_some() && now.duration_since(self.heard) >= STALE_AFTER
    }

    /// Tells whether a direct path is selected.
    pub fn is_direct(&self) -> bool {
        self.selected.is_some_and(PathTarget::is_direct)
    }

    /// Returns the relays that are known.
    pub fn relays(&self) -> impl Iterator<Item = PathTarget> + '_ {
        self.candidates.iter().map(|known| known.target).filter(|target| !target.is_direct())
    }

    /// None: a direct path is selected.
    pub fn not_direct(&self) -> Option<NotDirect> {
        let addresses = self.candidates.iter().filter(|known| known.target.is_direct()).count();
        match addresses {
            _ if self.is_direct() => None,
            0 => Some(NotDirect::NoAddress),
            addresses if self.rounds >= ROUNDS_IN_VAIN => Some(NotDirect::NoReply { addresses }),
            _ => Some(NotDirect::Searching),
        }
    }

    /// Replaces the paths of one source. New ones are tried at once. A selected address stays as long as it works; a relay
    /// that is none any more is left.
    pub fn follow(
        &mut self,
        source: CandidateSource,
        targets: impl IntoIterator<Item = impl Into<PathTarget>>,
        now: Instant,
    ) {
        let wanted: Vec<PathTarget> = targets.into_iter().map(Into::into).take(CANDIDATES_MAX).collect();
        let is_left = |target: PathTarget| !target.is_direct() && !wanted.contains(&target);
        if source == CandidateSource::Relay && self.selected.is_some_and(is_left) {
            self.handle_lost(now);
        }
        let selected = self.selected;
        self.candidates.retain(|known| {
            known.source != source || wanted.contains(&known.target) || selected == Some(known.target)
        });
        let mut is_new = false;
        for target in wanted {
            is_new |= self.add(target, source);
        }
        if is_new {
            self.restart(now);
        }
    }

    /// Takes note of an authentic message by a path.
    pub fn handle_seen(&mut self, target: impl Into<PathTarget>, now: Instant) {
        let target = target.into();
        if self.selected == Some(target) {
            self.heard = now;
            return;
        }
        if target.is_direct() {
            self.add(target, CandidateSource::Seen);
        }
        let is_unselected = self.selected.is_none();
        // The path carries at least this direction: it is tried at once.
        if let Some(known) = self.candidate_mut(target)
            && (known.round_trip.is_none() || is_unselected)
            && known.probe.is_none_or(|probe| now.duration_since(probe.sent) >= RETRIGGER_MIN)
        {
            known.is_due = true;
        }
    }

    /// Takes note that a handshake went there and back. True: the path is selected now.
    pub fn handle_confirmed(&mut self, target: impl Into<PathTarget>, now: Instant) -> bool {
        let target = target.into();
        if target.is_direct() {
            self.add(target, CandidateSource::Seen);
        }
        if self.selected.is_some() || self.candidate(target).is_none() {
            self.handle_seen(target, now);
            return false;
        }
        self.select(target, now);
        true
    }

    /// Takes a reply. True: another path is selected now.
    pub fn handle_reply(&mut self, id: u32, now: Instant) -> bool {
        let current = self.selected.and_then(|selected| self.candidate(selected)).copied();
        let is_sent = |known: &&mut Candidate| known.probe.is_some_and(|probe| probe.id == id);
        let Some(known) = self.candidates.iter_mut().find(is_sent) else { return false };
        let Some(probe) = known.probe.take() else { return false };
        let measured = now.saturating_duration_since(probe.sent);
        let round_trip = known.round_trip.map_or(measured, |before| (before * 3 + measured) / 4);
        (known.round_trip, known.is_due) = (Some(round_trip), false);
        known.history.note(true);
        let target = known.target;
        match current {
            None => self.select(target, now),
            Some(selected) if selected.target == target => {
                self.heard = now;
                return false;
            }
            Some(selected) => {
                let (is_better, rounds) = known.compare(&selected);
                known.better = if is_better { known.better + 1 } else { 0 };
                if known.better < rounds {
                    if is_better {
                        self.next_round = self.next_round.min(now + CONFIRM_PERIOD);
                    }
                    return false;
                }
                self.select(target, now);
            }
        }
        true
    }

    /// The selected path carries nothing any more.
    pub fn handle_lost(&mut self, now: Instant) {
        if let Some(target) = self.selected.take() {
            let known = self.candidate_mut(target);
            known.into_iter().for_each(|known| {
                (known.round_trip, known.better, known.history) = (None, 0, ProbeHistory::default());
            });
            self.restart(now);
        }
    }

    /// Returns the next probe that is due. `is_used`: packets were exchanged lately.
    pub fn next_probe(&mut self, now: Instant, is_used: bool) -> Option<TargetProbe> {
        if !is_used {
            return None;
        }
        if now >= self.next_round {
            // Relays are not compared with a direct path.
            let is_direct = self.is_direct();
            let compared = self.candidates.iter_mut().filter(|known| known.target.is_direct() || !is_direct);
            compared.for_each(|known| known.is_due = true);
            let interval = match is_direct {
                true => COMPARE_PERIOD,
                false => (SEARCH_FIRST * 2_u32.pow(self.rounds.min(10))).min(SEARCH_LAST),
            };
            self.rounds = self.rounds.saturating_add(1);
            self.next_round = now + interval;
        }
        let known = self.candidates.iter_mut().find(|known| known.is_due)?;
        // A path that has never answered is not open yet, which is no loss.
        if known.probe.is_some_and(|probe| now.duration_since(probe.sent) >= LOST_AFTER) {
            known.better = 0;
            if known.round_trip.is_some() {
                known.history.note(false);
            }
        }
        let id = ID_FLAG | self.ids.next_id();
        (known.is_due, known.probe) = (false, Some(SentProbe { id, sent: now }));
        Some(TargetProbe { target: known.target, id })
    }

    /// Tells whether a round of a search is due, at which the peer is told this gateway's addresses.
    pub fn is_round_due(&self, now: Instant, is_used: bool) -> bool {
        is_used && !self.is_direct() && now >= self.next_round
    }

    /// Tells whether the identifier belongs to a probe of this module.
    pub fn is_own(id: u32) -> bool {
        id & ID_FLAG != 0
    }

    fn select(&mut self, target: PathTarget, now: Instant) {
        (self.selected, self.heard) = (Some(target), now);
        // Behind a relay the search for a direct path goes on, and slows down.
        if target.is_direct() {
            self.rounds = 0;
        }
        self.candidates.iter_mut().for_each(|known| known.better = 0);
        // The other addresses are compared soon: the first address that answers is not always the best.
        self.next_round = self.next_round.max(now + CONFIRM_PERIOD);
    }

    fn restart(&mut self, now: Instant) {
        (self.rounds, self.next_round) = (0, now);
    }

    /// True: the path is new.
    fn add(&mut self, target: PathTarget, source: CandidateSource) -> bool {
        if self.candidate(target).is_some() {
            return false;
        }
        if self.candidates.len() >= CANDIDATES_MAX {
            let selected = self.selected;
            let is_spare = |known: &Candidate| {
                known.source == CandidateSource::Seen
                    && known.round_trip.is_none()
                    && selected != Some(known.target)
            };
            let Some(spare) = self.candidates.iter().position(is_spare) else { return false };
            self.candidates.remove(spare);
        }
        self.candidates.push(Candidate {
            target,
            source,
            is_due: false,
            probe: None,
            round_trip: None,
            better: 0,
            history: ProbeHistory::default(),
        });
        true
    }

    fn candidate(&self, target: PathTarget) -> Option<&Candidate> {
        self.candidates.iter().find(|known| known.target == target)
    }

    fn candidate_mut(&mut self, target: PathTarget) -> Option<&mut Candidate> {
        self.candidates.iter_mut().find(|known| known.target == target)
    }
}

impl Candidate {
    /// Compares a path that has just answered with the selected one: whether it is better, and in how many rounds it must
    /// be.
    fn compare(&self, selected: &Candidate) -> (bool, u32) {
        match (self.target.is_direct(), selected.target.is_direct()) {
            (true, false) => (true, ROUNDS_DIRECT),
            (false, true) => (false, ROUNDS_BETTER),
            _ => {
                let loss = |path: &Candidate| path.history.loss().unwrap_or(0);
                let is_faster = self
                    .round_trip
                    .zip(selected.round_trip)
                    .is_some_and(|(new, current)| new + MARGIN + current / 4 < current);
                (is_faster && loss(self) <= loss(selected) + LOSS_MARGIN, ROUNDS_BETTER)
            }
        }
    }
}

#[cfg(test)]
#[path = "path_selector/tests.rs"]
mod tests;
