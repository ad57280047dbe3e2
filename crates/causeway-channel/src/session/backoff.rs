//! How long to wait before the next attempt, so that a fleet does not come back in one moment.
//!
//! Full jitter: any moment between now and a span that doubles with every failure. The cloud knows how many edges it
//! has and may widen the span (its hint), or name a time before which it cannot be asked. Who came within the span of
//! the hint and was not served comes again when most others have been.

use std::time::Duration;

/// One edge alone is back at once; a handful does not collide.
const FIRST: Duration = Duration::from_millis(250);
/// While a restart is under way, attempts are this far apart on average: half of `FIRST`, for five seconds. The port of a cloud
/// that is not there costs its host a packet for each.
const QUICK_ATTEMPTS: u32 = 40;
/// A link that comes back unseen is used within 8 s: this, and the time to dial.
pub const CAP: Duration = Duration::from_secs(5);
/// Who was turned away twice waits twice as long as after the first time, and no longer than that.
const HINT_DOUBLINGS: u32 = 1;
/// The ordinary dial: connecting and the handshake.
pub const DIAL: Duration = Duration::from_secs(2);
/// The longest that a dial may take; also one whose turn the cloud has named, because there somebody is at work.
pub const DIAL_MAX: Duration = Duration::from_secs(10);
/// No peer makes us wait longer, whatever it says.
pub const HINT_MAX: Duration = Duration::from_secs(5 * 60);

/// Failures since the last session that held, and what the cloud said about coming back.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Backoff {
    failures: u32,
    hint: Duration,
    /// Attempts left in which the cloud is expected back any moment.
    quick: u32,
}

impl Backoff {
    pub fn handle_failure(&mut self) {
        match self.quick.checked_sub(1) {
            Some(left) => self.quick = left,
            None => self.failures = self.failures.saturating_add(1),
        }
    }

    /// Things are different now: begin anew.
    pub fn handle_success(&mut self) {
        (self.failures, self.quick) = (0, 0);
    }

    /// The cloud said that it stops: most likely it is restarted, and back in a second or two.
    pub fn handle_announced_stop(&mut self) {
        self.quick = QUICK_ATTEMPTS;
    }

    /// The cloud's word on how far to spread out; replaces its last.
    pub fn handle_hint(&mut self, hint: Duration) {
        self.hint = hint.min(HINT_MAX);
    }

    /// The wait after a session was lost, for dice between 0 and 1: everybody's first try falls into the hint.
    pub fn pause_after_loss(&self, dice: f64) -> Duration {
        self.span().max(self.hint).mul_f64(dice.clamp(0.0, 1.0))
    }

    /// The wait after an attempt that failed. `not_before` is a refusal's own time; the jitter comes on top of it.
    pub fn pause(&self, not_before: Duration, dice: f64) -> Duration {
        let (least, span) = match self.hint > self.span() {
            true => {
                // The hint was too small, then.
                let hint = self.hint.saturating_mul(1 << self.failures.min(HINT_DOUBLINGS)).min(HINT_MAX);
                (hint / 4, hint / 2)
            }
            false => (Duration::ZERO, self.span()),
        };
        not_before.min(HINT_MAX) + least + span.mul_f64(dice.clamp(0.0, 1.0))
    }

    /// The wait of who was given a time by a cloud that had too much to do. The times are apart already; the little
    /// that comes on top keeps those apart who were given the same by two replicas.
    pub fn pause_in_line(&self, told: Duration, dice: f64) -> Duration {
        told.min(HINT_MAX) + FIRST.mul_f64(dice.clamp(0.0, 1.0))
    }

    /// So many that they cannot all be served within an ordinary pause.
    pub fn is_of_large_fleet(&self) -> bool {
        self.hint > CAP
    }

    /// How long a dial may take after so many that nobody answered in time. A cloud with so many edges that it told
    /// them to spread out may only be slow: giving up early would double its work.
    pub fn patience(&self, unanswered: u32) -> Duration {
        let patient = DIAL.saturating_mul(1 << unanswered.min(8)).min(DIAL_MAX);
        patient.min(self.hint / 2).max(DIAL)
    }

    fn span(&self) -> Duration {
        FIRST.saturating_mul(1 << self.failures.min(16)).min(CAP)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(failures: u32, hint_ms: u64) -> Backoff {
        Backoff { failures, hint: Duration::from_millis(hint_ms), quick: 0 }
    }

    #[test]
    fn a_cloud_that_said_it_stops_is_tried_often_for_a_while() {
        let mut backoff = after(0, 0);
        backoff.handle_announced_stop();
        for _ in 0..QUICK_ATTEMPTS {
            assert_eq!(backoff.pause(Duration::ZERO, 1.0), FIRST);
            backoff.handle_failure();
        }
        for _ in 0..9 {
            backoff.handle_failure();
        }
        assert_eq!(backoff.pause(Duration::ZERO, 1.0), CAP, "it is not back: as after any other loss");
        backoff.handle_announced_stop();
        backoff.handle_success();
        backoff.handle_failure();
        assert_eq!(backoff.pause(Duration::ZERO, 1.0), 2 * FIRST);
        // A large fleet keeps to the cloud's word.
        let mut backoff = after(0, 10_000);
        backoff.handle_announced_stop();
        assert_eq!(backoff.pause(Duration::ZERO, 1.0).as_millis(), 7_500);
    }

    #[test]
    fn the_span_doubles_up_to_the_cap_and_the_hint_widens_it() {
        let check = |backoff: Backoff, span_ms: u128| {
            assert_eq!(backoff.pause_after_loss(1.0).as_millis(), span_ms, "{backoff:?}");
            assert_eq!(backoff.pause_after_loss(0.0), Duration::ZERO, "full jitter begins at nothing");
            assert_eq!(backoff.pause_after_loss(0.5).as_millis(), span_ms / 2);
            if backoff.hint.is_zero() {
                assert_eq!(backoff.pause(Duration::ZERO, 1.0).as_millis(), span_ms);
                assert_eq!(backoff.pause(Duration::ZERO, 0.0), Duration::ZERO);
            }
        };
        check(after(0, 0), 250);
        check(after(1, 0), 500);
        check(after(4, 0), 4000);
        check(after(5, 0), 5000);
        check(after(u32::MAX, 0), 5000);
        check(after(0, 10_000), 10_000);
    }

    #[test]
    fn who_was_not_served_within_the_hint_comes_after_the_others() {
        for (failures, times) in [(0, 1), (1, 2), (9, 2)] {
            let pause = |dice| after(failures, 10_000).pause(Duration::ZERO, dice).as_millis();
            assert_eq!((pause(0.0), pause(0.5), pause(1.0)), (2_500 * times, 5_000 * times, 7_500 * times));
        }
        assert_eq!(after(9, 1_000).pause(Duration::ZERO, 0.0), Duration::ZERO, "a small fleet need not");
    }

    #[test]
    fn a_dial_waits_longer_where_many_are_served() {
        let check = |hint_ms, unanswered, expected_ms| {
            let patience = after(0, hint_ms).patience(unanswered);
            assert_eq!(patience.as_millis(), expected_ms, "{hint_ms} ms, {unanswered} unanswered");
        };
        check(20_000, 0, 2_000);
        check(20_000, 1, 4_000);
        check(20_000, 2, 8_000);
        check(20_000, u32::MAX, 10_000);
        check(6_000, 9, 3_000);
        check(0, 9, 2_000);
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
        assert_eq!(backoff.pause(Duration::MAX, 1.0), HINT_MAX + HINT_MAX / 4 * 3);
        backoff.handle_hint(Duration::ZERO);
        assert_eq!(backoff.pause(Duration::ZERO, 1.0), FIRST);
    }
}
