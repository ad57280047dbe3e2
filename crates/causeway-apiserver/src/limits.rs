//! Bounds on what callers can make the server hold, and how they wait for their turn.
//!
//! Requests that end soon share `seats`, fairly between identities; before that, each identity has so many bodies that
//! are read for it. Watches are counted in `watches`.
//! Connections are counted by address in `sources`; credentials that are wrong too often are slowed down by `failures`.

pub mod failures;
pub mod fair_concurrency;
pub mod sources;
pub mod watches;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;

use fair_concurrency::{ConcurrencyLimits, FairConcurrency, QueueEntry};

/// Every bound of the server, with its reason.
#[derive(Debug, Clone)]
pub struct ApiLimits {
    /// A connection costs about 20 KB with TLS.
    pub connections_max: usize,
    /// Open connections of one address (IPv6: of one /64). A client holds one or a few; an office behind one address with
    /// a hundred people stays far below the default, and twenty addresses are needed to fill the server.
    pub connections_per_address_max: usize,
    /// The same for clients on this host, a reverse proxy for instance.
    pub connections_from_loopback_max: usize,
    /// Requests at work at once. More would only wait inside the store instead of in a fair line.
    pub requests_max: usize,
    /// So that one identity never fills all seats. Also how many bodies are read and held for it at once: those have no
    /// bound over all identities, because whoever sends slowly could hold it against everybody else.
    pub requests_per_identity_max: usize,
    /// Behind this a client is better told to come back.
    pub waiting_per_identity_max: usize,
    pub waiting_time_max: Duration,
    pub watches_per_identity_max: usize,
    /// As in Kubernetes.
    pub body_bytes_max: usize,
    pub body_time_max: Duration,
    pub header_time_max: Duration,
    pub handshake_time_max: Duration,
    /// A peer that takes nothing for this long is gone.
    pub stall_time_max: Duration,
    /// How long requests in flight may take when the server stops.
    pub drain_time_max: Duration,
    /// Wrong credentials from one address.
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

/// A line that callers stand in for a seat. Clones share it.
#[derive(Clone)]
pub struct RequestQueue {
    state: Arc<Mutex<LineState>>,
    waiting_time_max: Duration,
}

struct LineState {
    seats: FairConcurrency<Arc<str>>,
    called: HashMap<u64, oneshot::Sender<()>>,
}

/// A seat; given back when dropped.
pub struct RequestPermit {
    line: RequestQueue,
    caller: Arc<str>,
}

/// The caller has too much under way.
#[derive(Debug, PartialEq, Eq)]
pub struct TooManyRequests;

impl RequestQueue {
    /// In front of the work itself.
    pub fn for_work(limits: &ApiLimits) -> RequestQueue {
        RequestQueue::new(limits, limits.requests_max)
    }

    /// In front of reading a body: a client has to wait for its own bodies only.
    pub fn for_bodies(limits: &ApiLimits) -> RequestQueue {
        RequestQueue::new(limits, usize::MAX)
    }

    fn new(limits: &ApiLimits, seats_max: usize) -> RequestQueue {
        let seats = FairConcurrency::new(ConcurrencyLimits {
            seats_max,
            seats_per_caller_max: limits.requests_per_identity_max,
            waiting_per_caller_max: limits.waiting_per_identity_max,
        });
        let state = LineState { seats, called: HashMap::new() };
        RequestQueue { state: Arc::new(Mutex::new(state)), waiting_time_max: limits.waiting_time_max }
    }

    /// Waits for a seat; a full line or a long wait is refused.
    pub async fn seat(&self, caller: &Arc<str>) -> Result<RequestPermit, TooManyRequests> {
        let (ticket, turn) = {
            let mut state = self.lock();
            match state.seats.enter(caller) {
                QueueEntry::Seated => {
                    return Ok(RequestPermit { line: self.clone(), caller: caller.clone() });
                }
                QueueEntry::Full => return Err(TooManyRequests),
                QueueEntry::Waiting(ticket) => {
                    let (sender, turn) = oneshot::channel();
                    state.called.insert(ticket, sender);
                    (ticket, turn)
                }
            }
        };
        let mut place = Place { line: self.clone(), caller: caller.clone(), ticket: Some(ticket) };
        match tokio::time::timeout(self.waiting_time_max, turn).await {
            Ok(Ok(())) => {
                place.ticket = None;
                Ok(RequestPermit { line: self.clone(), caller: caller.clone() })
            }
            _ => Err(TooManyRequests),
        }
    }

    fn leave(&self, caller: &Arc<str>) {
        let mut state = self.lock();
        for ticket in state.seats.leave(caller) {
            // Who is called and no longer listens finds its seat when it gives up, see `Place`.
            if let Some(sender) = state.called.remove(&ticket) {
                let _ = sender.send(());
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, LineState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A place in the line. A client that goes away gives it up, or the seat it was just called to.
struct Place {
    line: RequestQueue,
    caller: Arc<str>,
    ticket: Option<u64>,
}

impl Drop for Place {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket else { return };
        let waited = {
            let mut state = self.line.lock();
            state.called.remove(&ticket);
            state.seats.give_up(&self.caller, ticket)
        };
        if !waited {
            self.line.leave(&self.caller);
        }
    }
}

impl Drop for RequestPermit {
    fn drop(&mut self) {
        self.line.leave(&self.caller);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(requests: usize, waiting: usize) -> RequestQueue {
        RequestQueue::for_work(&ApiLimits {
            requests_max: requests,
            requests_per_identity_max: requests,
            waiting_per_identity_max: waiting,
            ..ApiLimits::default()
        })
    }

    #[tokio::test(start_paused = true)]
    async fn a_seat_is_waited_for_and_the_wait_ends() {
        let line = line(1, 1);
        let (a, b): (Arc<str>, Arc<str>) = ("a".into(), "b".into());
        let seat = line.seat(&a).await.unwrap();
        let waiting = tokio::spawn({
            let (line, b) = (line.clone(), b.clone());
            async move { line.seat(&b).await.map(|_| ()) }
        });
        tokio::task::yield_now().await;
        drop(seat);
        assert_eq!(waiting.await.unwrap(), Ok(()));
        let _seat = line.seat(&a).await.unwrap();
        assert_eq!(
            line.seat(&b).await.err(),
            Some(TooManyRequests),
            "nobody stands up, so the wait runs out"
        );
    }

    #[tokio::test]
    async fn whoever_stops_waiting_blocks_nobody() {
        let line = line(1, 5);
        let a: Arc<str> = "a".into();
        let seat = line.seat(&a).await.unwrap();
        for _ in 0..3 {
            let waiting = line.seat(&a);
            assert!(tokio::time::timeout(Duration::from_millis(1), waiting).await.is_err());
        }
        drop(seat);
        assert!(line.seat(&a).await.is_ok());
        assert!(line.lock().called.is_empty());
    }
}
