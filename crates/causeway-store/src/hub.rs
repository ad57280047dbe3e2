//! Delivers every event to the watchers of its key, without waiting for any of them.
//!
//! The engine publishes after a commit; each subscriber has a bounded queue. When the queue is full, the
//! subscriber is ended and gets the error after it has read the queued events. A hub may keep recent events
//! for late subscribers; `watch` reads older history.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

use crate::sync::MutexExt;
use crate::{Revision, StoreError, StoreEvent, WatchSignal};

/// Pointers, not copies; a watcher this far behind is better off with a new list.
const QUEUE_MAX: usize = 4096;
/// Interval at which a quiet watcher receives its progress.
pub(crate) const PROGRESS: std::time::Duration = std::time::Duration::from_secs(5);

pub(crate) struct WatchHub {
    state: Mutex<State>,
}

struct State {
    delivered: Revision,
    subscribers: Vec<Subscriber>,
    recent: Recent,
    closed: bool,
}

struct Subscriber {
    prefix: Box<str>,
    queue: mpsc::Sender<WatchSignal>,
    told: Revision,
    /// Events after this revision must be delivered.
    needs: Revision,
}

/// The number and size of past events that a hub keeps for late watchers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HubRetention {
    pub events_max: usize,
    pub bytes_max: usize,
}

impl HubRetention {
    /// For engines that can read their history cheaply.
    pub const NOTHING: HubRetention = HubRetention { events_max: 0, bytes_max: 0 };
}

/// All events after `since`.
struct Recent {
    keep: HubRetention,
    events: VecDeque<Arc<StoreEvent>>,
    bytes: usize,
    since: Revision,
}

/// A subscription of the hub: all events after `from` arrive here.
pub(crate) struct Subscription {
    pub from: Revision,
    hub: Arc<WatchHub>,
    queue: mpsc::Receiver<WatchSignal>,
}

impl WatchHub {
    /// Makes a hub. `keep.events_max` must be smaller than a subscriber's queue.
    pub fn new(delivered: Revision, keep: HubRetention) -> Arc<WatchHub> {
        assert!(keep.events_max < QUEUE_MAX, "the history must fit into a queue");
        let recent = Recent { keep, events: VecDeque::new(), bytes: 0, since: delivered };
        Arc::new(WatchHub {
            state: Mutex::new(State { delivered, subscribers: Vec::new(), recent, closed: false }),
        })
    }

    /// Subscribes from `after` if the hub still has all events since, and from now otherwise.
    pub fn subscribe(self: &Arc<WatchHub>, prefix: &str, after: Revision) -> Subscription {
        let (sender, queue) = mpsc::channel(QUEUE_MAX);
        let mut state = self.lock();
        let known = state.recent.since <= after && after < state.delivered;
        let from = if known { after } else { state.delivered };
        let mut subscriber =
            Subscriber { prefix: prefix.into(), queue: sender, told: from, needs: from.max(after) };
        if known {
            // All kept events fit: an empty queue is longer than the kept events.
            state
                .recent
                .events
                .iter()
                .filter(|event| event.revision > after)
                .all(|event| subscriber.offer(event));
        }
        if !state.closed {
            state.subscribers.push(subscriber);
        }
        Subscription { from, hub: Arc::clone(self), queue }
    }

    /// Delivers the events of whole revisions, in order, the last of them `upto`.
    pub fn publish(&self, events: &[Arc<StoreEvent>], upto: Revision) {
        let mut state = self.lock();
        state.subscribers.retain_mut(|subscriber| events.iter().all(|event| subscriber.offer(event)));
        events.iter().for_each(|event| state.recent.push(event));
        state.delivered = state.delivered.max(upto);
    }

    /// Sends quiet watchers their progress, and removes those that were dropped.
    pub fn tell_progress(&self) {
        let mut state = self.lock();
        let delivered = state.delivered;
        state.subscribers.retain_mut(|subscriber| {
            // A full queue is no reason to end the watcher here: it has enough to read.
            if subscriber.told < delivered
                && subscriber.queue.try_send(WatchSignal::Progress(delivered)).is_ok()
            {
                subscriber.told = delivered;
            }
            !subscriber.queue.is_closed()
        });
    }

    pub fn delivered(&self) -> Revision {
        self.lock().delivered
    }

    /// Continues from `delivered`: the events in between cannot be delivered, and watchers that need them are
    /// ended.
    pub fn cut(&self, delivered: Revision) {
        let mut state = self.lock();
        let reached = state.delivered;
        state.subscribers.retain(|subscriber| subscriber.needs.max(reached) >= delivered);
        state.delivered = delivered;
        state.recent.forget(delivered);
    }

    pub fn close(&self) {
        let mut state = self.lock();
        state.subscribers.clear();
        state.closed = true;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock_ignoring_poison()
    }
}

impl Recent {
    fn push(&mut self, event: &Arc<StoreEvent>) {
        self.bytes += weight(event);
        self.events.push_back(Arc::clone(event));
        while self.events.len() > self.keep.events_max || self.bytes > self.keep.bytes_max {
            let Some(oldest) = self.events.pop_front() else { return };
            self.bytes -= weight(&oldest);
            self.since = oldest.revision;
        }
    }

    fn forget(&mut self, since: Revision) {
        self.events.clear();
        self.bytes = 0;
        self.since = since;
    }
}

fn weight(event: &StoreEvent) -> usize {
    event.key.len()
        + event.value.as_ref().map_or(0, |v| v.len())
        + event.previous.as_ref().map_or(0, |v| v.len())
}

impl Subscriber {
    /// Queues an event. False when the subscriber was dropped or cannot keep up.
    fn offer(&mut self, event: &Arc<StoreEvent>) -> bool {
        if !event.key.starts_with(&*self.prefix) {
            return true;
        }
        match self.queue.try_send(WatchSignal::Event(Arc::clone(event))) {
            Ok(()) => true,
            Err(TrySendError::Full(_) | TrySendError::Closed(_)) => false,
        }
    }
}

impl Subscription {
    pub async fn next(&mut self) -> Result<WatchSignal, StoreError> {
        match self.queue.recv().await {
            Some(signal) => Ok(signal),
            None if self.hub.lock().closed => Err(StoreError::Closed),
            None => Err(StoreError::Lagged),
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn event(revision: u64, key: &str) -> Arc<StoreEvent> {
        let value = Some(Bytes::from_static(b"{}"));
        Arc::new(StoreEvent {
            revision: Revision(revision),
            key: key.into(),
            value,
            previous: None,
            created: Revision(revision),
        })
    }

    const SOME: HubRetention = HubRetention { events_max: 3, bytes_max: 1000 };

    #[tokio::test]
    async fn a_subscriber_hears_its_prefix_and_how_far_it_is() {
        let hub = WatchHub::new(Revision(1), HubRetention::NOTHING);
        let mut sites = hub.subscribe("esites/", Revision(1));
        hub.publish(&[event(2, "esites/a")], Revision(2));
        hub.publish(&[event(3, "epolicies/a")], Revision(3));
        hub.tell_progress();
        hub.tell_progress();
        hub.publish(&[event(4, "esites/b")], Revision(4));
        assert_eq!(sites.next().await.unwrap(), WatchSignal::Event(event(2, "esites/a")));
        assert_eq!(sites.next().await.unwrap(), WatchSignal::Progress(Revision(3)));
        assert_eq!(sites.next().await.unwrap(), WatchSignal::Event(event(4, "esites/b")));
        assert_eq!(hub.subscribe("", Revision(3)).from, Revision(4), "nothing is kept");
    }

    #[tokio::test]
    async fn a_late_subscriber_is_given_what_is_kept() {
        let hub = WatchHub::new(Revision(1), SOME);
        for revision in 2..=6 {
            hub.publish(&[event(revision, "a")], Revision(revision));
        }
        for (after, from) in [(1, 6), (2, 6), (3, 3), (5, 5), (6, 6), (9, 6)] {
            let mut late = hub.subscribe("a", Revision(after));
            assert_eq!(late.from, Revision(from), "after {after}");
            for revision in from + 1..=6 {
                assert_eq!(
                    late.next().await.unwrap(),
                    WatchSignal::Event(event(revision, "a")),
                    "after {after}"
                );
            }
        }
        // Large events push out more than their number.
        let heavy = StoreEvent { value: Some(Bytes::from(vec![0; 1001])), ..(*event(7, "a")).clone() };
        hub.publish(&[Arc::new(heavy)], Revision(7));
        assert_eq!(hub.subscribe("", Revision(6)).from, Revision(7));
        hub.publish(&[event(8, "a")], Revision(8));
        assert_eq!(hub.subscribe("", Revision(7)).from, Revision(7));
    }

    #[tokio::test]
    async fn a_gap_cuts_off_only_those_who_need_what_is_in_it() {
        let hub = WatchHub::new(Revision(1), SOME);
        hub.publish(&[event(2, "a")], Revision(2));
        let (mut old, mut new) = (hub.subscribe("", Revision(1)), hub.subscribe("", Revision(20)));
        hub.cut(Revision(20));
        assert_eq!(hub.subscribe("", Revision(2)).from, Revision(20));
        hub.publish(&[event(21, "a")], Revision(21));
        assert_eq!(old.next().await.unwrap(), WatchSignal::Event(event(2, "a")));
        assert!(matches!(old.next().await, Err(StoreError::Lagged)));
        assert_eq!(new.next().await.unwrap(), WatchSignal::Event(event(21, "a")));
    }

    #[tokio::test]
    async fn a_slow_subscriber_is_cut_off_and_the_others_are_not() {
        let hub = WatchHub::new(Revision(0), HubRetention::NOTHING);
        let mut slow = hub.subscribe("", Revision(0));
        let mut other = hub.subscribe("b", Revision(0));
        for revision in 1..=QUEUE_MAX as u64 + 1 {
            hub.publish(&[event(revision, "a")], Revision(revision));
        }
        hub.publish(&[event(9_999, "b")], Revision(9_999));
        for _ in 0..QUEUE_MAX {
            slow.next().await.unwrap();
        }
        assert!(matches!(slow.next().await, Err(StoreError::Lagged)));
        assert_eq!(other.next().await.unwrap(), WatchSignal::Event(event(9_999, "b")));
        hub.close();
        assert!(matches!(other.next().await, Err(StoreError::Closed)));
    }

    #[test]
    fn subscribers_that_went_away_are_forgotten() {
        let hub = WatchHub::new(Revision(0), HubRetention::NOTHING);
        drop(hub.subscribe("quiet", Revision(0)));
        hub.tell_progress();
        assert_eq!(hub.lock().subscribers.len(), 0);
    }
}
