//! Busy polling: keeps an I/O thread awake while small messages follow each other closely.
//!
//! Waking a sleeping core takes longer than the work on a small message, and a request wakes six of them. A
//! thread that has handled a message therefore polls for the next one for a moment before it sleeps, and
//! yields the core between two polls. It pauses polling where that does not pay: with many concurrent senders
//! (sleeping gathers their messages), with large or infrequent messages, and where other threads need the
//! core. `PollBudget` decides, `keep` runs the loop.

use std::cell::Cell;
use std::task::{Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

/// Polling time after a message. A message that takes longer to arrive is slow anyway.
const AWAKE: Duration = Duration::from_micros(150);
/// Messages between two polls that count as many concurrent senders.
const MESSAGES_MANY: u64 = 3;
/// A message counts once more for each of these bytes.
const UNIT_BYTES: usize = 4 * 1024;
/// A thread that does not get the core back within this time has taken it from another one.
const AWAY_MAX: Duration = Duration::from_micros(500);
/// Two messages that were found pay for one poll in vain.
const CREDIT_MAX: u32 = 16;
const CREDIT_AFTER_REST: u32 = 4;
const PRICE: u32 = 2;
/// Messages found since the last pause that show that polling pays.
const PAYING_MIN: u32 = 64;
const REST_MIN: Duration = Duration::from_millis(10);
const REST_MAX: Duration = Duration::from_millis(100);

thread_local! {
    static MESSAGES: Cell<u64> = const { Cell::new(0) };
    static POLL_WAKER: Cell<Option<Waker>> = const { Cell::new(None) };
}

/// Records that streams on this thread sent or received `messages`, of `bytes` in total.
pub fn note(messages: usize, bytes: usize) {
    let messages = messages + bytes / UNIT_BYTES;
    if messages == 0 {
        return;
    }
    MESSAGES.set(MESSAGES.get().wrapping_add(messages as u64));
    if let Some(waker) = POLL_WAKER.take() {
        waker.wake();
    }
}

/// Runs on every I/O thread for its lifetime.
pub async fn keep() {
    // On a single core no other thread can work during a poll.
    if thread::available_parallelism().map_or(1, usize::from) == 1 {
        return;
    }
    let mut budget = PollBudget::new(Instant::now());
    let mut seen = MESSAGES.get();
    loop {
        more_than(seen).await;
        let mut now = Instant::now();
        let mut next = budget.begin(now, take_new(&mut seen));
        while next == PollAction::Look {
            thread::yield_now();
            let away = now.elapsed();
            // Lets the runtime poll its sockets, and ready tasks run.
            tokio::task::yield_now().await;
            now = Instant::now();
            next = budget.handle_poll(now, take_new(&mut seen), away);
        }
        if let PollAction::Rest(pause) = next {
            tokio::time::sleep(pause).await;
            seen = MESSAGES.get();
        }
    }
}

fn take_new(seen: &mut u64) -> u64 {
    let before = std::mem::replace(seen, MESSAGES.get());
    seen.wrapping_sub(before)
}

async fn more_than(seen: u64) {
    let arrived = |context: &mut std::task::Context<'_>| {
        if MESSAGES.get() != seen {
            return Poll::Ready(());
        }
        POLL_WAKER.set(Some(context.waker().clone()));
        Poll::Pending
    };
    std::future::poll_fn(arrived).await;
}

/// Action after a poll.
#[derive(Debug, PartialEq)]
enum PollAction {
    Look,
    /// Sleep until the next message.
    Sleep,
    /// Sleep without busy polling, for this time.
    Rest(Duration),
}

struct PollBudget {
    /// Time of the last message found.
    since: Instant,
    credit: u32,
    /// Messages found since the last pause.
    found: u32,
    rest: Duration,
}

impl PollBudget {
    fn new(now: Instant) -> PollBudget {
        PollBudget { since: now, credit: CREDIT_AFTER_REST, found: 0, rest: REST_MIN }
    }

    /// A message arrived at a sleeping thread.
    fn begin(&mut self, now: Instant, messages: u64) -> PollAction {
        self.since = now;
        if messages >= MESSAGES_MANY { self.rest() } else { PollAction::Look }
    }

    /// After a poll that found `messages` messages; before it the core was yielded, for `away`.
    fn handle_poll(&mut self, now: Instant, messages: u64, away: Duration) -> PollAction {
        if away > AWAY_MAX || messages >= MESSAGES_MANY {
            return self.rest();
        }
        if messages > 0 {
            self.since = now;
            self.found = self.found.saturating_add(1);
            self.credit = (self.credit + 1).min(CREDIT_MAX);
            return PollAction::Look;
        }
        if now.duration_since(self.since) < AWAKE {
            return PollAction::Look;
        }
        self.credit = self.credit.saturating_sub(PRICE);
        if self.credit == 0 { self.rest() } else { PollAction::Sleep }
    }

    /// Pauses get longer while polling does not pay between them.
    fn rest(&mut self) -> PollAction {
        self.rest = if self.found >= PAYING_MIN { REST_MIN } else { (self.rest * 2).min(REST_MAX) };
        self.found = 0;
        self.credit = CREDIT_AFTER_REST;
        PollAction::Rest(self.rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLL_TIME: Duration = Duration::from_micros(2);

    /// Simulates a thread with a message every `gap`, for a second. Returns the share of time spent polling,
    /// and how many messages found the thread awake.
    fn share(gap: Duration, weight: u64, away: Duration) -> (f64, f64) {
        let start = Instant::now();
        let end = start + Duration::from_secs(1);
        let mut budget = PollBudget::new(start);
        let (mut looking, mut awake, mut messages) = (Duration::ZERO, 0, 0);
        let mut now = start;
        while now < end {
            // Asleep: the next message wakes the thread.
            now += gap;
            messages += 1;
            let mut next = budget.begin(now, weight);
            let mut next_at = now + gap;
            while next == PollAction::Look && now < end {
                now += POLL_TIME.max(away);
                looking += POLL_TIME;
                let has_come = now >= next_at;
                if has_come {
                    next_at = now + gap;
                    messages += 1;
                    awake += 1;
                }
                next = budget.handle_poll(now, if has_come { weight } else { 0 }, away);
            }
            if let PollAction::Rest(pause) = next {
                messages += pause.as_nanos() / gap.as_nanos();
                now += pause;
            }
        }
        (looking.as_secs_f64(), f64::from(awake) / messages as f64)
    }

    #[test]
    fn small_messages_that_follow_closely_find_it_awake() {
        for gap in [20, 50, 100] {
            let (_, awake) = share(Duration::from_micros(gap), 1, Duration::ZERO);
            assert!(awake > 0.95, "every {gap} us: {awake}");
        }
    }

    #[test]
    fn where_it_does_not_pay_it_costs_little() {
        let rows = [
            ("far between", Duration::from_millis(1), 1, Duration::ZERO),
            ("seldom", Duration::from_millis(20), 1, Duration::ZERO),
            ("many senders", Duration::from_micros(50), 8, Duration::ZERO),
            ("others want the core", Duration::from_micros(100), 1, Duration::from_millis(3)),
        ];
        for (row, gap, messages, away) in rows {
            let (looking, _) = share(gap, messages, away);
            assert!(looking < 0.02, "{row}: {looking}");
        }
    }

    #[test]
    fn a_paying_poll_rests_shortly_and_a_vain_one_longer_each_time() {
        let now = Instant::now();
        let mut budget = PollBudget::new(now);
        let pauses: Vec<PollAction> =
            (0..5).map(|_| budget.handle_poll(now, MESSAGES_MANY, Duration::ZERO)).collect();
        let millis = [20, 40, 80, 100, 100].map(|millis| PollAction::Rest(Duration::from_millis(millis)));
        assert_eq!(pauses, millis);
        for _ in 0..PAYING_MIN {
            assert_eq!(budget.handle_poll(now, 1, Duration::ZERO), PollAction::Look);
        }
        assert_eq!(budget.handle_poll(now, 1, AWAY_MAX * 2), PollAction::Rest(REST_MIN));
    }

    #[tokio::test]
    async fn a_message_wakes_the_keeper_and_silence_lets_the_thread_sleep() {
        let waker = tokio::spawn(keep());
        tokio::task::yield_now().await;
        let is_waiting = || {
            let waker = POLL_WAKER.take();
            let is_waiting = waker.is_some();
            POLL_WAKER.set(waker);
            is_waiting
        };
        let may_watch = thread::available_parallelism().is_ok_and(|count| count.get() > 1);
        assert_eq!(is_waiting(), may_watch);
        note(0, UNIT_BYTES - 1);
        assert_eq!(is_waiting(), may_watch, "nothing was messages");
        note(1, 0);
        assert!(!is_waiting(), "it is awake");
        while may_watch && !is_waiting() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        waker.abort();
    }
}
