//! Decides when an exporter sends. Pure: the time is an argument.
//!
//! Input: the number of records that wait, and how deliveries ended. Output: send now, wait until a time, or wait for records.
//! Records linger for a moment so that few batches carry many; failures are retried with growing pauses.

use std::time::{Duration, Instant};

use super::spool::RECORDS_MAX;

/// Time that the first record of a batch waits for more.
const LINGER: Duration = Duration::from_millis(500);
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// A collector that comes back gets its records within this.
const PAUSE_MAX: Duration = Duration::from_secs(30);

#[derive(Debug, PartialEq, Eq)]
pub enum ExportStep {
    WaitForRecords,
    WaitUntil(Instant),
    Send,
}

#[derive(Debug, Default)]
pub struct ExportPace {
    /// Failures in a row.
    failures: u32,
    retry_at: Option<Instant>,
    /// When the first record of the next batch was seen.
    since: Option<Instant>,
}

impl ExportPace {
    pub fn next(&mut self, waiting: u64, now: Instant) -> ExportStep {
        if let Some(time) = self.retry_at.filter(|time| *time > now) {
            return ExportStep::WaitUntil(time);
        }
        if waiting == 0 {
            self.since = None;
            return ExportStep::WaitForRecords;
        }
        let due = *self.since.get_or_insert(now) + LINGER;
        match waiting >= RECORDS_MAX as u64 || now >= due {
            true => ExportStep::Send,
            false => ExportStep::WaitUntil(due),
        }
    }

    /// Returns true if deliveries failed before.
    pub fn handle_sent(&mut self) -> bool {
        let failures = self.failures;
        *self = ExportPace::default();
        failures > 0
    }

    /// Returns true for the first failure in a row. `random` is between 0 and 1 and shortens the pause by up to a half.
    pub fn handle_failed(&mut self, now: Instant, random: f64) -> bool {
        let pause = RETRY_DELAY.saturating_mul(1 << self.failures.min(10)).min(PAUSE_MAX);
        self.retry_at = Some(now + pause.mul_f64(1.0 - random.clamp(0.0, 1.0) / 2.0));
        self.failures = self.failures.saturating_add(1);
        self.failures == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_linger_and_a_full_batch_goes_at_once() {
        let (mut pace, now) = (ExportPace::default(), Instant::now());
        assert_eq!(pace.next(0, now), ExportStep::WaitForRecords);
        assert_eq!(pace.next(1, now), ExportStep::WaitUntil(now + LINGER));
        assert_eq!(pace.next(2, now + LINGER / 2), ExportStep::WaitUntil(now + LINGER));
        assert_eq!(pace.next(2, now + LINGER), ExportStep::Send);
        assert!(!pace.handle_sent());
        assert_eq!(pace.next(RECORDS_MAX as u64, now + LINGER), ExportStep::Send);
        pace.handle_sent();
        let later = now + LINGER * 3;
        assert_eq!(pace.next(1, later), ExportStep::WaitUntil(later + LINGER));
    }

    #[test]
    fn failures_are_retried_with_growing_pauses_up_to_a_bound() {
        let (mut pace, mut now) = (ExportPace::default(), Instant::now());
        let mut pauses = Vec::new();
        for failure in 0..8 {
            let is_first = pace.handle_failed(now, 0.0);
            assert_eq!(is_first, failure == 0);
            let ExportStep::WaitUntil(time) = pace.next(RECORDS_MAX as u64, now) else {
                panic!("it does not wait")
            };
            pauses.push((time - now).as_secs());
            now = time;
            assert_eq!(pace.next(RECORDS_MAX as u64, now), ExportStep::Send);
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 30, 30, 30]);
        assert!(pace.handle_sent());
        pace.handle_failed(now, 1.0);
        assert_eq!(pace.next(1, now), ExportStep::WaitUntil(now + RETRY_DELAY / 2));
    }
}
