//! Decides which step is due for a certificate: none yet, a check with the cloud, renewal, or re-enrolment.
//!
//! Pure: the time and the random numbers are arguments. `edge` executes the steps and reports their outcome.

use std::time::{Duration, SystemTime};

use crate::link::CertificateSignal;

const DAY: Duration = Duration::from_secs(24 * 3600);
/// Asked once a day, so that a change of CA reaches every edge within a day.
const CHECK_EVERY: Duration = DAY;
/// The clock may be set while we sleep, so the time is looked at this often.
const SLEEP_MAX: Duration = Duration::from_secs(5 * 60);
/// When the CAs change, the whole fleet is notified at once; its renewals are spread over this time.
const RENEW_SPREAD: Duration = Duration::from_secs(10);
const BACKOFF_FIRST: Duration = Duration::from_secs(2);
/// There are ten days between the first try to renew and the end; a cloud that is away is asked gently.
const BACKOFF_MAX: Duration = Duration::from_secs(10 * 60);

/// The action that is due for the age of a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CertificateAction {
    Wait(Duration),
    Renew,
    Reenrol,
    /// Not valid yet, by this clock. A check with the cloud shows which clock is wrong.
    ClockBehind,
}

/// Judges a certificate by its age. Renewal is due when two thirds of its life are over, or up to a twelfth later:
/// `jitter` (0 to 1) spreads edges that were enrolled together over days.
pub fn next(
    now: SystemTime,
    not_before: SystemTime,
    not_after: SystemTime,
    jitter: f64,
) -> CertificateAction {
    let life = not_after.duration_since(not_before).unwrap_or_default();
    let due = not_before + life * 2 / 3 + (life / 12).mul_f64(jitter.clamp(0.0, 1.0));
    if now < not_before {
        CertificateAction::ClockBehind
    } else if now > not_after {
        CertificateAction::Reenrol
    } else {
        match due.duration_since(now) {
            Ok(rest) if !rest.is_zero() => CertificateAction::Wait(rest),
            _ => CertificateAction::Renew,
        }
    }
}

/// The pause after the `failures`-th failure in a row: doubling, half of it random.
pub fn backoff(failures: u32, jitter: f64) -> Duration {
    let doubled = BACKOFF_FIRST.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(BACKOFF_MAX);
    doubled / 2 + (doubled / 2).mul_f64(jitter.clamp(0.0, 1.0))
}

/// The step that is due now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RenewalStep {
    Sleep(Duration),
    Check,
    Renew,
    Reenrol,
}

/// The outcome of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RenewalOutcome {
    Issued {
        not_before: SystemTime,
        not_after: SystemTime,
    },
    /// The answer to `Check`.
    Checked {
        renew: bool,
    },
    /// According to the cloud the certificate has expired, whatever the local clock shows.
    Expired,
    Failed {
        retry_after: Option<Duration>,
    },
}

/// The schedule of one identity: its certificate, the time of the last check, and the failures since.
#[derive(Debug, Clone)]
pub struct RenewalSchedule {
    not_before: SystemTime,
    not_after: SystemTime,
    jitter: f64,
    check_at: SystemTime,
    /// The cloud asked for it, or said that the certificate has ended.
    wanted: Option<RenewalStep>,
    failures: u32,
    /// Set after a failure: when it happened, and how long to leave the cloud alone.
    pause: Option<(SystemTime, Duration)>,
}

impl RenewalSchedule {
    /// The first question to the cloud is due soon: it proves that the certificate works. A session proves it, too,
    /// and is usually there before.
    pub fn new(
        not_before: SystemTime,
        not_after: SystemTime,
        now: SystemTime,
        jitter: f64,
    ) -> RenewalSchedule {
        let wanted = None;
        RenewalSchedule { not_before, not_after, jitter, check_at: now, wanted, failures: 0, pause: None }
    }

    pub fn next_step(&self, now: SystemTime) -> RenewalStep {
        if let Some(rest) = self.paused(now) {
            return RenewalStep::Sleep(rest.min(SLEEP_MAX));
        }
        let due = next(now, self.not_before, self.not_after, self.jitter);
        match (due, self.wanted) {
            (CertificateAction::Reenrol, _) => RenewalStep::Reenrol,
            (_, Some(step)) => step,
            (CertificateAction::Renew | CertificateAction::ClockBehind, None) => RenewalStep::Renew,
            (CertificateAction::Wait(rest), None) => match self.check_at.duration_since(now) {
                // A check due more than a day from now was planned by a clock that has been set back since.
                Ok(until) if !until.is_zero() && until <= CHECK_EVERY * 2 => {
                    RenewalStep::Sleep(rest.min(until).min(SLEEP_MAX))
                }
                _ => RenewalStep::Check,
            },
        }
    }

    // A clock that is set back must not stretch the pause, so it counts only forward from where it began.
    fn paused(&self, now: SystemTime) -> Option<Duration> {
        let (since, pause) = self.pause?;
        let passed = now.duration_since(since).ok()?;
        pause.checked_sub(passed).filter(|rest| !rest.is_zero())
    }

    /// Takes what a session learned. A session that was taken has proved the certificate, so nothing is asked for a
    /// day; one that was refused asks now, unless the cloud is being left alone.
    pub fn handle_signal(&mut self, signal: CertificateSignal, now: SystemTime, jitter: f64) {
        match signal {
            CertificateSignal::Renew => {
                self.wanted = self.wanted.or(Some(RenewalStep::Renew));
                self.pause = self.pause.or(Some((now, RENEW_SPREAD.mul_f64(jitter.clamp(0.0, 1.0)))));
            }
            CertificateSignal::Check => self.check_at = now,
            CertificateSignal::Nothing => {
                self.failures = 0;
                self.check_at = now + CHECK_EVERY;
            }
        }
    }

    pub fn handle(&mut self, outcome: RenewalOutcome, now: SystemTime, jitter: f64) {
        match outcome {
            RenewalOutcome::Issued { not_before, not_after } => {
                *self = RenewalSchedule::new(not_before, not_after, now, jitter);
            }
            RenewalOutcome::Checked { renew } => {
                self.failures = 0;
                self.pause = None;
                self.wanted = renew.then_some(RenewalStep::Renew);
                self.check_at = now + CHECK_EVERY.mul_f64(0.75 + jitter.clamp(0.0, 1.0) / 4.0);
            }
            RenewalOutcome::Expired => {
                self.wanted = Some(RenewalStep::Reenrol);
                // If the cloud refuses to re-enrol as well, the two must not chase each other.
                self.pause = Some((now, BACKOFF_FIRST));
            }
            RenewalOutcome::Failed { retry_after } => {
                self.failures = self.failures.saturating_add(1);
                let pause = backoff(self.failures, jitter).max(retry_after.unwrap_or_default().min(DAY));
                self.pause = Some((now, pause));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use causeway_channel::clock::from_unix_seconds;

    use super::*;

    fn start() -> SystemTime {
        from_unix_seconds(1_800_000_000)
    }

    #[test]
    fn a_certificate_is_renewed_at_two_thirds_and_replaced_after_its_end() {
        let end = start() + 30 * DAY;
        let second = Duration::from_secs(1);
        let row = |now, jitter, action| assert_eq!(next(now, start(), end, jitter), action);
        row(start(), 0.0, CertificateAction::Wait(20 * DAY));
        row(start(), 1.0, CertificateAction::Wait(20 * DAY + 60 * 3600 * second));
        row(start() + 20 * DAY - second, 0.0, CertificateAction::Wait(second));
        row(start() + 20 * DAY, 0.0, CertificateAction::Renew);
        row(start() + 20 * DAY, 0.5, CertificateAction::Wait(30 * 3600 * second));
        row(end, 1.0, CertificateAction::Renew);
        row(end + second, 0.0, CertificateAction::Reenrol);
        row(start() - second, 0.0, CertificateAction::ClockBehind);
        row(SystemTime::UNIX_EPOCH, 0.0, CertificateAction::ClockBehind);
        // A certificate that ends before it begins is just over.
        assert_eq!(next(start(), start(), start() - DAY, 0.0), CertificateAction::Reenrol);
    }

    #[test]
    fn failures_slow_down_and_never_stop() {
        assert_eq!(backoff(1, 0.0), Duration::from_secs(1));
        assert_eq!(backoff(1, 1.0), Duration::from_secs(2));
        assert_eq!(backoff(3, 1.0), Duration::from_secs(8));
        for failures in [10, 100, u32::MAX] {
            assert_eq!(backoff(failures, 1.0), BACKOFF_MAX);
            assert_eq!(backoff(failures, 0.0), BACKOFF_MAX / 2);
        }
    }

    #[test]
    fn the_cloud_is_asked_at_once_and_then_once_a_day() {
        let mut now = start();
        let mut schedule =
            RenewalSchedule::new(start() - Duration::from_secs(600), start() + 30 * DAY, now, 0.5);
        let mut checks = 0;
        while now < start() + 18 * DAY {
            match schedule.next_step(now) {
                RenewalStep::Sleep(time) => now += time,
                RenewalStep::Check => {
                    checks += 1;
                    schedule.handle(RenewalOutcome::Checked { renew: false }, now, 0.5);
                }
                step => panic!("{step:?}"),
            }
        }
        assert!((18..26).contains(&checks), "{checks}");
    }

    #[test]
    fn an_early_renewal_is_done_at_once_and_its_success_is_shown_to_the_cloud() {
        let mut schedule = RenewalSchedule::new(start(), start() + 30 * DAY, start(), 0.0);
        assert_eq!(schedule.next_step(start()), RenewalStep::Check);
        schedule.handle(RenewalOutcome::Checked { renew: true }, start(), 0.0);
        assert_eq!(schedule.next_step(start()), RenewalStep::Renew);
        let issued = RenewalOutcome::Issued { not_before: start(), not_after: start() + 30 * DAY };
        schedule.handle(issued, start(), 0.0);
        assert_eq!(schedule.next_step(start()), RenewalStep::Check);
    }

    #[test]
    fn a_session_spares_the_question_or_asks_for_it() {
        let mut schedule = RenewalSchedule::new(start(), start() + 30 * DAY, start(), 0.0);
        schedule.handle_signal(CertificateSignal::Nothing, start(), 0.5);
        assert!(
            matches!(schedule.next_step(start()), RenewalStep::Sleep(_)),
            "a session proves the certificate"
        );
        schedule.handle_signal(CertificateSignal::Check, start(), 0.5);
        assert_eq!(schedule.next_step(start()), RenewalStep::Check, "a refusal is looked into at once");
        schedule.handle_signal(CertificateSignal::Nothing, start(), 0.5);
        schedule.handle_signal(CertificateSignal::Renew, start(), 0.5);
        assert_eq!(schedule.next_step(start()), RenewalStep::Sleep(RENEW_SPREAD / 2));
        assert_eq!(schedule.next_step(start() + RENEW_SPREAD / 2), RenewalStep::Renew);
    }

    #[test]
    fn failures_wait_and_clocks_may_jump() {
        let mut schedule = RenewalSchedule::new(start(), start() + 30 * DAY, start(), 0.0);
        let failed = RenewalOutcome::Failed { retry_after: None };
        schedule.handle(failed, start(), 1.0);
        assert_eq!(schedule.next_step(start()), RenewalStep::Sleep(Duration::from_secs(2)));
        assert_eq!(schedule.next_step(start() + Duration::from_secs(2)), RenewalStep::Check);
        let told = RenewalOutcome::Failed { retry_after: Some(Duration::from_secs(90)) };
        schedule.handle(told, start(), 1.0);
        assert_eq!(schedule.next_step(start()), RenewalStep::Sleep(Duration::from_secs(90)));
        // Set back by years: the pause does not last for years, and the cloud will name the clock.
        assert_eq!(schedule.next_step(start() - 700 * DAY), RenewalStep::Renew);
        // Set forward beyond the end: re-enrolment, which the cloud answers with its own time.
        assert_eq!(schedule.next_step(start() + 700 * DAY), RenewalStep::Reenrol);
    }

    #[test]
    fn a_cloud_that_calls_the_certificate_expired_is_believed() {
        let mut schedule = RenewalSchedule::new(start(), start() + 30 * DAY, start(), 0.0);
        schedule.handle(RenewalOutcome::Expired, start(), 0.0);
        assert_eq!(schedule.next_step(start()), RenewalStep::Sleep(BACKOFF_FIRST));
        assert_eq!(schedule.next_step(start() + BACKOFF_FIRST), RenewalStep::Reenrol);
    }
}
