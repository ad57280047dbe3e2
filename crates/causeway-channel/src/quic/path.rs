//! How large packets may become on the way to a peer, as far as this host can tell.
//!
//! What really passes is found out by quinn, which begins with 1,200 bytes and probes. Here is only where it is worth looking
//! for more than Ethernet carries: inside this host, and where the first link of the route carries more. Larger packets are
//! fewer: each costs the same at both ends.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use rustix::net::sockopt;

/// What fits Ethernet, with the heads of IPv6 and UDP.
pub const ORDINARY_PACKET_BYTES: u16 = 1452;
/// Ten of them, which is what quinn hands to the kernel at once, are just below what the kernel takes at once (65,507 bytes).
pub const LARGE_PACKET_BYTES: u16 = 6500;

/// Heads of IPv6 and UDP.
const HEADS_BYTES: u32 = 48;

/// The largest packet that is worth a probe.
pub(super) fn packet_bytes_max(to: SocketAddr) -> u16 {
    // A host without a route, or another system, has nothing to tell.
    worth_a_probe(route_mtu(to).unwrap_or_default())
}

fn worth_a_probe(mtu: u32) -> u16 {
    let most = u16::try_from(mtu.saturating_sub(HEADS_BYTES)).unwrap_or(u16::MAX);
    most.clamp(ORDINARY_PACKET_BYTES, LARGE_PACKET_BYTES)
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
    fn more_is_looked_for_only_where_the_route_carries_more() {
        for (mtu, most) in [(0, 1452), (1280, 1452), (1500, 1452), (4000, 3952), (9000, 6500), (65_536, 6500)]
        {
            assert_eq!(worth_a_probe(mtu), most, "{mtu}");
        }
        let here: SocketAddr = "[::ffff:127.0.0.1]:1".parse().unwrap();
        assert_eq!(packet_bytes_max(here), LARGE_PACKET_BYTES, "loopback carries 64 KiB");
    }
}
