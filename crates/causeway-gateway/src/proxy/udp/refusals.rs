//! Remembers clients that were refused recently, so that a client that continues to send creates one record
//! and not thousands.
//!
//! A refusal is removed after a while, and at once when the netmap changes: it may be allowed now. Time is
//! passed in.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use causeway_netmap::Generation;

/// The interval of records for a refused client.
pub const REFUSED: Duration = Duration::from_secs(10);
/// The retry interval for a client whose session failed before any reply: the site or the backend may be
/// back.
pub const FAILED: Duration = Duration::from_secs(1);
/// Clients beyond this number are refused and counted as well, but not recorded.
const CLIENTS_MAX: usize = 1024;

/// The refusals of one presence.
#[derive(Default, Debug)]
pub struct RecentRefusals {
    generation: Generation,
    until: HashMap<IpAddr, Instant>,
}

impl RecentRefusals {
    /// Tells whether this client was refused under the same netmap, and the refusal is still remembered.
    pub fn holds(&mut self, client: IpAddr, generation: Generation, now: Instant) -> bool {
        if self.generation != generation {
            self.until.clear();
            self.generation = generation;
        }
        self.until.get(&client).is_some_and(|until| now < *until)
    }

    /// Adds a refusal. Returns whether it should be recorded.
    pub fn add(&mut self, client: IpAddr, now: Instant, remembered: Duration) -> bool {
        if self.until.len() >= CLIENTS_MAX {
            self.until.retain(|_, until| now < *until);
        }
        if self.until.len() >= CLIENTS_MAX {
            return false;
        }
        self.until.insert(client, now + remembered);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_recorded_once_in_a_while() {
        let (mut refusals, now) = (RecentRefusals::default(), Instant::now());
        let first = Generation { epoch: 1, revision: 1 };
        let client = |number: u32| IpAddr::from(number.to_be_bytes());
        assert!(!refusals.holds(client(1), first, now));
        assert!(refusals.add(client(1), now, REFUSED));
        assert!(refusals.holds(client(1), first, now + REFUSED / 2));
        assert!(!refusals.holds(client(2), first, now));
        assert!(!refusals.holds(client(1), first, now + REFUSED));
        // Another netmap may allow the client.
        assert!(!refusals.holds(client(1), Generation { epoch: 1, revision: 2 }, now));

        let recorded = (0..5000).filter(|number| refusals.add(client(*number), now, REFUSED)).count();
        assert_eq!(recorded, CLIENTS_MAX);
        assert!(refusals.add(client(9999), now + REFUSED, FAILED));
    }
}
