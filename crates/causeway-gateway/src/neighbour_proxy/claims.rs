//! The addresses that a gateway answers for at one interface: which are probed, held, or taken by a host of the LAN. Pure.
//!
//! Input: the plan, messages of the LAN and the time. Output: answers, probes and announcements. State is kept per
//! address of the plan alone; messages of hosts add none. Messages are read and written by `message`.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::message::{self, HardwareAddress, NeighbourFrame, NeighbourMessage, NeighbourQuestion};
use super::plan::AnsweredAddresses;

/// Probes of an address before it is answered, and the time between them. A host on a LAN answers within milliseconds.
/// RFC 5227 waits for seconds, which a failover has not.
const PROBES: u8 = 3;
const PROBE_PERIOD: Duration = Duration::from_millis(100);
/// Announcements after the probes, and the time between them (RFC 5227, 1.1).
const ANNOUNCEMENTS: u8 = 2;
const ANNOUNCE_PERIOD: Duration = Duration::from_secs(2);
/// Time after which an address that a host of the LAN had is probed again.
const TAKEN_PERIOD: Duration = Duration::from_secs(30);
/// Probes and announcements sent at once, and the time until the next ones, so that many presences flood no LAN.
const BATCH_MAX: usize = 64;
const BATCH_PERIOD: Duration = Duration::from_millis(10);
/// Answers per second at one interface. Hosts ask again after a second.
const ANSWERS_PER_SECOND: u32 = 1000;

/// The claims at one interface, of one family.
pub struct NeighbourClaims {
    own: HardwareAddress,
    answered: AnsweredAddresses,
    claims: BTreeMap<IpAddr, Claim>,
    /// Addresses of known hosts in networks, which wait for their announcement.
    announced: VecDeque<IpAddr>,
    /// The next batch is not sent before.
    batch_at: Option<Instant>,
    /// No probe or announcement is due before. None: until a message or a plan arrives.
    due_at: Option<Instant>,
    /// An address was won or lost since `take_change`.
    is_changed: bool,
    /// The time at which the whole burst of answers is available again (GCRA).
    burst_full_at: Option<Instant>,
}

enum Claim {
    /// The address is not answered yet.
    Probing {
        sent: u8,
        next: Instant,
        is_takeover: bool,
    },
    Held {
        announcements: u8,
        next: Option<Instant>,
    },
    /// A host of the LAN has the address.
    Taken {
        by: HardwareAddress,
        probe_at: Instant,
    },
}

impl NeighbourClaims {
    pub fn new(own: HardwareAddress) -> NeighbourClaims {
        NeighbourClaims {
            own,
            answered: AnsweredAddresses::default(),
            claims: BTreeMap::new(),
            announced: VecDeque::new(),
            batch_at: None,
            due_at: None,
            is_changed: false,
            burst_full_at: None,
        }
    }

    /// Takes a new plan. Addresses that stay keep their state.
    pub fn follow(&mut self, answered: AnsweredAddresses, now: Instant) {
        self.claims.retain(|address, _| answered.addresses.contains(address));
        for address in &answered.addresses {
            let probing = Claim::Probing { sent: 0, next: now, is_takeover: true };
            self.claims.entry(*address).or_insert(probing);
        }
        self.announced.retain(|address| answered.hosts.contains(address));
        self.announced.extend(answered.hosts.difference(&self.answered.hosts));
        self.answered = answered;
        (self.due_at, self.is_changed) = (self.earliest(now), true);
    }

    /// Takes a message of the LAN, and returns the answer to it.
    pub fn handle(&mut self, message: &NeighbourMessage, now: Instant) -> Option<NeighbourFrame> {
        if let Some((address, hardware)) = message.claim {
            self.handle_claim(address, hardware, now);
        }
        let question = message.question.as_ref()?;
        self.is_answered(question).then_some(())?;
        self.take_answer(now).then_some(())?;
        message::answer(question, self.own)
    }

    /// Returns the probes and announcements that are due. Call it again at `next_due`.
    pub fn due(&mut self, now: Instant) -> Vec<NeighbourFrame> {
        let mut frames = Vec::new();
        // A message of the LAN looks at no claim but its own.
        if self.due_at.is_none_or(|at| at > now) {
            return frames;
        }
        for (address, claim) in &mut self.claims {
            if frames.len() == BATCH_MAX {
                break;
            }
            let before = std::mem::discriminant(claim);
            frames.extend(claim.step(*address, self.own, now));
            self.is_changed |= before != std::mem::discriminant(claim);
        }
        while frames.len() < BATCH_MAX {
            let Some(address) = self.announced.pop_front() else { break };
            frames.extend(message::announcement(address, self.own));
        }
        self.batch_at = (frames.len() == BATCH_MAX).then(|| now + BATCH_PERIOD);
        self.due_at = self.earliest(now);
        frames
    }

    /// Returns the time of the next probe or announcement. None: nothing is due until a message or a plan arrives.
    pub fn next_due(&self) -> Option<Instant> {
        self.due_at
    }

    /// Tells whether `held` or `taken` may have changed since the last call.
    pub fn take_change(&mut self) -> bool {
        std::mem::take(&mut self.is_changed)
    }

    fn earliest(&self, now: Instant) -> Option<Instant> {
        let claims = self.claims.values().filter_map(Claim::next);
        let announced = (!self.announced.is_empty()).then_some(now);
        let first = claims.chain(announced).min()?;
        Some(self.batch_at.map_or(first, |at| at.max(first)))
    }

    /// The number of addresses that are answered, and of whole networks.
    pub fn held(&self) -> (usize, usize) {
        let held = self.claims.values().filter(|claim| matches!(claim, Claim::Held { .. })).count();
        (held, self.answered.networks.len())
    }

    /// The addresses that hosts of the LAN have, with the hardware address of the host.
    pub fn conflicts(&self) -> impl Iterator<Item = (IpAddr, HardwareAddress)> {
        self.claims.iter().filter_map(|(address, claim)| match claim {
            Claim::Taken { by, .. } => Some((*address, *by)),
            _ => None,
        })
    }

    fn is_answered(&self, question: &NeighbourQuestion) -> bool {
        if question.is_takeover || question.hardware == self.own {
            return false;
        }
        let is_held = matches!(self.claims.get(&question.target), Some(Claim::Held { .. }));
        is_held || (!self.claims.contains_key(&question.target) && self.is_of_network(question.target))
    }

    fn is_of_network(&self, address: IpAddr) -> bool {
        self.answered.is_in_network(address)
    }

    /// A host of the LAN has the address, or another gateway of the site has become active.
    fn handle_claim(&mut self, address: IpAddr, by: HardwareAddress, now: Instant) {
        if by == self.own {
            return;
        }
        if let Some(claim) = self.claims.get_mut(&address) {
            self.is_changed |= !matches!(claim, Claim::Taken { by: known, .. } if *known == by);
            let probe_at = now + TAKEN_PERIOD;
            *claim = Claim::Taken { by, probe_at };
            self.due_at = Some(self.due_at.map_or(probe_at, |at| at.min(probe_at)));
        }
    }

    fn take_answer(&mut self, now: Instant) -> bool {
        let full_at = self.burst_full_at.unwrap_or(now).max(now);
        let is_free = full_at - now < Duration::from_secs(1);
        if is_free {
            self.burst_full_at = Some(full_at + Duration::from_secs(1) / ANSWERS_PER_SECOND);
        }
        is_free
    }
}

impl Claim {
    fn next(&self) -> Option<Instant> {
        match self {
            Claim::Probing { next, .. } => Some(*next),
            Claim::Held { next, .. } => *next,
            Claim::Taken { probe_at, .. } => Some(*probe_at),
        }
    }

    /// Does what is due, and returns the frame for it.
    fn step(&mut self, address: IpAddr, own: HardwareAddress, now: Instant) -> Option<NeighbourFrame> {
        if self.next().is_none_or(|next| next > now) {
            return None;
        }
        match self {
            // The probe has no mark: another gateway that is active defends the address.
            Claim::Taken { .. } => {
                *self = Claim::Probing { sent: 1, next: now + PROBE_PERIOD, is_takeover: false };
                message::probe(address, own, false)
            }
            Claim::Probing { sent, next, is_takeover } if *sent < PROBES => {
                *sent += 1;
                *next = now + PROBE_PERIOD;
                message::probe(address, own, *is_takeover)
            }
            Claim::Probing { .. } => {
                *self = Claim::Held { announcements: 1, next: Some(now + ANNOUNCE_PERIOD) };
                message::announcement(address, own)
            }
            Claim::Held { announcements, next } => {
                *announcements += 1;
                *next = (*announcements < ANNOUNCEMENTS).then(|| now + ANNOUNCE_PERIOD);
                message::announcement(address, own)
            }
        }
    }
}

#[cfg(test)]
mod tests;
