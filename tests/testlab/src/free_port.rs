//! Ports of the loopback for servers that are started, killed and started again at the same address.
//!
//! They are below the range from which the kernel takes the ports of clients (32768 to 60999), so that no connection of another test has such a
//! port while its server is away. Processes begin at different places; a port that is in use is left out.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::sync::atomic::{AtomicU32, Ordering};

const FIRST: u32 = 20_000;
const COUNT: u32 = 12_000;
/// Ports between the first ones of two processes with numbers in a row.
const PER_PROCESS: u32 = 37;

static NEXT: AtomicU32 = AtomicU32::new(0);

/// Returns an address of the loopback that is free for TCP and UDP at this moment. No two calls of a process return the same.
pub fn free_port() -> SocketAddr {
    let begin = std::process::id().wrapping_mul(PER_PROCESS);
    for _ in 0..COUNT {
        let offset = begin.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % COUNT;
        let Ok(port) = u16::try_from(FIRST + offset) else { continue };
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        if TcpListener::bind(address).is_ok() && UdpSocket::bind(address).is_ok() {
            return address;
        }
    }
    // Every port is in use: the caller's own bind says so.
    SocketAddr::from((Ipv4Addr::LOCALHOST, 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_differ_and_are_free() {
        let held: Vec<TcpListener> = (0..20).map(|_| TcpListener::bind(free_port()).unwrap()).collect();
        assert!(held.iter().all(|listener| listener.local_addr().unwrap().port() < 32_768));
    }
}
