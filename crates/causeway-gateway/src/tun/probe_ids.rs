//! Identifiers of probes, which no peer can guess.
//!
//! A reply shows that the probe has arrived at the address under test. A peer that knew the identifier of a probe that it
//! did not receive could name the address of a stranger as its own, reply by another way, and turn packets to that address.

use std::hash::{BuildHasher, RandomState};

/// The identifiers of one prober: a keyed hash (SipHash) of a counter.
#[derive(Default, Debug)]
pub struct ProbeIds {
    key: RandomState,
    count: u64,
}

impl ProbeIds {
    /// Returns the next identifier, which is neither 0 nor has the highest bit: both have a meaning of their own.
    pub fn next_id(&mut self) -> u32 {
        loop {
            self.count = self.count.wrapping_add(1);
            let id = (self.key.hash_one(self.count) >> 33) as u32;
            if id != 0 {
                return id;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::tun::path_monitor::PathMonitor;
    use crate::tun::path_selector::{CandidateSource, PathSelector};

    #[test]
    fn identifiers_are_in_no_order_and_differ_between_probers() {
        let (mut one, mut other) = (ProbeIds::default(), ProbeIds::default());
        let ids: Vec<u32> = (0..1000).map(|_| one.next_id()).collect();
        assert!(ids.iter().all(|id| *id > 0 && *id < 1 << 31));
        assert!(ids.iter().collect::<HashSet<_>>().len() > 990);
        assert!(ids.windows(2).filter(|pair| pair[1].abs_diff(pair[0]) < 1000).count() < 10);
        assert_ne!(ids[..8], (0..8).map(|_| other.next_id()).collect::<Vec<_>>());
    }

    #[test]
    fn a_peer_cannot_guess_the_identifier_of_a_probe_that_it_did_not_receive() {
        let now = std::time::Instant::now();
        let first_ids = |_| {
            let mut selector = PathSelector::new(now);
            let stranger: std::net::SocketAddr = ([192, 0, 2, 1], 53).into();
            selector.follow(CandidateSource::Told, [stranger], now);
            let probe = selector.next_probe(now, true).unwrap();
            (probe.id, PathMonitor::new(1420, now).handle_time(now, true).unwrap().id)
        };
        let ids: Vec<(u32, u32)> = (0..8).map(first_ids).collect();
        assert!(ids.iter().any(|(id, _)| *id != ids[0].0), "of path_selector: {ids:?}");
        assert!(ids.iter().any(|(_, id)| *id != ids[0].1), "of path_monitor: {ids:?}");
    }
}
