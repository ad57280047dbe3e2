//! A network namespace without a name, held by a thread that runs in it.
//!
//! The thread opens sockets on request and drives the netlink connection of the namespace. It ends when the
//! last handle is dropped; the kernel removes the namespace when the last of its sockets is closed as well.

use std::fs::File;
use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::sync::Arc;

use rustix::thread::UnshareFlags;
use tokio::sync::{mpsc, oneshot};

use super::PresenceNamespaceError;
use crate::socket_binder::{AddressRequirement, bind_udp, listen};

/// A cheap handle; clones are the same namespace.
#[derive(Clone)]
pub struct AnonymousNamespace {
    requests: mpsc::Sender<Request>,
    /// Netlink inside the namespace; driven by the thread.
    pub netlink: rtnetlink::Handle,
    /// The file descriptor by which the kernel is told to move an interface here.
    pub file: Arc<File>,
}

enum Request {
    Listen(SocketAddr, oneshot::Sender<io::Result<TcpListener>>),
    BindUdp(SocketAddr, oneshot::Sender<io::Result<UdpSocket>>),
}

/// A caller waits while the queue is full; a request takes microseconds.
const REQUESTS_MAX: usize = 16;

impl AnonymousNamespace {
    pub async fn open() -> Result<AnonymousNamespace, PresenceNamespaceError> {
        let (ready, wait) = oneshot::channel();
        std::thread::Builder::new()
            .name("presence-netns".to_owned())
            .spawn(move || run_thread(ready))
            .map_err(|source| PresenceNamespaceError::Io { what: "starting a thread", source })?;
        wait.await.unwrap_or_else(|_| {
            Err(PresenceNamespaceError::Io {
                what: "starting the thread of the presence namespace",
                source: io::ErrorKind::BrokenPipe.into(),
            })
        })
    }

    pub async fn listen(&self, address: SocketAddr) -> io::Result<TcpListener> {
        self.ask(|reply| Request::Listen(address, reply)).await
    }

    pub async fn bind_udp(&self, address: SocketAddr) -> io::Result<UdpSocket> {
        self.ask(|reply| Request::BindUdp(address, reply)).await
    }

    async fn ask<T>(&self, request: impl FnOnce(oneshot::Sender<io::Result<T>>) -> Request) -> io::Result<T> {
        let gone =
            || io::Error::new(io::ErrorKind::BrokenPipe, "the thread of the presence namespace has ended");
        let (reply, answer) = oneshot::channel();
        self.requests.send(request(reply)).await.map_err(|_| gone())?;
        answer.await.map_err(|_| gone())?
    }
}

/// The main function of the thread. No other code may run on it: it sees only the presence namespace.
fn run_thread(ready: oneshot::Sender<Result<AnonymousNamespace, PresenceNamespaceError>>) {
    let entered = leave_host().and_then(|()| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
        runtime.map_err(|source| PresenceNamespaceError::Io {
            what: "starting the runtime of the presence namespace",
            source,
        })
    });
    match entered {
        Ok(runtime) => runtime.block_on(serve(ready)),
        Err(error) => drop(ready.send(Err(error))),
    }
}

async fn serve(ready: oneshot::Sender<Result<AnonymousNamespace, PresenceNamespaceError>>) {
    let (requests, mut asked) = mpsc::channel(REQUESTS_MAX);
    match open_handles(requests) {
        // The thread must not hold a handle itself, or it would never end.
        Ok(namespace) => drop(ready.send(Ok(namespace))),
        Err(error) => return drop(ready.send(Err(error))),
    }
    while let Some(request) = asked.recv().await {
        match request {
            Request::Listen(address, reply) => {
                drop(reply.send(listen(address, AddressRequirement::MayBeRouted)))
            }
            Request::BindUdp(address, reply) => {
                drop(reply.send(bind_udp(address, AddressRequirement::MayBeRouted)))
            }
        }
    }
}

fn open_handles(requests: mpsc::Sender<Request>) -> Result<AnonymousNamespace, PresenceNamespaceError> {
    let (connection, netlink, _) = rtnetlink::new_connection().map_err(|source| {
        PresenceNamespaceError::Io { what: "opening netlink in the presence namespace", source }
    })?;
    tokio::spawn(connection);
    // The namespace of this thread: the process is in another one.
    let file = File::open("/proc/thread-self/ns/net").map_err(|source| PresenceNamespaceError::Io {
        what: "opening the file of the presence namespace",
        source,
    })?;
    Ok(AnonymousNamespace { requests, netlink, file: Arc::new(file) })
}

/// Moves the calling thread, and the threads it starts later, into a new and empty network namespace. This
/// cannot be undone.
pub fn leave_host() -> Result<(), PresenceNamespaceError> {
    // SAFETY: only unsharing the table of files can break other code, whose descriptors would mean something else on this
    // thread. The network namespace is a property of the thread alone; files and memory stay shared.
    #[allow(unsafe_code)]
    let entered = unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) };
    entered.map_err(|errno| match errno {
        rustix::io::Errno::PERM => PresenceNamespaceError::NotPermitted { capability: "CAP_SYS_ADMIN" },
        rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS => {
            PresenceNamespaceError::NoSuchKernel { what: "it has no network namespaces" }
        }
        errno => PresenceNamespaceError::Io { what: "creating a network namespace", source: errno.into() },
    })
}
