//! UDP sockets as QUIC wants them.

use std::io;
use std::net::{SocketAddr, UdpSocket};

use rustix::net::sockopt;
use socket2::{Domain, Protocol, Socket, Type};

/// A burst of 20 ms at 2.5 Gbit/s, or the first packets of some thousand edges that come back together. Who may not (without
/// CAP_NET_ADMIN) gets `net.core.rmem_max` at most, which is 208 KiB on many systems, without a word.
const BUFFER_BYTES: usize = 7 * 1024 * 1024;

/// An unspecified IPv6 address takes IPv4 as well.
pub(crate) fn bind(address: SocketAddr) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
    if address.is_ipv6() {
        socket.set_only_v6(!address.ip().is_unspecified())?;
    }
    socket.set_nonblocking(true)?;
    // A kernel that gives less still carries the link.
    if sockopt::set_socket_recv_buffer_size_force(&socket, BUFFER_BYTES).is_err() {
        let _ = socket.set_recv_buffer_size(BUFFER_BYTES);
    }
    let _ = socket.set_send_buffer_size(BUFFER_BYTES);
    socket.bind(&address.into())?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_may_gets_more_than_the_system_gives_everybody() {
        let socket = bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let other = UdpSocket::bind("127.0.0.1:0").unwrap();
        let may = sockopt::set_socket_recv_buffer_size_force(&other, BUFFER_BYTES).is_ok();
        let wanted = if may { BUFFER_BYTES } else { 64 * 1024 };
        assert!(sockopt::socket_recv_buffer_size(&socket).unwrap() >= wanted);
    }
}
