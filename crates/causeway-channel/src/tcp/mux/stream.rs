//! State of one stream in the mux: two halves that end independently, and the receive window.
//!
//! Values only. Wakeups, frames and the memory of the link are left to the mux.

use std::task::Waker;
use std::time::{Duration, Instant};

use crate::link::ResetCode;
use crate::tcp::queue::ByteQueue;

/// Send order when several streams have data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamPriority {
    /// The control stream: sent before all other streams.
    Urgent,
    Normal,
    /// Large transfers without a latency need: one turn in five while other streams have data.
    Bulk,
}

#[derive(Debug)]
pub struct MuxStream {
    /// Opened by this end.
    pub own: bool,
    pub class: StreamPriority,
    /// Still counts against the limit of open streams.
    pub counted: bool,
    pub send: SendHalf,
    pub recv: RecvHalf,
}

impl MuxStream {
    /// Returns whether both directions have ended.
    pub fn is_over(&self) -> bool {
        self.send.state.is_over() && !matches!(self.recv.state, RecvState::Open)
    }

    /// Returns whether the stream has ended and has no bytes to read.
    pub fn is_given_up(&self) -> bool {
        self.send.state.is_over() && matches!(self.recv.state, RecvState::Reset(_))
    }

    pub fn is_held(&self) -> bool {
        self.send.held || self.recv.held
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SendState {
    Open,
    /// The end was requested; it is sent after the queued bytes.
    Finishing,
    Finished,
    Reset(ResetCode),
}

impl SendState {
    pub fn is_over(self) -> bool {
        matches!(self, SendState::Finished | SendState::Reset(_))
    }
}

#[derive(Debug)]
pub struct SendHalf {
    pub state: SendState,
    pub queue: ByteQueue,
    /// Bytes that the peer still accepts.
    pub credit: u64,
    /// The peer has stopped this direction.
    pub stopped: Option<ResetCode>,
    /// The stream is in the send queue.
    pub listed: bool,
    /// A handle still exists.
    pub held: bool,
    pub writer: Option<Waker>,
    pub watcher: Option<Waker>,
}

/// Bytes that may be queued beyond the peer's credit, so that there is data to send as soon as credit
/// arrives.
const AHEAD_BYTES: u64 = 16 * 1024;

/// Bound of queued bytes of one stream: two full batches of the driver.
const WAITING_BYTES_MAX: u64 = 256 * 1024;

impl SendHalf {
    pub fn new(credit: u32) -> SendHalf {
        SendHalf {
            state: SendState::Open,
            queue: ByteQueue::default(),
            credit: u64::from(credit),
            stopped: None,
            listed: false,
            held: true,
            writer: None,
            watcher: None,
        }
    }

    /// Returns whether a frame can be sent now.
    pub fn is_ready(&self) -> bool {
        match self.state {
            SendState::Open => !self.queue.is_empty() && self.credit > 0,
            SendState::Finishing => self.queue.is_empty() || self.credit > 0,
            SendState::Finished | SendState::Reset(_) => false,
        }
    }

    /// Returns how many bytes may be written now, given what all streams of the link may still add. A stream
    /// whose peer does not read gets little, so that a thousand of them stay small.
    pub fn room(&self, link_room: usize) -> usize {
        let waiting_max = (self.credit + AHEAD_BYTES).min(WAITING_BYTES_MAX).min(link_room as u64 / 8);
        waiting_max.max(4096).saturating_sub(self.queue.len() as u64) as usize
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecvState {
    Open,
    /// All bytes have arrived; some may be unread.
    Finished,
    Reset(ResetCode),
}

#[derive(Debug)]
pub struct RecvHalf {
    pub state: RecvState,
    pub queue: ByteQueue,
    /// Bytes that the peer may still send.
    pub outstanding: u64,
    /// Granted credit whose frame is not sent yet.
    pub owed: u32,
    /// Bound of bytes in flight and unread together.
    window: u64,
    granted_at: Option<Instant>,
    /// Since the last grant the reader has read all available bytes.
    kept_up: bool,
    /// This end has stopped the direction; further bytes are discarded.
    pub stopped: Option<ResetCode>,
    /// Stopped by the link itself: the reader is told.
    pub is_cut: bool,
    pub held: bool,
    pub reader: Option<Waker>,
}

/// A window that is used up within this time may limit the stream, whatever the round trip: it is doubled.
const QUICK: Duration = Duration::from_secs(1);

/// Half a window that is read within this time is doubled up to `BUSY_WINDOW_BYTES`, even if the reader never reads all: a relay
/// between two fast links always has some bytes unread, and with a small window both links would wait for each other.
const BUSY: Duration = Duration::from_millis(5);
/// Two milliseconds of a stream of 256 MB/s.
const BUSY_WINDOW_BYTES: u64 = 512 * 1024;

impl RecvHalf {
    pub fn new(credit: u32) -> RecvHalf {
        RecvHalf {
            state: RecvState::Open,
            queue: ByteQueue::default(),
            outstanding: u64::from(credit),
            owed: 0,
            window: u64::from(credit),
            granted_at: None,
            kept_up: false,
            stopped: None,
            is_cut: false,
            held: true,
            reader: None,
        }
    }

    /// Returns the bytes that the peer can occupy for this half.
    pub fn committed(&self) -> u64 {
        match self.state {
            _ if self.stopped.is_some() => 0,
            RecvState::Open => self.outstanding + self.queue.len() as u64,
            RecvState::Finished => self.queue.len() as u64,
            RecvState::Reset(_) => 0,
        }
    }

    /// Returns the credit to grant after a read. The window doubles while its reader keeps up, up to
    /// `window_max` and to a quarter of the memory that the link has left; `floor` is always granted. The window of a
    /// reader that reads fast without keeping up is doubled too, up to `BUSY_WINDOW_BYTES`.
    pub fn grant(
        &mut self,
        now: impl FnOnce() -> Instant,
        floor: u64,
        window_max: u64,
        link_left: u64,
    ) -> u32 {
        if self.state != RecvState::Open || self.stopped.is_some() {
            return 0;
        }
        self.kept_up |= self.queue.is_empty();
        let committed = self.committed();
        if committed > self.window / 2 {
            return 0;
        }
        // Small reads mostly return above, so the clock is not read in vain.
        let now = now();
        let since = self.granted_at.map(|then| now.duration_since(then));
        let is_quick = since.is_none_or(|time| time < QUICK);
        let is_busy = since.is_some_and(|time| time < BUSY);
        let bytes_max = match std::mem::take(&mut self.kept_up) {
            true if is_quick => window_max,
            false if is_busy => window_max.min(BUSY_WINDOW_BYTES),
            _ => 0,
        };
        self.window = self.window.max((self.window * 2).min(bytes_max));
        let affordable = (committed + link_left / 4).max(floor);
        let bytes = self.window.min(affordable).saturating_sub(committed);
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        if bytes > 0 {
            self.granted_at = Some(now);
            self.outstanding += u64::from(bytes);
            self.owed = self.owed.saturating_add(bytes);
        }
        bytes
    }
}
