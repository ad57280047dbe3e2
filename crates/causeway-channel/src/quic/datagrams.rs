//! Routes QUIC datagrams of one link to their streams.
//!
//! Each datagram begins with the number of its stream. A stream that carries datagrams has a mailbox here
//! while one of its halves exists; a datagram for any other number is dropped and counted. Numbers are those
//! of this link, so a peer can name only streams between the two. The router starts with the first stream
//! that needs it: most links have none.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::time::Instant;

use bytes::Bytes;
use quinn::Connection;
use tokio::sync::Notify;

use super::LinkCounters;
use super::workarounds::datagram_gate::DatagramGate;
use crate::wire::datagrams::{NUMBER_BYTES_MAX, beside, read_beside};
use causeway_api::sync::MutexExt;

/// Bound of datagrams in one mailbox: a burst, while the reader waits for a processor. Further datagrams are
/// dropped.
const MAILBOX_MAX: usize = 256;
const MAILBOX_BYTES_MAX: usize = 256 * 1024;
/// Bound of all mailboxes of a link, as a multiple of `datagram_buffer_bytes`: 32 full mailboxes. A peer that
/// opens more streams which are not read gets no more.
const ALL_BUFFERS_MAX: usize = 8;
/// Cost of a queued datagram beyond its bytes: the queue entry and the allocator's overhead.
const QUEUE_ENTRY_BYTES: usize = 64;

/// Creates the router of a link on first use.
pub(super) struct DatagramRouter {
    connection: Connection,
    counters: Arc<LinkCounters>,
    /// Size of quinn's send queue for datagrams.
    buffer_bytes: usize,
    started: OnceLock<Arc<Datagrams>>,
}

impl DatagramRouter {
    pub(super) fn new(
        connection: Connection,
        counters: Arc<LinkCounters>,
        buffer_bytes: usize,
    ) -> DatagramRouter {
        DatagramRouter { connection, counters, buffer_bytes, started: OnceLock::new() }
    }

    /// Creates the mailbox of a stream. `is_welcome`: the peer has announced its own.
    pub(super) fn mailbox(&self, number: u64, is_welcome: bool) -> Arc<DatagramMailbox> {
        let start = || Datagrams::start(self.connection.clone(), self.counters.clone(), self.buffer_bytes);
        self.started.get_or_init(start).mailbox(number, is_welcome)
    }
}

struct Datagrams {
    connection: Connection,
    counters: Arc<LinkCounters>,
    buffer_bytes: usize,
    gate: Mutex<DatagramGate>,
    /// Bytes in all mailboxes.
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
    /// Starts the task that delivers received datagrams. It ends with the link.
    fn start(connection: Connection, counters: Arc<LinkCounters>, buffer_bytes: usize) -> Arc<Datagrams> {
        let (gate, held, mailboxes) =
            (Mutex::new(DatagramGate::Open(None)), AtomicUsize::new(0), Mutex::default());
        let datagrams = Arc::new(Datagrams { connection, counters, buffer_bytes, gate, held, mailboxes });
        tokio::spawn(datagrams.clone().deliver());
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

    async fn deliver(self: Arc<Datagrams>) {
        while let Ok(bytes) = self.connection.read_datagram().await {
            self.counters.heard();
            let is_taken = read_beside(bytes).is_some_and(|(number, payload)| {
                self.find(number).is_some_and(|mailbox| mailbox.put(&payload))
            });
            let counts = &self.counters.datagrams;
            let count = if is_taken { &counts.received } else { &counts.dropped };
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Reserves `bytes` if the bound allows it. Only one task calls this, so check and add need not be
    /// atomic.
    fn reserve(&self, bytes: usize) -> bool {
        let has_room = self.held.load(Ordering::Relaxed) + bytes <= ALL_BUFFERS_MAX * self.buffer_bytes;
        if has_room {
            self.held.fetch_add(bytes, Ordering::Relaxed);
        }
        has_room
    }

    fn release(&self, bytes: usize) {
        self.held.fetch_sub(bytes, Ordering::Relaxed);
    }

    fn find(&self, number: u64) -> Option<Arc<DatagramMailbox>> {
        self.table().get(&number)?.upgrade()
    }

    fn table(&self) -> MutexGuard<'_, HashMap<u64, Weak<DatagramMailbox>>> {
        self.mailboxes.lock_ignoring_poison()
    }
}

/// Sends and receives the datagrams of one stream.
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
    /// The peer has announced its mailbox for the stream.
    pub fn welcome(&self) {
        self.is_welcome.store(true, Ordering::Relaxed);
    }

    /// Sends a QUIC datagram, if the peer accepts them for this stream, the payload fits and the gate is
    /// open. Returns false if the payload must be sent on the stream.
    pub fn send(&self, payload: &[u8]) -> bool {
        let datagrams = &self.datagrams;
        let connection = &datagrams.connection;
        let fits = |max| payload.len() + NUMBER_BYTES_MAX <= max;
        if !self.is_welcome.load(Ordering::Relaxed) || !connection.max_datagram_size().is_some_and(fits) {
            return false;
        }
        let waiting = datagrams.buffer_bytes.saturating_sub(connection.datagram_send_buffer_space());
        // quinn reports the entry of the next datagram as taken even when the queue is empty.
        let waiting = waiting.saturating_sub(ENTRY_BYTES);
        let mut gate = datagrams.gate.lock_ignoring_poison();
        if !gate.admits(payload.len(), waiting, Instant::now()) {
            return false;
        }
        drop(gate);
        let is_sent = connection.send_datagram(beside(self.number, payload)).is_ok();
        datagrams.counters.datagrams.sent.fetch_add(u64::from(is_sent), Ordering::Relaxed);
        is_sent
    }

    /// Returns the next received datagram. Cancel-safe.
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
        contents.bytes -= payload.len() + QUEUE_ENTRY_BYTES;
        self.datagrams.release(payload.len() + QUEUE_ENTRY_BYTES);
        if contents.queue.is_empty() {
            // Thousands of mailboxes are idle, and each held a burst once.
            contents.queue = VecDeque::new();
        }
        Some(payload)
    }

    /// Returns false if this mailbox, or all of them together, are full.
    fn put(&self, payload: &[u8]) -> bool {
        let mut contents = self.lock();
        let bytes = payload.len() + QUEUE_ENTRY_BYTES;
        let is_full = contents.queue.len() >= MAILBOX_MAX || contents.bytes + bytes > MAILBOX_BYTES_MAX;
        if is_full || !self.datagrams.reserve(bytes) {
            return false;
        }
        contents.bytes += bytes;
        // Copied: the received bytes are a slice of a buffer of up to 64 KiB, which they would keep alive.
        contents.queue.push_back(Bytes::copy_from_slice(payload));
        drop(contents);
        self.filled.notify_one();
        true
    }

    fn lock(&self) -> MutexGuard<'_, Contents> {
        self.contents.lock_ignoring_poison()
    }
}

/// Bytes that quinn counts per queued datagram beyond its payload.
const ENTRY_BYTES: usize = size_of::<Bytes>();

impl Drop for DatagramMailbox {
    fn drop(&mut self) {
        self.datagrams.table().remove(&self.number);
        let bytes = self.lock().bytes;
        self.datagrams.release(bytes);
    }
}
