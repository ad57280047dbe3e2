//! A socket that stops reading while connections have too many packets to work on.
//!
//! quinn hands each packet to the task of its connection through a queue without a bound. The port reads on a thread of its
//! own (`intake`), which can be faster than all connections together; whoever sends more than they work off would fill
//! memory. So what was read is counted until the runtime of the connections has been through its tasks once: a connection
//! that is polled takes everything that waits for it. Beyond the bound packets stay in the kernel, which drops them.

use std::fmt;
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, UdpPoller};
use tokio::runtime::Handle;

/// Two kernel buffers of the port, and a tenth of a second at 1 Gbit/s.
const UNHANDLED_BYTES_MAX: usize = 16 * 1024 * 1024;
/// So much is read before somebody looks whether it was worked on.
const LOOK_BYTES: usize = 1024 * 1024;

pub(in crate::quic) struct BoundedSocket {
    inner: Arc<dyn AsyncUdpSocket>,
    /// Of the connections.
    runtime: Handle,
    intake: Arc<Mutex<Intake>>,
}

/// What was read and perhaps not worked on.
#[derive(Debug, Default)]
struct Intake {
    /// Since the last look began.
    fresh: usize,
    /// What the look under way will find done.
    looked_at: Option<usize>,
    reader: Option<Waker>,
}

impl Intake {
    fn is_full(&self) -> bool {
        self.fresh + self.looked_at.unwrap_or(0) > UNHANDLED_BYTES_MAX
    }

    /// True when a look is to begin.
    fn take(&mut self, bytes: usize) -> bool {
        self.fresh += bytes;
        let begins = self.looked_at.is_none() && self.fresh >= LOOK_BYTES;
        if begins {
            self.looked_at = Some(std::mem::take(&mut self.fresh));
        }
        begins
    }

    /// The look has come to its end. The reader to wake, and whether another look is to begin.
    fn handle_looked(&mut self) -> (Option<Waker>, bool) {
        self.looked_at = None;
        (self.reader.take(), self.take(0))
    }
}

impl BoundedSocket {
    /// In the runtime that will work on the packets.
    pub(in crate::quic) fn new(inner: Arc<dyn AsyncUdpSocket>) -> BoundedSocket {
        BoundedSocket { inner, runtime: Handle::current(), intake: Arc::default() }
    }

    fn look(&self) {
        let intake = self.intake.clone();
        self.runtime.spawn(async move {
            loop {
                // Behind every task that was woken before, and once more behind those that these have woken.
                tokio::task::yield_now().await;
                tokio::task::yield_now().await;
                let (reader, again) = lock(&intake).handle_looked();
                reader.into_iter().for_each(Waker::wake);
                if !again {
                    return;
                }
            }
        });
    }
}

fn lock(intake: &Mutex<Intake>) -> MutexGuard<'_, Intake> {
    intake.lock().unwrap_or_else(PoisonError::into_inner)
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
            let mut intake = lock(&self.intake);
            if intake.is_full() {
                intake.reader = Some(context.waker().clone());
                return Poll::Pending;
            }
        }
        let read = self.inner.poll_recv(context, buffers, meta);
        if let Poll::Ready(Ok(count)) = &read {
            let bytes = meta.iter().take(*count).map(|meta| meta.len).sum();
            let begins = lock(&self.intake).take(bytes);
            if begins {
                self.look();
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
        let mut intake = Intake::default();
        let (mut read, mut looks) = (0, 0);
        // Nobody works on anything.
        while !intake.is_full() {
            looks += usize::from(intake.take(64 * 1024));
            read += 64 * 1024;
        }
        assert_eq!((looks, read <= UNHANDLED_BYTES_MAX + 64 * 1024), (1, true), "{read} bytes");
        intake.reader = Some(Waker::noop().clone());
        let (reader, again) = intake.handle_looked();
        assert!(reader.is_some() && again, "what came since the look began is looked at next");
        let (_, again) = intake.handle_looked();
        assert!(!again && !intake.is_full());
    }
}
