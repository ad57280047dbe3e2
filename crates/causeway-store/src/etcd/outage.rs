//! Decides which failures of the watch on etcd are logged: the first one, then one a minute, and the end of
//! the outage.
//!
//! Input: the outcome of each attempt and the time. Output: the line to write, if any. `feed` writes it.
//! Other readers of the store log an unavailable store at debug level, so that an outage is one line a minute
//! for the whole process.

use std::time::{Duration, Instant};

/// Interval between two lines about the same outage.
const INTERVAL: Duration = Duration::from_secs(60);

/// The current outage, if there is one.
#[derive(Debug, Default)]
pub(super) struct OutageLog {
    outage: Option<Outage>,
}

#[derive(Debug, Clone, Copy)]
struct Outage {
    began: Instant,
    last_line: Instant,
    failures: u64,
}

/// The line to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OutageLine {
    pub lasting: Duration,
    pub failures: u64,
}

impl OutageLog {
    /// Counts a failed attempt. Returns the line, unless one was written less than a minute ago.
    pub fn handle_failure(&mut self, now: Instant) -> Option<OutageLine> {
        let Some(outage) = &mut self.outage else {
            self.outage = Some(Outage { began: now, last_line: now, failures: 1 });
            return Some(OutageLine { lasting: Duration::ZERO, failures: 1 });
        };
        outage.failures += 1;
        if now.saturating_duration_since(outage.last_line) < INTERVAL {
            return None;
        }
        outage.last_line = now;
        Some(outage.line(now))
    }

    /// Ends the outage: etcd responds. Returns the line about the outage, if there was one.
    pub fn handle_success(&mut self, now: Instant) -> Option<OutageLine> {
        self.outage.take().map(|outage| outage.line(now))
    }
}

impl Outage {
    fn line(&self, now: Instant) -> OutageLine {
        OutageLine { lasting: now.saturating_duration_since(self.began), failures: self.failures }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_is_one_line_a_minute() {
        let mut log = OutageLog::default();
        let start = Instant::now();
        let at = |tenths: u64| start + Duration::from_millis(tenths * 100);
        // Five attempts a second for three minutes.
        let lines: Vec<u64> =
            (0..1800).step_by(2).filter(|tenths| log.handle_failure(at(*tenths)).is_some()).collect();
        assert_eq!(lines, [0, 600, 1200]);
        let over = log.handle_success(at(1800));
        assert_eq!(over, Some(OutageLine { lasting: Duration::from_secs(180), failures: 900 }));
        assert_eq!(log.handle_success(at(1801)), None, "said once");
        assert_eq!(
            log.handle_failure(at(1802)),
            Some(OutageLine { lasting: Duration::ZERO, failures: 1 }),
            "the next one"
        );
    }
}
