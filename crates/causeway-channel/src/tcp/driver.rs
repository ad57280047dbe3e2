//! Moves bytes between one connection and its mux: one task, few system calls, no memory while idle.
//!
//! Decides nothing about streams. Reading never waits for writing, nor the other way. The task ends when the
//! link does: after our own close it tells the peer, and waits a moment for it to hear.

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

/// What is taken from the streams at once. More makes a ping wait longer, less makes more system calls.
const BATCH_BYTES: usize = 128 * 1024;

/// As many pieces as `BATCH_BYTES` has full frames, each with its head, and some small ones.
const SLICES: usize = 64;

/// What is read at once where the next frame is not known. It stands on the stack: keepalives, acknowledgements
/// and small requests need no buffer at all.
const PROBE_BYTES: usize = 4 * 1024;

/// Data frames from this size on are read to where they will stay.
const LARGE_BYTES: usize = 8 * 1024;

/// After so many rounds without a pause others get their turn.
const ROUNDS: usize = 4;

/// In each of them so many records are read, where there are so many, before something is written.
const READS: usize = 4;

/// With more streams than this waiting to be accepted, the application gets its turn first: each that it accepts is a task,
/// which takes far more memory than its place in the queue.
const BACKLOG_STREAMS: usize = 256;

/// How long a peer has to hear that we close.
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

    /// Ready when the link is over and nothing is left to be said.
    fn poll_run(&mut self, context: &mut Context<'_>) -> Poll<()> {
        for _ in 0..ROUNDS {
            let mut read = self.poll_read(context);
            for _ in 1..READS {
                if !matches!(read, Poll::Ready(Ok(()))) || self.shared.lock().backlog() > BACKLOG_STREAMS {
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
                // The last words must not wait for ever either.
                Some(ClosedBy::Us) if self.deadline().as_mut().poll(context).is_pending() => {}
                Some(_) => return Poll::Ready(()),
            }
            if read.is_pending() && written.is_pending() {
                return Poll::Pending;
            }
            if self.shared.lock().backlog() > BACKLOG_STREAMS {
                // The application is on this thread, too: it takes these before more are read.
                break;
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }

    /// Takes one piece from the connection and hands it to the mux.
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
            // The driver itself is awake: it looks for something to send before it sleeps.
            let (_, signals) = mux.take_due(wakes);
            drop(mux);
            shared.signal(signals);
            woken = wakes.len();
            wakes.drain(..).for_each(Waker::wake);
        }))?;
        io_thread::note(woken, read);
        Poll::Ready(Ok(read))
    }

    /// Writes what waits, a batch at most. Pending when all is written, or when the connection takes no more.
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

    /// Takes the next batch; goes to sleep when there is none, until somebody has something to send.
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

    /// Our reason is written. A socket closed while bytes of the peer lie unread in it would be reset, and the
    /// reason lost on the way; so what still comes is read and thrown away until the peer closes too.
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
        // A peer that goes on sending gets no more of this thread than one whose link is open.
        for _ in 0..ROUNDS * READS {
            // The mux looks at nothing any more.
            match ready!(self.poll_fill(context)) {
                Ok(count) if count > 0 => {}
                _ => return Poll::Ready(()),
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
    /// Also when the runtime goes away, nobody is left waiting.
    fn drop(&mut self) {
        self.shared.with(|mux: &mut Mux| mux.handle_lost("the connection's task has ended".to_owned()));
    }
}

/// What was read and is not a whole frame yet. Holds nothing while the peer is silent.
#[derive(Default)]
struct Inbox {
    /// The beginning of a frame.
    rest: Vec<u8>,
    /// A large data frame: what is missing is read to where the stream will keep it, without another copy.
    large: Option<Large>,
}

struct Large {
    head: DataHead,
    payload: BytesMut,
}

impl Inbox {
    /// Reads once and gives the mux what is whole. Says how much was read: nothing at the end.
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
