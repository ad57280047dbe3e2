//! Binds UDP sockets with the options and buffer sizes that QUIC needs.

use std::io;
use std::net::{SocketAddr, UdpSocket};

use rustix::net::sockopt;
use socket2::{Domain, Protocol, Socket, Type};

/// A burst of 20 ms at 2.5 Gbit/s, or the first packets of a few thousand edges that reconnect together.
/// Without CAP_NET_ADMIN the kernel silently grants at most `net.core.rmem_max`, which is 208 KiB on many
/// systems.
const BUFFER_BYTES: usize = 7 * 1024 * 1024;

/// Binds a socket. An unspecified IPv6 address accepts IPv4 as well.
pub(crate) fn bind(address: SocketAddr) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
    if address.is_ipv6() {
        socket.set_only_v6(!address.ip().is_unspecified())?;
    }
    socket.set_nonblocking(true)?;
    // The link works with smaller buffers.
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
