//! Limits the rate at which one gateway fills the journal: a token bucket of bytes for each. Pure, with the
//! time as an argument.
//!
//! A gateway that sends more waits for its acknowledgement; its records stay in its own queue meanwhile, and no other gateway waits.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Some 8,000 records a second of one gateway, for as long as it likes.
const BYTES_PER_SECOND: u64 = 4 << 20;
/// The records of an hour that waited at an edge may come at once.
const BURST_BYTES: u64 = 32 << 20;
/// Gateways remembered; beyond it those that have not sent for long are forgotten.
const GATEWAYS_MAX: usize = 4096;

#[derive(Debug, Default)]
pub struct Paces {
    gateways: HashMap<String, Bucket>,
}

#[derive(Debug)]
struct Bucket {
    /// The used part of the burst.
    used: u64,
    last: Instant,
}

impl Paces {
    /// Takes `bytes` from the bucket, and returns the time to wait before they may be written.
    pub fn take(&mut self, gateway: &str, bytes: u64, now: Instant) -> Duration {
        if self.gateways.len() >= GATEWAYS_MAX && !self.gateways.contains_key(gateway) {
            self.gateways.retain(|_, bucket| bucket.level(now) > 0);
        }
        let bucket = match self.gateways.get_mut(gateway) {
            Some(bucket) => bucket,
            None => self.gateways.entry(gateway.to_owned()).or_insert(Bucket { used: 0, last: now }),
        };
        bucket.used = bucket.level(now).saturating_add(bytes);
        bucket.last = now;
        let over = bucket.used.saturating_sub(BURST_BYTES);
        Duration::from_millis(over.saturating_mul(1000) / BYTES_PER_SECOND)
    }
}

impl Bucket {
    fn level(&self, now: Instant) -> u64 {
        let passed = now.saturating_duration_since(self.last).as_millis();
        let freed = u64::try_from(passed).unwrap_or(u64::MAX).saturating_mul(BYTES_PER_SECOND) / 1000;
        self.used.saturating_sub(freed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gateway_that_floods_waits_and_others_do_not() {
        let (mut paces, start) = (Paces::default(), Instant::now());
        assert_eq!(paces.take("flood", BURST_BYTES, start), Duration::ZERO);
        assert_eq!(paces.take("flood", BYTES_PER_SECOND, start), Duration::from_secs(1));
        assert_eq!(paces.take("quiet", 60 << 10, start), Duration::ZERO);
        assert_eq!(paces.take("flood", 0, start + Duration::from_secs(1)), Duration::ZERO, "paid off");
        let later = start + Duration::from_secs(60);
        for number in 0..10_000 {
            paces.take(&number.to_string(), 1, later + Duration::from_secs(number));
        }
        assert!(paces.gateways.len() <= GATEWAYS_MAX);
    }
}
