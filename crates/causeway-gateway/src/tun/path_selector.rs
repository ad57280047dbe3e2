//! Chooses the address to which packets for a peer are sent directly, from the addresses that answer probes.
//!
//! Input: addresses from the netmap, from the peer and from its messages; replies to probes; the time. Output: probes to
//! send, and the selected address. Both gateways probe each other's addresses at the same time, which opens their
//! NATs. While no address is selected, packets take another path (`worker`). A peer without traffic is not probed.

use std::fmt;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Addresses of one peer: those of its interfaces, of the netmap, and as relays see it.
const CANDIDATES_MAX: usize = 16;
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
/// NATs may forget a mapping after 30 seconds without a packet.
const STALE_AFTER: Duration = Duration::from_secs(20);
/// Messages from an address cause probes of it at most this often.
const RETRIGGER_MIN: Duration = Duration::from_millis(100);

/// Tells identifiers of these probes from those of `path_monitor`.
const ID_FLAG: u32 = 1 << 31;

/// The way in which an address became known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CandidateSource {
    /// The netmap names it.
    Planned,
    /// The peer named it.
    Told,
    /// An authentic message came from it.
    Seen,
}

#[derive(Clone, Copy, Debug)]
struct Candidate {
    address: SocketAddr,
    source: CandidateSource,
    is_due: bool,
    probe: Option<SentProbe>,
    round_trip: Option<Duration>,
    /// Successive rounds in which it was better than the selected one.
    better: u32,
}

#[derive(Clone, Copy, Debug)]
struct SentProbe {
    id: u32,
    sent: Instant,
}

/// A probe of one address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AddressProbe {
    pub address: SocketAddr,
    pub id: u32,
}

/// The reason for which no address is selected.
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
    selected: Option<SocketAddr>,
    /// The time of the last authentic message from the selected address.
    heard: Instant,
    next_round: Instant,
    /// Rounds since the search began.
    rounds: u32,
    next_id: u32,
}

impl PathSelector {
    pub fn new(now: Instant) -> PathSelector {
        PathSelector {
            candidates: Vec::new(),
            selected: None,
            heard: now,
            next_round: now,
            rounds: 0,
            next_id: 0,
        }
    }

    pub fn selected(&self) -> Option<SocketAddr> {
        self.selected
    }

    pub fn round_trip(&self) -> Option<Duration> {
        self.candidate(self.selected?)?.round_trip
    }

    /// Tells whether a NAT may have forgotten the selected path: packets should take another one as well.
    pub fn is_stale(&self, now: Instant) -> bool {
        self.selected.is_some() && now.duration_since(self.heard) >= STALE_AFTER
    }

    /// None: an address is selected.
    pub fn not_direct(&self) -> Option<NotDirect> {
        match (self.selected, self.candidates.len()) {
            (Some(_), _) => None,
            (None, 0) => Some(NotDirect::NoAddress),
            (None, addresses) if self.rounds >= ROUNDS_IN_VAIN => Some(NotDirect::NoReply { addresses }),
            (None, _) => Some(NotDirect::Searching),
        }
    }

    /// Replaces the addresses of one source. New ones are tried at once.
    pub fn follow(
        &mut self,
        source: CandidateSource,
        addresses: impl IntoIterator<Item = SocketAddr>,
        now: Instant,
    ) {
        let wanted: Vec<SocketAddr> = addresses.into_iter().take(CANDIDATES_MAX).collect();
        let selected = self.selected;
        self.candidates.retain(|known| {
            known.source != source || wanted.contains(&known.address) || selected == Some(known.address)
        });
        let mut is_new = false;
        for address in wanted {
            is_new |= self.add(address, source);
        }
        if is_new {
            self.restart(now);
        }
    }

    /// Takes note of an authentic message from an address.
    pub fn handle_seen(&mut self, address: SocketAddr, now: Instant) {
        if self.selected == Some(address) {
            self.heard = now;
            return;
        }
        self.add(address, CandidateSource::Seen);
        let is_unselected = self.selected.is_none();
        // The address carries at least this direction: it is tried at once.
        if let Some(known) = self.candidate_mut(address)
            && (known.round_trip.is_none() || is_unselected)
            && known.probe.is_none_or(|probe| now.duration_since(probe.sent) >= RETRIGGER_MIN)
        {
            known.is_due = true;
        }
    }

    /// Takes note that a handshake went there and back. True: the address is selected now.
    pub fn handle_confirmed(&mut self, address: SocketAddr, now: Instant) -> bool {
        self.add(address, CandidateSource::Seen);
        if self.selected.is_some() {
            self.handle_seen(address, now);
            return false;
        }
        self.select(address, now);
        true
    }

    /// Takes a reply. True: another address is selected now.
    pub fn handle_reply(&mut self, id: u32, now: Instant) -> bool {
        let current = self.round_trip();
        let is_sent = |known: &&mut Candidate| known.probe.is_some_and(|probe| probe.id == id);
        let Some(known) = self.candidates.iter_mut().find(is_sent) else { return false };
        let Some(probe) = known.probe.take() else { return false };
        let measured = now.saturating_duration_since(probe.sent);
        let round_trip = known.round_trip.map_or(measured, |before| (before * 3 + measured) / 4);
        (known.round_trip, known.is_due) = (Some(round_trip), false);
        let address = known.address;
        match self.selected {
            None => self.select(address, now),
            Some(selected) if selected == address => {
                self.heard = now;
                return false;
            }
            Some(_) => {
                let is_better = current.is_some_and(|current| round_trip + MARGIN + current / 4 < current);
                known.better = if is_better { known.better + 1 } else { 0 };
                if known.better < ROUNDS_BETTER {
                    if is_better {
                        self.next_round = self.next_round.min(now + CONFIRM_PERIOD);
                    }
                    return false;
                }
                self.select(address, now);
            }
        }
        true
    }

    /// The selected path carries nothing any more.
    pub fn handle_lost(&mut self, now: Instant) {
        if let Some(address) = self.selected.take() {
            let known = self.candidate_mut(address);
            known.into_iter().for_each(|known| (known.round_trip, known.better) = (None, 0));
            self.restart(now);
        }
    }

    /// Returns the next probe that is due. `is_used`: packets were exchanged lately.
    pub fn next_probe(&mut self, now: Instant, is_used: bool) -> Option<AddressProbe> {
        if !is_used {
            return None;
        }
        if now >= self.next_round {
            self.candidates.iter_mut().for_each(|known| known.is_due = true);
            let interval = match self.selected {
                Some(_) => COMPARE_PERIOD,
                None => (SEARCH_FIRST * 2_u32.pow(self.rounds.min(10))).min(SEARCH_LAST),
            };
            self.rounds = self.rounds.saturating_add(1);
            self.next_round = now + interval;
        }
        let id = ID_FLAG | self.next_id;
        let known = self.candidates.iter_mut().find(|known| known.is_due)?;
        (known.is_due, known.probe) = (false, Some(SentProbe { id, sent: now }));
        self.next_id = (self.next_id + 1) & !ID_FLAG;
        Some(AddressProbe { address: known.address, id })
    }

    /// Tells whether a round of a search is due, at which the peer is told this gateway's addresses.
    pub fn is_round_due(&self, now: Instant, is_used: bool) -> bool {
        is_used && self.selected.is_none() && now >= self.next_round
    }

    /// Tells whether the identifier belongs to a probe of this module.
    pub fn is_own(id: u32) -> bool {
        id & ID_FLAG != 0
    }

    fn select(&mut self, address: SocketAddr, now: Instant) {
        (self.selected, self.heard, self.rounds) = (Some(address), now, 0);
        self.candidates.iter_mut().for_each(|known| known.better = 0);
        // The other addresses are compared soon: the first address that answers is not always the best.
        self.next_round = self.next_round.max(now + CONFIRM_PERIOD);
    }

    fn restart(&mut self, now: Instant) {
        (self.rounds, self.next_round) = (0, now);
    }

    /// True: the address is new.
    fn add(&mut self, address: SocketAddr, source: CandidateSource) -> bool {
        if self.candidate(address).is_some() {
            return false;
        }
        if self.candidates.len() >= CANDIDATES_MAX {
            let selected = self.selected;
            let is_spare = |known: &Candidate| {
                known.source == CandidateSource::Seen
                    && known.round_trip.is_none()
                    && selected != Some(known.address)
            };
            let Some(spare) = self.candidates.iter().position(is_spare) else { return false };
            self.candidates.remove(spare);
        }
        self.candidates.push(Candidate {
            address,
            source,
            is_due: false,
            probe: None,
            round_trip: None,
            better: 0,
        });
        true
    }

    fn candidate(&self, address: SocketAddr) -> Option<&Candidate> {
        self.candidates.iter().find(|known| known.address == address)
    }

    fn candidate_mut(&mut self, address: SocketAddr) -> Option<&mut Candidate> {
        self.candidates.iter_mut().find(|known| known.address == address)
    }
}

#[cfg(test)]
#[path = "path_selector/tests.rs"]
mod tests;
