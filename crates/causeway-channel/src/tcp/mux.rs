//! Multiplexes streams on one connection.
//!
//! Pure: no socket, no task; the time is an argument, and wakers are only stored and returned. The driver
//! calls `handle_bytes` and `fill`; stream handles call the rest. Memory that the peer can occupy is bounded
//! by credit, and a peer that exceeds its credit has its link closed. Reading from the connection therefore
//! never has to wait, and a stream that is not read does not block other streams. Datagrams are data of their
//! streams (`link::flow`); a datagram frame, which older peers could send, is dropped and counted.

mod batch;
mod halves;
mod hash;
mod incoming;
mod outgoing;
pub mod stream;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::task::Waker;
use std::time::{Duration, Instant};

use bytes::Bytes;

pub use self::batch::WriteBatch;
pub use self::halves::StreamFailure;
use self::hash::NumberHash;
pub use self::stream::{MuxStream, StreamPriority};
use self::stream::{RecvHalf, SendHalf};
use super::frame::LinkSettings;
use crate::link::{
    BudgetShare, CloseCode, CloseReason, ClosedBy, LinkClosed, LinkLimits, LinkSide, LinkStats, ReceiveBudget,
};

/// Interval of round-trip measurements while the link is in use.
const PING_EVERY: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub struct Mux {
    side: LinkSide,
    bounds: Bounds,
    peer: LinkSettings,
    settings_heard: bool,
    streams: HashMap<u32, Box<MuxStream>, NumberHash>,
    next_stream: u32,
    own_open: u32,
    peer_open: u32,
    /// Streams of the peer in `streams`: open, or ended and not yet dropped by the application.
    peer_held: u32,
    /// Before admission: the number of streams that the peer may still open.
    before_admission: Option<u32>,
    /// The unread bytes, as part of the budget of the peer.
    share: Option<BudgetShare>,
    /// Bytes that the peer can occupy over all streams: unread, and granted.
    committed: u64,
    /// Bytes queued to be sent over all streams.
    waiting: usize,
    accepted: VecDeque<(u32, Bytes)>,
    /// Bytes of the headers in `accepted`.
    accepted_bytes: usize,
    outgoing: outgoing::ControlQueue,
    ping: Ping,
    ended: Option<LinkClosed>,
    last_heard: Instant,
    stats: LinkStats,
    /// Waker of the sleeping driver, woken when there is data to send.
    driver: Option<Waker>,
    wakes: Vec<Waker>,
    signals: MuxSignals,
}

/// Limits of a link, as this transport uses them.
#[derive(Debug, Clone, Copy)]
struct Bounds {
    streams_max: u32,
    initial_credit: u32,
    window_max: u64,
    receive_max: u64,
    send_max: usize,
}

/// Bound of headers of streams that wait for `accept`. Those of 16,384 streams opened at once are about 2
/// MiB.
const ACCEPTED_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Streams that a peer may open before it is admitted: the control stream.
const STREAMS_BEFORE_ADMISSION: u32 = 1;

/// A window of 4 MiB carries 40 MB/s at a round trip of 100 ms.
const WINDOW_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// Bound of the initial credit of a stream: four times the initial window of TCP, which the connection would
/// have without us. Less where the stream limit is so high that the link could not hold it for all streams.
const INITIAL_CREDIT: u32 = 64 * 1024;

/// Bound of the initial credit for responses on streams that this end opens, which may be larger.
const ANSWER_CREDIT_MAX: u64 = 256 * 1024;
const ANSWER_CREDIT_MIN: u64 = 4 * 1024;

impl Bounds {
    fn new(limits: &LinkLimits) -> Bounds {
        let streams_max = limits.streams_max.max(LinkSettings::FLOOR.streams_max);
        let share = u32::try_from(limits.receive_bytes_max() / u64::from(streams_max)).unwrap_or(u32::MAX);
        let initial_credit =
            limits.stream_window_bytes.min(share).clamp(LinkSettings::FLOOR.initial_credit, INITIAL_CREDIT);
        // Bound of unread bytes over all streams. A link with few streams may use as much as four full
        // windows.
        let receive_max = (u64::from(streams_max) * u64::from(initial_credit)).max(4 * WINDOW_BYTES_MAX);
        Bounds {
            streams_max,
            initial_credit,
            window_max: WINDOW_BYTES_MAX.max(u64::from(limits.stream_window_bytes)),
            receive_max,
            send_max: limits.send_window_bytes as usize,
        }
    }

    /// Streams of the peer that may be in memory. A stream can have ended for the peer before the application
    /// here has dropped it, so an honest peer may be ahead by a few. Further streams are refused, and the
    /// link stays open.
    fn held_max(&self) -> u32 {
        self.streams_max + self.streams_max / 8
    }

    /// Bound of queued control frames: an open, a reset, a stop and a credit for every stream of both ends. A
    /// peer that keeps its stream limit cannot cause more, however long it does not read.
    fn control_max(&self) -> usize {
        (self.streams_max + self.held_max()) as usize * 4
    }
}

/// Events that tasks outside the mux may wait for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MuxSignals {
    pub accepted: bool,
    pub stream_credit: bool,
    pub pong: bool,
    pub ended: bool,
}

impl MuxSignals {
    pub fn any(self) -> bool {
        self != MuxSignals::default()
    }
}

impl Mux {
    pub fn new(side: LinkSide, limits: &LinkLimits, now: Instant) -> Mux {
        Mux {
            side,
            bounds: Bounds::new(limits),
            peer: LinkSettings::FLOOR,
            settings_heard: false,
            streams: HashMap::default(),
            // The dialling end opens odd streams, the accepting end even ones.
            next_stream: if side == LinkSide::Dialled { 1 } else { 2 },
            own_open: 0,
            peer_open: 0,
            peer_held: 0,
            before_admission: None,
            share: None,
            committed: 0,
            waiting: 0,
            accepted: VecDeque::new(),
            accepted_bytes: 0,
            outgoing: outgoing::ControlQueue::default(),
            ping: Ping::default(),
            ended: None,
            last_heard: now,
            stats: LinkStats::default(),
            driver: None,
            wakes: Vec::new(),
            signals: MuxSignals::default(),
        }
    }

    /// For the peer of a link that was just accepted: it may open only its control stream until `admit`.
    pub fn pending(side: LinkSide, limits: &LinkLimits, now: Instant) -> Mux {
        Mux { before_admission: Some(STREAMS_BEFORE_ADMISSION), ..Mux::new(side, limits, now) }
    }

    /// Grants the peer the limits of the link. With a budget, the unread bytes of all its links have one bound.
    pub fn admit(&mut self, budget: Option<&ReceiveBudget>) {
        self.before_admission = None;
        self.share = budget.map(ReceiveBudget::share);
        let unread = self.streams.values().map(|stream| stream.recv.queue.len() as u64).sum();
        if let Some(share) = &mut self.share {
            share.take_always(unread);
        }
    }

    /// Unread bytes were read or dropped.
    fn give_back(&mut self, bytes: usize) {
        if let Some(share) = &mut self.share {
            share.give_back(bytes as u64);
        }
    }

    /// Opens a stream. Returns `None` while the peer allows no more; `stream_credit` is signalled when that changes.
    pub fn open(&mut self, header: Bytes, class: StreamPriority) -> Result<Option<u32>, LinkClosed> {
        self.check_open()?;
        if self.own_open >= self.peer.streams_max.min(self.bounds.streams_max) {
            return Ok(None);
        }
        let id = self.free_number();
        let left = self.bounds.receive_max.saturating_sub(self.committed);
        let credit = (left / 16).clamp(ANSWER_CREDIT_MIN, ANSWER_CREDIT_MAX) as u32;
        self.own_open += 1;
        self.insert(id, true, class, self.peer.initial_credit, credit);
        self.outgoing.push_open(id, credit, header);
        Ok(Some(id))
    }

    /// Stream numbers wrap around after two thousand million streams; numbers still in use are skipped.
    fn free_number(&mut self) -> u32 {
        loop {
            let id = self.next_stream;
            self.next_stream = id.wrapping_add(2);
            if id != 0 && !self.streams.contains_key(&id) {
                return id;
            }
        }
    }

    fn insert(&mut self, id: u32, own: bool, class: StreamPriority, send_credit: u32, recv_credit: u32) {
        let (send, recv) = (SendHalf::new(send_credit), RecvHalf::new(recv_credit));
        self.committed += recv.committed();
        self.stats.streams_open += 1;
        self.peer_held += u32::from(!own);
        self.streams.insert(id, Box::new(MuxStream { own, class, counted: true, send, recv }));
    }

    /// Returns the next stream of the peer and its header. A stream that the peer has meanwhile reset in both
    /// directions is dropped: it can be neither read nor written.
    pub fn accept(&mut self) -> Result<Option<(u32, Bytes)>, LinkClosed> {
        while let Some((id, header)) = self.accepted.pop_front() {
            self.accepted_bytes -= header.len();
            if self.accepted.is_empty() && self.accepted.capacity() > 64 {
                self.accepted = VecDeque::new();
            }
            if !self.streams.get(&id).is_some_and(|stream| stream.is_given_up()) {
                return Ok(Some((id, header)));
            }
            self.drop_send(id);
            self.drop_recv(id);
        }
        self.check_open().map(|()| None)
    }

    /// Returns the number of streams that wait for `accept`.
    pub fn backlog(&self) -> usize {
        self.accepted.len()
    }

    /// Sets the priority of a stream, after its header has been read.
    pub fn set_class(&mut self, id: u32, class: StreamPriority) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.class = class;
        }
    }

    pub fn count_malformed(&mut self) {
        self.stats.streams_malformed += 1;
    }

    /// Requests a round-trip measurement, and returns its number.
    pub fn ping(&mut self) -> u64 {
        self.ping.wanted = true;
        self.ping.next
    }

    /// Returns the round trip, once the response to `ping` number `number` or a later one has arrived.
    pub fn pong(&mut self, number: u64) -> Result<Option<Duration>, LinkClosed> {
        self.check_open()?;
        Ok(self.ping.answered.filter(|answered| answered.0 >= number).map(|answered| answered.1))
    }

    pub fn rtt(&self) -> Option<Duration> {
        self.ping.smoothed
    }

    pub fn last_heard(&self) -> Instant {
        self.last_heard
    }

    pub fn stats(&self) -> LinkStats {
        self.stats
    }

    /// Returns the bytes that the peer occupies or may occupy, unread and granted, and the bound that they
    /// never exceed.
    pub fn held_bytes(&self) -> u64 {
        self.committed
    }

    /// Returns the streams of the peer and the control frames in memory, each with its bound.
    pub fn held_counts(&self) -> [(usize, usize); 2] {
        [
            (self.peer_held as usize, self.bounds.held_max() as usize),
            // The frame that exceeds the bound closes the link, which frees all of them.
            (self.outgoing.control_len(), self.bounds.control_max() + 2),
        ]
    }

    pub fn held_bytes_max(&self) -> u64 {
        // Streams that this end opens get a minimum, however many the peer has opened.
        self.bounds.receive_max + u64::from(self.bounds.streams_max) * ANSWER_CREDIT_MIN
    }

    /// Closes the link from this side. The first reason counts.
    pub fn close(&mut self, reason: CloseReason) {
        if self.ended.is_none() {
            self.outgoing.push_close(&reason);
            self.end(LinkClosed { by: ClosedBy::Us, reason });
        }
    }

    /// The connection is lost.
    pub fn handle_lost(&mut self, text: String) {
        self.end(LinkClosed::new(ClosedBy::Transport, CloseCode::Internal, text));
    }

    pub fn ended(&self) -> Option<&LinkClosed> {
        self.ended.as_ref()
    }

    fn end(&mut self, closed: LinkClosed) {
        if self.ended.is_some() {
            return;
        }
        self.ended = Some(closed);
        self.outgoing.forget_all_but_close();
        self.signals = MuxSignals { accepted: true, stream_credit: true, pong: true, ended: true };
        for stream in self.streams.values_mut() {
            stream.send.queue.clear();
            let halves = [stream.send.writer.take(), stream.send.watcher.take(), stream.recv.reader.take()];
            self.wakes.extend(halves.into_iter().flatten());
        }
        self.waiting = 0;
    }

    fn check_open(&self) -> Result<(), LinkClosed> {
        match &self.ended {
            Some(closed) => Err(closed.clone()),
            None => Ok(()),
        }
    }

    /// Stops counting an ended stream, and removes it once no handle holds it.
    fn release_if_over(&mut self, id: u32) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let is_over = stream.is_over();
        if is_over && stream.counted {
            stream.counted = false;
            let open = if stream.own { &mut self.own_open } else { &mut self.peer_open };
            *open -= 1;
            self.stats.streams_open -= 1;
            self.signals.stream_credit |= stream.own;
        }
        if (is_over || self.ended.is_some()) && !stream.is_held() {
            self.committed -= stream.recv.committed();
            self.waiting -= stream.send.queue.len();
            self.peer_held -= u32::from(!stream.own);
            self.streams.remove(&id);
            // A link that was busy returns the memory.
            if self.streams.capacity() > 64 && self.streams.len() * 8 < self.streams.capacity() {
                self.streams.shrink_to(self.streams.len() * 2);
            }
        }
    }

    /// Returns the wakers of affected streams, of the driver if there is data to send, and the signals for
    /// tasks outside.
    pub fn take_due(&mut self, wakes: &mut Vec<Waker>) -> (Option<Waker>, MuxSignals) {
        wakes.append(&mut self.wakes);
        let has_work = self.outgoing.has_work() || self.ping.wanted;
        let driver = if has_work || self.signals.ended { self.driver.take() } else { None };
        (driver, std::mem::take(&mut self.signals))
    }

    /// The driver sleeps; it is woken when there is data to send.
    pub fn sleep(&mut self, driver: &Waker) {
        self.driver = Some(driver.clone());
    }

    #[cfg(test)]
    fn check(&self) {
        let committed: u64 = self.streams.values().map(|stream| stream.recv.committed()).sum();
        let waiting: usize = self.streams.values().map(|stream| stream.send.queue.len()).sum();
        assert_eq!((self.committed, self.waiting), (committed, waiting));
        let unread: u64 = self.streams.values().map(|stream| stream.recv.queue.len() as u64).sum();
        assert!(self.share.as_ref().is_none_or(|share| share.bytes() == unread));
        let held = self.streams.values().filter(|stream| !stream.own).count();
        let accepted: usize = self.accepted.iter().map(|(_, header)| header.len()).sum();
        assert_eq!((self.peer_held as usize, self.accepted_bytes), (held, accepted));
    }
}

/// State of the round-trip measurement. At most one is in progress.
#[derive(Debug, Default)]
struct Ping {
    wanted: bool,
    next: u64,
    asked: Option<(u64, Instant)>,
    last_asked: Option<Instant>,
    answered: Option<(u64, Duration)>,
    smoothed: Option<Duration>,
}

impl Ping {
    /// Returns the number to send, when a measurement is due.
    fn next_due(&mut self, now: Instant) -> Option<u64> {
        let is_time = self.last_asked.is_none_or(|then| now.duration_since(then) >= PING_EVERY);
        if !(self.wanted || is_time && self.asked.is_none()) {
            return None;
        }
        let number = self.next;
        self.wanted = false;
        self.next += 1;
        self.asked = Some((number, now));
        self.last_asked = Some(now);
        Some(number)
    }

    fn handle_pong(&mut self, number: u64, now: Instant) -> bool {
        let Some((_, asked)) = self.asked.take_if(|asked| asked.0 == number) else { return false };
        let rtt = now.duration_since(asked);
        self.answered = Some((number, rtt));
        self.smoothed = Some(self.smoothed.map_or(rtt, |before| (before * 7 + rtt) / 8));
        true
    }
}
