//! Limits on the resources that callers can make the server hold, and the queues in front of them.
//!
//! Short requests share a limited number of permits, fairly between identities. Before that, the number of
//! bodies that are read at once is limited for each identity. `watches` counts watches. `sources` counts
//! connections by address. `failures` slows down addresses that present wrong credentials too often.

pub mod failures;
pub mod fair_concurrency;
pub mod sources;
pub mod watches;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::oneshot;

use fair_concurrency::{ConcurrencyLimits, FairConcurrency, QueueEntry};

use causeway_api::sync::MutexExt;

/// All limits of the server, with their reasons.
#[derive(Debug, Clone)]
pub struct ApiLimits {
    /// Open connections. A connection costs about 20 KB with TLS.
    pub connections_max: usize,
    /// Open connections of one address (IPv6: of one /64). A client holds one or a few; an office behind one address with
    /// a hundred people stays far below the default, and twenty addresses are needed to fill the server.
    pub connections_per_address_max: usize,
    /// As `connections_per_address_max`, for clients on this host, for example a reverse proxy.
    pub connections_from_loopback_max: usize,
    /// Requests that are executed at once. More would only wait inside the store instead of in a fair queue.
    pub requests_max: usize,
    /// Requests of one identity at once, so that it never takes all permits. Also the number of bodies that
    /// are read and held for it at once: bodies have no limit over all identities, because slow clients could
    /// use it up.
    pub requests_per_identity_max: usize,
    /// Waiting requests of one identity. Beyond this number a client is told to retry later.
    pub waiting_per_identity_max: usize,
    pub waiting_time_max: Duration,
    pub watches_per_identity_max: usize,
    /// As in Kubernetes.
    pub body_bytes_max: usize,
    pub body_time_max: Duration,
    pub header_time_max: Duration,
    pub handshake_time_max: Duration,
    /// A peer that accepts no bytes for this long is considered gone.
    pub stall_time_max: Duration,
    /// The time that requests in flight have when the server stops.
    pub drain_time_max: Duration,
    /// Wrong credentials from one address per minute.
    pub failures_per_minute_max: u32,
}

impl Default for ApiLimits {
    fn default() -> ApiLimits {
        ApiLimits {
            connections_max: 20_000,
            connections_per_address_max: 1_000,
            connections_from_loopback_max: 20_000,
            requests_max: 512,
            requests_per_identity_max: 256,
            waiting_per_identity_max: 1_024,
            waiting_time_max: Duration::from_secs(10),
            watches_per_identity_max: 10_000,
            body_bytes_max: 3 << 20,
            body_time_max: Duration::from_secs(30),
            header_time_max: Duration::from_secs(15),
            handshake_time_max: Duration::from_secs(10),
            stall_time_max: Duration::from_secs(60),
            drain_time_max: Duration::from_secs(10),
            failures_per_minute_max: 60,
        }
    }
}

/// The queue in which requests wait for a permit. Clones share it.
#[derive(Clone)]
pub struct RequestQueue {
    state: Arc<Mutex<QueueState>>,
    waiting_time_max: Duration,
}

struct QueueState {
    seats: FairConcurrency<Arc<str>>,
    called: HashMap<u64, oneshot::Sender<()>>,
}

/// The permit of one request; returned when dropped.
pub struct RequestPermit {
    queue: RequestQueue,
    caller: Arc<str>,
}

/// The caller has too many requests in flight.
#[derive(Debug, PartialEq, Eq)]
pub struct TooManyRequests;

impl RequestQueue {
    /// Makes the queue in front of the execution of requests.
    pub fn for_work(limits: &ApiLimits) -> RequestQueue {
        RequestQueue::new(limits, limits.requests_max)
    }

    /// Makes the queue in front of reading bodies: a client waits only for its own bodies.
    pub fn for_bodies(limits: &ApiLimits) -> RequestQueue {
        RequestQueue::new(limits, usize::MAX)
    }

    fn new(limits: &ApiLimits, seats_max: usize) -> RequestQueue {
        let seats = FairConcurrency::new(ConcurrencyLimits {
            seats_max,
            seats_per_caller_max: limits.requests_per_identity_max,
            waiting_per_caller_max: limits.waiting_per_identity_max,
        });
        let state = QueueState { seats, called: HashMap::new() };
        RequestQueue { state: Arc::new(Mutex::new(state)), waiting_time_max: limits.waiting_time_max }
    }

    /// Waits for a permit; a full queue or a long wait is refused.
    pub async fn acquire(&self, caller: &Arc<str>) -> Result<RequestPermit, TooManyRequests> {
        let (ticket, turn) = {
            let mut state = self.lock();
            match state.seats.enter(caller) {
                QueueEntry::Seated => {
                    return Ok(RequestPermit { queue: self.clone(), caller: caller.clone() });
                }
                QueueEntry::Full => return Err(TooManyRequests),
                QueueEntry::Waiting(ticket) => {
                    let (sender, turn) = oneshot::channel();
                    state.called.insert(ticket, sender);
                    (ticket, turn)
                }
            }
        };
        let mut queued = QueuedRequest { queue: self.clone(), caller: caller.clone(), ticket: Some(ticket) };
        match tokio::time::timeout(self.waiting_time_max, turn).await {
            Ok(Ok(())) => {
                queued.ticket = None;
                Ok(RequestPermit { queue: self.clone(), caller: caller.clone() })
            }
            _ => Err(TooManyRequests),
        }
    }

    fn release(&self, caller: &Arc<str>) {
        let mut state = self.lock();
        for ticket in state.seats.release(caller) {
            // A request that was given a permit and no longer waits returns it when `QueuedRequest` is dropped.
            if let Some(sender) = state.called.remove(&ticket) {
                let _ = sender.send(());
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock_ignoring_poison()
    }
}

/// A position in the queue. A client that disconnects gives it up, or the permit it was just given.
struct QueuedRequest {
    queue: RequestQueue,
    caller: Arc<str>,
    ticket: Option<u64>,
}

impl Drop for QueuedRequest {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket else { return };
        let waited = {
            let mut state = self.queue.lock();
            state.called.remove(&ticket);
            state.seats.give_up(&self.caller, ticket)
        };
        if !waited {
            self.queue.release(&self.caller);
        }
    }
}

impl Drop for RequestPermit {
    fn drop(&mut self) {
        self.queue.release(&self.caller);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(requests: usize, waiting: usize) -> RequestQueue {
        RequestQueue::for_work(&ApiLimits {
            requests_max: requests,
            requests_per_identity_max: requests,
            waiting_per_identity_max: waiting,
            ..ApiLimits::default()
        })
    }

    #[tokio::test(start_paused = true)]
    async fn a_seat_is_waited_for_and_the_wait_ends() {
        let queue = queue(1, 1);
        let (a, b): (Arc<str>, Arc<str>) = ("a".into(), "b".into());
        let permit = queue.acquire(&a).await.unwrap();
        let waiting = tokio::spawn({
            let (queue, b) = (queue.clone(), b.clone());
            async move { queue.acquire(&b).await.map(|_| ()) }
        });
        tokio::task::yield_now().await;
        drop(permit);
        assert_eq!(waiting.await.unwrap(), Ok(()));
        let _permit = queue.acquire(&a).await.unwrap();
        assert_eq!(
            queue.acquire(&b).await.err(),
            Some(TooManyRequests),
            "nobody stands up, so the wait runs out"
        );
    }

    #[tokio::test]
    async fn whoever_stops_waiting_blocks_nobody() {
        let queue = queue(1, 5);
        let a: Arc<str> = "a".into();
        let permit = queue.acquire(&a).await.unwrap();
        for _ in 0..3 {
            let waiting = queue.acquire(&a);
            assert!(tokio::time::timeout(Duration::from_millis(1), waiting).await.is_err());
        }
        drop(permit);
        assert!(queue.acquire(&a).await.is_ok());
        assert!(queue.lock().called.is_empty());
    }
}
