//! Drops repeated lines while journals are read: those of a crash between journal and cursor, and those that two
//! replicas both wrote.
//!
//! Remembers, per queue, which numbers it has seen, as ranges: numbers come almost in order, so that is little.

use std::collections::{BTreeMap, HashMap};

/// Put every line in front of it once, in any order.
#[derive(Debug, Default)]
pub struct LineDeduplicator {
    /// Per queue: where each range begins, and its last number.
    seen: HashMap<String, BTreeMap<u64, u64>>,
}

impl LineDeduplicator {
    /// Returns true if the line is new. Lines without a queue and a number are always new.
    pub fn is_new(&mut self, queue: &str, seq: u64) -> bool {
        let ranges = match self.seen.get_mut(queue) {
            Some(ranges) => ranges,
            None => self.seen.entry(queue.to_owned()).or_default(),
        };
        let before = ranges.range(..=seq).next_back().map(|(first, last)| (*first, *last));
        if before.is_some_and(|(_, last)| seq <= last) {
            return false;
        }
        let first = match before {
            Some((first, last)) if last + 1 == seq => first,
            _ => seq,
        };
        let last = seq.checked_add(1).and_then(|next| ranges.remove(&next)).unwrap_or(seq);
        ranges.insert(first, last);
        true
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ranges_grow_together() {
        let mut repeats = LineDeduplicator::default();
        for seq in [1, 2, 5, 4, 3, u64::MAX] {
            assert!(repeats.is_new("a", seq), "{seq}");
            assert!(!repeats.is_new("a", seq), "{seq}");
        }
        assert_eq!(repeats.seen["a"].iter().collect::<Vec<_>>(), [(&1, &5), (&u64::MAX, &u64::MAX)]);
        assert!(repeats.is_new("b", 1));
    }

    proptest! {
        #[test]
        fn it_says_what_a_set_says(numbers in proptest::collection::vec(1u64..40, 0..200)) {
            let (mut repeats, mut set) = (LineDeduplicator::default(), std::collections::HashSet::new());
            for seq in numbers {
                prop_assert_eq!(repeats.is_new("q", seq), set.insert(seq));
            }
        }
    }
}
