//! The socket of a client as the HTTP server reads it: limits the time of a head, and detects heads with two
//! lengths.
//!
//! The parser accepts a head with both a length and a transfer encoding and drops the length, so it must be
//! detected here. Only heads are inspected: bytes that arrive while no request is in flight.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use super::connection::HttpConnection;

pub struct ClientSocket<S> {
    socket: S,
    connection: Arc<HttpConnection>,
    head_timeout: Duration,
    head: Option<Head>,
}

/// A head that has partly arrived.
struct Head {
    deadline: Pin<Box<Sleep>>,
    bytes: Vec<u8>,
    complete: bool,
}

impl<S> ClientSocket<S> {
    pub fn new(socket: S, connection: Arc<HttpConnection>, head_timeout: Duration) -> ClientSocket<S> {
        ClientSocket { socket, connection, head_timeout, head: None }
    }

    fn see(&mut self, read: &[u8]) {
        let timeout = self.head_timeout;
        let head = self.head.get_or_insert_with(|| Head {
            deadline: Box::pin(tokio::time::sleep(timeout)),
            bytes: Vec::new(),
            complete: false,
        });
        if head.complete || head.bytes.len() > HEAD_BYTES_MAX {
            return;
        }
        // Usually one read has the whole head; then it is not copied.
        let end = match head.bytes.is_empty() {
            true => head_end(read),
            false => None,
        };
        let found = match end {
            Some(end) => Some(has_two_lengths(&read[..end])),
            None => {
                head.bytes.extend_from_slice(read);
                head_end(&head.bytes).map(|end| has_two_lengths(&head.bytes[..end]))
            }
        };
        if let Some(two_lengths) = found {
            head.complete = true;
            head.bytes = Vec::new();
            if two_lengths {
                self.connection.set_two_lengths();
            }
        }
    }
}

/// The server itself refuses longer heads.
const HEAD_BYTES_MAX: usize = 64 << 10;

/// Returns the end of the empty line. Lines may end without CR, as the parser allows.
fn head_end(bytes: &[u8]) -> Option<usize> {
    let mut after_line = 0;
    for (index, byte) in bytes.iter().enumerate() {
        match byte {
            b'\n' if after_line > 0 && index - after_line < 2 && blank(&bytes[after_line..index]) => {
                return Some(index + 1);
            }
            b'\n' => after_line = index + 1,
            _ => {}
        }
    }
    None
}

fn blank(line: &[u8]) -> bool {
    line.is_empty() || line == b"\r"
}

fn has_two_lengths(head: &[u8]) -> bool {
    let begins = |line: &[u8], name: &[u8]| {
        line.len() > name.len() && line[..name.len()].eq_ignore_ascii_case(name) && line[name.len()] == b':'
    };
    let has = |name: &[u8]| head.split(|byte| *byte == b'\n').any(|line| begins(line, name));
    has(b"transfer-encoding") && has(b"content-length")
}

impl<S: AsyncRead + Unpin> AsyncRead for ClientSocket<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.socket).poll_read(context, buffer);
        let waiting = self.connection.is_waiting();
        if !waiting {
            self.head = None;
        }
        match polled {
            Poll::Ready(Ok(())) => {
                if buffer.filled().len() > before {
                    self.connection.touch();
                    if waiting {
                        self.see(&buffer.filled()[before..]);
                    }
                }
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => {
                let Some(head) = &mut self.head else { return Poll::Pending };
                std::task::ready!(head.deadline.as_mut().poll(context));
                let late = io::Error::new(
                    io::ErrorKind::TimedOut,
                    "the client did not send the head of its request in time",
                );
                Poll::Ready(Err(late))
            }
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for ClientSocket<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.socket).poll_write(context, data);
        if polled.is_ready() {
            self.connection.touch();
        }
        polled
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.socket).poll_write_vectored(context, data);
        if polled.is_ready() {
            self.connection.touch();
        }
        polled
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_head_is_found() {
        assert_eq!(head_end(b"GET / HTTP/1.1\r\nHost: a\r\n\r\nbody"), Some(27));
        assert_eq!(head_end(b"GET / HTTP/1.1\nHost: a\n\nbody"), Some(24));
        assert_eq!(head_end(b"GET / HTTP/1.1\r\nHost: a\r\n"), None);
        assert_eq!(head_end(b"\n"), None);
    }

    #[test]
    fn two_lengths_are_seen() {
        assert!(has_two_lengths(
            b"POST / HTTP/1.1\r\nContent-Length: 5\r\nTRANSFER-encoding: chunked\r\n\r\n"
        ));
        assert!(!has_two_lengths(b"POST / HTTP/1.1\r\nContent-Length: 5\r\nX: transfer-encoding:\r\n\r\n"));
        assert!(!has_two_lengths(
            b"POST / HTTP/1.1\r\nContent-Length-X: 5\r\nTransfer-Encoding: chunked\r\n"
        ));
    }
}
