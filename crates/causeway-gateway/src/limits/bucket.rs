//! A token bucket, with the time as an argument.
//!
//! `try_take` is for traffic that is refused over the rate, `reserve` for traffic that waits. The rate can
//! change at any time and is therefore no part of the bucket. Written by hand because the usual crates
//! support neither rates above a byte per nanosecond, nor debts, nor rates that change.

use std::time::{Duration, Instant};

/// A rate, and the burst that may pass at once after a pause.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct BucketRate {
    per_second: f64,
    burst: f64,
}

impl BucketRate {
    /// A burst is at least one, however low the rate is: otherwise nothing would ever pass.
    pub fn new(per_second: u64, burst: Duration) -> BucketRate {
        let per_second = per_second as f64;
        BucketRate { per_second, burst: (per_second * burst.as_secs_f64()).max(1.0) }
    }

    fn is_zero(self) -> bool {
        self.per_second <= 0.0
    }

    fn time_for(self, amount: f64) -> Duration {
        Duration::try_from_secs_f64(amount / self.per_second).unwrap_or(Duration::MAX)
    }
}

#[derive(Clone, Copy, Default, Debug)]
pub struct TokenBucket {
    tokens: f64,
    /// None: nothing has been taken yet, so the bucket is full.
    filled: Option<Instant>,
}

impl TokenBucket {
    /// Takes `amount`, or returns the time after which to retry. None: never.
    pub fn try_take(&mut self, amount: u64, rate: BucketRate, now: Instant) -> Result<(), Option<Duration>> {
        if rate.is_zero() {
            return Err(None);
        }
        self.fill(rate, now);
        let missing = amount as f64 - self.tokens;
        if missing > ROUNDING_TOLERANCE {
            return Err(Some(rate.time_for(missing)));
        }
        self.tokens -= amount as f64;
        Ok(())
    }

    /// Takes `amount` unconditionally and returns the wait before it may be used: later callers wait longer.
    /// None: nothing is taken, because the rate is zero.
    pub fn reserve(&mut self, amount: u64, rate: BucketRate, now: Instant) -> Option<Duration> {
        if rate.is_zero() {
            return None;
        }
        self.fill(rate, now);
        self.tokens -= amount as f64;
        Some(if self.tokens < 0.0 { rate.time_for(-self.tokens) } else { Duration::ZERO })
    }

    /// Returns tokens that were taken and not used.
    pub fn give_back(&mut self, amount: u64) {
        self.tokens += amount as f64;
    }

    fn fill(&mut self, rate: BucketRate, now: Instant) {
        self.tokens = match self.filled {
            None => rate.burst,
            Some(filled) => {
                let gained = now.saturating_duration_since(filled).as_secs_f64() * rate.per_second;
                (self.tokens + gained).min(rate.burst)
            }
        };
        // Threads may pass their times out of order.
        self.filled = Some(self.filled.map_or(now, |filled| filled.max(now)));
    }
}

/// Tolerance for rounding: many small additions do not add up exactly.
const ROUNDING_TOLERANCE: f64 = 1e-6;

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Counts the arrivals, one every `every`, that are admitted within ten seconds.
    fn admitted(per_second: u64, burst: Duration, every: Duration) -> u64 {
        let (begin, rate, mut bucket) =
            (Instant::now(), BucketRate::new(per_second, burst), TokenBucket::default());
        let mut count = 0;
        let mut passed = Duration::ZERO;
        while passed < SECOND * 10 {
            count += u64::from(bucket.try_take(1, rate, begin + passed).is_ok());
            passed += every;
        }
        count
    }

    #[test]
    fn no_more_than_the_rate_and_the_burst_are_let_in() {
        let half = SECOND / 2;
        for rate in [1, 2, 3, 10, 50, 333] {
            let count = admitted(rate, half, Duration::from_micros(317));
            assert!(count >= rate * 10 && count * 10 <= rate * 110, "{rate}/s: {count} in ten seconds");
        }
        // Arrivals at exactly the rate are never refused.
        assert_eq!(admitted(10, half, SECOND / 10), 100);
        assert_eq!(admitted(0, half, SECOND / 10), 0);
    }

    #[test]
    fn whoever_is_refused_knows_when_to_come_again() {
        let (now, rate, mut bucket) =
            (Instant::now(), BucketRate::new(4, SECOND / 4), TokenBucket::default());
        assert_eq!(bucket.try_take(1, rate, now), Ok(()));
        let wait = bucket.try_take(1, rate, now).unwrap_err().unwrap();
        assert_eq!(wait, SECOND / 4);
        assert!(bucket.try_take(1, rate, now + wait - Duration::from_millis(1)).is_err());
        assert_eq!(bucket.try_take(1, rate, now + wait), Ok(()));
        assert_eq!(bucket.try_take(1, BucketRate::new(0, SECOND), now + SECOND * 100), Err(None));
    }

    #[test]
    fn whoever_reserves_later_waits_longer() {
        let (now, rate, mut bucket) =
            (Instant::now(), BucketRate::new(1000, SECOND / 10), TokenBucket::default());
        let waits: Vec<_> = (0..4).map(|_| bucket.reserve(100, rate, now).unwrap().as_millis()).collect();
        assert_eq!(waits, [0, 100, 200, 300]);
        // A time that goes backwards adds no tokens twice.
        assert_eq!(bucket.reserve(100, rate, now - SECOND).unwrap().as_millis(), 400);
        bucket.give_back(100);
        assert_eq!(bucket.reserve(100, rate, now + SECOND / 10).unwrap().as_millis(), 300);
        assert_eq!(bucket.reserve(100, BucketRate::new(0, SECOND), now), None);
    }

    #[test]
    fn a_new_rate_is_in_force_at_once() {
        let (now, mut bucket) = (Instant::now(), TokenBucket::default());
        bucket.reserve(10_000_000, BucketRate::new(100_000_000, SECOND / 10), now);
        let slow = BucketRate::new(100, SECOND / 10);
        let later = now + SECOND * 60;
        assert_eq!(bucket.reserve(10, slow, later), Some(Duration::ZERO));
        assert_eq!(bucket.reserve(10, slow, later).unwrap().as_millis(), 100);
    }
}
