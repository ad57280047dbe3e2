//! Moves bytes between one connection and its mux: one task, few system calls, no memory while idle.
//!
//! Makes no decisions about streams. Reads never wait for writes, nor writes for reads. The task ends with
//! the link: after our own close it sends the reason and waits a moment for the peer to read it.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};

use bytes::{BufMut, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;
use tokio_util::io::poll_read_buf;

use super::Shared;
use super::frame::{DataHead, HEAD_BYTES};
use super::mux::{Mux, WriteBatch};
use crate::io_thread;
use crate::link::ClosedBy;

/// Bytes taken from the streams at once. More delays a ping, less costs more system calls.
const BATCH_BYTES: usize = 128 * 1024;

/// As many slices as `BATCH_BYTES` has full frames, each with its head, and some small ones.
const SLICES: usize = 64;

/// Bytes read at once while the next frame is unknown. The buffer is on the stack: keepalives,
/// acknowledgements and small requests need no allocation.
const PROBE_BYTES: usize = 4 * 1024;

/// Data frames of at least this size are read directly into the buffer that the stream keeps.
const LARGE_BYTES: usize = 8 * 1024;

/// Rounds without a pause before the task yields to other tasks.
const ROUNDS: usize = 4;

/// Records read per round, if available, before the next write.
const READS: usize = 4;

/// Longest turn of the task, measured after each read. All links of an I/O thread take turns; a peer that floods its link
/// with small frames, which cost far more than their bytes, would otherwise delay every neighbour by its whole read.
const TURN_TIME: Duration = Duration::from_micros(500);

/// With more streams than this waiting for `accept`, the application runs first: each accepted stream is a
/// task, which takes far more memory than its queue entry.
const BACKLOG_STREAMS: usize = 256;

/// Time for a peer to read our close.
const CLOSE_DEADLINE: Duration = Duration::from_secs(2);

pub(super) struct LinkDriver<T> {
    io: T,
    shared: Arc<Shared>,
    inbox: Inbox,
    batch: WriteBatch,
    wakes: Vec<Waker>,
    is_flushed: bool,
    closing: Option<Closing>,
}

struct Closing {
    deadline: Pin<Box<Sleep>>,
    is_shut: bool,
}

impl<T: AsyncRead + AsyncWrite + Unpin> LinkDriver<T> {
    pub(super) fn new(io: T, shared: Arc<Shared>) -> LinkDriver<T> {
        let (inbox, batch) = (Inbox::default(), WriteBatch::default());
        LinkDriver { io, shared, inbox, batch, wakes: Vec::new(), is_flushed: true, closing: None }
    }

    /// Ready when the link is closed and nothing is left to send.
    fn poll_run(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let begun = Instant::now();
        for _ in 0..ROUNDS {
            let mut read = self.poll_read(context);
            for _ in 1..READS {
                let goes_on = matches!(read, Poll::Ready(Ok(()))) && begun.elapsed() < TURN_TIME;
                if !goes_on || self.shared.lock().backlog() > BACKLOG_STREAMS {
                    break;
                }
                read = self.poll_read(context);
            }
            let written = self.poll_write(context);
            let error = [&read, &written].into_iter().find_map(|progress| match progress {
                Poll::Ready(Err(error)) => Some(error.to_string()),
                _ => None,
            });
            if let Some(text) = error {
                self.shared.with(|mux| mux.handle_lost(text));
                return Poll::Ready(());
            }
            let ended_by = self.shared.lock().ended().map(|closed| closed.by);
            match ended_by {
                None => {}
                Some(ClosedBy::Us) if self.batch.is_empty() && self.is_flushed => {
                    return self.poll_close(context);
                }
                // The close frame must not wait forever either.
                Some(ClosedBy::Us) if self.deadline().as_mut().poll(context).is_pending() => {}
                Some(_) => return Poll::Ready(()),
            }
            if read.is_pending() && written.is_pending() {
                return Poll::Pending;
            }
            if begun.elapsed() >= TURN_TIME || self.shared.lock().backlog() > BACKLOG_STREAMS {
                // The application runs on this thread too: it accepts these streams before more are read.
                break;
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }

    /// Reads once from the connection and passes the bytes to the mux.
    fn poll_read(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match ready!(self.poll_fill(context)) {
            Ok(0) => {
                Poll::Ready(Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the connection was closed")))
            }
            Ok(_) => Poll::Ready(Ok(())),
            Err(error) => Poll::Ready(Err(error)),
        }
    }

    fn poll_fill(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let (shared, wakes, mut woken) = (&self.shared, &mut self.wakes, 0);
        let read = ready!(self.inbox.poll_fill(&mut self.io, context, |act| {
            let mut mux = shared.lock();
            act(&mut mux, Instant::now());
            // The driver itself is awake: it checks for data to send before it sleeps.
            let (_, signals) = mux.take_due(wakes);
            drop(mux);
            shared.signal(signals);
            woken = wakes.len();
            wakes.drain(..).for_each(Waker::wake);
        }))?;
        io_thread::note(woken, read);
        Poll::Ready(Ok(read))
    }

    /// Writes queued frames, one batch at most. Pending when all is written, or when the connection is full.
    fn poll_write(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.batch.is_empty() && self.is_flushed {
            self.fill(context);
        }
        while !self.batch.is_empty() {
            let mut slices = [IoSlice::new(&[]); SLICES];
            let count = self.batch.slices(&mut slices);
            let written = ready!(Pin::new(&mut self.io).poll_write_vectored(context, &slices[..count]))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.batch.advance(written);
            self.is_flushed = false;
        }
        if !self.is_flushed {
            ready!(Pin::new(&mut self.io).poll_flush(context))?;
            self.is_flushed = true;
            self.fill(context);
            if !self.batch.is_empty() {
                return Poll::Ready(Ok(()));
            }
        }
        self.batch.rest();
        Poll::Pending
    }

    /// Takes the next batch. If there is none, registers the driver to be woken when there is data to send.
    fn fill(&mut self, context: &Context<'_>) {
        let mut mux = self.shared.lock();
        mux.fill(&mut self.batch, BATCH_BYTES, Instant::now());
        io_thread::note(self.batch.take_messages(), self.batch.len());
        if self.batch.is_empty() {
            mux.sleep(context.waker());
        }
        let (_, signals) = mux.take_due(&mut self.wakes);
        drop(mux);
        self.shared.signal(signals);
        self.wakes.drain(..).for_each(Waker::wake);
    }

    /// Our reason is written. A socket that is closed with unread bytes sends a reset, and the reason would
    /// be lost; so remaining bytes are read and discarded until the peer closes too.
    fn poll_close(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.deadline().as_mut().poll(context).is_ready() {
            return Poll::Ready(());
        }
        if self.closing.as_ref().is_some_and(|closing| !closing.is_shut) {
            let _ = ready!(Pin::new(&mut self.io).poll_shutdown(context));
            if let Some(closing) = &mut self.closing {
                closing.is_shut = true;
            }
        }
        // A peer that keeps sending gets no more of this thread than one whose link is open.
        let begun = Instant::now();
        for _ in 0..ROUNDS * READS {
            // The mux ignores all further frames.
            match ready!(self.poll_fill(context)) {
                Ok(count) if count > 0 => {}
                _ => return Poll::Ready(()),
            }
            if begun.elapsed() >= TURN_TIME {
                break;
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }

    fn deadline(&mut self) -> &mut Pin<Box<Sleep>> {
        let begin = || Closing { deadline: Box::pin(tokio::time::sleep(CLOSE_DEADLINE)), is_shut: false };
        &mut self.closing.get_or_insert_with(begin).deadline
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> Future for LinkDriver<T> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.get_mut().poll_run(context)
    }
}

impl<T> Drop for LinkDriver<T> {
    /// When the runtime is dropped, all waiting tasks are woken too.
    fn drop(&mut self) {
        self.shared.with(|mux: &mut Mux| mux.handle_lost("the connection's task has ended".to_owned()));
    }
}

/// Received bytes that are no complete frame yet. Holds no memory while the peer is silent.
#[derive(Default)]
struct Inbox {
    /// The first bytes of a frame.
    rest: Vec<u8>,
    /// A large data frame: the missing bytes are read into the buffer that the stream keeps, without another
    /// copy.
    large: Option<Large>,
}

struct Large {
    head: DataHead,
    payload: BytesMut,
}

impl Inbox {
    /// Reads once and passes complete frames to the mux. Returns the bytes read: 0 at the end.
    fn poll_fill<T: AsyncRead + Unpin>(
        &mut self,
        io: &mut T,
        context: &mut Context<'_>,
        mut act: impl FnMut(&mut dyn FnMut(&mut Mux, Instant)),
    ) -> Poll<io::Result<usize>> {
        if let Some(Large { head, payload }) = &mut self.large {
            let missing = head.length - payload.len();
            let count = ready!(poll_read_buf(Pin::new(io), context, &mut (&mut *payload).limit(missing)))?;
            if count == missing {
                let (head, mut payload) = (*head, Some(std::mem::take(payload).freeze()));
                self.large = None;
                act(&mut |mux, now| {
                    if let Some(payload) = payload.take() {
                        mux.handle_payload(head, payload, now);
                    }
                });
            }
            return Poll::Ready(Ok(count));
        }
        let mut probe = [0; PROBE_BYTES];
        let mut room = ReadBuf::new(&mut probe);
        ready!(Pin::new(io).poll_read(context, &mut room))?;
        let count = room.filled().len();
        let mut used = 0;
        if self.rest.is_empty() {
            act(&mut |mux, now| used = mux.handle_bytes(room.filled(), now));
            self.keep(&room.filled()[used..]);
        } else {
            let mut bytes = std::mem::take(&mut self.rest);
            bytes.extend_from_slice(room.filled());
            act(&mut |mux, now| used = mux.handle_bytes(&bytes, now));
            self.keep(&bytes[used..]);
        }
        Poll::Ready(Ok(count))
    }

    fn keep(&mut self, rest: &[u8]) {
        match DataHead::parse(rest).filter(|head| head.length >= LARGE_BYTES) {
            Some(head) => {
                let mut payload = BytesMut::with_capacity(head.length);
                payload.extend_from_slice(&rest[HEAD_BYTES..]);
                self.large = Some(Large { head, payload });
            }
            None => self.rest = rest.to_vec(),
        }
    }
}
