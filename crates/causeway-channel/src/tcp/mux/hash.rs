//! Hash function for the table of streams.
//!
//! Each small message is looked up about ten times on its way through a link. Stream numbers need less than
//! the standard hash: two multiplications, seeded with a secret per link, so that a peer cannot choose
//! colliding numbers.

use std::hash::{BuildHasher, Hasher, RandomState};

#[derive(Debug, Clone)]
pub struct NumberHash {
    secret: u64,
}

impl Default for NumberHash {
    fn default() -> NumberHash {
        NumberHash { secret: RandomState::new().hash_one(()) }
    }
}

impl BuildHasher for NumberHash {
    type Hasher = NumberHasher;

    fn build_hasher(&self) -> NumberHasher {
        NumberHasher(self.secret)
    }
}

pub struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn write_u32(&mut self, number: u32) {
        // The table uses the lowest and the highest bits, so every input bit must affect both. The factors
        // are those of the final step of MurmurHash3.
        let mut hash = self.0 ^ u64::from(number);
        hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        hash = (hash ^ (hash >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        self.0 = hash ^ (hash >> 33);
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u32(u32::from(*byte)));
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};

    use super::*;

    #[test]
    fn numbers_that_follow_each_other_stand_apart() {
        // Streams of one end are all odd or all even, and may be far apart when old ones have ended.
        for step in [1, 2, 64, 1024, 65_536] {
            let hash = NumberHash::default();
            let hashes: Vec<u64> = (0..4096u32).map(|number| hash.hash_one(number * step)).collect();
            for (name, part) in [("low", 0), ("high", 52)] {
                let places: HashSet<u64> = hashes.iter().map(|hash| (hash >> part) & 0xfff).collect();
                // 4,096 random values into 4,096 buckets hit 2,589 of them.
                assert!(places.len() > 2400, "{name} bits, step {step}: {} places", places.len());
            }
        }
    }

    #[test]
    fn links_differ() {
        let (one, other) = (NumberHash::default(), NumberHash::default());
        let same = (0..100u32).filter(|number| one.hash_one(number) == other.hash_one(number)).count();
        assert!(same <= 1, "{same} of 100 stand at the same place");
    }

    #[test]
    fn a_table_with_it_is_a_table() {
        let table: HashMap<u32, u32, NumberHash> = (0..10_000).map(|number| (number, number + 1)).collect();
        assert!((0..10_000u32).all(|number| table.get(&number) == Some(&(number + 1))));
        assert_eq!(table.len(), 10_000);
    }
}
