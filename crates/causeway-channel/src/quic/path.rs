//! How large packets may become on the way to a peer, as far as this host can tell.
//!
//! What really passes is found out by quinn, which begins with 1,200 bytes and probes. Here is only where it is worth looking
//! for more than Ethernet carries: inside this host. Larger packets are fewer: each costs the same at both ends. Where only the
//! first link of the route carries more (jumbo frames, as in many clouds) the next most likely does not, and every link would
//! begin with probes that get lost.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use rustix::net::sockopt;

/// What fits Ethernet, with the heads of IPv6 and UDP.
pub const ORDINARY_PACKET_BYTES: u16 = 1452;
/// Ten of them, which is what quinn hands to the kernel at once, are just below what the kernel takes at once (65,507 bytes).
pub const LARGE_PACKET_BYTES: u16 = 6500;

/// More than any link between hosts carries, and less than the 64 KiB of the loopback.
const INSIDE_MTU: u32 = 32 * 1024;

/// Does the way to a peer stay inside this host?
pub(super) fn is_inside(to: SocketAddr) -> bool {
    // A host without a route, or another system, has nothing to tell.
    route_mtu(to).unwrap_or_default() >= INSIDE_MTU
}

/// Of the route that the kernel would take. Sends nothing.
fn route_mtu(to: SocketAddr) -> io::Result<u32> {
    match SocketAddr::new(to.ip().to_canonical(), to.port()) {
        SocketAddr::V4(to) => {
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
            socket.connect(to)?;
            Ok(sockopt::ip_mtu(&socket)?)
        }
        SocketAddr::V6(to) => {
            let socket = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0))?;
            socket.connect(to)?;
            Ok(sockopt::ipv6_mtu(&socket)?)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_is_inside_and_what_has_no_route_is_not() {
        let here: SocketAddr = "[::ffff:127.0.0.1]:1".parse().unwrap();
        assert!(is_inside(here));
        let nowhere: SocketAddr = "[ff00::]:1".parse().unwrap();
        assert!(!is_inside(nowhere));
    }
}
