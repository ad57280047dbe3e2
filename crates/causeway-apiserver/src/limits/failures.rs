//! Slows down clients that present wrong credentials, by source address.
//!
//! Only failures count, and a valid credential is accepted whatever its address has failed before: many
//! clients may share one address. For an address that has failed too often, tokens are looked up in memory
//! alone, so a flood of wrong ones costs little. Secrets have 256 bits; the limit protects the processor and
//! the store, not the secrets. Addresses beyond `ADDRESSES_MAX` share one limit.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::sources::source;
use causeway_api::sync::MutexExt;

pub struct AuthFailures {
    rates: Mutex<FailureRates>,
}

/// The most addresses whose failures are counted one by one: about a megabyte.
const ADDRESSES_MAX: usize = 10_000;

impl AuthFailures {
    pub fn new(per_minute_max: u32) -> AuthFailures {
        AuthFailures { rates: Mutex::new(FailureRates::new(per_minute_max)) }
    }

    /// Returns how long wrong credentials of this address are refused with a lookup in memory alone.
    pub fn blocked(&self, address: IpAddr) -> Option<Duration> {
        self.with(|rates, now| rates.blocked(source(address), now))
    }

    /// Counts a wrong credential from this address. `Some` when the limit is exceeded.
    pub fn failed(&self, address: IpAddr) -> Option<Duration> {
        self.with(|rates, now| rates.handle_failed(source(address), now))
    }

    /// Removes addresses whose failures are old enough.
    pub fn tidy(&self) {
        self.with(FailureRates::tidy);
    }

    fn with<R>(&self, act: impl FnOnce(&mut FailureRates, Instant) -> R) -> R {
        act(&mut self.rates.lock_ignoring_poison(), Instant::now())
    }
}

/// Failures by address (GCRA: the time at which all failures of an address are forgotten).
struct FailureRates {
    interval: Duration,
    burst: Duration,
    sources: HashMap<IpAddr, FailureRate>,
    /// Counts the failures of all addresses that found no entry.
    others: FailureRate,
}

#[derive(Clone, Copy, Default)]
struct FailureRate {
    forgotten_at: Option<Instant>,
    blocked_until: Option<Instant>,
}

impl FailureRates {
    fn new(per_minute_max: u32) -> FailureRates {
        let interval = Duration::from_secs(60) / per_minute_max.max(1);
        let burst = interval * per_minute_max.max(1);
        FailureRates { interval, burst, sources: HashMap::new(), others: FailureRate::default() }
    }

    fn blocked(&self, source: IpAddr, now: Instant) -> Option<Duration> {
        let own = self.sources.get(&source);
        // While the table is full, an address without an entry is as suspect as every other address without one.
        let rate = own.or((self.sources.len() >= ADDRESSES_MAX).then_some(&self.others))?;
        rate.blocked_until?.checked_duration_since(now).filter(|wait| !wait.is_zero())
    }

    fn handle_failed(&mut self, source: IpAddr, now: Instant) -> Option<Duration> {
        if self.sources.len() >= ADDRESSES_MAX && !self.sources.contains_key(&source) {
            self.tidy(now);
        }
        let has_room = self.sources.len() < ADDRESSES_MAX || self.sources.contains_key(&source);
        let rate = if has_room { self.sources.entry(source).or_default() } else { &mut self.others };
        rate.handle_failed(now, self.interval, self.burst)
    }

    fn tidy(&mut self, now: Instant) {
        self.sources.retain(|_, rate| rate.forgotten_at.is_some_and(|at| at > now));
    }
}

impl FailureRate {
    /// Counts a failure. `Some`: the burst is used up, and the next failure is counted after this time.
    fn handle_failed(&mut self, now: Instant, interval: Duration, burst: Duration) -> Option<Duration> {
        let forgotten_at = self.forgotten_at.unwrap_or(now).max(now) + interval;
        let wait = forgotten_at.duration_since(now).checked_sub(burst).filter(|wait| !wait.is_zero());
        match wait {
            Some(wait) => self.blocked_until = Some(now + wait),
            None => self.forgotten_at = Some(forgotten_at),
        }
        wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn number(number: u32) -> IpAddr {
        IpAddr::from((0x0a00_0000 + number).to_be_bytes())
    }

    #[test]
    fn failures_are_counted_by_source_and_then_refused() {
        let failures = AuthFailures::new(3);
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

    #[test]
    fn a_blocked_address_is_counted_again_after_its_wait() {
        let (mut rates, now) = (FailureRates::new(3), Instant::now());
        let guesser = number(1);
        let refused = (0..10).filter_map(|_| rates.handle_failed(guesser, now)).count();
        assert_eq!(refused, 7, "failures beyond the limit do not prolong the wait");
        let wait = rates.blocked(guesser, now).unwrap();
        assert_eq!(wait, Duration::from_secs(20));
        assert_eq!(rates.blocked(guesser, now + wait), None);
        assert_eq!(rates.handle_failed(guesser, now + wait), None);
        assert!(rates.handle_failed(guesser, now + wait).is_some());
    }

    #[test]
    fn addresses_beyond_the_bound_share_one_limit_and_are_blocked_too() {
        let (mut rates, now) = (FailureRates::new(3), Instant::now());
        for guesser in 0..ADDRESSES_MAX as u32 {
            assert_eq!((0..4).filter_map(|_| rates.handle_failed(number(guesser), now)).count(), 1);
        }
        let beyond = |index: u32| number(ADDRESSES_MAX as u32 + index);
        assert_eq!((0..3).filter_map(|index| rates.handle_failed(beyond(index), now)).count(), 0);
        assert!(rates.handle_failed(beyond(3), now).is_some());
        assert!(rates.blocked(beyond(3), now).is_some());
        assert!(
            rates.blocked(beyond(4), now).is_some(),
            "it would cost a lookup in the store like the others"
        );
        assert_eq!(rates.sources.len(), ADDRESSES_MAX);
        let later = now + Duration::from_secs(61);
        assert_eq!(rates.handle_failed(beyond(3), later), None, "old failures are forgotten");
        assert_eq!((rates.sources.len(), rates.blocked(beyond(4), later)), (1, None));
    }
}
