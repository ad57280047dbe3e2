//! Where the sockets of presences are made: on the host itself, or in the room.
//!
//! A `SocketBinder` binds what it is asked for and says how it is. Who listens to what, and what is done with it, is not known here.

use std::io;
use std::net::SocketAddr;

use ipnet::IpNet;
use rustix::net::sockopt;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::sync::watch;

use crate::peers::BoxedFuture;

/// A place where sockets can be bound.
pub trait SocketBinder: Send + Sync + 'static {
    fn listen(&self, address: SocketAddr) -> BoxedFuture<'_, Result<std::net::TcpListener, BinderError>>;

    fn bind_udp(&self, address: SocketAddr) -> BoxedFuture<'_, Result<std::net::UdpSocket, BinderError>>;

    /// Changes when what could not be bound may be bound now.
    fn state(&self) -> watch::Receiver<BinderState>;
}

/// How a place is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum BinderState {
    /// Nothing is there yet; nothing was wanted, or it is being made.
    Closed,
    /// It can be used. What is wrong nevertheless is said in words, and tried again.
    Open {
        /// What can be bound. Empty: what the kernel allows.
        networks: Vec<IpNet>,
        troubles: Vec<String>,
        /// What keeps nothing from working here, but may keep others away.
        hints: Vec<String>,
    },
    /// It could not be made; it is tried again.
    Troubled { why: String },
    /// It cannot be made by this process.
    Impossible { why: String },
}

#[derive(Debug, thiserror::Error)]
pub enum BinderError {
    #[error("the place for presences is not open")]
    NotOpen,
    #[error("{address} is in none of this gateway's networks for presences")]
    Outside { address: SocketAddr },
    #[error("{address} is no address of this host")]
    NotLocal { address: SocketAddr },
    #[error("{address} is taken by another program")]
    Taken { address: SocketAddr },
    #[error("cannot listen on {address}")]
    Io {
        address: SocketAddr,
        #[source]
        source: io::Error,
    },
}

impl BinderError {
    pub fn of(address: SocketAddr, source: io::Error) -> BinderError {
        match source.kind() {
            io::ErrorKind::AddrNotAvailable => BinderError::NotLocal { address },
            io::ErrorKind::AddrInUse => BinderError::Taken { address },
            _ => BinderError::Io { address, source },
        }
    }
}

/// An error and what caused it, for a report.
pub fn in_words(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |words, cause| format!("{words}: {cause}"))
}

/// The host itself: an address must be one of its own.
pub struct HostBinder {
    state: watch::Sender<BinderState>,
}

impl Default for HostBinder {
    fn default() -> HostBinder {
        HostBinder {
            state: watch::Sender::new(BinderState::Open {
                networks: Vec::new(),
                troubles: Vec::new(),
                hints: Vec::new(),
            }),
        }
    }
}

impl SocketBinder for HostBinder {
    fn listen(&self, address: SocketAddr) -> BoxedFuture<'_, Result<std::net::TcpListener, BinderError>> {
        let made =
            listen(address, AddressRequirement::MustBeLocal).map_err(|error| BinderError::of(address, error));
        Box::pin(std::future::ready(made))
    }

    fn bind_udp(&self, address: SocketAddr) -> BoxedFuture<'_, Result<std::net::UdpSocket, BinderError>> {
        let made = bind_udp(address, AddressRequirement::MustBeLocal)
            .map_err(|error| BinderError::of(address, error));
        Box::pin(std::future::ready(made))
    }

    fn state(&self) -> watch::Receiver<BinderState> {
        self.state.subscribe()
    }
}

/// May an address be bound that no interface has?
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AddressRequirement {
    MustBeLocal,
    /// In the room whole networks are local by a route, which IPv6 does not ask about when a socket is bound.
    MayBeRouted,
}

/// What most kernels allow; a burst of new connections waits there instead of being dropped.
const BACKLOG: i32 = 4096;

/// A listener in the namespace of the calling thread, ready for the runtime.
pub fn listen(address: SocketAddr, local: AddressRequirement) -> io::Result<std::net::TcpListener> {
    let socket = socket(address, Type::STREAM, Protocol::TCP, local)?;
    // Connections of an earlier process that linger must not keep the next one from its address.
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// What the kernel may keep of datagrams that nobody has read: one moment of a thousand clients. It gives less where its own
/// limit is lower and we have no right to go beyond.
const UDP_BUFFER_BYTES: usize = 4 * 1024 * 1024;

/// A socket for datagrams in the namespace of the calling thread, ready for the runtime. Not shared with anybody: with
/// SO_REUSEADDR another program could take its datagrams away.
pub fn bind_udp(address: SocketAddr, local: AddressRequirement) -> io::Result<std::net::UdpSocket> {
    let socket = socket(address, Type::DGRAM, Protocol::UDP, local)?;
    if sockopt::set_socket_recv_buffer_size_force(&socket, UDP_BUFFER_BYTES).is_err() {
        socket.set_recv_buffer_size(UDP_BUFFER_BYTES)?;
    }
    socket.set_send_buffer_size(UDP_BUFFER_BYTES)?;
    socket.bind(&address.into())?;
    Ok(socket.into())
}

fn socket(
    address: SocketAddr,
    kind: Type,
    protocol: Protocol,
    local: AddressRequirement,
) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), kind, Some(protocol))?;
    socket.set_nonblocking(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    match (local, address) {
        (AddressRequirement::MustBeLocal, _) => {}
        (AddressRequirement::MayBeRouted, SocketAddr::V4(_)) => socket.set_freebind_v4(true)?,
        (AddressRequirement::MayBeRouted, SocketAddr::V6(_)) => socket.set_freebind_v6(true)?,
    }
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_bound_is_said_in_words() {
        let taken = listen("127.0.0.1:0".parse().unwrap(), AddressRequirement::MustBeLocal).unwrap();
        let address = taken.local_addr().unwrap();
        let check = |address: SocketAddr, words: &str| {
            let error =
                BinderError::of(address, listen(address, AddressRequirement::MustBeLocal).unwrap_err());
            assert!(error.to_string().contains(words), "{error}");
        };
        check(address, "taken by another program");
        check("192.0.2.1:80".parse().unwrap(), "no address of this host");
        let free = listen("192.0.2.1:0".parse().unwrap(), AddressRequirement::MayBeRouted).unwrap();
        assert!(free.local_addr().unwrap().port() != 0);
    }
}
