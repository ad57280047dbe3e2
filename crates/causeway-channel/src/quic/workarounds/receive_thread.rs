//! Runs quinn's endpoint driver, which reads the port's socket, on its own thread.
//!
//! Works around: the driver reads for 50 µs (quinn-rs/quinn#1133), then every other task of the runtime is
//! polled. With a thousand handshakes in progress one round takes a tenth of a second, so the higher the
//! load, the fewer packets are read: 32 per round. Dials timed out while their packets were in the kernel
//! buffer. On its own thread the driver reads regardless of other tasks; connections stay on the runtime that
//! created the port.
//!
//! Delete when quinn can run its endpoint driver on a runtime of our choice.

use std::future::Future;
use std::io;
use std::net::UdpSocket;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use quinn::{AsyncTimer, AsyncUdpSocket, Runtime, TokioRuntime};
use tokio::runtime::{Builder, Runtime as Tokio};

use crate::quic::driver_thread;
use causeway_api::sync::MutexExt;

/// The runtime that quinn is given. The first future that quinn spawns is the endpoint driver, which gets the
/// thread.
#[derive(Debug)]
pub(in crate::quic) struct ReceiveThread(Mutex<Option<Tokio>>);

impl ReceiveThread {
    /// Returns the runtime and the socket, which is registered with the thread's own I/O driver.
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
        self.0.lock_ignoring_poison().take()
    }
}

impl Runtime for ReceiveThread {
    fn new_timer(&self, at: Instant) -> Pin<Box<dyn AsyncTimer>> {
        driver_thread::new_timer(at)
    }

    fn spawn(&self, future: Pin<Box<dyn Future<Output = ()> + Send>>) {
        let Some(runtime) = self.take() else { return driver_thread::spawn(future) };
        // The thread ends when the port and all its links are gone, so it needs no stop signal.
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
    // A tokio runtime that was never used must not be dropped inside a task.
    fn drop(&mut self) {
        if let Some(runtime) = self.take() {
            runtime.shutdown_background();
        }
    }
}
