//! Joins two streams: bytes, ends and reasons of each direction go over to the other stream.
//!
//! When datagrams may come beside one of them, they are joined datagram by datagram: each of both links
//! carries them in the way it can. `Relays` knows which pairs are open and when each last moved, for a
//! replica that stops.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use causeway_api::sync::MutexExt;
use causeway_channel::link::{
    DatagramFlow, DatagramFlowRecv, DatagramFlowSend, RecvStream, ResetCode, SendStream, Stream, StreamHeader,
};
use causeway_gateway::peers::{CrossingHeader, StreamContent};
use tokio::io::AsyncWriteExt;
use tokio::time::{Instant, sleep};

/// Bytes that are read at a time; the transport hands out no more than it has.
const CHUNK_BYTES: usize = 64 << 10;
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
        relay(&pair, near, far).await;
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

async fn relay(pair: &Pair, near: Stream, far: Stream) {
    if near.has_datagrams() || far.has_datagrams() {
        let (near, far) = (DatagramFlow::from(near), DatagramFlow::from(far));
        // On the heap: streams without them do not carry its state.
        Box::pin(async { tokio::join!(pour(pair, near.recv, far.send), pour(pair, far.recv, near.send)) })
            .await;
        return;
    }
    let ((near_send, near_recv), (far_send, far_recv)) = (near.split(), far.split());
    tokio::join!(pump(pair, near_recv, far_send), pump(pair, far_recv, near_send));
}

async fn pump(pair: &Pair, mut from: RecvStream, mut to: SendStream) {
    loop {
        let chunk = tokio::select! {
            chunk = from.read_chunk(CHUNK_BYTES) => chunk,
            // The reader at the far end has stopped: the writer here is told at once, not with the next byte.
            code = to.stopped() => return from.stop(code),
        };
        pair.touch();
        let failed = match chunk {
            Ok(Some(bytes)) => to.write_chunk(bytes).await.err(),
            Ok(None) => return drop(to.shutdown().await),
            Err(error) => return to.reset(ResetCode::of(&error).unwrap_or(ResetCode::Abandoned)),
        };
        if let Some(error) = failed {
            return from.stop(ResetCode::of(&error).unwrap_or(ResetCode::Abandoned));
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
