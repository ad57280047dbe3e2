//! A thread of its own for what takes packets from the port's socket.
//!
//! quinn reads for 50 µs, then lets every other task of the runtime have its turn. With a thousand handshakes under way
//! a turn takes a tenth of a second, so the more there is to do, the fewer packets are read: 32 in each turn. Dials were
//! given up while their packets lay in the kernel. Here reading goes on whatever the others do; connections stay with
//! the runtime of whoever makes the port.

use std::future::Future;
use std::io;
use std::net::UdpSocket;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use quinn::{AsyncTimer, AsyncUdpSocket, Runtime, TokioRuntime};
use tokio::runtime::{Builder, Runtime as Tokio};

/// The runtime that quinn sees. What it spawns first is the reader, and gets the thread.
#[derive(Debug)]
pub(in crate::quic) struct ReceiveThread(Mutex<Option<Tokio>>);

impl ReceiveThread {
    /// With the socket, which is woken by the thread's own driver.
    pub(in crate::quic) fn new(
        socket: UdpSocket,
    ) -> io::Result<(Arc<ReceiveThread>, Arc<dyn AsyncUdpSocket>)> {
        let runtime = Builder::new_current_thread().enable_io().build()?;
        let socket = {
            let _entered = runtime.enter();
            TokioRuntime.wrap_udp_socket(socket)?
        };
        Ok((Arc::new(ReceiveThread(Mutex::new(Some(runtime)))), socket))
    }

    fn take(&self) -> Option<Tokio> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Runtime for ReceiveThread {
    fn new_timer(&self, at: Instant) -> Pin<Box<dyn AsyncTimer>> {
        TokioRuntime.new_timer(at)
    }

    fn spawn(&self, future: Pin<Box<dyn Future<Output = ()> + Send>>) {
        let Some(runtime) = self.take() else { return TokioRuntime.spawn(future) };
        // Ends when the port and all its links are gone: nobody has to stop it.
        let thread = std::thread::Builder::new().name("quic".to_owned());
        if let Err(error) = thread.spawn(move || runtime.block_on(future)) {
            tracing::error!(%error, "no thread for the channel's packets: QUIC is not served");
        }
    }

    fn wrap_udp_socket(&self, socket: UdpSocket) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        TokioRuntime.wrap_udp_socket(socket)
    }
}

impl Drop for ReceiveThread {
    // One that was never used may not be dropped by a task.
    fn drop(&mut self) {
        if let Some(runtime) = self.take() {
            runtime.shutdown_background();
        }
    }
}
