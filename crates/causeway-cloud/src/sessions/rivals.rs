//! Notices two processes that use one identity by turns: an edge and a copy of its data dir.
//!
//! A hello names its process. A process that takes the session again after another one had it is a rival: a
//! restart brings a new process and never an old one back. Pure; the time is an argument.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

/// Takeovers are told for this long after the last one.
const REMEMBERED: Duration = Duration::from_secs(10 * 60);
/// Processes of one gateway that are remembered; a third copy is no better than a second.
const PROCESSES_MAX: usize = 4;
/// Gateways that are remembered. Beyond it the memory begins anew: only the count is lost.
const GATEWAYS_MAX: usize = 100_000;

/// The processes of gateways.
#[derive(Default)]
pub struct Rivals {
    gateways: HashMap<String, Seen>,
}

#[derive(Default)]
struct Seen {
    /// The newest last, each with where it dialled from.
    processes: VecDeque<(u128, String)>,
    takeovers: u64,
    last: Option<Instant>,
}

/// Two processes that use one identity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rivalry {
    /// The number of times that a process reconnected after another one.
    pub takeovers: u64,
    /// Addresses from which the processes dialled.
    pub addresses: Vec<String>,
}

impl Rivals {
    /// A process of a gateway has begun a session.
    pub fn handle_session(&mut self, gateway: &str, process: u128, address: String, now: Instant) {
        if !self.gateways.contains_key(gateway) && self.gateways.len() >= GATEWAYS_MAX {
            self.gateways.clear();
        }
        let seen = self.gateways.entry(gateway.to_owned()).or_default();
        if seen.last.is_some_and(|last| now.saturating_duration_since(last) > REMEMBERED) {
            *seen = Seen::default();
        }
        let before = seen.processes.iter().position(|(known, _)| *known == process);
        match before {
            // The same process again, over another link.
            Some(place) if place + 1 == seen.processes.len() => {
                seen.processes.remove(place);
            }
            Some(place) => {
                seen.processes.remove(place);
                seen.takeovers += 1;
                seen.last = Some(now);
            }
            None => {}
        }
        seen.processes.push_back((process, address));
        if seen.processes.len() > PROCESSES_MAX {
            seen.processes.pop_front();
        }
    }

    /// None: one process at a time, as it should be.
    pub fn of(&self, gateway: &str, now: Instant) -> Option<Rivalry> {
        let seen = self.gateways.get(gateway)?;
        let last = seen.last.filter(|last| now.saturating_duration_since(*last) <= REMEMBERED);
        last.map(|_| {
            let addresses = seen.processes.iter().rev().take(2).map(|(_, address)| address.clone());
            Rivalry { takeovers: seen.takeovers, addresses: addresses.collect() }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_process_that_comes_back_is_a_rival() {
        let start = Instant::now();
        let check = |processes: &[u128], expected: Option<u64>| {
            let mut rivals = Rivals::default();
            for process in processes {
                rivals.handle_session("oslo", *process, format!("10.0.0.{process}"), start);
            }
            assert_eq!(rivals.of("oslo", start).map(|found| found.takeovers), expected, "{processes:?}");
        };
        check(&[], None);
        check(&[1, 1, 1], None);
        // Restarts, and a machine that was put back from an image once.
        check(&[1, 2, 3, 4, 5, 6], None);
        check(&[1, 2, 1], Some(1));
        check(&[1, 2, 2, 1, 2], Some(2));
        check(&[1, 2, 3, 1], Some(1));
    }

    #[test]
    fn what_is_over_is_forgotten_and_both_places_are_named() {
        let (start, mut rivals) = (Instant::now(), Rivals::default());
        for process in [1, 2, 1] {
            rivals.handle_session("oslo", process, format!("10.0.0.{process}"), start);
        }
        let found = rivals.of("oslo", start + REMEMBERED).unwrap();
        assert_eq!(found, Rivalry { takeovers: 1, addresses: vec!["10.0.0.1".into(), "10.0.0.2".into()] });
        let later = start + REMEMBERED + Duration::from_secs(1);
        assert_eq!(rivals.of("oslo", later), None);
        rivals.handle_session("oslo", 2, "10.0.0.2".into(), later);
        assert_eq!(rivals.of("oslo", later), None, "the count begins anew");
        assert_eq!(rivals.of("rome", start), None);
    }
}
