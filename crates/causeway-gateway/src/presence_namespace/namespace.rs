//! A network namespace without a name, held by a thread that lives in it.
//!
//! The thread makes sockets for those who ask, and carries the netlink connection that belongs to the namespace. It ends
//! when the last handle is dropped; the kernel removes the namespace when also the last of its sockets is closed.

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
    /// Speaks about the inside; it is carried by the thread.
    pub netlink: rtnetlink::Handle,
    /// By which the kernel is told where to move an interface.
    pub file: Arc<File>,
}

enum Request {
    Listen(SocketAddr, oneshot::Sender<io::Result<TcpListener>>),
    BindUdp(SocketAddr, oneshot::Sender<io::Result<UdpSocket>>),
}

/// Whoever finds it full waits; a request takes microseconds.
const REQUESTS_MAX: usize = 16;

impl AnonymousNamespace {
    pub async fn open() -> Result<AnonymousNamespace, PresenceNamespaceError> {
        let (ready, wait) = oneshot::channel();
        std::thread::Builder::new()
            .name("presence-room".to_owned())
            .spawn(move || live(ready))
            .map_err(|source| PresenceNamespaceError::Io { what: "starting a thread", source })?;
        wait.await.unwrap_or_else(|_| {
            Err(PresenceNamespaceError::Io {
                what: "the thread of the room",
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
        let gone = || io::Error::new(io::ErrorKind::BrokenPipe, "the thread of the room has ended");
        let (reply, answer) = oneshot::channel();
        self.requests.send(request(reply)).await.map_err(|_| gone())?;
        answer.await.map_err(|_| gone())?
    }
}

/// The life of the thread. Nothing else may ever run on it: it can see only the room.
fn live(ready: oneshot::Sender<Result<AnonymousNamespace, PresenceNamespaceError>>) {
    let entered = leave_host().and_then(|()| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
        runtime
            .map_err(|source| PresenceNamespaceError::Io { what: "starting the thread of the room", source })
    });
    match entered {
        Ok(runtime) => runtime.block_on(serve(ready)),
        Err(error) => drop(ready.send(Err(error))),
    }
}

async fn serve(ready: oneshot::Sender<Result<AnonymousNamespace, PresenceNamespaceError>>) {
    let (requests, mut asked) = mpsc::channel(REQUESTS_MAX);
    match furnish(requests) {
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

fn furnish(requests: mpsc::Sender<Request>) -> Result<AnonymousNamespace, PresenceNamespaceError> {
    let (connection, netlink, _) = rtnetlink::new_connection()
        .map_err(|source| PresenceNamespaceError::Io { what: "opening netlink in the room", source })?;
    tokio::spawn(connection);
    // Of the thread: the process is elsewhere.
    let file = File::open("/proc/thread-self/ns/net")
        .map_err(|source| PresenceNamespaceError::Io { what: "opening the namespace of the room", source })?;
    Ok(AnonymousNamespace { requests, netlink, file: Arc::new(file) })
}

/// Moves the calling thread, and those it starts from now on, into a network namespace of its own, which has nothing in it.
/// There is no way back.
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
        errno => PresenceNamespaceError::Io { what: "making a network namespace", source: errno.into() },
    })
}
