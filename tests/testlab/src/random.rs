//! Pseudo-random numbers for tests: the same seed gives the same numbers everywhere.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// SplitMix64 (Steele, Lea, Flood 2014): small, and even enough to choose moments, losses and faults.
#[derive(Debug, Clone)]
pub struct SeededRandom(u64);

impl SeededRandom {
    pub fn new(seed: u64) -> SeededRandom {
        // Neighbouring seeds must not begin alike.
        SeededRandom(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5bf0_3635)
    }

    /// A generator whose seed is `seed(name)`.
    pub fn for_test(name: &str) -> SeededRandom {
        SeededRandom::new(SeededRandom::seed(name))
    }

    /// CAUSEWAY_SEED when it is set, else another one every time; printed either way.
    pub fn seed(name: &str) -> u64 {
        let chosen = std::env::var("CAUSEWAY_SEED").ok().and_then(|text| text.parse().ok());
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let seed = chosen.unwrap_or(now.subsec_nanos().into());
        eprintln!("{name}: CAUSEWAY_SEED={seed}");
        seed
    }

    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// From 0 to `bound`, which is excluded.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.number() % bound.max(1)
    }

    /// From 0 to 1.
    pub fn fraction(&mut self) -> f64 {
        (self.number() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// True in `share` of all cases: 0.0 never, 1.0 always.
    pub fn chance(&mut self, share: f64) -> bool {
        self.fraction() < share
    }

    /// True in `percent` of a hundred cases.
    pub fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// True in one of `times` cases.
    pub fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// From 0 to `most`.
    pub fn within(&mut self, most: Duration) -> Duration {
        Duration::from_micros(self.below(most.as_micros() as u64 + 1))
    }

    /// A number of milliseconds; both bounds are included.
    pub fn millis(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(from + self.below(to - from + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_numbers_and_bounds_hold() {
        let numbers = |seed| {
            let mut random = SeededRandom::new(seed);
            (0..100).map(|_| random.number()).collect::<Vec<u64>>()
        };
        assert_eq!(numbers(7), numbers(7));
        assert_ne!(numbers(7), numbers(8));
        let mut random = SeededRandom::new(1);
        for _ in 0..1_000 {
            assert!(random.below(3) < 3 && (0.0..1.0).contains(&random.fraction()));
            assert!((Duration::from_millis(2)..=Duration::from_millis(4)).contains(&random.millis(2, 4)));
            assert!(random.within(Duration::from_micros(5)) <= Duration::from_micros(5));
            assert!(random.chance(1.0) && !random.chance(0.0) && random.one_in(1));
        }
        assert_eq!(random.below(0), 0);
    }
}
