//! Datagrams that travel beside the streams of one link: whose is which.
//!
//! Each begins with the number of its stream. A stream that wants them has a mailbox here for as long as one of its halves
//! lives; what comes for another number is dropped and counted. Numbers are those of this link, so a peer can name only
//! streams that it opened itself or that were opened towards it. Made with the first stream that asks for it: most links have none.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Instant;

use bytes::Bytes;
use quinn::Connection;
use tokio::sync::Notify;

use super::Vitals;
use super::workarounds::datagram_gate::DatagramGate;
use crate::wire::datagrams::{NUMBER_BYTES_MAX, beside, read_beside};

/// What a mailbox holds before somebody takes it: a burst, while its reader waits for a processor. The next is dropped.
const MAILBOX_MAX: usize = 256;
const MAILBOX_BYTES_MAX: usize = 256 * 1024;
/// What all mailboxes of a link hold, in buffers of the link (`datagram_buffer_bytes`): 32 that are full, and however many a peer
/// opens and nobody reads, no more.
const ALL_BUFFERS_MAX: usize = 8;
/// What a datagram costs beside its bytes: a place in a queue, and the allocator's own.
const HELD_BYTES: usize = 64;

/// What a link keeps for them until there are any.
pub(super) struct DatagramRouter {
    connection: Connection,
    vitals: Arc<Vitals>,
    /// What quinn keeps at most of what waits to be sent.
    buffer_bytes: usize,
    begun: OnceLock<Arc<Datagrams>>,
}

impl DatagramRouter {
    pub(super) fn new(connection: Connection, vitals: Arc<Vitals>, buffer_bytes: usize) -> DatagramRouter {
        DatagramRouter { connection, vitals, buffer_bytes, begun: OnceLock::new() }
    }

    /// A mailbox for one stream, or for the link itself. `is_welcome`: the peer has one for it already.
    pub(super) fn mailbox(&self, number: u64, is_welcome: bool) -> Arc<DatagramMailbox> {
        let begin = || Datagrams::start(self.connection.clone(), self.vitals.clone(), self.buffer_bytes);
        self.begun.get_or_init(begin).mailbox(number, is_welcome)
    }
}

struct Datagrams {
    connection: Connection,
    vitals: Arc<Vitals>,
    buffer_bytes: usize,
    gate: Mutex<DatagramGate>,
    /// In all mailboxes together.
    held: AtomicUsize,
    mailboxes: Mutex<HashMap<u64, Weak<DatagramMailbox>>>,
}

#[derive(Default)]
pub(super) struct DatagramCounts {
    pub sent: AtomicU64,
    pub received: AtomicU64,
    pub dropped: AtomicU64,
}

impl Datagrams {
    /// With a task that hands out what arrives; it ends with the link.
    fn start(connection: Connection, vitals: Arc<Vitals>, buffer_bytes: usize) -> Arc<Datagrams> {
        let (gate, held, mailboxes) =
            (Mutex::new(DatagramGate::Open(None)), AtomicUsize::new(0), Mutex::default());
        let datagrams = Arc::new(Datagrams { connection, vitals, buffer_bytes, gate, held, mailboxes });
        tokio::spawn(datagrams.clone().hand_out());
        datagrams
    }

    fn mailbox(self: &Arc<Datagrams>, number: u64, is_welcome: bool) -> Arc<DatagramMailbox> {
        let mailbox = Arc::new(DatagramMailbox {
            number,
            datagrams: self.clone(),
            is_welcome: AtomicBool::new(is_welcome),
            contents: Mutex::default(),
            filled: Notify::new(),
        });
        self.table().insert(number, Arc::downgrade(&mailbox));
        mailbox
    }

    async fn hand_out(self: Arc<Datagrams>) {
        while let Ok(bytes) = self.connection.read_datagram().await {
            self.vitals.heard();
            let is_taken = read_beside(bytes).is_some_and(|(number, payload)| {
                self.find(number).is_some_and(|mailbox| mailbox.put(&payload))
            });
            let counts = &self.vitals.datagrams;
            let count = if is_taken { &counts.received } else { &counts.dropped };
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Room for so many bytes more. Only one task asks, so looking first and adding then is enough.
    fn hold(&self, bytes: usize) -> bool {
        let has_room = self.held.load(Ordering::Relaxed) + bytes <= ALL_BUFFERS_MAX * self.buffer_bytes;
        if has_room {
            self.held.fetch_add(bytes, Ordering::Relaxed);
        }
        has_room
    }

    fn let_go(&self, bytes: usize) {
        self.held.fetch_sub(bytes, Ordering::Relaxed);
    }

    fn find(&self, number: u64) -> Option<Arc<DatagramMailbox>> {
        self.table().get(&number)?.upgrade()
    }

    fn table(&self) -> MutexGuard<'_, HashMap<u64, Weak<DatagramMailbox>>> {
        self.mailboxes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where the datagrams of one stream come in, and go out.
pub struct DatagramMailbox {
    number: u64,
    datagrams: Arc<Datagrams>,
    is_welcome: AtomicBool,
    contents: Mutex<Contents>,
    filled: Notify,
}

#[derive(Default)]
struct Contents {
    queue: VecDeque<Bytes>,
    bytes: usize,
}

impl DatagramMailbox {
    /// The peer has a mailbox for the stream, too.
    pub fn welcome(&self) {
        self.is_welcome.store(true, Ordering::Relaxed);
    }

    /// Sends it beside the stream, if the peer hears it there, it fits, and streams are not held up by it. False: it must take the
    /// stream.
    pub fn send(&self, payload: &[u8]) -> bool {
        let datagrams = &self.datagrams;
        let connection = &datagrams.connection;
        let fits = |max| payload.len() + NUMBER_BYTES_MAX <= max;
        if !self.is_welcome.load(Ordering::Relaxed) || !connection.max_datagram_size().is_some_and(fits) {
            return false;
        }
        let waiting = datagrams.buffer_bytes.saturating_sub(connection.datagram_send_buffer_space());
        // An empty queue shows the place of the next entry as taken.
        let waiting = waiting.saturating_sub(ENTRY_BYTES);
        let mut gate = datagrams.gate.lock().unwrap_or_else(PoisonError::into_inner);
        if !gate.admits(payload.len(), waiting, Instant::now()) {
            return false;
        }
        drop(gate);
        let is_sent = connection.send_datagram(beside(self.number, payload)).is_ok();
        datagrams.vitals.datagrams.sent.fetch_add(u64::from(is_sent), Ordering::Relaxed);
        is_sent
    }

    /// The next that came. May be cancelled.
    pub async fn recv(&self) -> Bytes {
        loop {
            if let Some(payload) = self.take() {
                return payload;
            }
            self.filled.notified().await;
        }
    }

    pub fn take(&self) -> Option<Bytes> {
        let mut contents = self.lock();
        let payload = contents.queue.pop_front()?;
        contents.bytes -= payload.len() + HELD_BYTES;
        self.datagrams.let_go(payload.len() + HELD_BYTES);
        if contents.queue.is_empty() {
            // Thousands of them are idle, and each held a burst once.
            contents.queue = VecDeque::new();
        }
        Some(payload)
    }

    /// False: it is full, or all together are.
    fn put(&self, payload: &[u8]) -> bool {
        let mut contents = self.lock();
        let bytes = payload.len() + HELD_BYTES;
        let is_full = contents.queue.len() >= MAILBOX_MAX || contents.bytes + bytes > MAILBOX_BYTES_MAX;
        if is_full || !self.datagrams.hold(bytes) {
            return false;
        }
        contents.bytes += bytes;
        // A copy: the bytes that came are a part of all that came with them, up to 64 KiB, and would keep it.
        contents.queue.push_back(Bytes::copy_from_slice(payload));
        drop(contents);
        self.filled.notify_one();
        true
    }

    fn lock(&self) -> MutexGuard<'_, Contents> {
        self.contents.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What quinn counts for each datagram beside its bytes.
const ENTRY_BYTES: usize = size_of::<Bytes>();

impl Drop for DatagramMailbox {
    fn drop(&mut self) {
        self.datagrams.table().remove(&self.number);
        let bytes = self.lock().bytes;
        self.datagrams.let_go(bytes);
    }
}
