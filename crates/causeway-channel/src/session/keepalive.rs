//! Liveness of a link: decides when to ping, and when to give up.
//!
//! Any byte of the peer is a sign of life. After a silence, of the peer or of this end, one ping; unanswered,
//! three quick probes; then the link is dead, `GIVE_UP` after the first ping. Values in, values out; time and
//! jitter are arguments.

use std::time::{Duration, Instant};

/// About 169 bytes each time with the headers of Ethernet, 2.6 MB a day, beside 0.4 MB of neighbour discovery. The goal is
/// 3 MB a day; `docs/benchmarks.md` has the measured figure. NAT entries for UDP, which live for 30 s and more, stay.
pub const EVERY: Duration = Duration::from_millis(5600);
/// With another replica available: a dead one is left within 5 s, of which 0.8 s are for dialling the next.
/// Two packets each time, over QUIC less than 5 MB a day.
pub const EVERY_QUICK: Duration = Duration::from_millis(2400);
/// From the first ping to the end. With `EVERY`, a dead link is detected within 8 s of its last sign.
const GIVE_UP: Duration = Duration::from_millis(2400);
const GIVE_UP_QUICK: Duration = Duration::from_millis(1800);
/// Shorter than this, a busy machine would look like a dead link.
const PATIENCE_MIN: Duration = Duration::from_secs(1);
/// Longer than this, no time would be left for probes. Enough for three round trips of 500 ms.
const PATIENCE_MAX: Duration = Duration::from_millis(1600);
const PROBES: u32 = 3;
/// A timer that is later than this was not late by chance.
const LATE_MIN: Duration = Duration::from_millis(250);
const LATE_GRACE: Duration = Duration::from_millis(500);
/// No host is too busy for longer than this to serve a link; the cloud has ended the session by then.
const LATE_MAX: Duration = Duration::from_secs(12);
/// Bounds of the interval that the cloud may ask for.
const EVERY_MIN: Duration = Duration::from_secs(1);
const EVERY_MAX: Duration = Duration::from_secs(60);

/// Liveness state of one link.
#[derive(Debug, Clone)]
pub struct Keepalive {
    every: Duration,
    /// The last sign of the peer.
    heard: Instant,
    /// The last ping, or the start. The peer waits for signs too: an end that only receives must send.
    asked: Instant,
    /// Time of the next ping, unless a sign later than `known` has come.
    plan: Instant,
    known: Instant,
    rtt: Duration,
    question: Option<Question>,
}

/// Sent at `at`, and repeated `probes` times since. `late` is by how much `at` was moved, see `handle_late`.
#[derive(Debug, Clone, Copy)]
struct Question {
    at: Instant,
    probes: u32,
    late: Duration,
}

/// Action that is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeepaliveAction {
    /// Nothing before that time.
    Wait(Instant),
    /// Send a ping.
    Ask,
    Dead,
}

impl Keepalive {
    /// A link that has just been heard.
    pub fn new(now: Instant, every: Duration) -> Keepalive {
        let every = every.clamp(EVERY_MIN, EVERY_MAX);
        let rtt = Duration::ZERO;
        Keepalive { every, heard: now, asked: now, plan: now + every, known: now, rtt, question: None }
    }

    /// Changes the interval. The message that asked for it is a sign of the peer, so pings of a fleet that is told together
    /// are spread by `plan_again`.
    pub fn set_interval(&mut self, every: Duration) {
        self.every = every.clamp(EVERY_MIN, EVERY_MAX);
        if self.question.is_none() {
            self.plan = self.known + self.every;
        }
    }

    /// Records when the peer was last heard, and the round trip if it is known. Older reports change nothing.
    pub fn handle_heard(&mut self, at: Instant, rtt: Option<Duration>) {
        self.rtt = rtt.unwrap_or(self.rtt);
        self.heard = self.heard.max(at);
        // Bytes in flight before the ping prove nothing; later bytes are as good as an answer.
        if self.question.is_some_and(|question| at > question.at) {
            self.question = None;
            (self.plan, self.known) = (self.heard + self.every, self.heard);
        }
    }

    /// This end checks `late` later than planned, because of its own load. It could not have received an
    /// answer meanwhile, so that time does not count, and bytes that have arrived are given `LATE_GRACE` to
    /// be read; up to `LATE_MAX` per ping.
    pub fn handle_late(&mut self, late: Duration) {
        if let Some(question) = self.question.as_mut().filter(|_| late >= LATE_MIN) {
            let late = (late + LATE_GRACE).min(LATE_MAX.saturating_sub(question.late));
            question.at += late;
            question.late += late;
        }
    }

    /// A caller doubts the link: ping now. While a ping is open, that is already being done.
    pub fn handle_suspect(&mut self, now: Instant) {
        if self.question.is_none() {
            (self.plan, self.known) = (now, now);
        }
    }

    /// Returns the due action. After `Ask`, the ping counts as sent.
    pub fn next(&mut self, now: Instant, jitter: f64) -> KeepaliveAction {
        self.plan_again(now, jitter);
        let due = self.due();
        if now < due {
            return KeepaliveAction::Wait(due);
        }
        match &mut self.question {
            None => {
                self.asked = now;
                self.question = Some(Question { at: now, probes: 0, late: Duration::ZERO });
            }
            Some(question) if question.probes < PROBES => question.probes += 1,
            Some(_) => return KeepaliveAction::Dead,
        }
        KeepaliveAction::Ask
    }

    /// Returns when `next` has an action.
    pub fn due(&self) -> Instant {
        match self.question {
            // Well before the cloud, which waits for ten seconds, gives up an edge that receives much and sends
            // nothing.
            None => self.plan.min(self.asked + self.every * 4 / 3),
            Some(Question { at, probes, .. }) => {
                let patience = (3 * self.rtt).clamp(PATIENCE_MIN, PATIENCE_MAX);
                let give_up = if self.every <= EVERY_QUICK { GIVE_UP_QUICK } else { GIVE_UP };
                at + patience + (give_up - patience) / PROBES * probes
            }
        }
    }

    // The cloud sometimes sends a message to all its edges. If each pinged one interval after it, they would
    // ping together, and from then on always: twenty thousand at one moment, and answers so late that packets
    // are repeated.
    fn plan_again(&mut self, now: Instant, jitter: f64) {
        if self.question.is_none() && now >= self.plan && self.heard > self.known {
            let left = (self.heard + self.every).saturating_duration_since(now);
            (self.plan, self.known) = (now + left.mul_f64(jitter.clamp(0.0, 1.0)), self.heard);
        }
    }

    /// Returns whether a ping is open.
    pub fn is_probing(&self) -> bool {
        self.question.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    /// Advances time without a sign of the peer; returns when pings were sent and when the link was given up.
    fn silence(rtt: Duration) -> (Vec<Duration>, Duration) {
        silence_of(EVERY, rtt)
    }

    fn silence_of(every: Duration, rtt: Duration) -> (Vec<Duration>, Duration) {
        let start = Instant::now();
        let mut keepalive = Keepalive::new(start, every);
        keepalive.handle_heard(start, Some(rtt));
        let (mut now, mut asked) = (start, Vec::new());
        loop {
            match keepalive.next(now, 1.0) {
                KeepaliveAction::Wait(until) => now = until,
                KeepaliveAction::Ask => asked.push(now - start),
                KeepaliveAction::Dead => return (asked, now - start),
            }
        }
    }

    #[test]
    fn a_dead_link_is_known_within_eight_seconds() {
        for rtt in [ms(0), ms(20), ms(400), ms(3000)] {
            let (asked, dead) = silence(rtt);
            assert_eq!(asked.len(), 4, "a ping and three probes");
            assert_eq!(asked[0], EVERY);
            assert!(dead <= ms(8000) && dead > ms(7500), "{dead:?} at a round trip of {rtt:?}");
        }
    }

    #[test]
    fn a_dead_replica_is_known_soon_enough_to_dial_another_within_five_seconds() {
        for rtt in [ms(0), ms(20), ms(400), ms(3000)] {
            let (asked, dead) = silence_of(EVERY_QUICK, rtt);
            assert_eq!(asked.len(), 4);
            assert!(dead <= ms(4200), "{dead:?} at a round trip of {rtt:?}");
        }
    }

    #[test]
    fn probes_wait_for_a_second_or_three_round_trips() {
        assert_eq!(silence(ms(20)).0[1], EVERY + ms(1000));
        assert_eq!(silence(ms(400)).0[1], EVERY + ms(1200));
    }

    #[test]
    fn a_link_that_is_heard_is_asked_only_so_that_the_peer_hears_us() {
        let start = Instant::now();
        let mut keepalive = Keepalive::new(start, EVERY);
        let mut asked = Vec::new();
        for second in 1..=24 {
            let now = start + Duration::from_secs(second);
            keepalive.handle_heard(now, None);
            if keepalive.next(now, 1.0) == KeepaliveAction::Ask {
                asked.push(second);
            }
        }
        assert_eq!(asked, [8, 16, 24]);
    }

    #[test]
    fn those_who_were_told_something_at_once_do_not_ask_at_once() {
        let start = Instant::now();
        let told = start + ms(9_900);
        let mut asked: Vec<Duration> = (0..1000)
            .map(|edge| {
                let begun = start + ms(5 * edge);
                let mut keepalive = Keepalive::new(begun, EVERY);
                let mut now = begun;
                // Answered at once until all edges get a message; then no further sign arrives.
                loop {
                    if now >= told {
                        keepalive.handle_heard(told, None);
                    }
                    match keepalive.next(now, (edge * 389 % 1000) as f64 / 1000.0) {
                        KeepaliveAction::Wait(until) => now = until,
                        KeepaliveAction::Ask if now > told => return now - told,
                        _ => keepalive.handle_heard(now + ms(1), None),
                    }
                }
            })
            .collect();
        asked.sort_unstable();
        assert!(*asked.last().unwrap() <= EVERY, "nobody waits longer for it");
        let most = asked.windows(300).map(|some| some[299] - some[0]).min().unwrap();
        assert!(most > ms(500), "300 of 1000 within {most:?}");
    }

    #[test]
    fn a_doubt_is_not_calmed_by_what_was_heard_before() {
        let start = Instant::now();
        let mut keepalive = Keepalive::new(start, EVERY);
        keepalive.handle_suspect(start + ms(700));
        keepalive.handle_heard(start + ms(600), None);
        assert_eq!(keepalive.next(start + ms(700), 1.0), KeepaliveAction::Ask);
    }

    #[test]
    fn any_sign_after_the_question_is_an_answer_and_none_before_it() {
        let start = Instant::now();
        let mut keepalive = Keepalive::new(start, EVERY);
        assert_eq!(keepalive.next(start + EVERY, 1.0), KeepaliveAction::Ask);
        keepalive.handle_heard(start + EVERY - ms(1), None);
        assert!(keepalive.is_probing());
        keepalive.handle_heard(start + EVERY + ms(30), None);
        assert!(!keepalive.is_probing());
        assert_eq!(keepalive.due(), start + EVERY + ms(30) + EVERY);
    }

    #[test]
    fn a_doubt_asks_at_once_and_ends_within_three_seconds() {
        let start = Instant::now();
        let mut keepalive = Keepalive::new(start, EVERY);
        let now = start + ms(700);
        keepalive.handle_suspect(now);
        assert_eq!(keepalive.next(now, 1.0), KeepaliveAction::Ask);
        keepalive.handle_suspect(now + ms(10));
        assert_eq!(keepalive.due(), now + ms(1000), "a second doubt changes nothing");
        let mut at = now;
        while keepalive.next(at, 1.0) != KeepaliveAction::Dead {
            at = at.max(keepalive.due());
        }
        assert!(at - now <= ms(3000));
    }

    #[test]
    fn time_in_which_nobody_could_listen_does_not_count() {
        let start = Instant::now();
        let mut keepalive = Keepalive::new(start, EVERY);
        assert_eq!(keepalive.next(start + EVERY, 1.0), KeepaliveAction::Ask);
        // Every timer fires three seconds late; four of them on time would have been the end.
        let mut now = start + EVERY;
        for _ in 0..3 {
            now = keepalive.due() + s(3);
            keepalive.handle_late(s(3));
            assert!(matches!(keepalive.next(now, 1.0), KeepaliveAction::Wait(_)), "after {:?}", now - start);
        }
        keepalive.handle_heard(now + ms(1), None);
        assert!(!keepalive.is_probing(), "the answer was there all the time");
        // A host that is always late does not keep a dead link forever.
        let mut keepalive = Keepalive::new(start, EVERY);
        keepalive.next(start + EVERY, 1.0);
        let mut now = start + EVERY;
        while now < start + s(120) {
            now = keepalive.due() + s(3);
            keepalive.handle_late(s(3));
            if keepalive.next(now, 1.0) == KeepaliveAction::Dead {
                return;
            }
        }
        panic!("never dead");
    }

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_shorter_interval_counts_from_the_last_sign() {
        let start = Instant::now();
        let mut keepalive = Keepalive::new(start, EVERY);
        keepalive.set_interval(EVERY_QUICK);
        assert_eq!(keepalive.due(), start + EVERY_QUICK);
        assert_eq!(keepalive.next(start + EVERY_QUICK, 1.0), KeepaliveAction::Ask);
        keepalive.set_interval(EVERY);
        assert_eq!(keepalive.due(), start + EVERY_QUICK + PATIENCE_MIN, "an open ping goes on");
    }

    #[test]
    fn the_rhythm_of_the_cloud_is_bounded() {
        let start = Instant::now();
        assert_eq!(Keepalive::new(start, ms(0)).due(), start + EVERY_MIN);
        assert_eq!(Keepalive::new(start, Duration::MAX).due(), start + EVERY_MAX);
    }
}
