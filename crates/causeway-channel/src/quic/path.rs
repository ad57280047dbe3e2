//! Maximum packet size towards a peer, as far as this host can tell.
//!
//! The actual size is found by quinn, which begins with 1,200 bytes and probes. This module only decides
//! whether sizes above Ethernet are worth probing: inside this host they are. Larger packets are fewer, and
//! each costs the same at both ends. If only the first link of a route carries more (jumbo frames, as in
//! many clouds), the next one most likely does not, and every link would begin with probes that get lost.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

/// UDP payload that fits Ethernet with the headers of IPv6 and UDP.
pub const ORDINARY_PACKET_BYTES: u16 = 1452;
/// Ten packets of this size, the GSO batch of quinn, are just below the largest UDP send of the kernel
/// (65,507 bytes).
pub const LARGE_PACKET_BYTES: u16 = 6500;

/// Returns whether the path to a peer stays inside this host. The MTU of the route does not tell: container
/// networks report 64 KiB too.
pub(super) fn is_inside(to: SocketAddr) -> bool {
    let to = SocketAddr::new(to.ip().to_canonical(), to.port());
    // Without a route to the address the peer is not inside this host.
    to.ip().is_loopback() || address_towards(to).is_ok_and(|ours| ours == to.ip())
}

/// Returns the local address from which the kernel would send to `to`. Sends no packet.
fn address_towards(to: SocketAddr) -> io::Result<IpAddr> {
    let any: IpAddr = match to {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(to)?;
    Ok(socket.local_addr()?.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_this_host_are_inside_and_others_are_not() {
        let is_inside = |address: &str| is_inside(SocketAddr::new(address.parse().unwrap(), 1));
        assert!(is_inside("127.0.0.1") && is_inside("::1") && is_inside("::ffff:127.0.0.1"));
        assert!(!is_inside("192.0.2.1") && !is_inside("2001:db8::1"));
        if let Ok(ours) = address_towards("192.0.2.1:1".parse().unwrap()) {
            assert!(super::is_inside(SocketAddr::new(ours, 1)), "{ours}");
        }
    }
}
