//! Slows down clients that present wrong credentials, by source address.
//!
//! Only failures count, and a valid credential is accepted whatever its address has failed before: many
//! clients may share one address. For an address that has failed too often, tokens are looked up in memory
//! alone, so a flood of wrong ones costs little. Secrets have 256 bits; the limit protects the processor and
//! the store, not the secrets.

use std::collections::HashMap;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use governor::clock::{Clock, DefaultClock};
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};

use super::sources::source;

pub struct AuthFailures {
    limiter: DefaultKeyedRateLimiter<IpAddr>,
    clock: DefaultClock,
    blocked: Mutex<HashMap<IpAddr, Instant>>,
}

// The most addresses that are blocked at once. Beyond it, further addresses are not blocked.
const ADDRESSES_MAX: usize = 10_000;

impl AuthFailures {
    pub fn new(per_minute_max: u32) -> AuthFailures {
        let per_minute = NonZeroU32::new(per_minute_max).unwrap_or(NonZeroU32::MIN);
        AuthFailures {
            limiter: RateLimiter::keyed(Quota::per_minute(per_minute)),
            clock: DefaultClock::default(),
            blocked: Mutex::new(HashMap::new()),
        }
    }

    /// Returns how long wrong credentials of this address are refused with a lookup in memory alone.
    pub fn blocked(&self, address: IpAddr) -> Option<Duration> {
        let blocked = self.blocked.lock().unwrap_or_else(PoisonError::into_inner);
        let until = blocked.get(&source(address))?;
        until.checked_duration_since(Instant::now()).filter(|wait| !wait.is_zero())
    }

    /// Counts a wrong credential from this address. `Some` when the limit is exceeded.
    pub fn failed(&self, address: IpAddr) -> Option<Duration> {
        let address = source(address);
        let not_until = self.limiter.check_key(&address).err()?;
        let wait = not_until.wait_time_from(self.clock.now());
        let mut blocked = self.blocked.lock().unwrap_or_else(PoisonError::into_inner);
        if blocked.len() >= ADDRESSES_MAX {
            let now = Instant::now();
            blocked.retain(|_, until| *until > now);
            self.limiter.retain_recent();
        }
        if blocked.len() < ADDRESSES_MAX {
            blocked.insert(address, Instant::now() + wait);
        }
        Some(wait)
    }

    /// Removes addresses whose failures are old enough.
    pub fn tidy(&self) {
        let now = Instant::now();
        self.blocked.lock().unwrap_or_else(PoisonError::into_inner).retain(|_, until| *until > now);
        self.limiter.retain_recent();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_counted_by_source_and_then_refused() {
        let failures = AuthFailures::new(3);
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        let guesser = address("2001:db8::1");
        assert_eq!((0..3).filter_map(|_| failures.failed(guesser)).count(), 0);
        assert!(failures.blocked(guesser).is_none());
        assert!(failures.failed(address("2001:db8::2")).is_some(), "the same /64");
        assert!(failures.blocked(guesser).is_some());
        assert!(failures.blocked(address("2001:db8:0:1::1")).is_none());
        assert!(failures.failed(address("192.0.2.1")).is_none());
        failures.tidy();
        assert!(failures.blocked(guesser).is_some());
    }
}
