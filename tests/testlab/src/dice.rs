//! Chance that can be had again: a generator whose seed is printed.

use std::time::{SystemTime, UNIX_EPOCH};

/// Marsaglia's xorshift: random enough to spread moments and losses, and the same for the same seed everywhere.
#[derive(Debug, Clone)]
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Dice {
        // Neighbouring seeds must not begin alike, and zero would stay zero.
        Dice(seed.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// CAUSEWAY_SEED when it is set, else another one every time; printed either way.
    pub fn seed(what: &str) -> u64 {
        let chosen = std::env::var("CAUSEWAY_SEED").ok().and_then(|text| text.parse().ok());
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let seed = chosen.unwrap_or(now.subsec_nanos().into());
        eprintln!("{what}: CAUSEWAY_SEED={seed}");
        seed
    }

    /// From 0 to `below`, which is excluded.
    pub fn roll(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % below.max(1)
    }

    /// True in `share` of all cases: 0.0 never, 1.0 always.
    pub fn chance(&mut self, share: f64) -> bool {
        const PARTS: u64 = 1 << 20;
        (self.roll(PARTS) as f64) < share * PARTS as f64
    }
}
