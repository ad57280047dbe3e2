//! An echo request of ICMP from a raw socket, so that no program is needed.

use std::io::Read;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use socket2::{Domain, Protocol, Socket, Type};

use super::Host;

/// Tells whether an echo request of a host is answered in time.
pub fn reach_ping(host: &Host, to: IpAddr, within: Duration) -> Result<bool> {
    host.inside(|| Ok(ping(to, within)?))
}

fn ping(to: IpAddr, patience: Duration) -> std::io::Result<bool> {
    // Each request is a flow of its own: an identifier that was used before belongs to another one.
    static NEXT: AtomicU16 = AtomicU16::new(1);
    let identifier = NEXT.fetch_add(1, Ordering::Relaxed).to_be_bytes();
    let (domain, protocol, request, reply) = match to {
        IpAddr::V4(_) => (Domain::IPV4, Protocol::ICMPV4, 8_u8, 0_u8),
        IpAddr::V6(_) => (Domain::IPV6, Protocol::ICMPV6, 128, 129),
    };
    let socket = Socket::new(domain, Type::RAW, Some(protocol))?;
    socket.set_read_timeout(Some(Duration::from_millis(50)))?;
    let mut packet = [request, 0, 0, 0, identifier[0], identifier[1], 0, 1];
    if to.is_ipv4() {
        // The kernel computes the checksum of ICMPv6 only.
        let sum: u32 = packet.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
        let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
        packet[2..4].copy_from_slice(&sum.to_be_bytes());
    }
    // A network that is not there yet is no answer.
    if socket.send_to(&packet, &SocketAddr::new(to, 0).into()).is_err() {
        return Ok(false);
    }
    let (begin, mut socket, mut buffer) = (Instant::now(), socket, [0; 2048]);
    while begin.elapsed() < patience {
        let Ok(bytes) = socket.read(&mut buffer) else { continue };
        let icmp = if to.is_ipv4() { buffer.get(20..bytes) } else { buffer.get(..bytes) };
        if icmp.is_some_and(|icmp| icmp.first() == Some(&reply) && icmp.get(4..6) == Some(&identifier[..])) {
            return Ok(true);
        }
    }
    Ok(false)
}
