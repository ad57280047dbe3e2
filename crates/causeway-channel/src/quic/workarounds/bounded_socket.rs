//! UDP socket that stops reading while connections have too many unprocessed packets.
//!
//! Works around: quinn hands each packet to the task of its connection through an unbounded queue
//! (quinn-rs/quinn#1131). The port reads on its own thread (`receive_thread`), which can be faster than all
//! connections together, so a peer that sends more than they process would fill memory. Read bytes are
//! counted as unprocessed until the runtimes of the connections have polled their tasks once: a connection that
//! is polled takes every packet that waits for it. Above the bound, packets stay in the kernel, which drops
//! them.
//!
//! Delete when quinn bounds that queue.

use std::fmt;
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, UdpPoller};
use tokio::runtime::Handle;

use crate::io_thread;
use causeway_api::sync::MutexExt;

/// Bound of unprocessed bytes: two kernel buffers of the port, and a tenth of a second at 1 Gbit/s.
const UNHANDLED_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Bytes that are read before the next check whether they were processed.
const CHECK_BYTES: usize = 1024 * 1024;

pub(in crate::quic) struct BoundedSocket {
    inner: Arc<dyn AsyncUdpSocket>,
    /// Runtime of the connections.
    runtime: Handle,
    unprocessed: Arc<Mutex<UnprocessedBytes>>,
}

/// Counts of bytes that were read and may be unprocessed.
#[derive(Debug, Default)]
struct UnprocessedBytes {
    /// Bytes read since the last check began.
    fresh: usize,
    /// Bytes that the running check will find processed.
    checking: Option<usize>,
    reader: Option<Waker>,
}

impl UnprocessedBytes {
    fn is_full(&self) -> bool {
        self.fresh + self.checking.unwrap_or(0) > UNHANDLED_BYTES_MAX
    }

    /// Adds read bytes. Returns true when a check is to begin.
    fn take(&mut self, bytes: usize) -> bool {
        self.fresh += bytes;
        let begins = self.checking.is_none() && self.fresh >= CHECK_BYTES;
        if begins {
            self.checking = Some(std::mem::take(&mut self.fresh));
        }
        begins
    }

    /// Ends a check. Returns the reader to wake, and whether another check is to begin.
    fn handle_checked(&mut self) -> (Option<Waker>, bool) {
        self.checking = None;
        (self.reader.take(), self.take(0))
    }
}

impl BoundedSocket {
    /// Must be called in the runtime that processes the packets.
    pub(in crate::quic) fn new(inner: Arc<dyn AsyncUdpSocket>) -> BoundedSocket {
        BoundedSocket { inner, runtime: Handle::current(), unprocessed: Arc::default() }
    }

    fn start_check(&self) {
        let unprocessed = self.unprocessed.clone();
        self.runtime.spawn(async move {
            loop {
                // The first yield runs every task that was woken before, the second runs the tasks that those
                // have woken.
                yield_twice().await;
                // Admitted connections are polled by I/O threads.
                for thread in io_thread::started() {
                    let _ = thread.spawn(yield_twice()).await;
                }
                let (reader, again) = unprocessed.lock_ignoring_poison().handle_checked();
                reader.into_iter().for_each(Waker::wake);
                if !again {
                    return;
                }
            }
        });
    }
}

async fn yield_twice() {
    tokio::task::yield_now().await;
    tokio::task::yield_now().await;
}

impl AsyncUdpSocket for BoundedSocket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        self.inner.clone().create_io_poller()
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        self.inner.try_send(transmit)
    }

    fn poll_recv(
        &self,
        context: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        {
            let mut unprocessed = self.unprocessed.lock_ignoring_poison();
            if unprocessed.is_full() {
                unprocessed.reader = Some(context.waker().clone());
                return Poll::Pending;
            }
        }
        let read = self.inner.poll_recv(context, buffers, meta);
        if let Poll::Ready(Ok(count)) = &read {
            let bytes = meta.iter().take(*count).map(|meta| meta.len).sum();
            let begins = self.unprocessed.lock_ignoring_poison().take(bytes);
            if begins {
                self.start_check();
            }
        }
        read
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner.local_addr()
    }

    fn max_transmit_segments(&self) -> usize {
        self.inner.max_transmit_segments()
    }

    fn max_receive_segments(&self) -> usize {
        self.inner.max_receive_segments()
    }

    fn may_fragment(&self) -> bool {
        self.inner.may_fragment()
    }
}

impl fmt::Debug for BoundedSocket {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(formatter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_worked_on_has_a_bound_and_is_read_again_when_it_is() {
        let mut unprocessed = UnprocessedBytes::default();
        let (mut read, mut checks) = (0, 0);
        // No task processes packets here.
        while !unprocessed.is_full() {
            checks += usize::from(unprocessed.take(64 * 1024));
            read += 64 * 1024;
        }
        assert_eq!((checks, read <= UNHANDLED_BYTES_MAX + 64 * 1024), (1, true), "{read} bytes");
        unprocessed.reader = Some(Waker::noop().clone());
        let (reader, again) = unprocessed.handle_checked();
        assert!(reader.is_some() && again, "what came since the look began is looked at next");
        let (_, again) = unprocessed.handle_checked();
        assert!(!again && !unprocessed.is_full());
    }
}
