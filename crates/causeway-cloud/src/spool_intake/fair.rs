//! Decides which lines a journal that is too large drops: the gateways with most lines lose theirs first, so that no gateway
//! displaces the records of another.
//!
//! Max-min fairness at two levels: between gateways, and between the clients of a gateway that has more than its share. Pure;
//! `compact` counts and carries out. A gateway's name comes from its certificate, so it cannot have two shares.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

/// The number of groups in which clients of a gateway are counted, by a hash. It bounds the names that a gateway reports.
pub const CLIENT_GROUPS: usize = 256;

/// The level up to which every gateway keeps its bytes, so that the sum is at most `budget`. `u64::MAX`: all fits.
pub fn level(uses: impl IntoIterator<Item = u64>, budget: u64) -> u64 {
    let mut uses: Vec<u64> = uses.into_iter().collect();
    uses.sort_unstable();
    let mut rest = budget;
    for (place, bytes) in uses.iter().enumerate() {
        let share = rest / (uses.len() - place) as u64;
        if *bytes > share {
            return share;
        }
        rest -= bytes;
    }
    u64::MAX
}

/// The group that a client is counted in.
pub fn group(client: &str) -> usize {
    let mut hasher = DefaultHasher::new();
    client.hash(&mut hasher);
    (hasher.finish() % CLIENT_GROUPS as u64) as usize
}

/// The number of bytes that each group of clients of each gateway gives up, oldest first.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Cuts {
    bytes: HashMap<String, Vec<u64>>,
}

impl Cuts {
    /// `clients` has the bytes of every group of those gateways that are above `gateway_level`.
    pub fn new(clients: HashMap<String, Vec<u64>>, gateway_level: u64) -> Cuts {
        let cut = |groups: Vec<u64>| {
            let level = level(groups.iter().copied(), gateway_level);
            groups.into_iter().map(|bytes| bytes.saturating_sub(level)).collect()
        };
        Cuts { bytes: clients.into_iter().map(|(gateway, groups)| (gateway, cut(groups))).collect() }
    }

    /// Returns true if a line of this length is given up. Lines are passed from the oldest on.
    pub fn takes(&mut self, gateway: &str, group: usize, length: u64) -> bool {
        let left = self.bytes.get_mut(gateway).and_then(|groups| groups.get_mut(group));
        match left {
            Some(left) if *left > 0 => {
                *left = left.saturating_sub(length);
                true
            }
            _ => false,
        }
    }

    pub fn is_done(&self) -> bool {
        self.bytes.values().flatten().all(|left| *left == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_who_have_most_give_first() {
        let check = |uses: &[u64], budget: u64, expected: u64| {
            let found = level(uses.iter().copied(), budget);
            assert_eq!(found, expected, "{uses:?} {budget}");
            let kept: u64 = uses.iter().map(|bytes| (*bytes).min(found)).sum();
            assert!(kept <= budget, "{uses:?} {budget}: {kept}");
        };
        check(&[], 10, u64::MAX);
        check(&[1, 2, 3], 6, u64::MAX);
        check(&[1, 2, 100], 50, 47);
        check(&[100, 100, 1], 51, 25);
        check(&[5, 5], 0, 0);
        check(&[u64::MAX, 7], 10, 5);
    }

    #[test]
    fn within_a_gateway_the_client_that_has_most_gives_first() {
        let mut groups = vec![0; CLIENT_GROUPS];
        (groups[3], groups[9]) = (1000, 50);
        let mut cuts = Cuts::new(HashMap::from([("gw".to_owned(), groups)]), 500);
        assert!(!cuts.takes("gw", 9, 10) && !cuts.takes("other", 3, 10));
        let taken = (0..100).filter(|_| cuts.takes("gw", 3, 10)).count();
        assert_eq!((taken, cuts.is_done()), (55, true), "550 of 1,000 bytes, the oldest");
    }
}
