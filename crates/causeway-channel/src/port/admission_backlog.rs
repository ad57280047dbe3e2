//! Who comes when there is no place: a line in which nobody stands.
//!
//! Everybody who finds no place is given a time behind all who were given one before, as far apart as handshakes
//! are really finished here. So each waits once, at home, and is served when it comes again. Times are arguments; who
//! has a place is `pace`'s business.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Handshakes a second, until it is known better.
const RATE_FIRST: f64 = 500.0;
/// A machine that does fewer is in trouble that no waiting helps against; more would be a mistake in counting.
const RATE_MIN: f64 = 20.0;
const RATE_MAX: f64 = 5000.0;
/// Long enough to count a hundred, short enough to follow a machine whose neighbours come and go.
const WINDOW: Duration = Duration::from_millis(250);
/// Over so many seconds the rate is averaged. The shortest knows best what the next moment brings; the longest does not
/// take a cloud that was busy with itself for a few seconds, as after every start, for a slow one.
const SPANS: [f64; 3] = [1.0, 4.0, 16.0];
/// What was seen over a span says something about so many times its length, and nothing about what comes after.
const TRUSTED: f64 = 4.0;
/// After so long without a crowd, the last one says nothing any more.
const FORGOTTEN: Duration = Duration::from_secs(60);
/// Times are given for a little less than is done: who comes late meets the next.
const PROMISED_PART: f64 = 0.95;
/// Nobody is sent away for longer. A fleet that needs more than this comes in two turns.
const AWAY_MAX: Duration = Duration::from_secs(120);

/// The decision. The simulation asks it as the port does.
#[derive(Debug)]
pub struct AdmissionBacklog {
    /// Handshakes a second, seen while every place was taken: over each of the spans.
    rates: [f64; SPANS.len()],
    window: Window,
    /// Those who were sent away and are not due yet.
    away: Away,
}

#[derive(Debug)]
struct Window {
    since: Instant,
    left: u32,
    /// Was no place free, all the time?
    is_full: bool,
}

/// How many are due in which quarter of a second.
#[derive(Debug)]
struct Away {
    since: Instant,
    due: VecDeque<u32>,
    count: u32,
}

impl AdmissionBacklog {
    pub fn new(now: Instant) -> AdmissionBacklog {
        let window = Window { since: now, left: 0, is_full: false };
        let away = Away { since: now, due: VecDeque::new(), count: 0 };
        AdmissionBacklog { rates: [RATE_FIRST; SPANS.len()], window, away }
    }

    /// Somebody found no place, and so many wait for one already. After how long it would be its turn.
    pub fn handle_newcomer(&mut self, now: Instant, waiting: usize) -> Duration {
        if !self.window.is_full {
            // The time before says nothing about a crowd.
            self.window = Window { since: now, left: 0, is_full: true };
        }
        self.observe(now);
        self.away.forget_until(now);
        self.turn_of(waiting as f64 + f64::from(self.away.count) + 1.0)
    }

    /// As `handle_newcomer`, for one who does not wait here. Who comes next comes after it.
    pub fn send_away(&mut self, now: Instant, waiting: usize) -> Duration {
        let wait = self.handle_newcomer(now, waiting);
        self.away.insert(now + wait);
        wait
    }

    /// What was seen of the rate, or is supposed of it.
    pub fn served_per_second(&self) -> u32 {
        let [.., longest] = self.rates;
        longest as u32
    }

    /// Somebody left a place. `is_full`: no other was free.
    pub fn handle_left(&mut self, now: Instant, is_full: bool) {
        self.window.left += 1;
        self.window.is_full &= is_full;
        self.observe(now);
    }

    /// When so many have been served.
    fn turn_of(&self, number: f64) -> Duration {
        let (mut wait, mut trusted) = (AWAY_MAX.as_secs_f64(), 0.0);
        for (rate, span) in self.rates.iter().zip(SPANS) {
            // Beyond what a shorter span can say, a longer one that has seen more is believed.
            wait = (number / (rate * PROMISED_PART)).max(trusted).min(wait);
            trusted = span * TRUSTED;
        }
        Duration::from_secs_f64(wait)
    }

    fn observe(&mut self, now: Instant) {
        let time = now.saturating_duration_since(self.window.since);
        if time < WINDOW {
            return;
        }
        let seconds = time.as_secs_f64();
        let seen = f64::from(self.window.left) / seconds;
        for (rate, span) in self.rates.iter_mut().zip(SPANS) {
            let followed = match self.window.is_full {
                true => *rate + (1.0 - (-seconds / span).exp()) * (seen - *rate),
                // With places free, it could have been more; and what once made us slow is forgotten with time.
                false => {
                    let part = (seconds / FORGOTTEN.as_secs_f64()).min(1.0);
                    (*rate + part * (RATE_FIRST - *rate).max(0.0)).max(seen)
                }
            };
            *rate = followed.clamp(RATE_MIN, RATE_MAX);
        }
        self.window = Window { since: now, left: 0, is_full: self.window.is_full };
    }
}

impl Away {
    fn insert(&mut self, due: Instant) {
        let slot = (due.saturating_duration_since(self.since).as_millis() / WINDOW.as_millis()) as usize;
        if slot >= self.due.len() {
            self.due.resize(slot + 1, 0);
        }
        self.due[slot] += 1;
        self.count += 1;
    }

    /// Who was due has come, or stays away.
    fn forget_until(&mut self, now: Instant) {
        while now.saturating_duration_since(self.since) >= WINDOW {
            let Some(due) = self.due.pop_front() else { return self.since = now };
            self.count -= due;
            self.since += WINDOW;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lets `seconds` pass in which a place is left `rate` times a second, and one asks in vain if there is a crowd.
    fn serve(line: &mut AdmissionBacklog, now: &mut Instant, seconds: u32, rate: u32, is_full: bool) {
        for _ in 0..seconds * rate {
            *now += Duration::from_secs(1) / rate;
            line.handle_left(*now, is_full);
            if is_full {
                line.handle_newcomer(*now, 0);
            }
        }
    }

    #[test]
    fn each_comes_after_the_one_before() {
        let now = Instant::now();
        let mut line = AdmissionBacklog::new(now);
        let waits: Vec<Duration> = (0..1000).map(|_| line.send_away(now, 0)).collect();
        assert!(waits.is_sorted());
        let last = waits[999].as_secs_f64();
        assert!((last - 1000.0 / (RATE_FIRST * PROMISED_PART)).abs() < 0.01, "{last}");
    }

    #[test]
    fn who_only_asked_is_not_waited_for() {
        let now = Instant::now();
        let mut line = AdmissionBacklog::new(now);
        let first = line.handle_newcomer(now, 0);
        assert_eq!(line.handle_newcomer(now, 0), first);
        line.send_away(now, 0);
        assert!(line.handle_newcomer(now, 0) > first);
        let later = now + Duration::from_secs(1);
        line.handle_left(later, false);
        assert_eq!(line.handle_newcomer(later, 0), first, "its time has passed");
    }

    #[test]
    fn the_distance_follows_what_is_really_done() {
        for rate in [100, 900] {
            let (mut now, mut line) = (Instant::now(), AdmissionBacklog::new(Instant::now()));
            serve(&mut line, &mut now, 5, rate, true);
            let wait = line.handle_newcomer(now, 2 * rate as usize).as_secs_f64();
            assert!((1.9..2.3).contains(&wait), "{wait} s for two seconds of work, at {rate} a second");
        }
    }

    #[test]
    fn a_few_slow_seconds_send_nobody_away_for_minutes() {
        let (mut now, mut line) = (Instant::now(), AdmissionBacklog::new(Instant::now()));
        serve(&mut line, &mut now, 5, 10, true);
        let wait = line.handle_newcomer(now, 3000);
        assert!(wait <= Duration::from_secs(20), "{wait:?}");
        serve(&mut line, &mut now, 60, 10, true);
        let wait = line.handle_newcomer(now, 3000);
        assert!(wait > Duration::from_secs(60), "it is slow, after all: {wait:?}");
    }

    #[test]
    fn those_who_were_sent_far_away_hold_up_nobody_when_all_is_well_again() {
        let (mut now, mut line) = (Instant::now(), AdmissionBacklog::new(Instant::now()));
        serve(&mut line, &mut now, 60, 20, true);
        while line.send_away(now, 0) < Duration::from_secs(50) {}
        serve(&mut line, &mut now, 5, 500, true);
        let wait = line.handle_newcomer(now, 0);
        assert!(wait < Duration::from_secs(4), "{wait:?}");
    }

    #[test]
    fn an_idle_port_is_no_slow_one() {
        let (mut now, mut line) = (Instant::now(), AdmissionBacklog::new(Instant::now()));
        serve(&mut line, &mut now, 60, 10, false);
        assert_eq!(line.rates, [RATE_FIRST; SPANS.len()]);
        assert!(line.handle_newcomer(now, 950) < Duration::from_secs(3), "a crowd comes, all at once");
        serve(&mut line, &mut now, 60, 100, true);
        assert!(line.served_per_second() < 150);
        serve(&mut line, &mut now, 180, 10, false);
        assert!(line.served_per_second() > 450, "what made it slow is long gone: {:?}", line.rates);
    }

    #[test]
    fn those_who_wait_are_served_before() {
        let now = Instant::now();
        let wait = AdmissionBacklog::new(now).handle_newcomer(now, 950);
        assert!(wait >= Duration::from_secs(2), "{wait:?}");
    }

    #[test]
    fn nobody_is_sent_away_for_long() {
        let now = Instant::now();
        let mut line = AdmissionBacklog::new(now);
        let longest = (0..1_000_000).map(|_| line.send_away(now, 0)).max().unwrap();
        assert!(longest <= AWAY_MAX);
    }
}
