//! Hands every event to the watchers it concerns, without waiting for any of them.
//!
//! The engine publishes after a commit; each subscriber has a bounded queue. Full queue: the subscriber is cut off
//! and learns it after it has read what was queued. Reading history is left to `watch`.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

use crate::{Event, Revision, Signal, StoreError};

/// Pointers, not copies; a watcher this far behind is better off with a new list.
const QUEUE_MAX: usize = 4096;
/// How often a quiet watcher is told how far it is.
pub(crate) const PROGRESS: std::time::Duration = std::time::Duration::from_secs(5);

pub(crate) struct Hub {
    state: Mutex<State>,
}

struct State {
    delivered: Revision,
    subscribers: Vec<Subscriber>,
    closed: bool,
}

struct Subscriber {
    prefix: Box<str>,
    queue: mpsc::Sender<Signal>,
    told: Revision,
}

/// A place in the hub: everything behind `from` arrives here.
pub(crate) struct Subscription {
    pub from: Revision,
    hub: Arc<Hub>,
    queue: mpsc::Receiver<Signal>,
}

impl Hub {
    pub fn new(delivered: Revision) -> Arc<Hub> {
        Arc::new(Hub { state: Mutex::new(State { delivered, subscribers: Vec::new(), closed: false }) })
    }

    pub fn subscribe(self: &Arc<Hub>, prefix: &str) -> Subscription {
        let (sender, queue) = mpsc::channel(QUEUE_MAX);
        let mut state = self.lock();
        let from = state.delivered;
        if !state.closed {
            state.subscribers.push(Subscriber { prefix: prefix.into(), queue: sender, told: from });
        }
        Subscription { from, hub: Arc::clone(self), queue }
    }

    /// Delivers the events of whole revisions, in order, the last of them `upto`.
    pub fn publish(&self, events: &[Arc<Event>], upto: Revision) {
        let mut state = self.lock();
        state.subscribers.retain_mut(|subscriber| subscriber.offer_all(events));
        state.delivered = state.delivered.max(upto);
    }

    /// Tells quiet watchers how far they are, and forgets those that went away.
    pub fn tell_progress(&self) {
        let mut state = self.lock();
        let delivered = state.delivered;
        state.subscribers.retain_mut(|subscriber| {
            // A full queue is no reason to cut anyone off here: there is plenty to read already.
            if subscriber.told < delivered && subscriber.queue.try_send(Signal::Progress(delivered)).is_ok() {
                subscriber.told = delivered;
            }
            !subscriber.queue.is_closed()
        });
    }

    pub fn delivered(&self) -> Revision {
        self.lock().delivered
    }

    /// Cuts everybody off and goes on from `delivered`: what lies between cannot be delivered.
    pub fn cut(&self, delivered: Revision) {
        let mut state = self.lock();
        state.subscribers.clear();
        state.delivered = delivered;
    }

    pub fn close(&self) {
        let mut state = self.lock();
        state.subscribers.clear();
        state.closed = true;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Subscriber {
    /// False when the subscriber went away or cannot keep up.
    fn offer_all(&mut self, events: &[Arc<Event>]) -> bool {
        for event in events.iter().filter(|event| event.key.starts_with(&*self.prefix)) {
            match self.queue.try_send(Signal::Event(Arc::clone(event))) {
                Ok(()) => {}
                Err(TrySendError::Full(_) | TrySendError::Closed(_)) => return false,
            }
        }
        true
    }
}

impl Subscription {
    pub async fn next(&mut self) -> Result<Signal, StoreError> {
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

    fn event(revision: u64, key: &str) -> Arc<Event> {
        let value = Some(Bytes::from_static(b"{}"));
        Arc::new(Event {
            revision: Revision(revision),
            key: key.into(),
            value,
            previous: None,
            created: Revision(revision),
        })
    }

    #[tokio::test]
    async fn a_subscriber_hears_its_prefix_and_how_far_it_is() {
        let hub = Hub::new(Revision(1));
        let mut sites = hub.subscribe("esites/");
        hub.publish(&[event(2, "esites/a")], Revision(2));
        hub.publish(&[event(3, "epolicies/a")], Revision(3));
        hub.tell_progress();
        hub.tell_progress();
        hub.publish(&[event(4, "esites/b")], Revision(4));
        assert_eq!(sites.next().await.unwrap(), Signal::Event(event(2, "esites/a")));
        assert_eq!(sites.next().await.unwrap(), Signal::Progress(Revision(3)));
        assert_eq!(sites.next().await.unwrap(), Signal::Event(event(4, "esites/b")));
        assert_eq!(hub.subscribe("").from, Revision(4));
    }

    #[tokio::test]
    async fn a_slow_subscriber_is_cut_off_and_the_others_are_not() {
        let hub = Hub::new(Revision(0));
        let mut slow = hub.subscribe("");
        let mut other = hub.subscribe("b");
        for revision in 1..=QUEUE_MAX as u64 + 1 {
            hub.publish(&[event(revision, "a")], Revision(revision));
        }
        hub.publish(&[event(9_999, "b")], Revision(9_999));
        for _ in 0..QUEUE_MAX {
            slow.next().await.unwrap();
        }
        assert!(matches!(slow.next().await, Err(StoreError::Lagged)));
        assert_eq!(other.next().await.unwrap(), Signal::Event(event(9_999, "b")));
        hub.close();
        assert!(matches!(other.next().await, Err(StoreError::Closed)));
    }

    #[test]
    fn subscribers_that_went_away_are_forgotten() {
        let hub = Hub::new(Revision(0));
        drop(hub.subscribe("quiet"));
        hub.tell_progress();
        assert_eq!(hub.lock().subscribers.len(), 0);
    }
}
