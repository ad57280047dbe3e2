//! The two halves of a stream over QUIC.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_util::FutureExt;
use quinn::{ReadError, VarInt, WriteError};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::runtime::Handle;

use super::datagrams::DatagramMailbox;
use super::{OpenStreamGuard, link_closed};
use crate::io_thread;
use crate::link::{LinkClosed, Reset, ResetCode};

pub struct QuicSend {
    send: quinn::SendStream,
    open: Arc<OpenStreamGuard>,
    mailbox: Option<Arc<DatagramMailbox>>,
    is_ended: bool,
}

impl QuicSend {
    pub(super) fn new(
        send: quinn::SendStream,
        open: Arc<OpenStreamGuard>,
        mailbox: Option<Arc<DatagramMailbox>>,
    ) -> QuicSend {
        QuicSend { send, open, mailbox, is_ended: false }
    }

    /// Mailbox for QUIC datagrams of the stream, if both ends support them.
    pub(crate) fn mailbox(&self) -> Option<&Arc<DatagramMailbox>> {
        self.mailbox.as_ref()
    }

    /// The I/O thread of the link.
    pub fn runtime(&self) -> Option<&Handle> {
        self.open.counters.driver.runtime()
    }

    pub fn reset(&mut self, code: ResetCode) {
        self.is_ended = true;
        // Fails only if the direction has already ended.
        let _ = self.send.reset(VarInt::from_u32(code.into()));
    }

    pub async fn stopped(&mut self) -> ResetCode {
        match self.send.stopped().await {
            Ok(Some(code)) => reset_code(code),
            Ok(None) => std::future::pending().await,
            Err(_) => ResetCode::Abandoned,
        }
    }

    pub async fn write_chunk(&mut self, data: Bytes) -> io::Result<()> {
        io_thread::note(1, data.len());
        self.send.write_chunk(data).await.map_err(write_error)
    }

    pub async fn write_chunks(&mut self, chunks: &mut Vec<Bytes>) -> io::Result<()> {
        io_thread::note(chunks.len(), chunks.iter().map(Bytes::len).sum());
        let written = self.send.write_all_chunks(chunks).await.map_err(write_error);
        chunks.clear();
        written
    }
}

impl AsyncWrite for QuicSend {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.send).poll_write(context, data)).map_err(write_error)?;
        io_thread::note(1, written);
        Poll::Ready(Ok(written))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.is_ended {
            self.is_ended = true;
            // A direction that the peer has stopped needs no FIN.
            let _ = self.send.finish();
        }
        Poll::Ready(Ok(()))
    }
}

impl Drop for QuicSend {
    fn drop(&mut self) {
        // quinn would finish the direction, and the peer would take a part of the data for the whole.
        if !self.is_ended {
            self.reset(ResetCode::Abandoned);
        }
    }
}

pub struct QuicRecv {
    recv: quinn::RecvStream,
    open: Arc<OpenStreamGuard>,
    mailbox: Option<Arc<DatagramMailbox>>,
    is_ended: bool,
}

impl QuicRecv {
    pub(super) fn new(
        recv: quinn::RecvStream,
        open: Arc<OpenStreamGuard>,
        mailbox: Option<Arc<DatagramMailbox>>,
    ) -> QuicRecv {
        QuicRecv { recv, open, mailbox, is_ended: false }
    }

    /// Mailbox for QUIC datagrams of the stream, if both ends support them.
    pub(crate) fn mailbox(&self) -> Option<&Arc<DatagramMailbox>> {
        self.mailbox.as_ref()
    }

    pub fn stop(&mut self, code: ResetCode) {
        self.is_ended = true;
        let _ = self.recv.stop(VarInt::from_u32(code.into()));
    }

    pub async fn read_chunk(&mut self, bytes_max: usize) -> io::Result<Option<Bytes>> {
        let read = self.recv.read_chunk(bytes_max, true).await;
        self.open.counters.heard();
        match read {
            Ok(Some(chunk)) => {
                io_thread::note(1, chunk.bytes.len());
                Ok(Some(chunk.bytes))
            }
            Ok(None) => {
                self.is_ended = true;
                Ok(None)
            }
            Err(error) => Err(read_error(error)),
        }
    }

    pub async fn read_chunks(&mut self, chunks: &mut Vec<Bytes>, bytes_max: usize) -> io::Result<bool> {
        let Some(first) = self.read_chunk(bytes_max).await? else { return Ok(false) };
        let length = first.len();
        chunks.push(first);
        // quinn returns one packet at a time, or as many as it is asked for under one lock. Later ones are about as large
        // as the first. A smaller one is nearly always the last one available.
        let more = bytes_max.saturating_sub(length) / length.max(PACKET_BYTES_MIN);
        if length < PACKET_BYTES_MIN || more == 0 {
            return Ok(true);
        }
        let mut packets = [const { Bytes::new() }; PACKETS_MAX];
        let packets = &mut packets[..more.min(PACKETS_MAX)];
        match self.recv.read_chunks(packets).now_or_never() {
            Some(Ok(Some(count))) => {
                let packets = &mut packets[..count];
                io_thread::note(count, packets.iter().map(Bytes::len).sum());
                chunks.extend(packets.iter_mut().map(std::mem::take));
            }
            // quinn tells a reset once and calls the stream ended after that: what came before it must not pass as the whole.
            Some(Err(error)) => return Err(read_error(error)),
            // The end is told again by the next read.
            Some(Ok(None)) | None => {}
        }
        Ok(true)
    }
}

/// Packets that one read takes beside the first: 64 KiB of the smallest.
const PACKETS_MAX: usize = 48;
/// A chunk smaller than the smallest QUIC packet is nearly always the last one available.
const PACKET_BYTES_MIN: usize = 1024;

impl AsyncRead for QuicRecv {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let (room, before) = (buffer.remaining(), buffer.filled().len());
        ready!(self.recv.poll_read_buf(context, buffer)).map_err(read_error)?;
        self.open.counters.heard();
        io_thread::note(1, buffer.filled().len() - before);
        if room > 0 && buffer.filled().len() == before {
            self.is_ended = true;
        }
        Poll::Ready(Ok(()))
    }
}

impl Drop for QuicRecv {
    fn drop(&mut self) {
        if !self.is_ended {
            self.stop(ResetCode::Abandoned);
        }
    }
}

fn reset_code(code: VarInt) -> ResetCode {
    ResetCode::from(u32::try_from(code.into_inner()).unwrap_or(u32::MAX))
}

fn read_error(error: ReadError) -> io::Error {
    match error {
        ReadError::Reset(code) => Reset::reading(reset_code(code)),
        ReadError::ConnectionLost(error) => link_closed(&error).into(),
        other => io::Error::new(io::ErrorKind::NotConnected, other),
    }
}

fn write_error(error: WriteError) -> io::Error {
    match error {
        WriteError::Stopped(code) => Reset::writing(reset_code(code)),
        WriteError::ConnectionLost(error) => LinkClosed::into(link_closed(&error)),
        other => io::Error::new(io::ErrorKind::BrokenPipe, other),
    }
}
