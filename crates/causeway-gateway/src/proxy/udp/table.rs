//! The table of UDP sessions by client. It is bounded; when it is full, the longest idle session is evicted.
//!
//! Idle sessions are found by a second-chance (clock) scan: a session that received a datagram since the last
//! scan is spared once. So neither a datagram nor a new session costs more when the table is large.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use causeway_channel::wire::datagrams::FramedDatagram;
use causeway_daemon::sync::MutexExt;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// A client at a presence.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct UdpSessionKey {
    pub client: SocketAddr,
    pub presence: SocketAddr,
}

/// The handle by which a session is fed and told to end.
#[derive(Debug)]
pub struct UdpSessionSlot {
    id: u64,
    queue: mpsc::Sender<FramedDatagram>,
    queued_bytes: Arc<AtomicUsize>,
    queue_bytes_max: usize,
    was_active: AtomicBool,
    /// Cancelled when another session needs its slot.
    pub evicted: CancellationToken,
}

/// The result of feeding a datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FeedResult {
    Queued,
    /// The queue is full: the datagram is dropped.
    Dropped,
    /// The session has just ended.
    Gone,
}

impl UdpSessionSlot {
    pub fn feed(&self, datagram: FramedDatagram) -> FeedResult {
        self.was_active.store(true, Ordering::Relaxed);
        let bytes = datagram.payload().len();
        // Only one task feeds, so checking first and adding afterwards is enough.
        if self.queued_bytes.load(Ordering::Relaxed) + bytes > self.queue_bytes_max {
            return FeedResult::Dropped;
        }
        match self.queue.try_send(datagram) {
            Ok(()) => {
                self.queued_bytes.fetch_add(bytes, Ordering::Relaxed);
                FeedResult::Queued
            }
            Err(mpsc::error::TrySendError::Full(_)) => FeedResult::Dropped,
            Err(mpsc::error::TrySendError::Closed(_)) => FeedResult::Gone,
        }
    }
}

/// The receiving end of the queue.
#[derive(Debug)]
pub struct UdpSessionQueue {
    receiver: mpsc::Receiver<FramedDatagram>,
    queued_bytes: Arc<AtomicUsize>,
}

impl UdpSessionQueue {
    /// Cancel safe.
    pub async fn recv(&mut self) -> Option<FramedDatagram> {
        let datagram = self.receiver.recv().await?;
        // It may be received before `feed` has counted it; the sum is corrected a moment later.
        let bytes = datagram.payload().len();
        let _ = self
            .queued_bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |queued| Some(queued.saturating_sub(bytes)));
        Some(datagram)
    }
}

/// The sessions of all local clients of a gateway.
#[derive(Debug)]
pub struct UdpSessions {
    table: Mutex<Table>,
    max: usize,
    queue_max: usize,
    queue_bytes_max: usize,
}

#[derive(Default, Debug)]
struct Table {
    slots: HashMap<UdpSessionKey, Arc<UdpSessionSlot>>,
    /// The scan order. Ended sessions are skipped.
    scan_order: VecDeque<(UdpSessionKey, u64)>,
    next: u64,
}

impl UdpSessions {
    pub fn new(options: &super::UdpOptions) -> UdpSessions {
        let (queue_max, queue_bytes_max) = (options.queue_max, options.queue_bytes_max);
        UdpSessions { table: Mutex::default(), max: options.sessions_max.max(1), queue_max, queue_bytes_max }
    }

    pub fn find(&self, key: &UdpSessionKey) -> Option<Arc<UdpSessionSlot>> {
        self.lock().slots.get(key).cloned()
    }

    /// Adds a session. Also returns whether another one was evicted for it.
    pub fn begin(&self, key: UdpSessionKey) -> (Arc<UdpSessionSlot>, UdpSessionQueue, bool) {
        let (queue, receiver) = mpsc::channel(self.queue_max);
        let queued_bytes = Arc::new(AtomicUsize::new(0));
        let mut table = self.lock();
        let is_evicting = table.slots.len() >= self.max && table.evict();
        let id = table.next;
        table.next += 1;
        let slot = Arc::new(UdpSessionSlot {
            id,
            queue,
            queued_bytes: queued_bytes.clone(),
            queue_bytes_max: self.queue_bytes_max,
            was_active: AtomicBool::new(false),
            evicted: CancellationToken::new(),
        });
        table.slots.insert(key, slot.clone());
        table.scan_order.push_back((key, id));
        table.remove_ended();
        (slot, UdpSessionQueue { receiver, queued_bytes }, is_evicting)
    }

    pub fn end(&self, key: &UdpSessionKey, slot: &UdpSessionSlot) {
        let mut table = self.lock();
        if table.slots.get(key).is_some_and(|known| known.id == slot.id) {
            table.slots.remove(key);
        }
    }

    pub fn len(&self) -> usize {
        self.lock().slots.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock_ignoring_poison()
    }
}

impl Table {
    /// Evicts the first session that received nothing since the last scan. Ends after two rounds at most,
    /// because the first round clears all marks.
    fn evict(&mut self) -> bool {
        for _ in 0..2 * self.scan_order.len() {
            let Some((key, id)) = self.scan_order.pop_front() else { return false };
            match self.slots.get(&key) {
                Some(slot) if slot.id == id => {
                    if slot.was_active.swap(false, Ordering::Relaxed) {
                        self.scan_order.push_back((key, id));
                        continue;
                    }
                    slot.evicted.cancel();
                    self.slots.remove(&key);
                    return true;
                }
                _ => {}
            }
        }
        false
    }

    /// Removes ended sessions, which would otherwise pile up while the table is never full.
    fn remove_ended(&mut self) {
        if self.scan_order.len() > 2 * self.slots.len() + 16 {
            let slots = &self.slots;
            self.scan_order.retain(|(key, id)| slots.get(key).is_some_and(|slot| slot.id == *id));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proxy::udp::UdpOptions;

    fn key(number: u16) -> UdpSessionKey {
        UdpSessionKey {
            client: SocketAddr::from(([10, 0, 0, 1], number)),
            presence: ([198, 18, 0, 1], 53).into(),
        }
    }

    fn datagram(bytes: usize) -> FramedDatagram {
        FramedDatagram::new(&vec![0; bytes]).unwrap()
    }

    #[test]
    fn when_it_is_full_the_longest_idle_goes() {
        let sessions = UdpSessions::new(&UdpOptions { sessions_max: 3, ..UdpOptions::default() });
        let begun: Vec<_> = (0..3).map(|number| sessions.begin(key(number))).collect();
        assert!(begun.iter().all(|(_, _, evicting)| !evicting));
        assert_eq!(sessions.find(&key(0)).unwrap().feed(datagram(1)), FeedResult::Queued);
        let (_, _queue, evicting) = sessions.begin(key(3));
        assert!(evicting && begun[1].0.evicted.is_cancelled());
        assert!(!begun[0].0.evicted.is_cancelled() && sessions.find(&key(1)).is_none());
        assert_eq!(sessions.len(), 3);
        // All sessions are active: one is evicted nevertheless.
        for number in [0, 2, 3] {
            sessions.find(&key(number)).unwrap().feed(datagram(1));
        }
        assert!(sessions.begin(key(4)).2);
        assert_eq!(sessions.len(), 3);
    }

    #[test]
    fn those_that_end_leave_their_place_and_nothing_else() {
        let sessions = UdpSessions::new(&UdpOptions { sessions_max: 3, ..UdpOptions::default() });
        for scan_order in 0..1000 {
            let (slot, _queue, evicting) = sessions.begin(key(scan_order % 5));
            assert!(!evicting);
            sessions.end(&key(scan_order % 5), &slot);
        }
        assert!(sessions.is_empty() && sessions.lock().scan_order.len() <= 17);
        let (old, _, _) = sessions.begin(key(1));
        sessions.end(&key(1), &old);
        let (_new, _queue, _) = sessions.begin(key(1));
        // A late end that does not concern the successor.
        sessions.end(&key(1), &old);
        assert_eq!(sessions.len(), 1);
    }

    #[tokio::test]
    async fn a_queue_is_bounded_in_number_and_in_bytes() {
        let options = UdpOptions { queue_max: 2, queue_bytes_max: 100, ..UdpOptions::default() };
        let sessions = UdpSessions::new(&options);
        let (slot, mut queue, _) = sessions.begin(key(1));
        assert_eq!(
            [60, 41, 40].map(|bytes| slot.feed(datagram(bytes))),
            [FeedResult::Queued, FeedResult::Dropped, FeedResult::Queued]
        );
        assert_eq!(slot.feed(datagram(0)), FeedResult::Dropped);
        assert_eq!(queue.recv().await.unwrap().payload().len(), 60);
        assert_eq!(slot.feed(datagram(60)), FeedResult::Queued);
        drop(queue);
        assert_eq!(slot.feed(datagram(0)), FeedResult::Gone);
    }
}
