//! Decides when the worker polls for an answer instead of sleeping.
//!
//! Input: the packets of each turn, and the time. Output: whether to poll. Waking a sleeping core takes longer than
//! forwarding a packet, and a small packet is often answered within a fraction of a millisecond: by a host of this site, or
//! by a site nearby. After a packet in one direction the worker therefore polls until a packet comes in the other one, and
//! yields the core between two polls. It pauses where that does not pay: many or large packets, answers that take longer,
//! and other threads that need the core. Time is passed in; `worker` polls.

use std::time::{Duration, Instant};

use super::translate::Direction;

/// Polling time after a packet. An answer that takes longer is slow anyway.
const AWAKE: Duration = Duration::from_micros(150);
/// Packets of one direction in one turn that count as a stream.
const PACKETS_MANY: usize = 3;
/// Bytes in one turn that count as a stream.
const BYTES_MANY: usize = 4096;
/// A thread that does not get the core back within this time has taken it from another one.
const AWAY_MAX: Duration = Duration::from_micros(500);
/// Two answers pay for one poll in vain.
const CREDIT_MAX: u32 = 16;
const CREDIT_AFTER_PAUSE: u32 = 4;
const PRICE: u32 = 2;
/// Answers since the last pause that show that polling pays.
const PAYING_MIN: u32 = 16;
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_millis(100);

/// The packets that the worker handled in one turn.
#[derive(Clone, Copy, Default, Debug)]
pub struct Turn {
    outbound: usize,
    inbound: usize,
    bytes: usize,
}

impl Turn {
    pub fn add(&mut self, direction: Direction, bytes: usize) {
        match direction {
            Direction::Outbound => self.outbound += 1,
            Direction::Inbound => self.inbound += 1,
        }
        self.bytes += bytes;
    }

    fn is_stream(&self) -> bool {
        self.outbound >= PACKETS_MANY || self.inbound >= PACKETS_MANY || self.bytes >= BYTES_MANY
    }

    fn has(&self, direction: Direction) -> bool {
        match direction {
            Direction::Outbound => self.outbound > 0,
            Direction::Inbound => self.inbound > 0,
        }
    }
}

pub struct BusyPoll {
    /// The direction in which an answer is expected, and the end of the wait for it.
    awaited: Option<(Direction, Instant)>,
    credit: u32,
    /// Answers since the last pause.
    answered: u32,
    pause: Duration,
    paused_until: Instant,
}

impl BusyPoll {
    pub fn new(now: Instant) -> BusyPoll {
        let (credit, pause) = (CREDIT_AFTER_PAUSE, PAUSE_MIN);
        BusyPoll { awaited: None, credit, answered: 0, pause, paused_until: now }
    }

    /// Takes note of a turn, which may have been without packets.
    pub fn handle_turn(&mut self, turn: &Turn, now: Instant) {
        if turn.is_stream() {
            return self.pause(now);
        }
        if now < self.paused_until {
            return;
        }
        match self.awaited {
            Some((direction, _)) if turn.has(direction) => {
                self.awaited = None;
                self.answered = self.answered.saturating_add(1);
                self.credit = (self.credit + 1).min(CREDIT_MAX);
            }
            Some(_) => {}
            None => self.awaited = expected(turn).map(|direction| (direction, now + AWAKE)),
        }
    }

    /// Returns whether to poll instead of sleeping.
    pub fn is_polling(&mut self, now: Instant) -> bool {
        match self.awaited {
            None => false,
            Some((_, until)) if now < until => true,
            Some(_) => {
                self.awaited = None;
                self.credit = self.credit.saturating_sub(PRICE);
                if self.credit == 0 {
                    self.pause(now);
                }
                false
            }
        }
    }

    /// Takes note of a core that was yielded for `away`.
    pub fn handle_yield(&mut self, away: Duration, now: Instant) {
        if away > AWAY_MAX {
            self.pause(now);
        }
    }

    /// Pauses get longer while polling does not pay between them.
    fn pause(&mut self, now: Instant) {
        self.pause = if self.answered >= PAYING_MIN { PAUSE_MIN } else { (self.pause * 2).min(PAUSE_MAX) };
        self.paused_until = now + self.pause;
        (self.awaited, self.answered, self.credit) = (None, 0, CREDIT_AFTER_PAUSE);
    }
}

/// Returns the direction of the answer to a turn with packets of one direction.
fn expected(turn: &Turn) -> Option<Direction> {
    match (turn.outbound, turn.inbound) {
        (1.., 0) => Some(Direction::Inbound),
        (0, 1..) => Some(Direction::Outbound),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLL_TIME: Duration = Duration::from_micros(2);

    fn turn(direction: Direction, packets: usize, bytes: usize) -> Turn {
        let mut turn = Turn::default();
        (0..packets).for_each(|_| turn.add(direction, bytes));
        turn
    }

    /// Simulates one second of requests of `packets` every `gap`, each answered after `delay`, with `away` for each yield. Returns the share of
    /// time spent polling, and the share of answers that found the worker awake.
    fn simulate(gap: u64, delay: u64, packets: usize, bytes: usize, away: Duration) -> (f64, f64) {
        let (gap, delay) = (Duration::from_micros(gap), Duration::from_micros(delay));
        let start = Instant::now();
        let end = start + Duration::from_secs(1);
        let mut poll = BusyPoll::new(start);
        let (mut polled, mut awake, mut answers) = (Duration::ZERO, 0, 0);
        let mut at = start;
        while at < end {
            let mut now = at;
            poll.handle_turn(&turn(Direction::Outbound, packets, bytes), now);
            let answer_at = at + delay;
            while now < answer_at && poll.is_polling(now) {
                now += POLL_TIME + away;
                polled += POLL_TIME;
                poll.handle_yield(away, now);
            }
            let found = poll.is_polling(now);
            awake += u64::from(found);
            answers += 1;
            now = now.max(answer_at);
            poll.handle_turn(&turn(Direction::Inbound, packets, bytes), now);
            // After an answer nothing is expected, unless the answer was missed and is taken for a question.
            while poll.is_polling(now) && now < at + gap {
                now += POLL_TIME + away;
                polled += POLL_TIME;
                poll.handle_yield(away, now);
            }
            at = (at + gap).max(now);
        }
        (polled.as_secs_f64(), awake as f64 / f64::from(answers))
    }

    #[test]
    fn small_packets_that_are_answered_soon_find_the_worker_awake() {
        for (gap, delay) in [(10_000, 30), (10_000, 120), (200, 60), (1_000_000 / 3, 100)] {
            let (_, awake) = simulate(gap, delay, 1, 84, Duration::ZERO);
            assert!(awake > 0.95, "every {gap} us, answered after {delay} us: {awake}");
        }
    }

    #[test]
    fn polling_that_does_not_pay_costs_little() {
        for (row, gap, delay, packets, bytes, away) in [
            ("answers from far away", 1000, 800, 1, 84, Duration::ZERO),
            ("answers from another continent", 100_000, 90_000, 1, 84, Duration::ZERO),
            ("streams of packets", 100, 60, 8, 84, Duration::ZERO),
            ("large frames", 200, 60, 1, 60_000, Duration::ZERO),
            ("a core that is needed", 1000, 100, 1, 84, Duration::from_millis(3)),
        ] {
            let (polled, _) = simulate(gap, delay, packets, bytes, away);
            assert!(polled < 0.02, "{row}: {polled}");
        }
    }

    #[test]
    fn nothing_is_expected_after_an_answer_or_without_packets() {
        let now = Instant::now();
        let mut poll = BusyPoll::new(now);
        poll.handle_turn(&Turn::default(), now);
        assert!(!poll.is_polling(now));
        poll.handle_turn(&turn(Direction::Inbound, 1, 84), now);
        assert!(poll.is_polling(now));
        poll.handle_turn(&turn(Direction::Inbound, 1, 84), now);
        assert!(poll.is_polling(now), "a packet of the same direction is no answer");
        poll.handle_turn(&turn(Direction::Outbound, 1, 84), now);
        assert!(!poll.is_polling(now));
    }

    #[test]
    fn a_stream_ends_polling_at_once() {
        let now = Instant::now();
        let mut poll = BusyPoll::new(now);
        poll.handle_turn(&turn(Direction::Outbound, 1, 84), now);
        assert!(poll.is_polling(now));
        poll.handle_turn(&turn(Direction::Outbound, PACKETS_MANY, 84), now);
        assert!(!poll.is_polling(now));
        let later = now + PAUSE_MIN / 2;
        poll.handle_turn(&turn(Direction::Outbound, 1, 84), later);
        assert!(!poll.is_polling(later), "a pause lasts");
    }
}
