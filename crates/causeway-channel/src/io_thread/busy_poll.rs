//! Busy polling: keeps an I/O thread awake while small messages follow each other closely.
//!
//! Waking a sleeping core takes longer than the work on a small message, and a request wakes six of them. A
//! thread that has handled a message therefore polls for the next one for a moment before it sleeps, and
//! yields the core between two polls. It pauses polling where that does not pay: with many concurrent senders
//! (sleeping gathers their messages), with large or infrequent messages, and where other threads need the
//! core. `BusyPoll` decides, `keep` runs the loop.

use std::cell::Cell;
use std::task::{Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

/// Polling time after a message. A message that takes longer to arrive is slow anyway.
const AWAKE: Duration = Duration::from_micros(150);
/// Messages between two polls that count as many concurrent senders.
const CROWD: u64 = 3;
/// A message counts once more for each of these bytes.
const UNIT_BYTES: usize = 4 * 1024;
/// A thread that does not get the core back within this time has taken it from another one.
const AWAY_MAX: Duration = Duration::from_micros(500);
/// Two messages that were found pay for one poll in vain.
const CREDIT_MAX: u32 = 16;
const CREDIT_AFTER_REST: u32 = 4;
const PRICE: u32 = 2;
/// Messages found since the last pause that show that polling pays.
const WORTH: u32 = 64;
const REST_MIN: Duration = Duration::from_millis(10);
const REST_MAX: Duration = Duration::from_millis(100);

thread_local! {
    static SAID: Cell<u64> = const { Cell::new(0) };
    static KEEPER: Cell<Option<Waker>> = const { Cell::new(None) };
}

/// Records that streams on this thread sent or received `messages`, of `bytes` in total.
pub fn note(messages: usize, bytes: usize) {
    let said = messages + bytes / UNIT_BYTES;
    if said == 0 {
        return;
    }
    SAID.set(SAID.get().wrapping_add(said as u64));
    if let Some(keeper) = KEEPER.take() {
        keeper.wake();
    }
}

/// Runs on every I/O thread for its lifetime.
pub async fn keep() {
    // On a single core no other thread can work during a poll.
    if thread::available_parallelism().map_or(1, usize::from) == 1 {
        return;
    }
    let mut vigil = Vigil::new(Instant::now());
    let mut seen = SAID.get();
    loop {
        more_than(seen).await;
        let mut now = Instant::now();
        let mut next = vigil.begin(now, take_said(&mut seen));
        while next == Next::Look {
            thread::yield_now();
            let away = now.elapsed();
            // Lets the runtime poll its sockets, and ready tasks run.
            tokio::task::yield_now().await;
            now = Instant::now();
            next = vigil.look(now, take_said(&mut seen), away);
        }
        if let Next::Rest(pause) = next {
            tokio::time::sleep(pause).await;
            seen = SAID.get();
        }
    }
}

fn take_said(seen: &mut u64) -> u64 {
    let before = std::mem::replace(seen, SAID.get());
    seen.wrapping_sub(before)
}

async fn more_than(seen: u64) {
    let said = |context: &mut std::task::Context<'_>| {
        if SAID.get() != seen {
            return Poll::Ready(());
        }
        KEEPER.set(Some(context.waker().clone()));
        Poll::Pending
    };
    std::future::poll_fn(said).await;
}

/// Action after a poll.
#[derive(Debug, PartialEq)]
enum Next {
    Look,
    /// Sleep until the next message.
    Sleep,
    /// Sleep without busy polling, for this time.
    Rest(Duration),
}

struct Vigil {
    /// Time of the last message found.
    since: Instant,
    credit: u32,
    /// Messages found since the last pause.
    found: u32,
    rest: Duration,
}

impl Vigil {
    fn new(now: Instant) -> Vigil {
        Vigil { since: now, credit: CREDIT_AFTER_REST, found: 0, rest: REST_MIN }
    }

    /// A message arrived at a sleeping thread.
    fn begin(&mut self, now: Instant, said: u64) -> Next {
        self.since = now;
        if said >= CROWD { self.rest() } else { Next::Look }
    }

    /// After a poll that found `said` messages; before it the core was yielded, for `away`.
    fn look(&mut self, now: Instant, said: u64, away: Duration) -> Next {
        if away > AWAY_MAX || said >= CROWD {
            return self.rest();
        }
        if said > 0 {
            self.since = now;
            self.found = self.found.saturating_add(1);
            self.credit = (self.credit + 1).min(CREDIT_MAX);
            return Next::Look;
        }
        if now.duration_since(self.since) < AWAKE {
            return Next::Look;
        }
        self.credit = self.credit.saturating_sub(PRICE);
        if self.credit == 0 { self.rest() } else { Next::Sleep }
    }

    /// Pauses get longer while polling does not pay between them.
    fn rest(&mut self) -> Next {
        self.rest = if self.found >= WORTH { REST_MIN } else { (self.rest * 2).min(REST_MAX) };
        self.found = 0;
        self.credit = CREDIT_AFTER_REST;
        Next::Rest(self.rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOK: Duration = Duration::from_micros(2);

    /// Simulates a thread with a message every `gap`, for a second. Returns the share of time spent polling,
    /// and how many messages found the thread awake.
    fn share(gap: Duration, said: u64, away: Duration) -> (f64, f64) {
        let start = Instant::now();
        let end = start + Duration::from_secs(1);
        let mut vigil = Vigil::new(start);
        let (mut looking, mut awake, mut messages) = (Duration::ZERO, 0, 0);
        let mut now = start;
        while now < end {
            // Asleep: the next message wakes the thread.
            now += gap;
            messages += 1;
            let mut next = vigil.begin(now, said);
            let mut next_at = now + gap;
            while next == Next::Look && now < end {
                now += LOOK.max(away);
                looking += LOOK;
                let has_come = now >= next_at;
                if has_come {
                    next_at = now + gap;
                    messages += 1;
                    awake += 1;
                }
                next = vigil.look(now, if has_come { said } else { 0 }, away);
            }
            if let Next::Rest(pause) = next {
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
            ("a crowd", Duration::from_micros(50), 8, Duration::ZERO),
            ("others want the core", Duration::from_micros(100), 1, Duration::from_millis(3)),
        ];
        for (row, gap, said, away) in rows {
            let (looking, _) = share(gap, said, away);
            assert!(looking < 0.02, "{row}: {looking}");
        }
    }

    #[test]
    fn a_worthy_vigil_rests_shortly_and_a_vain_one_longer_each_time() {
        let now = Instant::now();
        let mut vigil = Vigil::new(now);
        let pauses: Vec<Next> = (0..5).map(|_| vigil.look(now, CROWD, Duration::ZERO)).collect();
        let millis = [20, 40, 80, 100, 100].map(|millis| Next::Rest(Duration::from_millis(millis)));
        assert_eq!(pauses, millis);
        for _ in 0..WORTH {
            assert_eq!(vigil.look(now, 1, Duration::ZERO), Next::Look);
        }
        assert_eq!(vigil.look(now, 1, AWAY_MAX * 2), Next::Rest(REST_MIN));
    }

    #[tokio::test]
    async fn a_message_wakes_the_keeper_and_silence_lets_the_thread_sleep() {
        let keeper = tokio::spawn(keep());
        tokio::task::yield_now().await;
        let is_waiting = || {
            let keeper = KEEPER.take();
            let is_waiting = keeper.is_some();
            KEEPER.set(keeper);
            is_waiting
        };
        let may_watch = thread::available_parallelism().is_ok_and(|count| count.get() > 1);
        assert_eq!(is_waiting(), may_watch);
        note(0, UNIT_BYTES - 1);
        assert_eq!(is_waiting(), may_watch, "nothing was said");
        note(1, 0);
        assert!(!is_waiting(), "it is awake");
        while may_watch && !is_waiting() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        keeper.abort();
    }
}
