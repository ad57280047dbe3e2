//! What is known of an endpoint, and whom to try first. Values in, values out; the time is an argument.

use std::time::{Duration, Instant};

/// The first question after a failure; then twice as long each time.
const RETRY: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(30);
/// So many checks in a row must fail: one may be lost on the way.
const CHECKS_FAILED_MAX: u32 = 2;

/// What is known of one endpoint.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct EndpointHealth {
    /// Connections that failed, one after the other.
    failures: u32,
    /// Left out, and to be asked at that moment.
    out: Option<Instant>,
    /// Health checks that failed, one after the other.
    checks_failed: u32,
    /// When the next health check is due. None: at once.
    next_check: Option<Instant>,
}

impl EndpointHealth {
    /// May clients be sent there?
    pub fn is_usable(&self) -> bool {
        self.out.is_none() && self.checks_failed < CHECKS_FAILED_MAX
    }

    /// A connection, or a question in the background, was answered.
    pub fn connected(&mut self) {
        (self.failures, self.out) = (0, None);
    }

    /// A connection failed. True when the endpoint was in use until now.
    pub fn failed(&mut self, now: Instant) -> bool {
        let was_usable = self.out.is_none();
        let pause = RETRY * 2u32.saturating_pow(self.failures.min(10));
        self.failures = self.failures.saturating_add(1);
        self.out = Some(now + pause.min(RETRY_MAX));
        was_usable
    }

    /// A health check has its answer. True when that changes whether it is used.
    pub fn checked(&mut self, is_well: bool) -> bool {
        let before = self.is_usable();
        self.checks_failed = if is_well { 0 } else { self.checks_failed.saturating_add(1) };
        if is_well {
            self.connected();
        }
        before != self.is_usable()
    }

    /// When it is to be asked whether it is back. None: it is not out, or its health check asks anyway.
    pub fn probe_due(&self) -> Option<Instant> {
        self.out
    }

    /// It is being asked: the next time, if this brings nothing, is later.
    pub fn probing(&mut self, now: Instant) {
        let pause = RETRY * 2u32.saturating_pow(self.failures.min(10));
        self.out = Some(now + pause.min(RETRY_MAX));
    }

    pub fn check_due(&self, now: Instant) -> Instant {
        self.next_check.unwrap_or(now)
    }

    pub fn checking(&mut self, now: Instant, interval: Duration) {
        self.next_check = Some(now + interval);
    }
}

/// The places of endpoints, in the order in which to try them: those in use by their connections, equals in turn; then the
/// others, first the one that is asked next. With all of them out a client is the best question there is.
pub fn order(endpoints: &[(EndpointHealth, usize)], turn: usize, now: Instant) -> Vec<usize> {
    let count = endpoints.len();
    let mut places: Vec<usize> = (0..count).map(|place| (place + turn) % count.max(1)).collect();
    places.sort_by_key(|place| {
        let (standing, open) = &endpoints[*place];
        let due = standing.out.unwrap_or(now);
        (!standing.is_usable(), if standing.is_usable() { (*open, now) } else { (0, due) })
    });
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fewest_connections_go_first_and_who_is_out_goes_last() {
        let now = Instant::now();
        let (mut out, mut out_longer, mut ill) =
            (EndpointHealth::default(), EndpointHealth::default(), EndpointHealth::default());
        out.failed(now);
        out_longer.failed(now);
        out_longer.failed(now);
        ill.checked(false);
        assert!(ill.is_usable(), "one check may be lost");
        assert!(ill.checked(false) && !ill.is_usable());
        let well = EndpointHealth::default();
        let check = |endpoints: &[(&EndpointHealth, usize)], turn: usize, expected: &[usize]| {
            let endpoints: Vec<_> =
                endpoints.iter().map(|(standing, open)| ((*standing).clone(), *open)).collect();
            assert_eq!(order(&endpoints, turn, now), expected);
        };
        check(&[], 3, &[]);
        check(&[(&well, 5), (&well, 0), (&well, 2)], 0, &[1, 2, 0]);
        check(&[(&well, 1), (&well, 1), (&well, 1)], 0, &[0, 1, 2]);
        check(&[(&well, 1), (&well, 1), (&well, 1)], 2, &[2, 0, 1]);
        check(&[(&out, 0), (&well, 9)], 0, &[1, 0]);
        check(&[(&ill, 0), (&well, 9)], 0, &[1, 0]);
        check(&[(&out_longer, 0), (&out, 0)], 0, &[1, 0]);
    }

    #[test]
    fn who_fails_is_asked_ever_more_seldom_and_is_back_with_the_first_answer() {
        let now = Instant::now();
        let mut standing = EndpointHealth::default();
        let pauses: Vec<u64> = (0..8)
            .map(|_| {
                standing.failed(now);
                standing.probe_due().unwrap().duration_since(now).as_secs()
            })
            .collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 30, 30, 30]);
        standing.connected();
        assert!(standing.is_usable() && standing.probe_due().is_none());
        standing.failed(now);
        assert_eq!(standing.probe_due(), Some(now + RETRY), "the count begins anew");
    }

    #[test]
    fn a_check_that_succeeds_brings_back_also_who_was_out() {
        let now = Instant::now();
        let mut standing = EndpointHealth::default();
        assert!(standing.failed(now) && !standing.failed(now), "told once");
        assert!(standing.checked(true) && standing.is_usable());
        assert!(!standing.checked(true), "told once");
    }
}
