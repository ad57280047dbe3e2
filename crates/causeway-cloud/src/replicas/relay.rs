//! Joins two streams: bytes, ends and reasons of each direction go over to the other stream.
//!
//! When datagrams may come beside one of them, they are joined datagram by datagram: each of both links
//! carries them in the way it can. `Relays` knows which pairs are open and when each last moved, for a
//! replica that stops.

mod placement;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use causeway_api::sync::MutexExt;
use causeway_channel::link::{
    DatagramFlow, DatagramFlowRecv, DatagramFlowSend, RecvStream, ResetCode, SendStream, Stream, StreamHeader,
};
use causeway_gateway::peers::{CrossingHeader, StreamContent};
use tokio::io::AsyncWriteExt;
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep};
use tokio_util::task::AbortOnDropHandle;

use placement::{RelayPlacement, RelaySide};

/// Bytes that cross in one turn at most: as much as the driver of a link writes at once. The transport returns no more than it has.
const TURN_BYTES: usize = 128 << 10;
/// The list of chunks in flight keeps this capacity while nothing moves.
const CHUNKS_KEPT: usize = 8;
/// A tunnel in which nothing moved for this long is idle. As in the gateway.
const QUIET: Duration = Duration::from_millis(500);
/// Interval at which the pairs are checked while a stop waits for some of them.
const DRAIN_CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// The pairs of streams that are joined now.
#[derive(Default)]
pub struct Relays {
    pairs: Mutex<HashMap<u64, Arc<Pair>>>,
    next: AtomicU64,
}

/// One pair.
struct Pair {
    /// True if the stream carries requests. Gateways close such a stream after its last request when they are
    /// told of a stop.
    carries_requests: bool,
    begun: Instant,
    /// When something last moved, in milliseconds since the beginning.
    moved: AtomicU64,
}

impl Pair {
    fn touch(&self) {
        self.moved.store(self.begun.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    /// Returns true if there are streams to wait for. An edge that does not close its idle streams when the cloud drains
    /// costs the whole time of the drain.
    fn is_in_flight(&self) -> bool {
        let moved = self.begun + Duration::from_millis(self.moved.load(Ordering::Relaxed));
        self.carries_requests || moved.elapsed() < QUIET
    }
}

impl Relays {
    /// Joins two streams. Goes on until both directions have ended, each on its own.
    pub async fn relay(&self, header: &StreamHeader, near: Stream, far: Stream) {
        let content = CrossingHeader::of(header).ok().and_then(|crossing| crossing.content().ok());
        let carries_requests = content == Some(StreamContent::Requests);
        let pair = Arc::new(Pair { carries_requests, begun: Instant::now(), moved: AtomicU64::new(0) });
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.pairs().insert(number, pair.clone());
        let _listed = Listed { relays: self, number };
        relay(pair, near, far).await;
    }

    /// Waits until the pairs that are open now have ended or are idle, at most until `end`.
    pub async fn finish_in_flight(&self, end: Instant) {
        let mut waited_for: Vec<u64> = self.pairs().keys().copied().collect();
        loop {
            waited_for = {
                let pairs = self.pairs();
                let is_busy = |number: &u64| pairs.get(number).is_some_and(|pair| pair.is_in_flight());
                waited_for.into_iter().filter(is_busy).collect()
            };
            if waited_for.is_empty() || Instant::now() >= end {
                return;
            }
            sleep(DRAIN_CHECK_INTERVAL).await;
        }
    }

    fn pairs(&self) -> MutexGuard<'_, HashMap<u64, Arc<Pair>>> {
        self.pairs.lock_ignoring_poison()
    }
}

/// Takes a pair off the list when its task ends, however it does.
struct Listed<'a> {
    relays: &'a Relays,
    number: u64,
}

impl Drop for Listed<'_> {
    fn drop(&mut self) {
        self.relays.pairs().remove(&self.number);
    }
}

async fn relay(pair: Arc<Pair>, near: Stream, far: Stream) {
    if near.has_datagrams() || far.has_datagrams() {
        let (near, far) = (DatagramFlow::from(near), DatagramFlow::from(far));
        // On the heap: streams without them do not carry its state.
        let pair = &*pair;
        Box::pin(async { tokio::join!(pour(pair, near.recv, far.send), pour(pair, far.recv, near.send)) })
            .await;
        return;
    }
    let (near_thread, far_thread) = (near.runtime().cloned(), far.runtime().cloned());
    let ((near_send, near_recv), (far_send, far_recv)) = (near.split(), far.split());
    let onward = RelayDirection { pair: pair.clone(), from: near_recv, to: far_send };
    let back = RelayDirection { pair, from: far_recv, to: near_send };
    tokio::join!(carry(onward, &near_thread, &far_thread), carry(back, &far_thread, &near_thread));
}

/// Carries one direction to its end, on the threads of its two links in turn. Dropping the future ends it.
async fn carry(mut direction: RelayDirection, source: &Option<Handle>, destination: &Option<Handle>) {
    let mut placement = RelayPlacement::new();
    loop {
        let runtime = match placement.side() {
            RelaySide::Source => source,
            RelaySide::Destination => destination,
        };
        match run_on(runtime.clone(), direction.run(placement)).await {
            Some(moved) => (direction, placement) = moved,
            None => return,
        }
    }
}

/// Runs a task on another I/O thread, or here where that is the same. Returns `None` also when it was dropped there.
async fn run_on<T: Send + 'static>(
    runtime: Option<Handle>,
    task: impl Future<Output = Option<T>> + Send + 'static,
) -> Option<T> {
    match runtime.filter(|runtime| runtime.id() != Handle::current().id()) {
        Some(runtime) => AbortOnDropHandle::new(runtime.spawn(task)).await.ok().flatten(),
        None => task.await,
    }
}

/// One direction of a stream.
struct RelayDirection {
    pair: Arc<Pair>,
    from: RecvStream,
    to: SendStream,
}

impl RelayDirection {
    /// Runs until the end, and returns `None`; or until the direction is to go on at the other side.
    async fn run(mut self, mut placement: RelayPlacement) -> Option<(RelayDirection, RelayPlacement)> {
        let RelayDirection { pair, from, to } = &mut self;
        let mut chunks = Vec::new();
        loop {
            let read = tokio::select! {
                biased;
                read = from.read_chunks(&mut chunks, TURN_BYTES) => read,
                // The reader at the far end has stopped: the writer here is told at once, not with the next byte.
                code = to.stopped() => {
                    from.stop(code);
                    return None;
                }
            };
            pair.touch();
            let bytes = chunks.iter().map(Bytes::len).sum();
            let failed = match read {
                Ok(true) => to.write_chunks(&mut chunks).await.err(),
                Ok(false) => {
                    let _ = to.shutdown().await;
                    return None;
                }
                Err(error) => {
                    to.reset(ResetCode::of(&error).unwrap_or(ResetCode::Abandoned));
                    return None;
                }
            };
            if let Some(error) = failed {
                from.stop(ResetCode::of(&error).unwrap_or(ResetCode::Abandoned));
                return None;
            }
            if placement.handle_turn(bytes) {
                return Some((self, placement));
            }
            if chunks.capacity() > CHUNKS_KEPT {
                chunks = Vec::new();
            }
        }
    }
}

async fn pour(pair: &Pair, mut from: DatagramFlowRecv, mut to: DatagramFlowSend) {
    loop {
        let datagram = tokio::select! {
            datagram = from.recv() => datagram,
            code = to.stopped() => return from.stop(code),
        };
        pair.touch();
        let failed = match datagram {
            Ok(Some(datagram)) => to.send(datagram).await.err(),
            Ok(None) => return drop(to.finish().await),
            Err(error) => return to.reset(ResetCode::of(&error).unwrap_or(ResetCode::Abandoned)),
        };
        if let Some(error) = failed {
            return from.stop(ResetCode::of(&error).unwrap_or(ResetCode::Abandoned));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread::{self, ThreadId};

    use tokio::sync::oneshot;

    use super::*;

    /// A thread with a runtime, as links have them. It ends when the sender is dropped.
    fn io_thread() -> (Handle, ThreadId, oneshot::Sender<()>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (handle, (end, ended)) = (runtime.handle().clone(), oneshot::channel());
        let thread = thread::spawn(move || drop(runtime.block_on(ended)));
        (handle, thread.thread().id(), end)
    }

    async fn thread_of_task(runtime: Option<Handle>) -> ThreadId {
        let (tell, told) = oneshot::channel();
        let here = async move {
            tell.send(thread::current().id()).unwrap();
            Some(())
        };
        assert_eq!(run_on(runtime, here).await, Some(()));
        told.await.unwrap()
    }

    #[tokio::test]
    async fn a_task_runs_on_the_thread_that_it_is_given() {
        let (runtime, expected, _end) = io_thread();
        assert_eq!(thread_of_task(Some(runtime)).await, expected);
        assert_eq!(thread_of_task(None).await, thread::current().id());
        assert_eq!(thread_of_task(Some(Handle::current())).await, thread::current().id());
    }

    #[tokio::test]
    async fn a_task_elsewhere_ends_with_the_relay() {
        let (runtime, _, _end) = io_thread();
        let (begun, began) = oneshot::channel();
        let (held, dropped) = oneshot::channel::<()>();
        let relaying = tokio::spawn(run_on(Some(runtime), async move {
            begun.send(()).unwrap();
            let _held = held;
            std::future::pending::<Option<()>>().await
        }));
        began.await.unwrap();
        relaying.abort();
        let ended = tokio::time::timeout(Duration::from_secs(60), dropped).await;
        assert!(ended.expect("the task goes on").is_err());
    }
}
