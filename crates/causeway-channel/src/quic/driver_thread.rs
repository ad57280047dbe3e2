//! The runtimes that quinn's tasks run on.
//!
//! quinn spawns one task per connection and one per endpoint, and does not say which is which. A connection begins on the
//! common runtime, so that handshakes of a reconnecting fleet delay no traffic, and moves to an I/O thread with its first
//! stream after it was admitted: its packets, its streams and the connections that use them are then handled by one thread (`io_thread`).
//! `IoRuntime` is the runtime of a dialling endpoint; the port's is `workarounds::receive_thread`.

use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::net::UdpSocket;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Instant;

use quinn::{AsyncTimer, AsyncUdpSocket, Runtime, TokioRuntime};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::{Sleep, sleep_until};

use crate::io_thread;
use crate::link::LinkSide;

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The I/O thread of one connection, once it has one.
#[derive(Debug, Default)]
pub(super) struct DriverThread {
    runtime: OnceLock<Handle>,
    chosen: Notify,
}

thread_local! {
    /// The `DriverThread` of the connection that quinn is creating on this thread.
    static NEXT_DRIVER: RefCell<Option<Arc<DriverThread>>> = const { RefCell::new(None) };
}

impl DriverThread {
    /// Runs `create`, which makes one connection; the connection gets the returned `DriverThread`.
    pub(super) fn of_new<T>(create: impl FnOnce() -> T) -> (Arc<DriverThread>, T) {
        let driver = Arc::new(DriverThread::default());
        NEXT_DRIVER.set(Some(driver.clone()));
        let created = create();
        // quinn has taken it, unless it refused to make a connection.
        NEXT_DRIVER.take();
        (driver, created)
    }

    /// Moves the connection to an I/O thread. It stays where it is when no thread can be started.
    pub(super) fn move_to_io_thread(&self, side: LinkSide) {
        if self.runtime.get().is_some() {
            return;
        }
        match io_thread::choose(side) {
            Ok(runtime) => {
                let _ = self.runtime.set(runtime);
                self.chosen.notify_one();
            }
            Err(error) => tracing::warn!(%error, "no I/O thread for a QUIC link"),
        }
    }

    pub(super) fn runtime(&self) -> Option<&Handle> {
        self.runtime.get()
    }
}

/// Spawns a task of quinn on the current runtime. The task of a connection moves to its I/O thread when that is chosen.
pub(super) fn spawn(task: Task) {
    match NEXT_DRIVER.take() {
        Some(driver) => drop(tokio::spawn(run_until_settled(task, driver))),
        None => drop(tokio::spawn(task)),
    }
}

async fn run_until_settled(mut task: Task, driver: Arc<DriverThread>) {
    tokio::select! {
        biased;
        () = driver.chosen.notified() => {}
        () = &mut task => return,
    }
    if let Some(runtime) = driver.runtime() {
        runtime.spawn(task);
    }
}

/// A timer of a connection that may have moved to another runtime since. A timer of tokio belongs to the runtime in which it
/// was made, wakes its task from there, and must not be used after the end of that runtime.
#[derive(Debug)]
struct MovingTimer {
    sleep: Pin<Box<Sleep>>,
    /// The thread for which it was made, see `io_thread::current`.
    thread: Option<usize>,
}

impl MovingTimer {
    fn new(at: Instant) -> MovingTimer {
        MovingTimer { sleep: Box::pin(sleep_until(at.into())), thread: io_thread::current() }
    }
}

impl AsyncTimer for MovingTimer {
    fn reset(mut self: Pin<&mut Self>, at: Instant) {
        match self.thread == io_thread::current() {
            true => self.sleep.as_mut().reset(at.into()),
            false => self.set(MovingTimer::new(at)),
        }
    }

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.thread != io_thread::current() {
            let at = self.sleep.deadline().into_std();
            self.set(MovingTimer::new(at));
        }
        Future::poll(self.sleep.as_mut(), context)
    }
}

/// Creates a timer for a task of quinn.
pub(super) fn new_timer(at: Instant) -> Pin<Box<dyn AsyncTimer>> {
    Box::pin(MovingTimer::new(at))
}

/// The runtime of an endpoint that dials: its socket is read on the I/O thread of dialled links.
#[derive(Debug)]
pub(super) struct IoRuntime(Handle);

impl IoRuntime {
    pub(super) fn new() -> io::Result<IoRuntime> {
        Ok(IoRuntime(io_thread::choose(LinkSide::Dialled)?))
    }
}

impl Runtime for IoRuntime {
    fn new_timer(&self, at: Instant) -> Pin<Box<dyn AsyncTimer>> {
        new_timer(at)
    }

    fn spawn(&self, task: Task) {
        match NEXT_DRIVER.with_borrow(Option::is_some) {
            true => spawn(task),
            // The task of the endpoint.
            false => drop(self.0.spawn(task)),
        }
    }

    fn wrap_udp_socket(&self, socket: UdpSocket) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        let _entered = self.0.enter();
        TokioRuntime.wrap_udp_socket(socket)
    }
}
