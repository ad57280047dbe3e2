//! Binds the sockets of presences: in the network namespace of the host, or in that of the gateway.
//!
//! A `SocketBinder` binds the addresses it is given and reports its state. The presence that uses a
//! socket is not known here.

use std::io;
use std::net::SocketAddr;

use ipnet::IpNet;
use rustix::net::sockopt;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::sync::watch;

use crate::peers::BoxedFuture;

/// A network namespace in which sockets can be bound.
pub trait SocketBinder: Send + Sync + 'static {
    fn listen(&self, address: SocketAddr) -> BoxedFuture<'_, Result<std::net::TcpListener, BinderError>>;

    fn bind_udp(&self, address: SocketAddr) -> BoxedFuture<'_, Result<std::net::UdpSocket, BinderError>>;

    /// Changes when an address that could not be bound may be available.
    fn state(&self) -> watch::Receiver<BinderState>;
}

/// The state of a network namespace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum BinderState {
    /// It does not exist yet: none is needed, or it is being made.
    Closed,
    /// It can be used. Partial problems are described and retried.
    Open {
        /// Networks whose addresses can be bound. Empty: whatever the kernel allows.
        networks: Vec<IpNet>,
        troubles: Vec<String>,
        /// Problems that do not affect this host, but may affect other hosts of the site.
        hints: Vec<String>,
    },
    /// It could not be made; this is retried.
    Troubled { why: String },
    /// This process lacks the privileges to make it.
    Impossible { why: String },
}

#[derive(Debug, thiserror::Error)]
pub enum BinderError {
    #[error("the presence namespace is not open")]
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

/// The network namespace of the host: an address must be one of its own.
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

/// Says if an address may be bound that no interface has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AddressRequirement {
    MustBeLocal,
    /// In the namespace of the gateway, whole networks are local by a route, which IPv6 does not consult when
    /// a socket is bound.
    MayBeRouted,
}

/// Backlog that most kernels allow; a burst of new connections waits there instead of being dropped.
const BACKLOG: i32 = 4096;

/// Returns a listener in the namespace of the calling thread, registered with the runtime.
pub fn listen(address: SocketAddr, local: AddressRequirement) -> io::Result<std::net::TcpListener> {
    let socket = socket(address, Type::STREAM, Protocol::TCP, local)?;
    // Lingering connections of an earlier process must not keep this one from its address.
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Receive buffer for unread datagrams: one moment of a thousand clients. The kernel grants less where its
/// own limit is lower and the process lacks the privilege to exceed it.
const UDP_BUFFER_BYTES: usize = 4 * 1024 * 1024;

/// Returns a UDP socket in the namespace of the calling thread, registered with the runtime. The address is
/// not shared: with SO_REUSEADDR another program could take its datagrams.
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
