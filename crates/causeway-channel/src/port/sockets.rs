//! Binds UDP and TCP on the same port number.

use std::io;
use std::net::{SocketAddr, UdpSocket};

use tokio::net::TcpListener;

use crate::quic::socket;

/// The chance that a free TCP port is taken for UDP is small; ten failures in a row have another cause.
const TRIES: usize = 10;

/// Bound sockets that are not served yet: the port number is needed before the server certificate exists.
#[derive(Debug)]
pub struct PortSockets {
    pub(super) tcp: TcpListener,
    pub(super) udp: UdpSocket,
    address: SocketAddr,
}

impl PortSockets {
    /// Port 0 selects any number that is free for both protocols.
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
