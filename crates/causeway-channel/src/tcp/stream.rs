//! The two halves of a stream over TCP. They call the mux, and wait when it is not ready.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::runtime::Handle;

use super::Shared;
use super::mux::StreamFailure;
use super::queue::ByteQueue;
use crate::link::{Reset, ResetCode};

pub struct TcpSend {
    id: u32,
    shared: Arc<Shared>,
}

impl TcpSend {
    pub(super) fn new(id: u32, shared: Arc<Shared>) -> TcpSend {
        TcpSend { id, shared }
    }

    pub fn runtime(&self) -> &Handle {
        &self.shared.runtime
    }

    pub fn reset(&mut self, code: ResetCode) {
        self.shared.with(|mux| mux.reset(self.id, code));
    }

    pub async fn stopped(&mut self) -> ResetCode {
        poll_fn(|context| self.shared.with(|mux| mux.poll_stopped(self.id, context.waker()))).await
    }

    pub async fn write_chunk(&mut self, mut data: Bytes) -> io::Result<()> {
        while !data.is_empty() {
            poll_fn(|context| {
                self.shared.with(|mux| mux.poll_write_chunk(self.id, &mut data, context.waker()))
            })
            .await
            .map_err(writing)?;
        }
        Ok(())
    }

    pub async fn write_chunks(&mut self, chunks: &mut Vec<Bytes>) -> io::Result<()> {
        while !chunks.is_empty() {
            poll_fn(|context| {
                self.shared.with(|mux| mux.poll_write_chunks(self.id, chunks, context.waker()))
            })
            .await
            .map_err(writing)?;
        }
        Ok(())
    }
}

impl AsyncWrite for TcpSend {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        self.shared.with(|mux| mux.poll_write(self.id, data, context.waker())).map_err(writing)
    }

    /// Written bytes are already queued; there is nothing to flush.
    fn poll_flush(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.shared.with(|mux| mux.finish(self.id)).map_err(writing))
    }
}

impl Drop for TcpSend {
    fn drop(&mut self) {
        self.shared.with(|mux| mux.drop_send(self.id));
    }
}

pub struct TcpRecv {
    id: u32,
    shared: Arc<Shared>,
}

impl TcpRecv {
    pub(super) fn new(id: u32, shared: Arc<Shared>) -> TcpRecv {
        TcpRecv { id, shared }
    }

    pub fn stop(&mut self, code: ResetCode) {
        self.shared.with(|mux| mux.stop(self.id, code));
    }

    pub async fn read_chunk(&mut self, bytes_max: usize) -> io::Result<Option<Bytes>> {
        let chunk = poll_fn(|context| {
            let take = |queue: &mut ByteQueue| queue.pop(bytes_max);
            self.shared.with(|mux| mux.poll_read(self.id, context.waker(), Instant::now, take))
        })
        .await
        .map_err(reading)?;
        Ok(chunk.flatten())
    }

    pub async fn read_chunks(&mut self, chunks: &mut Vec<Bytes>, bytes_max: usize) -> io::Result<bool> {
        let read = poll_fn(|context| {
            let take = |queue: &mut ByteQueue| {
                let mut left = bytes_max;
                while let Some(piece) = queue.pop(left).filter(|piece| !piece.is_empty()) {
                    left -= piece.len();
                    chunks.push(piece);
                }
            };
            self.shared.with(|mux| mux.poll_read(self.id, context.waker(), Instant::now, take))
        })
        .await
        .map_err(reading)?;
        Ok(read.is_some())
    }
}

impl AsyncRead for TcpRecv {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let take = |queue: &mut ByteQueue| queue.copy_into(buffer);
        let read = self.shared.with(|mux| mux.poll_read(self.id, context.waker(), Instant::now, take));
        read.map_ok(|_| ()).map_err(reading)
    }
}

impl Drop for TcpRecv {
    fn drop(&mut self) {
        self.shared.with(|mux| mux.drop_recv(self.id));
    }
}

fn reading(failure: StreamFailure) -> io::Error {
    match failure {
        StreamFailure::Reset(code) => Reset::reading(code),
        StreamFailure::Over => {
            io::Error::new(io::ErrorKind::NotConnected, "this end has stopped reading the stream")
        }
        StreamFailure::Link(closed) => closed.into(),
    }
}

fn writing(failure: StreamFailure) -> io::Error {
    match failure {
        StreamFailure::Reset(code) => Reset::writing(code),
        StreamFailure::Over => io::Error::new(io::ErrorKind::NotConnected, "this end has ended the stream"),
        StreamFailure::Link(closed) => closed.into(),
    }
}
