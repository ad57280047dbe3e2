//! How much may pass per second: a token bucket, with the time as an argument.
//!
//! `try_take` is for what is refused when there is too much, `reserve` for what waits its turn. Rates can change at any moment: they
//! are no part of the bucket. Written by hand because the usual crates know neither rates above a byte per nanosecond, nor debts,
//! nor rates that change.

use std::time::{Duration, Instant};

/// A rate, and how much may pass at once after a silence.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct BucketRate {
    per_second: f64,
    burst: f64,
}

impl BucketRate {
    /// At least one passes at once, however slow the pace: else nothing ever would.
    pub fn new(per_second: u64, burst: Duration) -> BucketRate {
        let per_second = per_second as f64;
        BucketRate { per_second, burst: (per_second * burst.as_secs_f64()).max(1.0) }
    }

    fn is_nothing(self) -> bool {
        self.per_second <= 0.0
    }

    fn time_for(self, amount: f64) -> Duration {
        Duration::try_from_secs_f64(amount / self.per_second).unwrap_or(Duration::MAX)
    }
}

#[derive(Clone, Copy, Default, Debug)]
pub struct TokenBucket {
    tokens: f64,
    /// None: nothing has been taken yet, so it is full.
    filled: Option<Instant>,
}

impl TokenBucket {
    /// Takes one, or says after which time to come again. None: never.
    pub fn try_take(&mut self, amount: u64, pace: BucketRate, now: Instant) -> Result<(), Option<Duration>> {
        if pace.is_nothing() {
            return Err(None);
        }
        self.fill(pace, now);
        let missing = amount as f64 - self.tokens;
        if missing > SLACK {
            return Err(Some(pace.time_for(missing)));
        }
        self.tokens -= amount as f64;
        Ok(())
    }

    /// Takes so much in any case, and says how long to wait before it may be used: whoever comes later waits longer. None:
    /// nothing is taken, because nothing may pass.
    pub fn reserve(&mut self, amount: u64, pace: BucketRate, now: Instant) -> Option<Duration> {
        if pace.is_nothing() {
            return None;
        }
        self.fill(pace, now);
        self.tokens -= amount as f64;
        Some(if self.tokens < 0.0 { pace.time_for(-self.tokens) } else { Duration::ZERO })
    }

    /// What was taken and not used.
    pub fn give_back(&mut self, amount: u64) {
        self.tokens += amount as f64;
    }

    fn fill(&mut self, pace: BucketRate, now: Instant) {
        self.tokens = match self.filled {
            None => pace.burst,
            Some(filled) => {
                let gained = now.saturating_duration_since(filled).as_secs_f64() * pace.per_second;
                (self.tokens + gained).min(pace.burst)
            }
        };
        // Threads do not see the time in one order.
        self.filled = Some(self.filled.map_or(now, |filled| filled.max(now)));
    }
}

/// Many small gains do not add up exactly.
const SLACK: f64 = 1e-6;

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// How many of those who come every `every` are let in within ten seconds.
    fn let_in(per_second: u64, burst: Duration, every: Duration) -> u64 {
        let (begin, pace, mut bucket) =
            (Instant::now(), BucketRate::new(per_second, burst), TokenBucket::default());
        let mut count = 0;
        let mut passed = Duration::ZERO;
        while passed < SECOND * 10 {
            count += u64::from(bucket.try_take(1, pace, begin + passed).is_ok());
            passed += every;
        }
        count
    }

    #[test]
    fn no_more_than_the_rate_and_the_burst_are_let_in() {
        let half = SECOND / 2;
        for rate in [1, 2, 3, 10, 50, 333] {
            let count = let_in(rate, half, Duration::from_micros(317));
            assert!(count >= rate * 10 && count * 10 <= rate * 110, "{rate}/s: {count} in ten seconds");
        }
        // Who comes at the pace is never refused.
        assert_eq!(let_in(10, half, SECOND / 10), 100);
        assert_eq!(let_in(0, half, SECOND / 10), 0);
    }

    #[test]
    fn whoever_is_refused_knows_when_to_come_again() {
        let (now, pace, mut bucket) =
            (Instant::now(), BucketRate::new(4, SECOND / 4), TokenBucket::default());
        assert_eq!(bucket.try_take(1, pace, now), Ok(()));
        let wait = bucket.try_take(1, pace, now).unwrap_err().unwrap();
        assert_eq!(wait, SECOND / 4);
        assert!(bucket.try_take(1, pace, now + wait - Duration::from_millis(1)).is_err());
        assert_eq!(bucket.try_take(1, pace, now + wait), Ok(()));
        assert_eq!(bucket.try_take(1, BucketRate::new(0, SECOND), now + SECOND * 100), Err(None));
    }

    #[test]
    fn whoever_reserves_later_waits_longer() {
        let (now, pace, mut bucket) =
            (Instant::now(), BucketRate::new(1000, SECOND / 10), TokenBucket::default());
        let waits: Vec<_> = (0..4).map(|_| bucket.reserve(100, pace, now).unwrap().as_millis()).collect();
        assert_eq!(waits, [0, 100, 200, 300]);
        // A time that goes back gives nothing twice.
        assert_eq!(bucket.reserve(100, pace, now - SECOND).unwrap().as_millis(), 400);
        bucket.give_back(100);
        assert_eq!(bucket.reserve(100, pace, now + SECOND / 10).unwrap().as_millis(), 300);
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
