//! Decides when an edge opens a TCP link beside its QUIC link, and when new streams leave it again.
//!
//! Input: samples of the path and of both links, and the time. Output: one action per sample. QUIC survives loss and a new
//! address; TLS over TCP is two to three times as fast where the path is clean and stable. So the policy opens a TCP link
//! with the first stream where the round trip is short and nothing was lost, asks for evidence from real traffic elsewhere,
//! and gives the link up when it is idle, slow, or the address changes. Dialling and attaching are done by the edge.

use std::time::{Duration, Instant};

use crate::link::PathStats;

/// The transport that the operator prefers for a gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TransportPreference {
    /// Decide from measurements.
    #[default]
    Auto,
    /// Open a TCP link as soon as a stream begins, whatever was measured.
    Speed,
    /// Keep every stream on QUIC, so that it survives a new address.
    Survival,
}

/// Bytes over both directions before a path is judged: about 400 packets, of which 8 are lost at a loss of 2 %.
const EVIDENCE_BYTES: u64 = 512 * 1024;
/// Evidence is forgotten after this time, because the path may have changed.
const EVIDENCE_AGE_MAX: Duration = Duration::from_secs(30);
/// Loss that TCP recovers from without a noticeable pause when the round trip is short, in lost bytes per 1,000.
const LOSS_PER_MILLE_MAX: u64 = 5;
/// Round trips above this make every lost packet expensive for TCP, so the path must be free of loss. Below it, TCP repeats a
/// lost packet within a few milliseconds, so a wrong guess costs little, and a path without any loss so far needs no evidence.
const SHORT_RTT: Duration = Duration::from_millis(5);
/// Loss of this much, in lost bytes per 1,000, is no property of a line: UDP is throttled on the way, and TCP may not be.
/// TCP is tried; pings that take long give it up again.
const THROTTLED_PER_MILLE_MIN: u64 = 100;
/// A path that lost packets is judged again after this time.
const LOSSY_PAUSE: Duration = Duration::from_secs(60);
/// A gateway whose address changed keeps new streams on QUIC for this long.
const MOVED_PAUSE: Duration = Duration::from_secs(600);
/// An idle TCP link is given up after this time. It costs the cloud 12 KB.
const IDLE_MAX: Duration = Duration::from_secs(60);
/// Slow answers in a row before a TCP link is given up.
const SLOW_MAX: u32 = 3;
/// A TCP link answers slowly above this many round trips of the QUIC link, and above `SLOW_MIN`.
const SLOW_RTTS: u32 = 8;
const SLOW_MIN: Duration = Duration::from_secs(1);
/// A TCP link that lived this long is no failure when it ends.
const PROVEN_AFTER: Duration = Duration::from_secs(60);
/// Failed attempts in a row before TCP is left alone for `FAILED_PAUSE`.
const FAILURES_MAX: u32 = 3;
const RETRY_PAUSE: Duration = Duration::from_secs(2);
const FAILED_PAUSE: Duration = Duration::from_secs(300);

/// One look at a session.
#[derive(Debug, Clone, Copy, Default)]
pub struct PathSample {
    /// Sent by this end over QUIC.
    pub ours: PathStats,
    /// Sent by the cloud over QUIC, as it last reported.
    pub theirs: PathStats,
    pub rtt: Duration,
    /// Streams of services and nodes that are open on the TCP link.
    pub secondary_streams: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SecondaryAction {
    Wait,
    /// Dial TCP, join the session, attach the link.
    Open,
    /// Let new streams take QUIC again, and close the TCP link after its last stream.
    Retire,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LinkPhase {
    Closed,
    Opening,
    Open { since: Instant, idle_since: Option<Instant>, slow: u32 },
}

/// The policy of one edge. It outlives sessions: what was learned about the path stays true.
#[derive(Debug, Clone)]
pub struct SecondaryPolicy {
    preference: TransportPreference,
    phase: LinkPhase,
    /// The shortest round trip of the session on this path. Traffic of the session makes round trips longer.
    rtt_min: Option<Duration>,
    /// The beginning of the evidence, and when that was.
    base: Option<(Instant, PathStats, PathStats)>,
    paused_until: Option<Instant>,
    failures: u32,
    /// The verdict with which the link was opened last, as a reason.
    opened_for: &'static str,
    reason: &'static str,
}

/// The loss of real traffic over QUIC on a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PathVerdict {
    Clean,
    /// It loses packets, as TCP would too.
    Lossy,
    /// The loss is that of throttled UDP.
    Throttled,
}

impl SecondaryPolicy {
    pub fn new(preference: TransportPreference) -> SecondaryPolicy {
        SecondaryPolicy {
            preference,
            phase: LinkPhase::Closed,
            rtt_min: None,
            base: None,
            paused_until: None,
            failures: 0,
            opened_for: REASON_CLEAN,
            reason: REASON_IDLE,
        }
    }

    /// Why new streams go where they go, for status and logs.
    pub fn reason(&self) -> &'static str {
        self.reason
    }

    pub fn set_preference(&mut self, preference: TransportPreference) {
        self.preference = preference;
    }

    /// A session began: its links are new, and so are their counters.
    pub fn handle_session(&mut self) {
        self.phase = LinkPhase::Closed;
        (self.base, self.rtt_min) = (None, None);
    }

    /// The address of this host or the path to the cloud has changed.
    pub fn handle_moved(&mut self, now: Instant) -> SecondaryAction {
        self.pause(now, MOVED_PAUSE, REASON_MOVED);
        self.rtt_min = None;
        match self.phase {
            LinkPhase::Open { .. } => {
                self.phase = LinkPhase::Closed;
                SecondaryAction::Retire
            }
            _ => SecondaryAction::Wait,
        }
    }

    /// A TCP link was opened. `Retire`: the address changed meanwhile.
    pub fn handle_opened(&mut self, now: Instant) -> SecondaryAction {
        if self.paused_until.is_some_and(|until| now < until) {
            self.phase = LinkPhase::Closed;
            return SecondaryAction::Retire;
        }
        self.phase = LinkPhase::Open { since: now, idle_since: Some(now), slow: 0 };
        self.reason = self.opened_for;
        SecondaryAction::Wait
    }

    /// A dial failed, or the TCP link broke while it was in use.
    pub fn handle_failed(&mut self, now: Instant) {
        self.phase = LinkPhase::Closed;
        self.failures += 1;
        match self.failures >= FAILURES_MAX {
            true => {
                self.failures = 0;
                self.pause(now, FAILED_PAUSE, REASON_FAILED);
            }
            false => self.pause(now, RETRY_PAUSE, REASON_FAILED),
        }
    }

    /// The TCP link answered a ping after `took`, beside a QUIC round trip of `rtt`. `None`: not within `SLOW_MIN`.
    pub fn handle_ping(&mut self, now: Instant, took: Option<Duration>, rtt: Duration) -> SecondaryAction {
        let LinkPhase::Open { slow, .. } = &mut self.phase else { return SecondaryAction::Wait };
        let is_slow = took.is_none_or(|took| took > (rtt * SLOW_RTTS).max(SLOW_MIN));
        *slow = if is_slow { *slow + 1 } else { 0 };
        if *slow < SLOW_MAX {
            return SecondaryAction::Wait;
        }
        self.phase = LinkPhase::Closed;
        self.pause(now, FAILED_PAUSE, REASON_SLOW);
        SecondaryAction::Retire
    }

    pub fn handle_sample(&mut self, now: Instant, sample: &PathSample) -> SecondaryAction {
        if !sample.rtt.is_zero() {
            self.rtt_min = Some(self.rtt_min.map_or(sample.rtt, |known| known.min(sample.rtt)));
        }
        match &mut self.phase {
            LinkPhase::Opening => SecondaryAction::Wait,
            LinkPhase::Open { .. } if self.preference == TransportPreference::Survival => {
                (self.phase, self.reason) = (LinkPhase::Closed, REASON_SURVIVAL);
                SecondaryAction::Retire
            }
            LinkPhase::Open { since, idle_since, .. } => {
                if now.saturating_duration_since(*since) >= PROVEN_AFTER {
                    self.failures = 0;
                }
                if sample.secondary_streams > 0 {
                    *idle_since = None;
                    return SecondaryAction::Wait;
                }
                let idle = now.saturating_duration_since(*idle_since.get_or_insert(now));
                if idle < IDLE_MAX {
                    return SecondaryAction::Wait;
                }
                self.phase = LinkPhase::Closed;
                (self.base, self.reason) = (None, REASON_IDLE);
                SecondaryAction::Retire
            }
            LinkPhase::Closed => self.decide(now, sample),
        }
    }

    fn decide(&mut self, now: Instant, sample: &PathSample) -> SecondaryAction {
        match self.preference {
            TransportPreference::Survival => {
                self.reason = REASON_SURVIVAL;
                return SecondaryAction::Wait;
            }
            _ if self.paused_until.is_some_and(|until| now < until) => return SecondaryAction::Wait,
            TransportPreference::Speed => self.opened_for = REASON_SPEED,
            TransportPreference::Auto => match self.verdict(now, sample) {
                None if self.is_short() && is_lossless(sample) => self.opened_for = REASON_SHORT,
                None => {
                    self.reason = REASON_MEASURING;
                    return SecondaryAction::Wait;
                }
                Some(PathVerdict::Lossy) => {
                    self.pause(now, LOSSY_PAUSE, REASON_LOSSY);
                    return SecondaryAction::Wait;
                }
                Some(PathVerdict::Throttled) => self.opened_for = REASON_THROTTLED,
                Some(PathVerdict::Clean) => self.opened_for = REASON_CLEAN,
            },
        }
        self.paused_until = None;
        self.phase = LinkPhase::Opening;
        SecondaryAction::Open
    }

    /// Judges the path. `None`: too little has crossed it.
    fn verdict(&mut self, now: Instant, sample: &PathSample) -> Option<PathVerdict> {
        let fresh = self.base.filter(|(since, ..)| now.saturating_duration_since(*since) < EVIDENCE_AGE_MAX);
        let (_, ours, theirs) = *self.base.insert(fresh.unwrap_or((now, sample.ours, sample.theirs)));
        let directions = [since(sample.ours, ours), since(sample.theirs, theirs)];
        let crossed: u64 = directions.iter().map(|path| path.acknowledged_bytes + path.lost_bytes).sum();
        if crossed < EVIDENCE_BYTES {
            return None;
        }
        self.base = None;
        let tolerated = if self.is_short() { LOSS_PER_MILLE_MAX } else { 0 };
        let loses = |per_mille: u64| {
            let is_above = |path: &PathStats| {
                path.lost_bytes * 1000 > (path.acknowledged_bytes + path.lost_bytes) * per_mille
            };
            directions.iter().any(is_above)
        };
        Some(match loses(tolerated) {
            false => PathVerdict::Clean,
            true if loses(THROTTLED_PER_MILLE_MIN) => PathVerdict::Throttled,
            true => PathVerdict::Lossy,
        })
    }

    /// Returns true if a short round trip was measured on the path.
    fn is_short(&self) -> bool {
        self.rtt_min.is_some_and(|rtt| rtt < SHORT_RTT)
    }

    fn pause(&mut self, now: Instant, time: Duration, reason: &'static str) {
        // A longer pause that is in force already stays, with its reason.
        self.base = None;
        if self.paused_until.is_none_or(|until| until <= now + time) {
            (self.paused_until, self.reason) = (Some(now + time), reason);
        }
    }
}

const REASON_IDLE: &str = "QUIC: no traffic";
const REASON_MEASURING: &str = "QUIC: the path is being measured";
const REASON_LOSSY: &str = "QUIC: the path loses packets";
const REASON_MOVED: &str = "QUIC: the address changed in the last ten minutes";
const REASON_FAILED: &str = "QUIC: the TCP link failed";
const REASON_SLOW: &str = "QUIC: the TCP link answered slowly";
const REASON_SURVIVAL: &str = "QUIC: prefer is survival";
const REASON_THROTTLED: &str = "TCP: UDP loses a tenth of its packets or more";
const REASON_CLEAN: &str = "TCP: the path is clean and stable";
const REASON_SHORT: &str = "TCP: the path is short and has lost nothing";
const REASON_SPEED: &str = "TCP: prefer is speed";

/// Returns true if the session has lost no byte in either direction.
fn is_lossless(sample: &PathSample) -> bool {
    sample.ours.lost_bytes == 0 && sample.theirs.lost_bytes == 0
}

fn since(now: PathStats, base: PathStats) -> PathStats {
    PathStats {
        acknowledged_bytes: now.acknowledged_bytes.saturating_sub(base.acknowledged_bytes),
        lost_bytes: now.lost_bytes.saturating_sub(base.lost_bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn sample(acknowledged: u64, lost: u64, rtt_ms: u64) -> PathSample {
        PathSample {
            ours: PathStats { acknowledged_bytes: acknowledged, lost_bytes: lost },
            rtt: Duration::from_millis(rtt_ms),
            ..PathSample::default()
        }
    }

    /// The action after `acknowledged` and `lost` bytes have crossed a path with this round trip.
    fn check(preference: TransportPreference, crossed: (u64, u64), rtt_ms: u64, expected: SecondaryAction) {
        let mut policy = SecondaryPolicy::new(preference);
        let now = Instant::now();
        let first = policy.handle_sample(now, &sample(0, 0, rtt_ms));
        if preference == TransportPreference::Auto && rtt_ms >= 5 {
            assert_eq!(first, SecondaryAction::Wait);
            let action = policy.handle_sample(now + s(1), &sample(crossed.0, crossed.1, rtt_ms));
            assert_eq!(action, expected, "{crossed:?} at {rtt_ms} ms: {}", policy.reason());
        } else {
            assert_eq!(first, expected);
        }
    }

    #[test]
    fn a_path_is_used_when_enough_has_crossed_it_without_loss() {
        use SecondaryAction::{Open, Wait};
        use TransportPreference::{Auto, Speed, Survival};
        check(Auto, (0, 0), 1, Open);
        check(Auto, (EVIDENCE_BYTES - 1, 0), 5, Wait);
        check(Auto, (EVIDENCE_BYTES, 0), 5, Open);
        check(Auto, (EVIDENCE_BYTES, 1_500), 5, Wait);
        check(Auto, (EVIDENCE_BYTES, 0), 40, Open);
        check(Auto, (EVIDENCE_BYTES, 1_500), 40, Wait);
        check(Auto, (EVIDENCE_BYTES, EVIDENCE_BYTES / 20), 40, Wait);
        // Throttled rather than lossy.
        check(Auto, (EVIDENCE_BYTES, EVIDENCE_BYTES / 5), 40, Open);
        check(Survival, (EVIDENCE_BYTES, EVIDENCE_BYTES / 5), 40, Wait);
        check(Speed, (0, 0), 40, Open);
        check(Survival, (EVIDENCE_BYTES, 0), 1, Wait);
    }

    #[test]
    fn a_short_path_is_used_at_once_unless_it_has_lost_something() {
        use SecondaryAction::{Open, Wait};
        let now = Instant::now();
        let opens = |first: PathSample| {
            let mut policy = SecondaryPolicy::new(TransportPreference::Auto);
            (policy.handle_sample(now, &first), policy.reason())
        };
        assert_eq!(opens(sample(0, 0, 4)).0, Open);
        assert_eq!(opens(sample(0, 0, 5)), (Wait, REASON_MEASURING));
        // Not measured yet.
        assert_eq!(opens(sample(0, 0, 0)), (Wait, REASON_MEASURING));
        assert_eq!(opens(sample(4_000, 1, 1)), (Wait, REASON_MEASURING));
        let theirs = PathStats { acknowledged_bytes: 4_000, lost_bytes: 1 };
        assert_eq!(opens(PathSample { theirs, ..sample(0, 0, 1) }), (Wait, REASON_MEASURING));
        // A path that has lost something is judged by the evidence; a short one may lose a little.
        for (lost, expected) in [(1_500, Open), (10_000, Wait)] {
            let mut policy = SecondaryPolicy::new(TransportPreference::Auto);
            policy.handle_sample(now, &sample(0, 1, 1));
            assert_eq!(
                policy.handle_sample(now + s(1), &sample(EVIDENCE_BYTES, 1 + lost, 1)),
                expected,
                "{lost}"
            );
        }
        // Traffic of the session makes its round trips longer and its path no other.
        let mut policy = SecondaryPolicy::new(TransportPreference::Auto);
        policy.handle_sample(now, &sample(0, 1, 1));
        assert_eq!(policy.handle_sample(now + s(1), &sample(EVIDENCE_BYTES, 1_500, 30)), Open);
        // A move keeps streams on QUIC here too.
        let mut policy = SecondaryPolicy::new(TransportPreference::Auto);
        policy.handle_moved(now);
        assert_eq!(policy.handle_sample(now + s(1), &sample(0, 0, 1)), Wait);
        assert_eq!(policy.reason(), REASON_MOVED);
    }

    #[test]
    fn the_reason_of_an_open_link_is_the_one_it_was_opened_for() {
        let now = Instant::now();
        for (preference, first, reason) in [
            (TransportPreference::Auto, sample(0, 0, 1), REASON_SHORT),
            (TransportPreference::Speed, sample(0, 0, 40), REASON_SPEED),
        ] {
            let mut policy = SecondaryPolicy::new(preference);
            assert_eq!(policy.handle_sample(now, &first), SecondaryAction::Open);
            policy.handle_opened(now);
            assert_eq!(policy.reason(), reason);
        }
    }

    #[test]
    fn loss_in_the_direction_of_the_cloud_counts_too() {
        let mut policy = SecondaryPolicy::new(TransportPreference::Auto);
        let now = Instant::now();
        policy.handle_sample(now, &PathSample::default());
        let theirs = PathStats { acknowledged_bytes: EVIDENCE_BYTES, lost_bytes: 20_000 };
        let lossy = PathSample { theirs, ..sample(EVIDENCE_BYTES, 0, 1) };
        assert_eq!(policy.handle_sample(now + s(1), &lossy), SecondaryAction::Wait);
        assert_eq!(policy.reason(), REASON_LOSSY);
        // It is judged again after a while, by what has crossed since.
        let later = now + s(1) + LOSSY_PAUSE;
        assert_eq!(policy.handle_sample(later, &lossy), SecondaryAction::Wait);
        let clean = PathSample { ours: PathStats { acknowledged_bytes: 9_000_000, lost_bytes: 0 }, ..lossy };
        assert_eq!(policy.handle_sample(later + s(1), &clean), SecondaryAction::Open);
    }

    #[test]
    fn an_idle_link_is_given_up() {
        let mut policy = open(Instant::now());
        let now = Instant::now();
        let busy = PathSample { secondary_streams: 2, ..PathSample::default() };
        assert_eq!(policy.handle_sample(now + s(500), &busy), SecondaryAction::Wait);
        assert_eq!(policy.handle_sample(now + s(501), &PathSample::default()), SecondaryAction::Wait);
        assert_eq!(
            policy.handle_sample(now + s(502) + IDLE_MAX, &PathSample::default()),
            SecondaryAction::Retire
        );
        assert_eq!(policy.reason(), REASON_IDLE);
    }

    #[test]
    fn a_gateway_that_moves_stays_on_quic_for_ten_minutes() {
        let now = Instant::now();
        let mut policy = open(now);
        assert_eq!(policy.handle_moved(now), SecondaryAction::Retire);
        assert_eq!(policy.handle_moved(now), SecondaryAction::Wait);
        for (after, expected) in [(1, SecondaryAction::Wait), (599, SecondaryAction::Wait)] {
            assert_eq!(policy.handle_sample(now + s(after), &sample(after * 10_000_000, 0, 20)), expected);
        }
        policy.handle_sample(now + s(600), &sample(0, 0, 20));
        assert_eq!(policy.handle_sample(now + s(601), &sample(EVIDENCE_BYTES, 0, 20)), SecondaryAction::Open);
    }

    #[test]
    fn tcp_that_fails_three_times_is_left_alone_for_five_minutes() {
        let mut policy = SecondaryPolicy::new(TransportPreference::Speed);
        let mut now = Instant::now();
        for pause in [RETRY_PAUSE, RETRY_PAUSE, FAILED_PAUSE, RETRY_PAUSE] {
            assert_eq!(policy.handle_sample(now, &PathSample::default()), SecondaryAction::Open);
            policy.handle_failed(now);
            assert_eq!(policy.handle_sample(now + pause / 2, &PathSample::default()), SecondaryAction::Wait);
            now += pause;
        }
    }

    #[test]
    fn a_link_that_opens_and_breaks_at_once_counts_as_a_failure() {
        let mut policy = SecondaryPolicy::new(TransportPreference::Speed);
        let mut now = Instant::now();
        for pause in [RETRY_PAUSE, RETRY_PAUSE, FAILED_PAUSE] {
            assert_eq!(policy.handle_sample(now, &PathSample::default()), SecondaryAction::Open);
            assert_eq!(policy.handle_opened(now), SecondaryAction::Wait);
            policy.handle_failed(now + s(1));
            assert_eq!(policy.handle_sample(now + pause / 2, &PathSample::default()), SecondaryAction::Wait);
            now += s(1) + pause;
        }
        // One that lived for a minute clears the count.
        let busy = PathSample { secondary_streams: 1, ..PathSample::default() };
        for _ in 0..4 {
            assert_eq!(policy.handle_sample(now, &PathSample::default()), SecondaryAction::Open);
            policy.handle_opened(now);
            policy.handle_sample(now + PROVEN_AFTER, &busy);
            policy.handle_failed(now + PROVEN_AFTER);
            now += PROVEN_AFTER + RETRY_PAUSE;
        }
    }

    #[test]
    fn a_move_while_the_link_is_opened_keeps_its_pause() {
        let now = Instant::now();
        for opens in [true, false] {
            let mut policy = SecondaryPolicy::new(TransportPreference::Speed);
            assert_eq!(policy.handle_sample(now, &PathSample::default()), SecondaryAction::Open);
            assert_eq!(policy.handle_moved(now), SecondaryAction::Wait);
            match opens {
                true => assert_eq!(policy.handle_opened(now + s(1)), SecondaryAction::Retire),
                false => policy.handle_failed(now + s(1)),
            }
            assert_eq!(policy.handle_sample(now + s(599), &PathSample::default()), SecondaryAction::Wait);
            assert_eq!(policy.reason(), REASON_MOVED);
            assert_eq!(policy.handle_sample(now + s(601), &PathSample::default()), SecondaryAction::Open);
        }
    }

    #[test]
    fn a_link_that_answers_slowly_three_times_is_given_up() {
        let now = Instant::now();
        let mut policy = open(now);
        let rtt = Duration::from_millis(40);
        for (took, expected) in [
            (None, SecondaryAction::Wait),
            (Some(s(2)), SecondaryAction::Wait),
            (Some(rtt), SecondaryAction::Wait),
            (None, SecondaryAction::Wait),
            (None, SecondaryAction::Wait),
            (None, SecondaryAction::Retire),
        ] {
            assert_eq!(policy.handle_ping(now, took, rtt), expected);
        }
        assert_eq!(policy.reason(), REASON_SLOW);
    }

    fn open(now: Instant) -> SecondaryPolicy {
        let mut policy = SecondaryPolicy::new(TransportPreference::Auto);
        policy.handle_opened(now);
        policy
    }
}
