//! One stream as the mux sees it: two halves that end on their own, and the window of the receiving one.
//!
//! Values only. Who is woken, what is sent and how much memory the link has left is the mux's business.

use std::task::Waker;
use std::time::{Duration, Instant};

use crate::link::ResetCode;
use crate::tcp::queue::ByteQueue;

/// Who goes first when several streams have something to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamPriority {
    /// The control stream: before everything else.
    Urgent,
    Normal,
    /// Many bytes that nobody waits for: one turn in five while others want to send.
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
    /// Both ends have said all they will ever say about this stream.
    pub fn is_over(&self) -> bool {
        self.send.state.is_over() && !matches!(self.recv.state, RecvState::Open)
    }

    /// Over, and nothing of it can be read.
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
    /// The end was asked for; it goes out after what waits.
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
    /// How many bytes the peer still takes.
    pub credit: u64,
    /// The peer wants no more.
    pub stopped: Option<ResetCode>,
    /// Stands in the list of those who have something to send.
    pub listed: bool,
    /// Somebody still has the handle.
    pub held: bool,
    pub writer: Option<Waker>,
    pub watcher: Option<Waker>,
}

/// What may wait beyond the peer's credit, so that there is something to send the moment credit comes.
const AHEAD_BYTES: u64 = 16 * 1024;

/// What one stream may have waiting: two full batches of the driver.
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

    /// There is a frame to send right now.
    pub fn is_ready(&self) -> bool {
        match self.state {
            SendState::Open => !self.queue.is_empty() && self.credit > 0,
            SendState::Finishing => self.queue.is_empty() || self.credit > 0,
            SendState::Finished | SendState::Reset(_) => false,
        }
    }

    /// How many bytes may be written now, given what all streams of the link may still add. A stream whose
    /// peer does not read gets little, so that a thousand of them stay small.
    pub fn room(&self, link_room: usize) -> usize {
        let waiting_max = (self.credit + AHEAD_BYTES).min(WAITING_BYTES_MAX).min(link_room as u64 / 8);
        waiting_max.max(4096).saturating_sub(self.queue.len() as u64) as usize
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecvState {
    Open,
    /// All has arrived; some of it may still wait to be read.
    Finished,
    Reset(ResetCode),
}

#[derive(Debug)]
pub struct RecvHalf {
    pub state: RecvState,
    pub queue: ByteQueue,
    /// How many bytes the peer may still send.
    pub outstanding: u64,
    /// Granted, but the frame that says so is not sent yet.
    pub owed: u32,
    /// What may be on its way and unread together.
    window: u64,
    granted_at: Option<Instant>,
    /// Since the last grant the reader has had everything there was.
    kept_up: bool,
    /// We want no more; what still comes is thrown away.
    pub stopped: Option<ResetCode>,
    pub held: bool,
    pub reader: Option<Waker>,
}

/// A window used up faster than this may be what limits the stream, whatever the round trip: it is doubled.
const QUICK: Duration = Duration::from_secs(1);

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
            held: true,
            reader: None,
        }
    }

    /// What the peer can make us hold for this half.
    pub fn committed(&self) -> u64 {
        match self.state {
            _ if self.stopped.is_some() => 0,
            RecvState::Open => self.outstanding + self.queue.len() as u64,
            RecvState::Finished => self.queue.len() as u64,
            RecvState::Reset(_) => 0,
        }
    }

    /// How many bytes more the peer may send, now that some were read. The window doubles while its reader
    /// keeps up, up to `window_max` and to a quarter of what the link has left; `floor` is always given.
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
        // Small reads mostly end above: the clock is not read for nothing.
        let now = now();
        let is_quick = self.granted_at.is_none_or(|then| now.duration_since(then) < QUICK);
        if is_quick && std::mem::take(&mut self.kept_up) {
            self.window = (self.window * 2).min(window_max);
        }
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
