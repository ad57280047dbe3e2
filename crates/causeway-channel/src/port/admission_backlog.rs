//! Estimates when a rejected client should retry. Clients are not queued; each is given a time slot.
//!
//! A client that finds no handshake slot is given a time after all those given before, at intervals that
//! follow the measured rate of completed handshakes. So each client waits once, outside, and is served when
//! it returns. Times are arguments. Slots are managed by `handshake_slots`.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Assumed handshakes per second before any measurement.
const RATE_FIRST: f64 = 500.0;
/// Bounds of the rate: below the minimum a machine has a problem that waiting does not solve; above the
/// maximum the count must be wrong.
const RATE_MIN: f64 = 20.0;
const RATE_MAX: f64 = 5000.0;
/// Long enough to count a hundred handshakes, short enough to follow a machine with varying load.
const WINDOW: Duration = Duration::from_millis(250);
/// Averaging windows of the rate, in seconds. The shortest predicts the next moments best. The longest does
/// not take a cloud that was busy for a few seconds, as after every start, for a slow one.
const SPANS: [f64; 3] = [1.0, 4.0, 16.0];
/// A rate measured over a span predicts this many times its length, and nothing after that.
const PREDICTED_SPANS: f64 = 4.0;
/// Time without full slots after which an old measurement has no weight.
const STALE_AFTER: Duration = Duration::from_secs(60);
/// Part of the measured rate that is given out as time slots: a late client meets the next one.
const PROMISED_PART: f64 = 0.95;
/// Longest wait that a client is given. A fleet that needs more time is served in two rounds.
const WAIT_MAX: Duration = Duration::from_secs(120);

/// Decides wait times. The simulation calls it as the port does.
#[derive(Debug)]
pub struct AdmissionBacklog {
    /// Handshakes per second while every slot was taken, averaged over each of the spans.
    rates: [f64; SPANS.len()],
    window: Window,
    /// Clients that were given a time which has not come.
    due_clients: DueClients,
}

#[derive(Debug)]
struct Window {
    since: Instant,
    left: u32,
    /// True if no slot was free during the whole window.
    is_full: bool,
}

/// Number of clients due in each quarter of a second.
#[derive(Debug)]
struct DueClients {
    since: Instant,
    due: VecDeque<u32>,
    count: u32,
}

impl AdmissionBacklog {
    pub fn new(now: Instant) -> AdmissionBacklog {
        let window = Window { since: now, left: 0, is_full: false };
        let due_clients = DueClients { since: now, due: VecDeque::new(), count: 0 };
        AdmissionBacklog { rates: [RATE_FIRST; SPANS.len()], window, due_clients }
    }

    /// A client found no slot, and `waiting` clients already wait for one. Returns the wait until its turn.
    pub fn handle_newcomer(&mut self, now: Instant, waiting: usize) -> Duration {
        if !self.window.is_full {
            // The time before this window says nothing about the rate under load.
            self.window = Window { since: now, left: 0, is_full: true };
        }
        self.observe(now);
        self.due_clients.remove_until(now);
        self.time_of(waiting as f64 + f64::from(self.due_clients.count) + 1.0)
    }

    /// As `handle_newcomer`, for a client that does not wait here. Later clients get later times.
    pub fn reserve_slot(&mut self, now: Instant, waiting: usize) -> Duration {
        let wait = self.handle_newcomer(now, waiting);
        self.due_clients.insert(now + wait);
        wait
    }

    /// Returns the measured rate, or the assumed one.
    pub fn served_per_second(&self) -> u32 {
        let [.., longest] = self.rates;
        longest as u32
    }

    /// A slot was released. `is_full`: no other was free.
    pub fn handle_left(&mut self, now: Instant, is_full: bool) {
        self.window.left += 1;
        self.window.is_full &= is_full;
        self.observe(now);
    }

    /// Returns the time at which `number` clients will have been served.
    fn time_of(&self, number: f64) -> Duration {
        let (mut wait, mut trusted) = (WAIT_MAX.as_secs_f64(), 0.0);
        for (rate, span) in self.rates.iter().zip(SPANS) {
            // Beyond the prediction of a shorter span, the longer span counts.
            wait = (number / (rate * PROMISED_PART)).max(trusted).min(wait);
            trusted = span * PREDICTED_SPANS;
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
                // With free slots the rate could have been higher; and the cause of an earlier slowdown is
                // forgotten with time.
                false => {
                    let part = (seconds / STALE_AFTER.as_secs_f64()).min(1.0);
                    (*rate + part * (RATE_FIRST - *rate).max(0.0)).max(seen)
                }
            };
            *rate = followed.clamp(RATE_MIN, RATE_MAX);
        }
        self.window = Window { since: now, left: 0, is_full: self.window.is_full };
    }
}

impl DueClients {
    fn insert(&mut self, due: Instant) {
        let slot = (due.saturating_duration_since(self.since).as_millis() / WINDOW.as_millis()) as usize;
        if slot >= self.due.len() {
            self.due.resize(slot + 1, 0);
        }
        self.due[slot] += 1;
        self.count += 1;
    }

    /// Clients that were due have come, or do not return.
    fn remove_until(&mut self, now: Instant) {
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

    /// Advances `seconds` in which `rate` slots are released per second, and one client per release finds
    /// none if `is_full`.
    fn serve(backlog: &mut AdmissionBacklog, now: &mut Instant, seconds: u32, rate: u32, is_full: bool) {
        for _ in 0..seconds * rate {
            *now += Duration::from_secs(1) / rate;
            backlog.handle_left(*now, is_full);
            if is_full {
                backlog.handle_newcomer(*now, 0);
            }
        }
    }

    #[test]
    fn each_comes_after_the_one_before() {
        let now = Instant::now();
        let mut backlog = AdmissionBacklog::new(now);
        let waits: Vec<Duration> = (0..1000).map(|_| backlog.reserve_slot(now, 0)).collect();
        assert!(waits.is_sorted());
        let last = waits[999].as_secs_f64();
        assert!((last - 1000.0 / (RATE_FIRST * PROMISED_PART)).abs() < 0.01, "{last}");
    }

    #[test]
    fn who_only_asked_is_not_waited_for() {
        let now = Instant::now();
        let mut backlog = AdmissionBacklog::new(now);
        let first = backlog.handle_newcomer(now, 0);
        assert_eq!(backlog.handle_newcomer(now, 0), first);
        backlog.reserve_slot(now, 0);
        assert!(backlog.handle_newcomer(now, 0) > first);
        let later = now + Duration::from_secs(1);
        backlog.handle_left(later, false);
        assert_eq!(backlog.handle_newcomer(later, 0), first, "its time has passed");
    }

    #[test]
    fn the_distance_follows_what_is_really_done() {
        for rate in [100, 900] {
            let (mut now, mut backlog) = (Instant::now(), AdmissionBacklog::new(Instant::now()));
            serve(&mut backlog, &mut now, 5, rate, true);
            let wait = backlog.handle_newcomer(now, 2 * rate as usize).as_secs_f64();
            assert!((1.9..2.3).contains(&wait), "{wait} s for two seconds of work, at {rate} a second");
        }
    }

    #[test]
    fn a_few_slow_seconds_send_nobody_away_for_minutes() {
        let (mut now, mut backlog) = (Instant::now(), AdmissionBacklog::new(Instant::now()));
        serve(&mut backlog, &mut now, 5, 10, true);
        let wait = backlog.handle_newcomer(now, 3000);
        assert!(wait <= Duration::from_secs(20), "{wait:?}");
        serve(&mut backlog, &mut now, 60, 10, true);
        let wait = backlog.handle_newcomer(now, 3000);
        assert!(wait > Duration::from_secs(60), "it is slow, after all: {wait:?}");
    }

    #[test]
    fn those_who_were_sent_far_away_hold_up_nobody_when_all_is_well_again() {
        let (mut now, mut backlog) = (Instant::now(), AdmissionBacklog::new(Instant::now()));
        serve(&mut backlog, &mut now, 60, 20, true);
        while backlog.reserve_slot(now, 0) < Duration::from_secs(50) {}
        serve(&mut backlog, &mut now, 5, 500, true);
        let wait = backlog.handle_newcomer(now, 0);
        assert!(wait < Duration::from_secs(4), "{wait:?}");
    }

    #[test]
    fn an_idle_port_is_no_slow_one() {
        let (mut now, mut backlog) = (Instant::now(), AdmissionBacklog::new(Instant::now()));
        serve(&mut backlog, &mut now, 60, 10, false);
        assert_eq!(backlog.rates, [RATE_FIRST; SPANS.len()]);
        assert!(backlog.handle_newcomer(now, 950) < Duration::from_secs(3), "a crowd comes, all at once");
        serve(&mut backlog, &mut now, 60, 100, true);
        assert!(backlog.served_per_second() < 150);
        serve(&mut backlog, &mut now, 180, 10, false);
        assert!(backlog.served_per_second() > 450, "what made it slow is long gone: {:?}", backlog.rates);
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
        let mut backlog = AdmissionBacklog::new(now);
        let longest = (0..1_000_000).map(|_| backlog.reserve_slot(now, 0)).max().unwrap();
        assert!(longest <= WAIT_MAX);
    }
}
