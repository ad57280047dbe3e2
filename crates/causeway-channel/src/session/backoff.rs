//! Wait before the next attempt, so that a fleet does not reconnect at one moment.
//!
//! Full jitter: a random time between now and a span that doubles with every failure. The cloud knows the
//! size of its fleet and may widen the span (its hint), or name a time before which it must not be asked. An
//! edge that came within the span of the hint and was not served comes again when most other edges have been
//! served.

use std::time::Duration;

/// A single edge reconnects at once; a handful does not collide.
const FIRST: Duration = Duration::from_millis(250);
/// During a restart of the cloud, attempts are this far apart on average: half of `FIRST`, for five seconds.
/// Each costs the host of an absent cloud one packet.
const QUICK_ATTEMPTS: u32 = 40;
/// A link whose recovery is not signalled is used within 3 s: this, and the second half of a dial, in which no packet is sent again.
pub const CAP: Duration = Duration::from_secs(2);
/// The same in a fleet whose hint is longer than `CAP`: its attempts are spread by the cloud.
const FLEET_CAP: Duration = Duration::from_secs(5);
/// An edge that was refused twice waits twice as long as after the first time, and no longer than that.
const HINT_DOUBLINGS: u32 = 1;
/// The ordinary dial: connecting and the handshake.
pub const DIAL: Duration = Duration::from_secs(2);
/// Longest dial; also used when the cloud has named the time, because then a cloud is known to be there.
pub const DIAL_MAX: Duration = Duration::from_secs(10);
/// Upper bound of any wait that a peer asks for.
pub const HINT_MAX: Duration = Duration::from_secs(5 * 60);

/// Failures since the last stable session, and the cloud's hints for reconnecting.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Backoff {
    failures: u32,
    hint: Duration,
    /// Remaining attempts in which the cloud is expected back at any moment.
    quick: u32,
}

impl Backoff {
    pub fn handle_failure(&mut self) {
        match self.quick.checked_sub(1) {
            Some(left) => self.quick = left,
            None => self.failures = self.failures.saturating_add(1),
        }
    }

    /// A session was established: start over.
    pub fn handle_success(&mut self) {
        (self.failures, self.quick) = (0, 0);
    }

    /// The cloud announced its stop: most likely it is restarted, and back in a second or two.
    pub fn handle_announced_stop(&mut self) {
        self.quick = QUICK_ATTEMPTS;
    }

    /// The cloud's hint for the span; replaces the previous one.
    pub fn handle_hint(&mut self, hint: Duration) {
        self.hint = hint.min(HINT_MAX);
    }

    /// Returns the wait after the loss of a session, for a jitter between 0 and 1: the first attempt of every
    /// edge falls into the hint.
    pub fn pause_after_loss(&self, jitter: f64) -> Duration {
        self.span().max(self.hint).mul_f64(jitter.clamp(0.0, 1.0))
    }

    /// Returns the wait after a failed attempt. `not_before` is the time named by a refusal; the jitter is
    /// added to it.
    pub fn pause(&self, not_before: Duration, jitter: f64) -> Duration {
        let (least, span) = match self.hint > self.span() {
            true => {
                // The hint was too small.
                let hint = self.hint.saturating_mul(1 << self.failures.min(HINT_DOUBLINGS)).min(HINT_MAX);
                (hint / 4, hint / 2)
            }
            false => (Duration::ZERO, self.span()),
        };
        not_before.min(HINT_MAX) + least + span.mul_f64(jitter.clamp(0.0, 1.0))
    }

    /// Returns the wait of an edge that a busy cloud gave a time. These times are already spread; the small
    /// addition separates edges that got the same time from two replicas.
    pub fn pause_in_line(&self, told: Duration, jitter: f64) -> Duration {
        told.min(HINT_MAX) + FIRST.mul_f64(jitter.clamp(0.0, 1.0))
    }

    /// Returns whether the fleet cannot be served within an ordinary pause.
    pub fn is_of_large_fleet(&self) -> bool {
        self.hint > FLEET_CAP
    }

    /// Returns the deadline of a dial after `unanswered` dials that timed out. A cloud that told its large
    /// fleet to spread out may only be slow: giving up early would double its work.
    pub fn patience(&self, unanswered: u32) -> Duration {
        let patient = DIAL.saturating_mul(1 << unanswered.min(8)).min(DIAL_MAX);
        patient.min(self.hint / 2).max(DIAL)
    }

    fn span(&self) -> Duration {
        let cap = if self.hint > CAP { FLEET_CAP } else { CAP };
        FIRST.saturating_mul(1 << self.failures.min(16)).min(cap)
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
        // A large fleet follows the cloud's hint.
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
        check(after(3, 0), 2000);
        check(after(4, 0), 2000);
        check(after(u32::MAX, 0), 2000);
        check(after(u32::MAX, 2000), 2000);
        check(after(u32::MAX, 2001), 5000);
        check(after(0, 10_000), 10_000);
    }

    #[test]
    fn who_was_not_served_within_the_hint_comes_after_the_others() {
        for (failures, times) in [(0, 1), (1, 2), (9, 2)] {
            let pause = |jitter| after(failures, 10_000).pause(Duration::ZERO, jitter).as_millis();
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
