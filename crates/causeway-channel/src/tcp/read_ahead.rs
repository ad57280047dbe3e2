//! Socket with a read buffer that exists only under load.
//!
//! TLS asks its socket for four to sixteen kilobytes at a time, which under load is a system call for every
//! record or two. The buffer is allocated when a read filled all of the space it was given, and freed when
//! the socket is drained.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::runtime::Handle;
use tokio_util::io::poll_read_buf;

/// Space for the bytes that a fast sender puts into the kernel between two wakeups.
const BUFFER_BYTES: usize = 128 * 1024;

#[derive(Debug)]
pub struct ReadAhead<T> {
    inner: T,
    buffer: BytesMut,
    /// Runtime whose I/O driver watches the socket.
    runtime: Handle,
}

impl<T> ReadAhead<T> {
    pub fn new(inner: T, runtime: Handle) -> ReadAhead<T> {
        ReadAhead { inner, buffer: BytesMut::new(), runtime }
    }

    pub fn get_ref(&self) -> &T {
        &self.inner
    }

    pub fn runtime(&self) -> &Handle {
        &self.runtime
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for ReadAhead<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.buffer.is_empty() {
            if this.buffer.capacity() == 0 {
                let before = out.filled().len();
                ready!(Pin::new(&mut this.inner).poll_read(context, out))?;
                // The read filled all of its space, so more bytes are available.
                if out.remaining() == 0 && out.filled().len() > before {
                    this.buffer.reserve(BUFFER_BYTES);
                }
                return Poll::Ready(Ok(()));
            }
            this.buffer.reserve(BUFFER_BYTES);
            let read = poll_read_buf(Pin::new(&mut this.inner), context, &mut this.buffer);
            if this.buffer.is_empty() {
                this.buffer = BytesMut::new();
            }
            ready!(read)?;
        }
        let count = out.remaining().min(this.buffer.len());
        out.put_slice(&this.buffer[..count]);
        this.buffer.advance(count);
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for ReadAhead<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(context, data)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}
