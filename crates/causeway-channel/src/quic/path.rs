//! How large packets may become on the way to a peer, as far as this host can tell.
//!
//! What really passes is found out by quinn, which begins with 1,200 bytes and probes. Here is only where it is worth looking
//! for more than Ethernet carries: inside this host. Larger packets are fewer: each costs the same at both ends. Where only the
//! first link of the route carries more (jumbo frames, as in many clouds) the next most likely does not, and every link would
//! begin with probes that get lost.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

/// What fits Ethernet, with the heads of IPv6 and UDP.
pub const ORDINARY_PACKET_BYTES: u16 = 1452;
/// Ten of them, which is what quinn hands to the kernel at once, are just below what the kernel takes at once (65,507 bytes).
pub const LARGE_PACKET_BYTES: u16 = 6500;

/// Does the way to a peer stay inside this host? The size that its route carries does not tell: networks of containers say 64 KiB, too.
pub(super) fn is_inside(to: SocketAddr) -> bool {
    let to = SocketAddr::new(to.ip().to_canonical(), to.port());
    // A host without a route has nothing to tell.
    to.ip().is_loopback() || address_towards(to).is_ok_and(|ours| ours == to.ip())
}

/// Of ours, from which the kernel would send there. Sends nothing.
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
