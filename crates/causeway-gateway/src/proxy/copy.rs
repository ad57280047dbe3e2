//! Copies the bytes of a connection in both directions until both have ended or one side failed.
//!
//! Each direction ends on its own: a half-close is passed on. A side that fails ends the other one, but the
//! bytes it sent before still arrive. One chunk is in flight per direction, so a slow reader applies
//! backpressure to the writer end to end.

pub(crate) mod any;

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use causeway_channel::link::{RecvStream, ResetCode, SendStream};
use futures_util::FutureExt;
use tokio::io::{AsyncRead, AsyncWriteExt, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::time::Instant;
use tokio_util::io::poll_read_buf;

use crate::connection_record::ByteMeter;
use crate::limits::ByteDirection;

/// Bytes copied in one turn at most: a good write to a socket, and small against the window of a stream.
const TURN_BYTES: usize = 64 << 10;
/// Chunks in one write to a socket. A QUIC stream returns one packet at a time.
const TURN_CHUNKS: usize = 48;
/// Read buffer of a connection with little traffic.
const READ_BYTES_MIN: usize = 4 << 10;
/// Time without progress on a stream after which the keeper of the link is told.
const STALL: Duration = Duration::from_secs(5);

/// The end of a copy.
#[derive(Debug)]
pub enum CopyEnd {
    /// Both directions ended.
    Done,
    Client(io::Error),
    Backend(io::Error),
    /// No byte was copied for the idle timeout.
    Idle,
}

/// Bytes in flight, in the chunks in which they arrived.
#[derive(Default)]
pub struct CopyBatch {
    chunks: Vec<Bytes>,
    bytes: usize,
}

impl CopyBatch {
    /// Removes and returns all chunks.
    pub(crate) fn drain(&mut self) -> std::vec::Drain<'_, Bytes> {
        self.bytes = 0;
        self.chunks.drain(..)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    pub(crate) fn push(&mut self, chunk: Bytes) {
        self.bytes += chunk.len();
        self.chunks.push(chunk);
    }

    /// Moves the first `bytes` into another batch, which is empty.
    fn move_to(&mut self, other: &mut CopyBatch, bytes: usize) {
        if bytes >= self.bytes {
            return std::mem::swap(self, other);
        }
        self.bytes -= bytes;
        let mut missing = bytes;
        let whole = self.chunks.iter().take_while(|chunk| match missing.checked_sub(chunk.len()) {
            Some(rest) => {
                missing = rest;
                true
            }
            None => false,
        });
        let whole = whole.count();
        self.chunks.drain(..whole).for_each(|chunk| other.push(chunk));
        if let Some(first) = self.chunks.first_mut().filter(|_| missing > 0) {
            other.push(first.split_to(missing));
        }
    }
}

/// A source of bytes.
pub(crate) trait ByteSource {
    /// Waits for bytes. Returns false at the end.
    async fn fill(&mut self, batch: &mut CopyBatch) -> io::Result<bool>;
    /// Stops reading: the bytes are no longer needed.
    fn abandon(&mut self, code: ResetCode);
}

/// A destination of bytes.
pub(crate) trait ByteSink {
    /// Writes the whole batch.
    async fn write(&mut self, batch: &mut CopyBatch) -> io::Result<()>;
    async fn finish(&mut self) -> io::Result<()>;
    /// Resolves when the reader at the other end is gone.
    async fn closed_by_reader(&mut self) -> io::Error;
    /// Ends with an error: the bytes written so far are incomplete.
    fn reset(&mut self, code: ResetCode);
}

impl<S: ByteSource> ByteSource for &mut S {
    async fn fill(&mut self, batch: &mut CopyBatch) -> io::Result<bool> {
        (**self).fill(batch).await
    }

    fn abandon(&mut self, code: ResetCode) {
        (**self).abandon(code);
    }
}

impl<S: ByteSink> ByteSink for &mut S {
    async fn write(&mut self, batch: &mut CopyBatch) -> io::Result<()> {
        (**self).write(batch).await
    }

    async fn finish(&mut self) -> io::Result<()> {
        (**self).finish().await
    }

    async fn closed_by_reader(&mut self) -> io::Error {
        (**self).closed_by_reader().await
    }

    fn reset(&mut self, code: ResetCode) {
        (**self).reset(code);
    }
}

/// One side of a copy.
pub(crate) struct CopySide<R, W> {
    pub source: R,
    pub sink: W,
}

/// Copies everything. `idle` is the time without a byte after which the copy ends. Dropped early, it leaves
/// both sides abandoned.
pub(crate) async fn cross<R: ByteSource, W: ByteSink, S: ByteSource, V: ByteSink>(
    client: &mut CopySide<R, W>,
    backend: &mut CopySide<S, V>,
    meter: &ByteMeter,
    idle: Duration,
) -> CopyEnd {
    let up = flow(&mut client.source, &mut backend.sink, meter, ByteDirection::Sent);
    let down = flow(&mut backend.source, &mut client.sink, meter, ByteDirection::Received);
    let (mut up, mut down) = (std::pin::pin!(up), std::pin::pin!(down));
    let mut quiet = std::pin::pin!(quiet(meter, idle));
    let (mut up_end, mut down_end) = (None, None);
    loop {
        // Both are polled each time in any case, so the order need not be random.
        tokio::select! {
            biased;
            end = &mut up, if up_end.is_none() => up_end = Some(end),
            end = &mut down, if down_end.is_none() => down_end = Some(end),
            () = &mut quiet => return CopyEnd::Idle,
        }
        match (&up_end, &down_end) {
            (Some(Flow::Finished), Some(Flow::Finished)) => return CopyEnd::Done,
            // The source of one direction failed, and with it the sink of the other.
            (Some(Flow::Source(_)), _) | (_, Some(Flow::Source(_))) => break,
            // A sink that accepts no more bytes may still send some; that direction ends first.
            (Some(_), Some(_)) => break,
            _ => {}
        }
    }
    match (up_end, down_end) {
        (Some(Flow::Source(error)), _) | (_, Some(Flow::Sink(error))) => CopyEnd::Client(error),
        (_, Some(Flow::Source(error))) | (Some(Flow::Sink(error)), _) => CopyEnd::Backend(error),
        _ => CopyEnd::Done,
    }
}

/// The end of one direction.
enum Flow {
    Finished,
    Source(io::Error),
    Sink(io::Error),
}

async fn flow(
    source: &mut impl ByteSource,
    sink: &mut impl ByteSink,
    meter: &ByteMeter,
    way: ByteDirection,
) -> Flow {
    let (mut batch, mut part) = (CopyBatch::default(), CopyBatch::default());
    loop {
        let filled = tokio::select! {
            biased;
            filled = source.fill(&mut batch) => filled,
            // The writer is told at once, not with its next byte.
            error = sink.closed_by_reader() => {
                source.abandon(ResetCode::of(&error).unwrap_or(ResetCode::Abandoned));
                return Flow::Sink(error);
            }
        };
        match filled {
            Ok(true) => {}
            Ok(false) => break,
            Err(error) => {
                sink.reset(ResetCode::of(&error).unwrap_or(ResetCode::Abandoned));
                return Flow::Source(error);
            }
        }
        while batch.bytes > 0 {
            // All bytes, unless a limit makes them wait for their turns.
            let granted = meter.take(way, batch.bytes).await;
            batch.move_to(&mut part, granted);
            if let Err(error) = sink.write(&mut part).await {
                source.abandon(ResetCode::of(&error).unwrap_or(ResetCode::Abandoned));
                return Flow::Sink(error);
            }
            meter.add(way, granted);
        }
    }
    match sink.finish().await {
        Ok(()) => Flow::Finished,
        Err(error) => Flow::Sink(error),
    }
}

async fn quiet(meter: &ByteMeter, idle: Duration) {
    loop {
        let due = Instant::from_std(meter.moved()) + idle;
        if Instant::now() >= due {
            return;
        }
        tokio::time::sleep_until(due).await;
    }
}

/// A TCP connection whose two directions are used concurrently.
pub(crate) struct SplitSocket {
    stream: TcpStream,
    end: SocketEnd,
}

#[derive(Default)]
struct SocketEnd {
    /// A write failed: an end of file is then not a proper end, even if the kernel reports one.
    is_dead: AtomicBool,
    /// The peer received a proper end (FIN).
    is_finished: AtomicBool,
}

impl SplitSocket {
    pub fn new(stream: TcpStream) -> SplitSocket {
        SplitSocket { stream, end: SocketEnd::default() }
    }

    pub fn side(&mut self) -> CopySide<SocketSource<'_>, SocketSink<'_>> {
        let (read, write) = self.stream.split();
        let source = SocketSource { read, end: &self.end, wanted: READ_BYTES_MIN };
        CopySide { source, sink: SocketSink { write, end: &self.end } }
    }

    /// Closes the connection. A peer that did not receive a proper end gets a reset.
    pub fn close(self) {
        if !self.end.is_finished.load(Ordering::Relaxed) {
            reset(self.stream);
        }
    }
}

/// Closes a connection with a reset, as if it had never been accepted.
pub fn reset(stream: TcpStream) {
    // Fails only when the connection is already gone.
    let _ = stream.set_zero_linger();
}

pub(crate) struct SocketSource<'a> {
    read: ReadHalf<'a>,
    end: &'a SocketEnd,
    /// Grows with the traffic, so that idle and slow connections use little memory.
    wanted: usize,
}

impl SocketSource<'_> {
    /// A source that waits holds no buffer: one is made for each attempt. A small one is on the stack.
    fn poll_read(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Bytes>> {
        let (chunk, room) = if self.wanted <= READ_BYTES_MIN {
            let mut space = [MaybeUninit::uninit(); READ_BYTES_MIN];
            let mut buffer = ReadBuf::uninit(&mut space);
            ready!(Pin::new(&mut self.read).poll_read(context, &mut buffer))?;
            (Bytes::copy_from_slice(buffer.filled()), READ_BYTES_MIN)
        } else {
            ready!(self.read.as_ref().poll_read_ready(context))?;
            let mut buffer = BytesMut::with_capacity(self.wanted);
            ready!(poll_read_buf(Pin::new(&mut self.read), context, &mut buffer))?;
            let room = buffer.capacity();
            (buffer.freeze(), room)
        };
        if chunk.len() == room {
            self.wanted = (self.wanted * 4).min(TURN_BYTES);
        } else if chunk.len() < self.wanted / 4 {
            self.wanted = (self.wanted / 2).max(READ_BYTES_MIN);
        }
        Poll::Ready(Ok(chunk))
    }
}

impl ByteSource for SocketSource<'_> {
    async fn fill(&mut self, batch: &mut CopyBatch) -> io::Result<bool> {
        let chunk = poll_fn(|context| self.poll_read(context)).await?;
        if !chunk.is_empty() {
            batch.push(chunk);
            return Ok(true);
        }
        match self.end.is_dead.load(Ordering::Relaxed) {
            true => Err(io::ErrorKind::ConnectionReset.into()),
            false => Ok(false),
        }
    }

    fn abandon(&mut self, _: ResetCode) {}
}

pub(crate) struct SocketSink<'a> {
    write: WriteHalf<'a>,
    end: &'a SocketEnd,
}

impl SocketSink<'_> {
    async fn write_all(&mut self, batch: &mut CopyBatch) -> io::Result<()> {
        let mut first = 0;
        while first < batch.chunks.len() {
            match self.try_write(&batch.chunks[first..]) {
                Ok(mut written) => {
                    while let Some(chunk) = batch.chunks.get_mut(first) {
                        if written < chunk.len() {
                            chunk.advance(written);
                            break;
                        }
                        written -= chunk.len();
                        first += 1;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.write.writable().await?;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        batch.chunks.clear();
        batch.bytes = 0;
        Ok(())
    }

    fn try_write(&self, chunks: &[Bytes]) -> io::Result<usize> {
        // Most writes are one small chunk.
        if let [chunk] = chunks {
            return self.write.try_write(chunk);
        }
        let mut slices = [IoSlice::new(&[]); TURN_CHUNKS];
        slices.iter_mut().zip(chunks).for_each(|(slice, chunk)| *slice = IoSlice::new(chunk));
        self.write.try_write_vectored(&slices[..chunks.len().min(TURN_CHUNKS)])
    }

    fn note<T>(&self, result: io::Result<T>) -> io::Result<T> {
        result.inspect_err(|_| self.end.is_dead.store(true, Ordering::Relaxed))
    }
}

impl ByteSink for SocketSink<'_> {
    async fn write(&mut self, batch: &mut CopyBatch) -> io::Result<()> {
        let written = self.write_all(batch).await;
        self.note(written)
    }

    async fn finish(&mut self) -> io::Result<()> {
        let stream = socket2::SockRef::from(self.write.as_ref());
        let shut = stream.shutdown(std::net::Shutdown::Write);
        self.note(shut)?;
        self.end.is_finished.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Detects a reset also when the socket is not read: the client may have closed its half long ago.
    async fn closed_by_reader(&mut self) -> io::Error {
        match self.write.ready(Interest::ERROR).await {
            // The error itself is left for the reader.
            Ok(_) => io::ErrorKind::ConnectionReset.into(),
            Err(error) => error,
        }
    }

    fn reset(&mut self, _: ResetCode) {}
}

pub(crate) struct StreamSource {
    recv: RecvStream,
    is_ended: bool,
}

impl ByteSource for StreamSource {
    async fn fill(&mut self, batch: &mut CopyBatch) -> io::Result<bool> {
        let has_bytes = self.recv.read_chunks(&mut batch.chunks, TURN_BYTES).await?;
        batch.bytes = batch.chunks.iter().map(Bytes::len).sum();
        self.is_ended |= !has_bytes;
        Ok(has_bytes)
    }

    fn abandon(&mut self, code: ResetCode) {
        if !self.is_ended {
            self.is_ended = true;
            self.recv.stop(code);
        }
    }
}

pub(crate) struct StreamSink<F> {
    send: SendStream,
    is_ended: bool,
    stalled: F,
}

impl<F: Fn()> ByteSink for StreamSink<F> {
    async fn write(&mut self, batch: &mut CopyBatch) -> io::Result<()> {
        batch.bytes = 0;
        // Usually there is room, and no clock is needed.
        if let Some(written) = self.send.write_chunks(&mut batch.chunks).now_or_never() {
            return written;
        }
        // The rest is still in the list. A slow link is given the time of a stall for each chunk.
        for chunk in batch.chunks.drain(..).filter(|chunk| !chunk.is_empty()) {
            let mut write = std::pin::pin!(self.send.write_chunk(chunk));
            match tokio::time::timeout(STALL, &mut write).await {
                Ok(written) => written?,
                Err(_) => {
                    (self.stalled)();
                    write.await?;
                }
            }
        }
        Ok(())
    }

    async fn finish(&mut self) -> io::Result<()> {
        self.is_ended = true;
        self.send.shutdown().await
    }

    async fn closed_by_reader(&mut self) -> io::Error {
        causeway_channel::link::Reset::writing(self.send.stopped().await)
    }

    fn reset(&mut self, code: ResetCode) {
        // A direction that ended properly stays so: the last bytes may still be in flight.
        if !self.is_ended {
            self.is_ended = true;
            self.send.reset(code);
        }
    }
}

/// Returns a stream of the channel as one side. `stalled` is called when it makes no progress for long.
pub(crate) fn stream_side<F: Fn()>(
    stream: causeway_channel::link::Stream,
    stalled: F,
) -> CopySide<StreamSource, StreamSink<F>> {
    let (send, recv) = stream.split();
    CopySide {
        source: StreamSource { recv, is_ended: false },
        sink: StreamSink { send, is_ended: false, stalled },
    }
}

impl<F: Fn()> CopySide<StreamSource, StreamSink<F>> {
    /// Resets the directions that have not ended.
    pub(crate) fn give_up(mut self, code: ResetCode) {
        self.sink.reset(code);
        self.source.abandon(code);
    }
}

#[cfg(test)]
mod tests;
