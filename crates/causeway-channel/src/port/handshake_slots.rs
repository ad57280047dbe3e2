//! Limits the handshakes that are processed at the same time, so that those that start also finish.
//!
//! Work on a handshake whose dialer has given up is lost, and the dialer comes again: overload would feed
//! itself. The number of slots therefore follows the time that a peer holds one. A client that finds no slot
//! waits a moment if that is enough, and is otherwise told when to retry, which costs almost nothing
//! (`admission_backlog`). `HandshakeConcurrency` decides, without clocks and sockets; `HandshakeSlots` makes
//! clients wait.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::admission_backlog::AdmissionBacklog;
use causeway_api::sync::MutexExt;

/// Slots at the start: a tenth of a second of work for two cores.
const SLOTS_FIRST: f64 = 128.0;
/// Minimum: a second of work for a machine that is fifty times slower, or as busy with other things.
const SLOTS_MIN: f64 = 16.0;
/// A dialer waits for two seconds at first. With slower handshakes some dialers would be gone before the end.
const SLOW: Duration = Duration::from_millis(800);
/// A round trip across the world and a little work. Below this time there is capacity for more slots.
const FAST: Duration = Duration::from_millis(400);
/// Together with `SLOW` still less than a dialer waits.
pub const WAIT_MAX: Duration = Duration::from_secs(1);
/// Wait of a client that returns at its time: its deadline is ten seconds, and it waits only if the rate was
/// overestimated.
pub const CALLED_WAIT_MAX: Duration = Duration::from_secs(8);

/// Decides the number of slots. The simulation calls it as the port does.
#[derive(Debug)]
pub struct HandshakeConcurrency {
    target: f64,
    slots_max: f64,
    /// Slots that exist, taken or free. More than `target` while more are taken than there should be.
    existing: usize,
}

impl HandshakeConcurrency {
    pub fn new(slots_max: usize) -> HandshakeConcurrency {
        let slots_max = (slots_max as f64).max(1.0);
        let target = SLOTS_FIRST.min(slots_max);
        HandshakeConcurrency { target, slots_max, existing: target as usize }
    }

    /// Returns the number of slots, taken or free.
    pub fn slot_count(&self) -> usize {
        self.existing
    }

    /// A slot was released after `took`. Returns how many slots become free. `is_full`: no other was free.
    pub fn handle_left(&mut self, took: Duration, is_full: bool) -> usize {
        if took >= SLOW {
            // Each slow handshake subtracts half a slot, so a whole round of slow ones halves the number.
            self.target = (self.target - 0.5).max(SLOTS_MIN.min(self.slots_max));
        } else if took < FAST && is_full {
            self.target = (self.target + 1.0).min(self.slots_max);
        }
        self.existing -= 1;
        let free = (self.target as usize).saturating_sub(self.existing);
        self.existing += free;
        free
    }
}

/// The slots, given out in the order of requests.
pub(super) struct HandshakeSlots {
    concurrency: Mutex<HandshakeConcurrency>,
    backlog: Mutex<AdmissionBacklog>,
    permits: Semaphore,
    waiting: AtomicUsize,
}

impl HandshakeSlots {
    pub(super) fn new(slots_max: usize) -> Arc<HandshakeSlots> {
        let concurrency = HandshakeConcurrency::new(slots_max);
        let permits = Semaphore::new(concurrency.existing);
        let backlog = Mutex::new(AdmissionBacklog::new(Instant::now()));
        Arc::new(HandshakeSlots {
            concurrency: Mutex::new(concurrency),
            backlog,
            permits,
            waiting: AtomicUsize::default(),
        })
    }

    /// Returns a slot, or the wait before the next attempt. `is_called`: the client returns at the time it
    /// was given.
    pub(super) async fn ask(self: &Arc<HandshakeSlots>, is_called: bool) -> Result<HandshakeSlot, Duration> {
        if let Some(slot) = self.take_now() {
            return Ok(slot);
        }
        let patience = match is_called {
            true => CALLED_WAIT_MAX,
            false if self.with_backlog(AdmissionBacklog::handle_newcomer) <= WAIT_MAX => WAIT_MAX,
            false => return Err(self.with_backlog(AdmissionBacklog::reserve_slot)),
        };
        match self.take(patience).await {
            Some(slot) => Ok(slot),
            None => Err(self.with_backlog(AdmissionBacklog::reserve_slot)),
        }
    }

    /// Returns a slot, if one becomes free in time.
    pub(super) async fn take(self: &Arc<HandshakeSlots>, patience: Duration) -> Option<HandshakeSlot> {
        if let Some(slot) = self.take_now() {
            return Some(slot);
        }
        let _waiting = Waiting::begin(&self.waiting);
        let permit = timeout(patience, self.permits.acquire()).await.ok()?.ok()?;
        permit.forget();
        Some(HandshakeSlot { slots: self.clone(), since: Instant::now(), is_unused: false })
    }

    fn take_now(self: &Arc<HandshakeSlots>) -> Option<HandshakeSlot> {
        self.permits.try_acquire().ok()?.forget();
        Some(HandshakeSlot { slots: self.clone(), since: Instant::now(), is_unused: false })
    }

    fn with_backlog(&self, ask: fn(&mut AdmissionBacklog, Instant, usize) -> Duration) -> Duration {
        let waiting = self.waiting.load(Ordering::Relaxed);
        let mut backlog = self.backlog.lock_ignoring_poison();
        ask(&mut backlog, Instant::now(), waiting)
    }

    /// Returns whether at least as many clients wait as are served.
    pub(super) fn is_crowded(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) as f64 >= self.concurrency.lock_ignoring_poison().target
    }
}

/// Counts a waiting client while it exists.
struct Waiting<'a>(&'a AtomicUsize);

impl Waiting<'_> {
    fn begin(count: &AtomicUsize) -> Waiting<'_> {
        count.fetch_add(1, Ordering::Relaxed);
        Waiting(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// One handshake slot. The server of the new peer drops it when the peer has its response; the time it was
/// held decides how many other clients are admitted.
#[must_use = "dropped at once, it says that the work is done"]
pub struct HandshakeSlot {
    slots: Arc<HandshakeSlots>,
    since: Instant,
    is_unused: bool,
}

impl HandshakeSlot {
    /// Releases the slot of a client that has hung up. No work was done, so the time it was held says nothing about the
    /// time that handshakes take: it may be a pause of the whole machine.
    pub(super) fn release_unused(mut self) {
        self.is_unused = true;
    }

    /// Returns the measured rate of completed handshakes per second while all slots were taken.
    pub fn served_per_second(&self) -> u32 {
        self.slots.backlog.lock_ignoring_poison().served_per_second()
    }
}

impl Drop for HandshakeSlot {
    fn drop(&mut self) {
        if self.is_unused {
            return self.slots.permits.add_permits(1);
        }
        let is_full = self.slots.permits.available_permits() == 0;
        let mut concurrency = self.slots.concurrency.lock_ignoring_poison();
        let free = concurrency.handle_left(self.since.elapsed(), is_full);
        drop(concurrency);
        let mut backlog = self.slots.backlog.lock_ignoring_poison();
        backlog.handle_left(Instant::now(), is_full);
        drop(backlog);
        self.slots.permits.add_permits(free);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn release_many(
        concurrency: &mut HandshakeConcurrency,
        count: usize,
        took: Duration,
        is_full: bool,
    ) -> usize {
        (0..count).map(|_| concurrency.handle_left(took, is_full)).sum()
    }

    #[test]
    fn places_grow_while_all_are_taken_and_left_quickly() {
        let mut concurrency = HandshakeConcurrency::new(2048);
        assert_eq!(release_many(&mut concurrency, 100, FAST / 2, false), 100, "one comes, one goes");
        assert_eq!(release_many(&mut concurrency, 100, FAST / 2, true), 200);
        assert_eq!(concurrency.existing, 228);
        release_many(&mut concurrency, 10_000, FAST / 2, true);
        assert_eq!(concurrency.existing, 2048, "and not beyond the bound");
    }

    #[test]
    fn places_go_when_work_takes_too_long() {
        let mut concurrency = HandshakeConcurrency::new(2048);
        release_many(&mut concurrency, 872, FAST / 2, true);
        assert_eq!(concurrency.existing, 1000);
        assert_eq!(release_many(&mut concurrency, 1000, SLOW, true), 500, "a slot of slow ones halves them");
        release_many(&mut concurrency, 10_000, SLOW, true);
        assert_eq!(concurrency.existing, SLOTS_MIN as usize, "and some are always left");
        assert_eq!(
            release_many(&mut concurrency, 10, (FAST + SLOW) / 2, true),
            10,
            "in between nothing changes"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn who_comes_when_called_waits_while_others_are_sent_away() {
        let slots = HandshakeSlots::new(1);
        let first = slots.ask(false).await.ok();
        assert!(first.is_some());
        let mut waits = Vec::new();
        for _ in 0..600 {
            waits.push(tokio::spawn({
                let slots = slots.clone();
                async move { slots.ask(false).await.err() }
            }));
        }
        tokio::task::yield_now().await;
        let last = slots.ask(false).await.err().expect("there is a backlog");
        assert!(last > WAIT_MAX, "sent away at once: {last:?}");
        let called = tokio::spawn({
            let slots = slots.clone();
            async move { slots.ask(true).await.is_ok() }
        });
        for wait in waits {
            assert!(wait.await.unwrap().is_some(), "nobody left");
        }
        drop(first);
        assert!(called.await.unwrap());
    }

    #[tokio::test]
    async fn slots_of_clients_that_hung_up_say_nothing_about_the_time_of_handshakes() {
        let slots = HandshakeSlots::new(2048);
        for _ in 0..1000 {
            let mut slot = slots.take_now().unwrap();
            slot.since -= SLOW;
            slot.release_unused();
        }
        assert_eq!(slots.concurrency.lock_ignoring_poison().target, SLOTS_FIRST);
        assert_eq!(slots.permits.available_permits(), SLOTS_FIRST as usize);
    }

    #[tokio::test]
    async fn who_waits_is_served_in_turn_or_turned_away() {
        let slots = HandshakeSlots::new(1);
        let first = slots.take(WAIT_MAX).await;
        assert!(first.is_some());
        assert!(slots.take(WAIT_MAX).await.is_none(), "nobody left");
        let waits = tokio::spawn({
            let slots = slots.clone();
            async move { slots.take(WAIT_MAX).await.is_some() }
        });
        while !slots.is_crowded() {
            tokio::task::yield_now().await;
        }
        drop(first);
        assert!(waits.await.unwrap());
        assert!(!slots.is_crowded());
    }
}
