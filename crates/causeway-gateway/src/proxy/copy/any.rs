//! Sides of a copy that are neither sockets of this process nor streams of the channel, such as the upgraded
//! connection of a CONNECT listener.
//!
//! Such a client cannot be asked whether it is still there; a read or a write shows it.

use std::io;

use bytes::BytesMut;
use causeway_channel::link::ResetCode;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf};

use super::{ByteSink, ByteSource, CopyBatch, CopySide, READ_BYTES_MIN, TURN_BYTES};

/// Returns any reader and writer as one side. If it is dropped before it is finished, its peer sees a
/// truncation where the protocol can tell.
pub(crate) fn any_side<T: AsyncRead + AsyncWrite>(
    io: T,
) -> CopySide<AnySource<ReadHalf<T>>, AnySink<WriteHalf<T>>> {
    let (read, write) = tokio::io::split(io);
    let source = AnySource { read, buffer: BytesMut::new(), wanted: READ_BYTES_MIN };
    CopySide { source, sink: AnySink { write } }
}

pub(crate) struct AnySource<R> {
    read: R,
    buffer: BytesMut,
    /// Grows with the traffic, so that slow clients use little memory.
    wanted: usize,
}

impl<R: AsyncRead + Unpin> ByteSource for AnySource<R> {
    async fn fill(&mut self, batch: &mut CopyBatch) -> io::Result<bool> {
        if self.buffer.capacity() < READ_BYTES_MIN {
            self.buffer.reserve(self.wanted);
        }
        let room = self.buffer.capacity();
        let bytes = self.read.read_buf(&mut self.buffer).await?;
        if bytes == 0 {
            return Ok(false);
        }
        if bytes == room {
            self.wanted = (self.wanted * 4).min(TURN_BYTES);
        } else if bytes < self.wanted / 4 {
            self.wanted = (self.wanted / 2).max(READ_BYTES_MIN);
        }
        batch.push(self.buffer.split().freeze());
        Ok(true)
    }

    fn abandon(&mut self, _: ResetCode) {}
}

pub(crate) struct AnySink<W> {
    write: W,
}

impl<W: AsyncWrite + Unpin> ByteSink for AnySink<W> {
    async fn write(&mut self, batch: &mut CopyBatch) -> io::Result<()> {
        batch.bytes = 0;
        for mut chunk in batch.chunks.drain(..) {
            self.write.write_all_buf(&mut chunk).await?;
        }
        // TLS holds back what does not fill a record.
        self.write.flush().await
    }

    async fn finish(&mut self) -> io::Result<()> {
        self.write.shutdown().await
    }

    async fn closed_by_reader(&mut self) -> io::Error {
        std::future::pending().await
    }

    fn reset(&mut self, _: ResetCode) {}
}
