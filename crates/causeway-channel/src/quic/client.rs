//! Dials over QUIC, from one socket that can be replaced.
//!
//! All links of an edge share a socket. When the address of the machine changes, the socket is replaced and
//! the links migrate. The addresses to try and the deadlines are decided by `dial`.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ClientConfig, ConnectionError, Endpoint, EndpointConfig, VarInt};

use super::busy_refusal::{BusyRefusal, RetryTicket};
use super::driver_thread::{DriverThread, IoRuntime};
use super::path;
use super::transport::{self, TransportConfigs};
use super::{QuicLink, QuicOptions, link_closed, socket};
use crate::link::{CloseCode, Link, LinkClosed, LinkSide};
use crate::tls::CLOUD_NAME;

/// A socket to dial from. Clones share it. Links stay open after the last clone is dropped.
#[derive(Clone)]
pub struct QuicClient {
    endpoint: Endpoint,
    transports: TransportConfigs,
    options: QuicOptions,
    from: Option<IpAddr>,
}

#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("invalid QUIC settings: {0}")]
    Settings(String),
    /// The port is busy and names the time of the next attempt.
    #[error("the cloud is overloaded; retry in {} ms", .0.wait.as_millis())]
    Busy(BusyRefusal),
    /// The handshake failed for this reason.
    #[error(transparent)]
    Failed(#[from] LinkClosed),
}

impl QuicClient {
    /// Binds to any port, for IPv4 and IPv6 where the machine has both.
    pub fn bind(options: QuicOptions) -> io::Result<QuicClient> {
        QuicClient::bind_to(None, options)
    }

    /// Binds to one address of this machine.
    pub fn bind_to(from: Option<IpAddr>, options: QuicOptions) -> io::Result<QuicClient> {
        let transports = TransportConfigs::new(&options, transport::STREAMS_AT_FIRST);
        let socket = any_socket(from)?;
        let mut config = EndpointConfig::default();
        transport::limit_packets(&mut config, &options).map_err(io::Error::other)?;
        let endpoint = Endpoint::new(config, None, socket, Arc::new(IoRuntime::new()?))?;
        Ok(QuicClient { endpoint, transports, options, from })
    }

    /// Opens a link to `address`. `tls` holds the trusted CAs, our certificate and the ALPN.
    pub async fn connect(
        &self,
        address: SocketAddr,
        tls: rustls::ClientConfig,
    ) -> Result<Link, ConnectError> {
        self.connect_as(address, tls, None).await
    }

    /// As `connect`, with the retry ticket that this port issued when it was busy. A ticket is used once.
    pub async fn connect_as(
        &self,
        address: SocketAddr,
        tls: rustls::ClientConfig,
        ticket: Option<RetryTicket>,
    ) -> Result<Link, ConnectError> {
        let settings = |error: &dyn std::fmt::Display| ConnectError::Settings(error.to_string());
        let tls = QuicClientConfig::try_from(tls).map_err(|error| settings(&error))?;
        let mut config = ClientConfig::new(Arc::new(tls));
        config.transport_config(self.transports.of(path::is_inside(address)));
        if let Some(ticket) = ticket {
            config.initial_dst_cid_provider(Arc::new(move || ticket.connection_id()));
        }
        // The server name is only a hint for load balancers; the verifier requires the cloud's own name.
        let (driver, connecting) =
            DriverThread::of_new(|| self.endpoint.connect_with(config, address, CLOUD_NAME));
        let connection = connecting.map_err(|error| settings(&error))?.await.map_err(failed)?;
        driver.move_to_io_thread(LinkSide::Dialled);
        Ok(QuicLink::new(connection, self.options.limits.clone(), driver).into())
    }

    /// Moves all links to a new socket, for example after the machine's address has changed.
    pub fn rebind(&self) -> io::Result<()> {
        self.endpoint.rebind(any_socket(self.from)?)
    }

    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.endpoint.local_addr()
    }

    /// Closes every link at once.
    pub fn close(&self) {
        self.endpoint.close(VarInt::from_u32(CloseCode::Done.into()), b"");
    }
}

fn failed(error: ConnectionError) -> ConnectError {
    match &error {
        ConnectionError::ConnectionClosed(frame) => BusyRefusal::from_text(&frame.reason)
            .map_or_else(|| ConnectError::Failed(link_closed(&error)), ConnectError::Busy),
        _ => ConnectError::Failed(link_closed(&error)),
    }
}

fn any_socket(from: Option<IpAddr>) -> io::Result<std::net::UdpSocket> {
    if let Some(from) = from {
        return socket::bind((from, 0).into());
    }
    socket::bind((Ipv6Addr::UNSPECIFIED, 0).into())
        .or_else(|_| socket::bind((Ipv4Addr::UNSPECIFIED, 0).into()))
}
