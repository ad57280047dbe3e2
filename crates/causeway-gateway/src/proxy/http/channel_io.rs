//! A stream of the channel under an HTTP connection. It keeps the reset code of the stream, in both
//! directions.
//!
//! HTTP/2 does not keep the cause of a failed connection, and has no place for the codes of the channel.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use causeway_channel::link::{ResetCode, Stream};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::connection::HttpConnection;

/// The reset codes of a stream: received, and to be sent.
#[derive(Debug, Default)]
pub struct StreamEndNote {
    received_code: OnceLock<ResetCode>,
    code: OnceLock<ResetCode>,
}

impl StreamEndNote {
    /// Returns the code that the other gateway sent. `Abandoned` when the link ended.
    pub fn received_code(&self) -> Option<ResetCode> {
        self.received_code.get().copied()
    }

    /// Sets the code that is sent if the stream is dropped before its end. The first call counts.
    pub fn set_code(&self, code: ResetCode) {
        let _ = self.code.set(code);
    }

    fn hear<T>(&self, polled: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if let Poll::Ready(Err(error)) = &polled {
            let _ = self.received_code.set(ResetCode::of(error).unwrap_or(ResetCode::Abandoned));
        }
        polled
    }
}

pub struct ChannelIo {
    stream: Stream,
    note: Arc<StreamEndNote>,
    connection: Option<Arc<HttpConnection>>,
}

impl ChannelIo {
    pub fn new(
        stream: Stream,
        note: Arc<StreamEndNote>,
        connection: Option<Arc<HttpConnection>>,
    ) -> ChannelIo {
        ChannelIo { stream, note, connection }
    }

    fn touch(&self) {
        if let Some(connection) = &self.connection {
            connection.touch();
        }
    }
}

impl Drop for ChannelIo {
    fn drop(&mut self) {
        if let Some(code) = self.note.code.get() {
            self.stream.send.reset(*code);
            self.stream.recv.stop(*code);
        }
    }
}

impl AsyncRead for ChannelIo {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_read(context, buffer);
        if polled.is_ready() {
            self.touch();
        }
        self.note.hear(polled)
    }
}

impl AsyncWrite for ChannelIo {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(context, data);
        if polled.is_ready() {
            self.touch();
        }
        self.note.hear(polled)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_flush(context);
        self.note.hear(polled)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
