//! The one interface behind which all transports are measured: open a stream, serve a stream.
//!
//! A stream is a pair of boxed halves. The price of the boxes is the same for every transport and small beside
//! the writes of 256 KiB that go through them.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use futures::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::identity::Identity;
use crate::{h2_mux, pool, quic, yamux_mux};

pub struct Stream {
    pub send: Box<dyn AsyncWrite + Send + Unpin>,
    pub recv: Box<dyn AsyncRead + Send + Unpin>,
}

pub trait Link: Send + Sync {
    fn open(&self) -> BoxFuture<'_, Result<Stream>>;
}

/// The work of a server on each stream. It ends when the stream has ended.
pub type Serve = fn(Stream) -> BoxFuture<'static, ()>;

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
pub enum Transport {
    Quinn,
    Noq,
    Pool,
    Yamux,
    H2,
}

#[derive(Clone, Debug, Args)]
pub struct Tuning {
    /// Congestion control: `cubic`, `bbr` (quinn: BBR, noq: BBRv3, TCP: the kernel's).
    #[arg(long, default_value = "cubic")]
    pub congestion: String,
    /// Receive window of one stream, where the transport has one.
    #[arg(long, default_value_t = 8 << 20)]
    pub stream_window_bytes: u32,
    /// Receive window of all streams of a connection together, where the transport has one.
    #[arg(long, default_value_t = 256 << 20)]
    pub connection_window_bytes: u32,
    /// Bytes that a QUIC connection may have sent and not yet seen acknowledged.
    #[arg(long, default_value_t = 64 << 20)]
    pub send_window_bytes: u64,
    /// Size of the UDP socket buffers. Set by force, as the limits of this host are lower.
    #[arg(long, default_value_t = 8 << 20)]
    pub socket_buffer_bytes: usize,
    /// Let the QUIC sender ask for fewer acknowledgements (draft-ietf-quic-ack-frequency).
    #[arg(long)]
    pub ack_frequency: bool,
    /// Bytes that are read from a TCP socket at once below TLS; 0 leaves it to rustls (4 KiB).
    #[arg(long, default_value_t = 64 << 10)]
    pub read_ahead_bytes: usize,
}

/// Binds, and serves every stream of every connection until the process ends.
pub async fn serve(
    transport: Transport,
    listen: SocketAddr,
    identity: &Identity,
    tuning: Tuning,
    serve: Serve,
) -> Result<()> {
    match transport {
        Transport::Quinn => quic::quinn_link::serve(listen, identity, tuning, serve).await,
        Transport::Noq => quic::noq_link::serve(listen, identity, tuning, serve).await,
        Transport::Pool => pool::serve(listen, identity, tuning, serve).await,
        Transport::Yamux => yamux_mux::serve(listen, identity, tuning, serve).await,
        Transport::H2 => h2_mux::serve(listen, identity, tuning, serve).await,
    }
}

/// Makes `count` connections to the server. QUIC connections share one socket.
pub async fn connect(
    transport: Transport,
    peer: SocketAddr,
    identity: &Identity,
    tuning: Tuning,
    count: usize,
) -> Result<Vec<Arc<dyn Link>>> {
    if count == 0 {
        bail!("at least one connection");
    }
    match transport {
        Transport::Quinn => quic::quinn_link::connect(peer, identity, tuning, count).await,
        Transport::Noq => quic::noq_link::connect(peer, identity, tuning, count).await,
        Transport::Pool => pool::connect(peer, identity, tuning, count).await,
        Transport::Yamux => yamux_mux::connect(peer, identity, tuning, count).await,
        Transport::H2 => h2_mux::connect(peer, identity, tuning, count).await,
    }
}
