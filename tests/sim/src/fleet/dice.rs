//! The one source of chance. Same seed, same throws.

/// SplitMix64: small, and good enough to be unfair in every way.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Dice {
        Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5ca1_ab1e)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// From 0 to `sides` - 1.
    pub fn roll(&mut self, sides: u64) -> u64 {
        self.next() % sides.max(1)
    }

    /// Inside a range of milliseconds.
    pub fn millis(&mut self, from: u64, to: u64) -> std::time::Duration {
        std::time::Duration::from_millis(from + self.roll(to - from + 1))
    }

    /// True with that chance in a hundred.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.roll(100) < percent
    }

    /// From 0 to 1.
    pub fn fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}
