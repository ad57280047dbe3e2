//! Slows down whoever presents wrong credentials, by source address.
//!
//! Only failures count. An address that has failed too often is refused before its next credential is looked at, so that
//! guessing gains nothing; client certificates are not affected, because TLS has already proved them.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::num::NonZeroU32;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use governor::clock::{Clock, DefaultClock};
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};

pub struct Failures {
    limiter: DefaultKeyedRateLimiter<IpAddr>,
    clock: DefaultClock,
    blocked: Mutex<HashMap<IpAddr, Instant>>,
}

// Addresses that are remembered; beyond this the whole world is failing, and the oldest no longer matter.
const ADDRESSES_MAX: usize = 10_000;

impl Failures {
    pub fn new(per_minute_max: u32) -> Failures {
        let per_minute = NonZeroU32::new(per_minute_max).unwrap_or(NonZeroU32::MIN);
        Failures {
            limiter: RateLimiter::keyed(Quota::per_minute(per_minute)),
            clock: DefaultClock::default(),
            blocked: Mutex::new(HashMap::new()),
        }
    }

    /// How long this address has to wait before its credentials are looked at.
    pub fn blocked(&self, address: IpAddr) -> Option<Duration> {
        let blocked = self.blocked.lock().unwrap_or_else(PoisonError::into_inner);
        let until = blocked.get(&source(address))?;
        until.checked_duration_since(Instant::now()).filter(|wait| !wait.is_zero())
    }

    /// A credential from this address was wrong. `Some` when that was once too often.
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

    /// Forgets addresses that have been good for long enough.
    pub fn tidy(&self) {
        let now = Instant::now();
        self.blocked.lock().unwrap_or_else(PoisonError::into_inner).retain(|_, until| *until > now);
        self.limiter.retain_recent();
    }
}

/// One household of IPv6 has a whole /64, and one host has IPv4 in two spellings.
fn source(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => {
            let [a, b, c, d, ..] = v6.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_counted_by_source_and_then_refused() {
        let failures = Failures::new(3);
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
