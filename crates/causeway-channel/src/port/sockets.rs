//! UDP and TCP on the same port number.

use std::io;
use std::net::{SocketAddr, UdpSocket};

use tokio::net::TcpListener;

use crate::quic::socket;

/// The chance that a free TCP port is taken for UDP is small; ten times in a row it has another cause.
const TRIES: usize = 10;

/// Bound and not yet served, for whoever must know the port before it can say who we are.
#[derive(Debug)]
pub struct PortSockets {
    pub(super) tcp: TcpListener,
    pub(super) udp: UdpSocket,
    address: SocketAddr,
}

impl PortSockets {
    /// Port 0 takes any number that is free for both.
    pub async fn bind(address: SocketAddr) -> io::Result<PortSockets> {
        let mut tries = if address.port() == 0 { TRIES } else { 1 };
        loop {
            tries -= 1;
            let tcp = TcpListener::bind(address).await?;
            let bound = tcp.local_addr()?;
            match socket::bind(bound) {
                Ok(udp) => return Ok(PortSockets { tcp, udp, address: bound }),
                Err(error) if tries == 0 => return Err(error),
                Err(_) => {}
            }
        }
    }

    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }
}
