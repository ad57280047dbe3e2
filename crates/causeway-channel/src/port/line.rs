//! Who comes when there is no place: a line in which nobody stands.
//!
//! Everybody who finds no place is given a time behind all who were given one before, as far apart as handshakes
//! are really finished here. So each waits once, at home, and is served when it comes again. Times are arguments; who
//! has a place is `pace`'s business.

use std::time::{Duration, Instant};

/// Handshakes a second, until it is known better.
const RATE_FIRST: f64 = 500.0;
/// A machine that does fewer is in trouble that no waiting helps against; more would be a mistake in counting.
const RATE_MIN: f64 = 20.0;
const RATE_MAX: f64 = 5000.0;
/// Long enough to count a hundred, short enough to follow a machine whose neighbours come and go.
const WINDOW: Duration = Duration::from_millis(250);
/// What the last window tells, against what was known before.
const WEIGHT: f64 = 0.3;
/// A promise that was too early is worse than one that is too late: who comes too early may be sent away again.
const WEIGHT_SLOWER: f64 = 0.7;
/// After so long without a crowd, the last one says nothing any more.
const FORGOTTEN: Duration = Duration::from_secs(60);
/// Times are given for a little less than is done: who comes late meets the next.
const PROMISED_PART: f64 = 0.95;
/// Nobody is sent away for longer. A fleet that needs more than this comes in two turns.
const AWAY_MAX: Duration = Duration::from_secs(120);

/// The decision. The simulation asks it as the port does.
#[derive(Debug)]
pub struct Line {
    /// Handshakes a second, seen while every place was taken.
    rate: f64,
    /// When the last who was given a time has been served.
    end: Instant,
    window: Window,
}

#[derive(Debug)]
struct Window {
    since: Instant,
    left: u32,
    /// Was no place free, all the time?
    is_full: bool,
}

impl Line {
    pub fn new(now: Instant) -> Line {
        let window = Window { since: now, left: 0, is_full: true };
        Line { rate: RATE_FIRST, end: now, window }
    }

    /// Somebody found no place, and so many wait for one already. After how long it is its turn.
    pub fn handle_newcomer(&mut self, now: Instant, waiting: usize) -> Duration {
        let rate = self.rate * PROMISED_PART;
        // Those who wait are before it, even if they should have been served by now.
        let here = now + Duration::from_secs_f64(waiting as f64 / rate);
        self.end = self.end.max(here).min(now + AWAY_MAX) + Duration::from_secs_f64(1.0 / rate);
        self.end - now
    }

    /// What was seen of the rate, or is supposed of it.
    pub fn served_per_second(&self) -> u32 {
        self.rate as u32
    }

    /// Somebody left a place. `is_full`: no other was free.
    pub fn handle_left(&mut self, now: Instant, is_full: bool) {
        self.window.left += 1;
        self.window.is_full &= is_full;
        let time = now.saturating_duration_since(self.window.since);
        if time < WINDOW {
            return;
        }
        let seen = f64::from(self.window.left) / time.as_secs_f64();
        let rate = match self.window.is_full {
            true if seen < self.rate => self.rate + WEIGHT_SLOWER * (seen - self.rate),
            true => self.rate + WEIGHT * (seen - self.rate),
            // With places free, it could have been more; and what once made us slow is forgotten with time.
            false => {
                let part = (time.as_secs_f64() / FORGOTTEN.as_secs_f64()).min(1.0);
                (self.rate + part * (RATE_FIRST - self.rate).max(0.0)).max(seen)
            }
        };
        self.rate = rate.clamp(RATE_MIN, RATE_MAX);
        self.window = Window { since: now, left: 0, is_full: true };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lets `seconds` pass in which a place is left `rate` times a second.
    fn serve(line: &mut Line, now: &mut Instant, seconds: u32, rate: u32, is_full: bool) {
        for _ in 0..seconds * rate {
            *now += Duration::from_secs(1) / rate;
            line.handle_left(*now, is_full);
        }
    }

    #[test]
    fn each_comes_after_the_one_before() {
        let now = Instant::now();
        let mut line = Line::new(now);
        let waits: Vec<Duration> = (0..1000).map(|_| line.handle_newcomer(now, 0)).collect();
        assert!(waits.is_sorted());
        let last = waits[999].as_secs_f64();
        assert!((last - 1000.0 / (RATE_FIRST * PROMISED_PART)).abs() < 0.01, "{last}");
    }

    #[test]
    fn the_distance_follows_what_is_really_done() {
        for rate in [100, 900] {
            let (mut now, mut line) = (Instant::now(), Line::new(Instant::now()));
            serve(&mut line, &mut now, 5, rate, true);
            assert!((line.rate / f64::from(rate) - 1.0).abs() < 0.1, "{} of {rate}", line.rate);
        }
    }

    #[test]
    fn an_idle_port_is_no_slow_one() {
        let (mut now, mut line) = (Instant::now(), Line::new(Instant::now()));
        serve(&mut line, &mut now, 60, 10, false);
        assert!(line.rate >= RATE_FIRST);
        serve(&mut line, &mut now, 5, 100, true);
        assert!(line.rate < 150.0);
        serve(&mut line, &mut now, 180, 10, false);
        assert!(line.rate > 0.9 * RATE_FIRST, "what made it slow is long gone: {}", line.rate);
        assert!(line.handle_newcomer(now, 0) < Duration::from_millis(10), "the line ended long ago");
    }

    #[test]
    fn those_who_wait_are_served_before() {
        let now = Instant::now();
        let wait = Line::new(now).handle_newcomer(now, 950);
        assert!(wait >= Duration::from_secs(2), "{wait:?}");
    }

    #[test]
    fn nobody_is_sent_away_for_long() {
        let now = Instant::now();
        let mut line = Line::new(now);
        let longest = (0..1_000_000).map(|_| line.handle_newcomer(now, 0)).max().unwrap();
        assert!(longest <= AWAY_MAX + Duration::from_millis(10));
    }
}
