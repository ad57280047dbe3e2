//! The health of endpoints and the order in which they are tried. Pure: the time is an argument.

use std::time::{Duration, Instant};

/// The delay of the first probe after a failure; it doubles with each further failure.
const RETRY: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(30);
/// The number of consecutive failed checks after which an endpoint is down: a single one may be lost on the
/// way.
const CHECKS_FAILED_MAX: u32 = 2;

/// The health of one endpoint.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct EndpointHealth {
    /// Consecutive failed connections.
    failures: u32,
    /// Set while the endpoint is out of use: the time of the next probe.
    out: Option<Instant>,
    /// Consecutive failed health checks.
    checks_failed: u32,
    /// When the next health check is due. None: at once.
    next_check: Option<Instant>,
}

impl EndpointHealth {
    /// Tells whether clients may be sent to it.
    pub fn is_usable(&self) -> bool {
        self.out.is_none() && self.checks_failed < CHECKS_FAILED_MAX
    }

    /// Records a successful connection or probe.
    pub fn connected(&mut self) {
        (self.failures, self.out) = (0, None);
    }

    /// Records a failed connection. Returns true when the endpoint was in use until now.
    pub fn failed(&mut self, now: Instant) -> bool {
        let was_usable = self.out.is_none();
        let pause = RETRY * 2u32.saturating_pow(self.failures.min(10));
        self.failures = self.failures.saturating_add(1);
        self.out = Some(now + pause.min(RETRY_MAX));
        was_usable
    }

    /// Records the result of a health check. Returns true when it changes whether the endpoint is in use.
    pub fn checked(&mut self, is_well: bool) -> bool {
        let before = self.is_usable();
        self.checks_failed = if is_well { 0 } else { self.checks_failed.saturating_add(1) };
        if is_well {
            self.connected();
        }
        before != self.is_usable()
    }

    /// Returns when the endpoint is due for a probe. None: it is in use, or its health check covers it.
    pub fn probe_due(&self) -> Option<Instant> {
        self.out
    }

    /// A probe starts: the next one, if this one fails, is later.
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

/// Returns the indices of endpoints in the order in which to try them: first those in use by their number of
/// connections, equals in rotation; then those out of use, by their next probe. With all of them out of use,
/// a client's connection is the best probe.
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
