//! A stream of the channel under a connection of HTTP: why it was given up is kept, in both directions.
//!
//! HTTP/2 forgets the cause of a broken connection, and knows no codes of ours.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use causeway_channel::link::{ResetCode, Stream};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::connection::HttpConnection;

/// What is known of a stream's end.
#[derive(Debug, Default)]
pub struct StreamEndNote {
    heard: OnceLock<ResetCode>,
    say: OnceLock<ResetCode>,
}

impl StreamEndNote {
    /// The code of the other gateway. `Abandoned` when the link ended.
    pub fn heard(&self) -> Option<ResetCode> {
        self.heard.get().copied()
    }

    /// What the other gateway is told when the stream is dropped before its end.
    pub fn say(&self, code: ResetCode) {
        let _ = self.say.set(code);
    }

    fn hear<T>(&self, polled: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if let Poll::Ready(Err(error)) = &polled {
            let _ = self.heard.set(ResetCode::of(error).unwrap_or(ResetCode::Abandoned));
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
        if let Some(code) = self.note.say.get() {
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
