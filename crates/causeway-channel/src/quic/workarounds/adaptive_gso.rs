//! UDP socket that offers segmentation offload (GSO) only under high send load.
//!
//! Works around: a GSO batch saves system calls, but quinn keeps the buffer of a whole batch (ten packets, 14
//! KB) in every connection that ever sent two packets at once (quinn-rs/quinn#2189 names this cost).
//! Measured: 39 KB per idle link after one message of 20 KB, 26 KB with this socket. Single packets are the
//! default, and batches begin above `HIGH_BYTES`.
//!
//! Delete when quinn releases the send buffer of an idle connection.

use std::fmt;
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, UdpPoller};

pub(in crate::quic) struct AdaptiveGsoSocket {
    inner: Arc<dyn AsyncUdpSocket>,
    load: Load,
}

impl AdaptiveGsoSocket {
    pub(in crate::quic) fn new(inner: Arc<dyn AsyncUdpSocket>) -> AdaptiveGsoSocket {
        AdaptiveGsoSocket { inner, load: Load::new(Instant::now()) }
    }
}

impl AsyncUdpSocket for AdaptiveGsoSocket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        self.inner.clone().create_io_poller()
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        self.load.note(transmit.contents.len() as u64, Instant::now());
        self.inner.try_send(transmit)
    }

    fn poll_recv(
        &self,
        context: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        self.inner.poll_recv(context, buffers, meta)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner.local_addr()
    }

    fn max_transmit_segments(&self) -> usize {
        match self.load.is_high() {
            true => self.inner.max_transmit_segments(),
            false => 1,
        }
    }

    fn max_receive_segments(&self) -> usize {
        self.inner.max_receive_segments()
    }

    fn may_fragment(&self) -> bool {
        self.inner.may_fragment()
    }
}

impl fmt::Debug for AdaptiveGsoSocket {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(formatter)
    }
}

const WINDOW: Duration = Duration::from_millis(50);
/// Bytes per `WINDOW` that count as high load: 20 MB/s. This is three times the traffic of two thousand
/// handshakes per second, and a tenth of the rate that single packets reach.
const HIGH_BYTES: u64 = 1_000_000;

/// Sent bytes per time window. Several threads call `note` at the same time; a byte lost between two of them
/// does not matter.
struct Load {
    created: Instant,
    window: AtomicU64,
    bytes: AtomicU64,
    is_high: AtomicBool,
}

impl Load {
    fn new(now: Instant) -> Load {
        let (window, bytes) = (AtomicU64::default(), AtomicU64::default());
        Load { created: now, window, bytes, is_high: AtomicBool::default() }
    }

    fn note(&self, bytes: u64, now: Instant) {
        let window = (now.saturating_duration_since(self.created).as_nanos() / WINDOW.as_nanos()) as u64;
        let before = self.window.swap(window, Ordering::Relaxed);
        if before == window {
            let sum = self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
            if sum >= HIGH_BYTES {
                self.is_high.store(true, Ordering::Relaxed);
            }
            return;
        }
        let last = self.bytes.swap(bytes, Ordering::Relaxed);
        let is_next = window == before + 1;
        self.is_high.store(is_next && last >= HIGH_BYTES, Ordering::Relaxed);
    }

    fn is_high(&self) -> bool {
        self.is_high.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_begin_with_much_and_end_with_little() {
        let start = Instant::now();
        let load = Load::new(start);
        let at = |windows: u32, bytes: u64| {
            load.note(bytes, start + WINDOW * windows);
            load.is_high()
        };
        assert!(!at(0, HIGH_BYTES - 1));
        assert!(at(0, 1), "at once, not only in the next window");
        assert!(at(1, 10), "the window before was full");
        assert!(!at(2, 10), "the window before was not");
        assert!(at(2, HIGH_BYTES));
        assert!(!at(9, 10), "that was long ago");
    }
}
