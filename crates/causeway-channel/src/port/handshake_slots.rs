//! How many handshakes are worked on at the same time, so that those that are begun are also finished.
//!
//! Work on a handshake whose dialer has given up is lost, and the dialer comes again: overload would feed itself. So
//! the number of places follows how long a peer is kept in one. Who finds none waits a moment where that is enough, and
//! is else told when to come again, which costs next to nothing (`line`). `HandshakeConcurrency` decides, and has neither clocks nor
//! sockets; `HandshakeSlots` lets wait.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::admission_backlog::AdmissionBacklog;
use crate::lock::lock;

/// At the start: a tenth of a second of work for two cores.
const PLACES_FIRST: f64 = 128.0;
/// Never fewer: a second of work for a machine that is fifty times slower, or as busy with other things.
const PLACES_MIN: f64 = 16.0;
/// A dialer waits for two seconds at first. Slower than this, and some would be gone before we are done.
const SLOW: Duration = Duration::from_millis(800);
/// A round trip across the world and a little work: there is room for more.
const FAST: Duration = Duration::from_millis(400);
/// Together with `SLOW` still less than a dialer waits.
pub const WAIT_MAX: Duration = Duration::from_secs(1);
/// Who comes at the time it was told has ten seconds of patience, and finds others before it only where we were slower
/// than we thought.
pub const CALLED_WAIT_MAX: Duration = Duration::from_secs(8);

/// The decision: how many places there are. The simulation asks it as the port does.
#[derive(Debug)]
pub struct HandshakeConcurrency {
    places: f64,
    places_max: f64,
    /// Places that exist, taken or free. Lags behind `places` while more are taken than there should be.
    existing: usize,
}

impl HandshakeConcurrency {
    pub fn new(places_max: usize) -> HandshakeConcurrency {
        let places_max = (places_max as f64).max(1.0);
        let places = PLACES_FIRST.min(places_max);
        HandshakeConcurrency { places, places_max, existing: places as usize }
    }

    /// How many exist, taken or free.
    pub fn places(&self) -> usize {
        self.existing
    }

    /// Somebody left a place, after so long; how many are free for it. `is_full`: no other was free.
    pub fn handle_left(&mut self, took: Duration, is_full: bool) -> usize {
        if took >= SLOW {
            // Each says it once, so a whole turn of slow ones halves the places.
            self.places = (self.places - 0.5).max(PLACES_MIN.min(self.places_max));
        } else if took < FAST && is_full {
            self.places = (self.places + 1.0).min(self.places_max);
        }
        self.existing -= 1;
        let free = (self.places as usize).saturating_sub(self.existing);
        self.existing += free;
        free
    }
}

/// The places for handshakes, given out in the order of asking.
pub(super) struct HandshakeSlots {
    pace: Mutex<HandshakeConcurrency>,
    line: Mutex<AdmissionBacklog>,
    places: Semaphore,
    waiting: AtomicUsize,
}

impl HandshakeSlots {
    pub(super) fn new(places_max: usize) -> Arc<HandshakeSlots> {
        let pace = HandshakeConcurrency::new(places_max);
        let places = Semaphore::new(pace.existing);
        let line = Mutex::new(AdmissionBacklog::new(Instant::now()));
        Arc::new(HandshakeSlots { pace: Mutex::new(pace), line, places, waiting: AtomicUsize::default() })
    }

    /// A place, or after how long to come again. `is_called`: it comes at the time it was told.
    pub(super) async fn ask(self: &Arc<HandshakeSlots>, is_called: bool) -> Result<HandshakeSlot, Duration> {
        if let Some(turn) = self.take_now() {
            return Ok(turn);
        }
        let patience = match is_called {
            true => CALLED_WAIT_MAX,
            false if self.with_line(AdmissionBacklog::handle_newcomer) <= WAIT_MAX => WAIT_MAX,
            false => return Err(self.with_line(AdmissionBacklog::send_away)),
        };
        match self.take(patience).await {
            Some(turn) => Ok(turn),
            None => Err(self.with_line(AdmissionBacklog::send_away)),
        }
    }

    /// A place, if one comes free in time.
    pub(super) async fn take(self: &Arc<HandshakeSlots>, patience: Duration) -> Option<HandshakeSlot> {
        if let Some(turn) = self.take_now() {
            return Some(turn);
        }
        let _waiting = Waiting::begin(&self.waiting);
        let permit = timeout(patience, self.places.acquire()).await.ok()?.ok()?;
        permit.forget();
        Some(HandshakeSlot { turns: self.clone(), since: Instant::now() })
    }

    fn take_now(self: &Arc<HandshakeSlots>) -> Option<HandshakeSlot> {
        self.places.try_acquire().ok()?.forget();
        Some(HandshakeSlot { turns: self.clone(), since: Instant::now() })
    }

    fn with_line(&self, ask: fn(&mut AdmissionBacklog, Instant, usize) -> Duration) -> Duration {
        let waiting = self.waiting.load(Ordering::Relaxed);
        let mut line = lock(&self.line);
        ask(&mut line, Instant::now(), waiting)
    }

    /// Do as many wait as are served?
    pub(super) fn is_crowded(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) as f64 >= lock(&self.pace).places
    }
}

/// Counted for as long as it lives.
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

/// One place. Whoever serves the newcomer drops it when the newcomer has its answer; how long that took decides how
/// many others are let in.
#[must_use = "dropped at once, it says that the work is done"]
pub struct HandshakeSlot {
    turns: Arc<HandshakeSlots>,
    since: Instant,
}

impl HandshakeSlot {
    /// How many handshakes a second are finished here when all places are taken, as far as that was seen.
    pub fn served_per_second(&self) -> u32 {
        lock(&self.turns.line).served_per_second()
    }
}

impl Drop for HandshakeSlot {
    fn drop(&mut self) {
        let is_full = self.turns.places.available_permits() == 0;
        let mut pace = lock(&self.turns.pace);
        let free = pace.handle_left(self.since.elapsed(), is_full);
        drop(pace);
        let mut line = lock(&self.turns.line);
        line.handle_left(Instant::now(), is_full);
        drop(line);
        self.turns.places.add_permits(free);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leave(pace: &mut HandshakeConcurrency, count: usize, took: Duration, is_full: bool) -> usize {
        (0..count).map(|_| pace.handle_left(took, is_full)).sum()
    }

    #[test]
    fn places_grow_while_all_are_taken_and_left_quickly() {
        let mut pace = HandshakeConcurrency::new(2048);
        assert_eq!(leave(&mut pace, 100, FAST / 2, false), 100, "one comes, one goes");
        assert_eq!(leave(&mut pace, 100, FAST / 2, true), 200);
        assert_eq!(pace.existing, 228);
        leave(&mut pace, 10_000, FAST / 2, true);
        assert_eq!(pace.existing, 2048, "and not beyond the bound");
    }

    #[test]
    fn places_go_when_work_takes_too_long() {
        let mut pace = HandshakeConcurrency::new(2048);
        leave(&mut pace, 872, FAST / 2, true);
        assert_eq!(pace.existing, 1000);
        assert_eq!(leave(&mut pace, 1000, SLOW, true), 500, "a turn of slow ones halves them");
        leave(&mut pace, 10_000, SLOW, true);
        assert_eq!(pace.existing, PLACES_MIN as usize, "and some are always left");
        assert_eq!(leave(&mut pace, 10, (FAST + SLOW) / 2, true), 10, "in between nothing changes");
    }

    #[tokio::test(start_paused = true)]
    async fn who_comes_when_called_waits_while_others_are_sent_away() {
        let turns = HandshakeSlots::new(1);
        let first = turns.ask(false).await.ok();
        assert!(first.is_some());
        let mut waits = Vec::new();
        for _ in 0..600 {
            waits.push(tokio::spawn({
                let turns = turns.clone();
                async move { turns.ask(false).await.err() }
            }));
        }
        tokio::task::yield_now().await;
        let last = turns.ask(false).await.err().expect("there is a line");
        assert!(last > WAIT_MAX, "sent away at once: {last:?}");
        let called = tokio::spawn({
            let turns = turns.clone();
            async move { turns.ask(true).await.is_ok() }
        });
        for wait in waits {
            assert!(wait.await.unwrap().is_some(), "nobody left");
        }
        drop(first);
        assert!(called.await.unwrap());
    }

    #[tokio::test]
    async fn who_waits_is_served_in_turn_or_turned_away() {
        let turns = HandshakeSlots::new(1);
        let first = turns.take(WAIT_MAX).await;
        assert!(first.is_some());
        assert!(turns.take(WAIT_MAX).await.is_none(), "nobody left");
        let waits = tokio::spawn({
            let turns = turns.clone();
            async move { turns.take(WAIT_MAX).await.is_some() }
        });
        while !turns.is_crowded() {
            tokio::task::yield_now().await;
        }
        drop(first);
        assert!(waits.await.unwrap());
        assert!(!turns.is_crowded());
    }
}
