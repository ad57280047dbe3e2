//! UDP sockets as QUIC wants them.

use std::io;
use std::net::{SocketAddr, UdpSocket};

use socket2::{Domain, Protocol, Socket, Type};

/// A burst of 20 ms at 2.5 Gbit/s. The kernel cuts it down to `net.core.rmem_max` without a word.
const BUFFER_BYTES: usize = 7 * 1024 * 1024;

/// An unspecified IPv6 address takes IPv4 as well.
pub(crate) fn bind(address: SocketAddr) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
    if address.is_ipv6() {
        socket.set_only_v6(!address.ip().is_unspecified())?;
    }
    socket.set_nonblocking(true)?;
    // A kernel that gives less still carries the link.
    let _ = (socket.set_recv_buffer_size(BUFFER_BYTES), socket.set_send_buffer_size(BUFFER_BYTES));
    socket.bind(&address.into())?;
    Ok(socket.into())
}
