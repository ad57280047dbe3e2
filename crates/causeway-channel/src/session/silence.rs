//! Decides at the cloud when a link has been silent for too long.
//!
//! A QUIC link reports when bytes were last read or acknowledged. A receiver of much data that loses packets reads nothing
//! until the gap in its stream is filled, and has nothing to be acknowledged, although packets arrive. So the frames that
//! arrived are counted before a link is called dead. Values in, values out.

use std::time::{Duration, Instant};

use super::SILENCE_MAX;

/// Frames are counted from this silence on. An idle edge pings more often, so its frames are never counted.
const COUNT_AFTER: Duration = Duration::from_secs(7);
/// Frames are counted for this long at least, also where this end looks late.
const COUNT_FOR: Duration = Duration::from_secs(3);

/// State of one link.
#[derive(Debug, Clone, Copy, Default)]
pub struct SilenceWatch {
    /// The last time at which the count had grown.
    counted: Option<Instant>,
    baseline: Option<Baseline>,
}

/// The frames that had arrived at `at`, in the silence since `heard`.
#[derive(Debug, Clone, Copy)]
struct Baseline {
    heard: Instant,
    at: Instant,
    frames: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SilenceVerdict {
    /// Look again at that time.
    Wait(Instant),
    Dead,
}

impl SilenceWatch {
    /// `heard`: the last read or acknowledgement; `frames`: all frames of the peer so far.
    pub fn check(&mut self, now: Instant, heard: Instant, frames: u64) -> SilenceVerdict {
        let heard = self.counted.map_or(heard, |counted| counted.max(heard));
        if now < heard + COUNT_AFTER {
            return SilenceVerdict::Wait(heard + COUNT_AFTER);
        }
        let known = self.baseline.filter(|baseline| baseline.heard == heard);
        let baseline = *self.baseline.insert(known.unwrap_or(Baseline { heard, at: now, frames }));
        if frames > baseline.frames {
            self.counted = Some(now);
            return SilenceVerdict::Wait(now + COUNT_AFTER);
        }
        let end = (heard + SILENCE_MAX).max(baseline.at + COUNT_FOR);
        if now < end { SilenceVerdict::Wait(end) } else { SilenceVerdict::Dead }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// Looks whenever the watch asks for it; returns the age at which the link is dead, within two minutes.
    fn dead_after(
        heard: impl Fn(Duration) -> Duration,
        frames: impl Fn(Duration) -> u64,
    ) -> Option<Duration> {
        let start = Instant::now();
        let (mut watch, mut age) = (SilenceWatch::default(), Duration::ZERO);
        while age < s(120) {
            match watch.check(start + age, start + heard(age), frames(age)) {
                SilenceVerdict::Wait(until) => age = until - start,
                SilenceVerdict::Dead => return Some(age),
            }
        }
        None
    }

    #[test]
    fn a_link_without_frames_is_dead_after_ten_seconds() {
        assert_eq!(dead_after(|_| s(0), |_| 5), Some(s(10)));
        let until_four = |age: Duration| age.min(s(4));
        assert_eq!(dead_after(until_four, |age| until_four(age).as_secs()), Some(s(14)));
    }

    #[test]
    fn a_link_whose_frames_arrive_and_cannot_be_read_lives() {
        assert_eq!(dead_after(|_| s(0), |age| age.as_secs()), None);
        let ends = dead_after(|_| s(0), |age| age.min(s(30)).as_secs()).unwrap();
        assert!(ends >= s(40) && ends <= s(47), "{ends:?}");
    }

    #[test]
    fn a_link_that_is_heard_is_looked_at_every_seven_seconds() {
        let start = Instant::now();
        let mut watch = SilenceWatch::default();
        assert_eq!(watch.check(start + s(7), start + s(5), 9), SilenceVerdict::Wait(start + s(12)));
    }

    #[test]
    fn a_late_look_counts_frames_before_it_decides() {
        let start = Instant::now();
        let mut watch = SilenceWatch::default();
        assert_eq!(watch.check(start + s(30), start, 9), SilenceVerdict::Wait(start + s(33)));
        assert_eq!(watch.check(start + s(33), start, 10), SilenceVerdict::Wait(start + s(40)));
    }
}
