//! How long to wait before the next attempt, so that a fleet does not come back in one moment.
//!
//! Full jitter: any moment between now and a span that doubles with every failure. The cloud knows how many edges it
//! has and may widen the span (its hint), or name a time before which it cannot be asked.

use std::time::Duration;

/// One edge alone is back at once; a handful does not collide.
const FIRST: Duration = Duration::from_millis(250);
/// A link that comes back unseen is used within 8 s: this, and the time to dial.
pub const CAP: Duration = Duration::from_secs(5);
/// No peer makes us wait longer, whatever it says.
pub const HINT_MAX: Duration = Duration::from_secs(5 * 60);

/// Failures since the last session that held, and what the cloud said about coming back.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Backoff {
    failures: u32,
    hint: Duration,
}

impl Backoff {
    pub fn handle_failure(&mut self) {
        self.failures = self.failures.saturating_add(1);
    }

    /// Things are different now: begin anew.
    pub fn handle_success(&mut self) {
        self.failures = 0;
    }

    /// The cloud's word on how far to spread out; replaces its last.
    pub fn handle_hint(&mut self, hint: Duration) {
        self.hint = hint.min(HINT_MAX);
    }

    /// The wait, for dice between 0 and 1. `not_before` is a refusal's own time; the jitter comes on top of it.
    pub fn pause(&self, not_before: Duration, dice: f64) -> Duration {
        let doubled = FIRST.saturating_mul(1 << self.failures.min(16));
        let span = doubled.min(CAP).max(self.hint);
        not_before.min(HINT_MAX) + span.mul_f64(dice.clamp(0.0, 1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(failures: u32, hint_ms: u64) -> Backoff {
        Backoff { failures, hint: Duration::from_millis(hint_ms) }
    }

    #[test]
    fn the_span_doubles_up_to_the_cap_and_the_hint_widens_it() {
        let check = |backoff: Backoff, span_ms: u128| {
            assert_eq!(backoff.pause(Duration::ZERO, 1.0).as_millis(), span_ms, "{backoff:?}");
            assert_eq!(backoff.pause(Duration::ZERO, 0.0), Duration::ZERO, "full jitter begins at nothing");
            assert_eq!(backoff.pause(Duration::ZERO, 0.5).as_millis(), span_ms / 2);
        };
        check(after(0, 0), 250);
        check(after(1, 0), 500);
        check(after(4, 0), 4000);
        check(after(5, 0), 5000);
        check(after(u32::MAX, 0), 5000);
        check(after(0, 10_000), 10_000);
        check(after(9, 10_000), 10_000);
    }

    #[test]
    fn a_refusal_is_not_asked_again_before_its_time() {
        let pause = after(0, 0).pause(Duration::from_secs(7), 0.0);
        assert_eq!(pause, Duration::from_secs(7));
        assert!(after(0, 0).pause(Duration::from_secs(7), 1.0) > pause);
    }

    #[test]
    fn no_peer_sends_an_edge_away_for_hours() {
        let mut backoff = after(0, 0);
        backoff.handle_hint(Duration::MAX);
        assert_eq!(backoff.pause(Duration::MAX, 1.0), 2 * HINT_MAX);
        backoff.handle_hint(Duration::ZERO);
        assert_eq!(backoff.pause(Duration::ZERO, 1.0), FIRST);
    }
}
