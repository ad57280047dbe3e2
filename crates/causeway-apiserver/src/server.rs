//! Accepts connections and answers requests until told to stop.

use std::net::SocketAddr;
use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::{Actions, Authenticator, LiveFigures, Registry};

/// Everything the server is made of.
pub struct Parts {
    pub registry: Arc<Registry>,
    pub authenticator: Arc<dyn Authenticator>,
    pub actions: Arc<dyn Actions>,
    pub figures: Arc<dyn LiveFigures>,
    /// None speaks plain HTTP: for tests on loopback only. Swap the content to change certificates and CAs.
    pub tls: Option<Arc<ArcSwap<rustls::ServerConfig>>>,
    /// What `/readyz` answers, without credentials.
    pub readiness: causeway_daemon::Readiness,
    pub limits: Limits,
}

/// Bounds on what callers can make the server hold.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Limits {}

#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {addr}")]
pub struct BindError {
    pub addr: SocketAddr,
    pub source: std::io::Error,
}

pub struct ApiServer {
    listener: TcpListener,
    addr: SocketAddr,
    _parts: Parts,
}

impl ApiServer {
    pub async fn bind(addr: SocketAddr, parts: Parts) -> Result<ApiServer, BindError> {
        let listener = TcpListener::bind(addr).await.map_err(|source| BindError { addr, source })?;
        ApiServer::on(listener, parts).map_err(|source| BindError { addr, source })
    }

    /// On a listener that was bound earlier, for whoever must know its port before it can make the parts.
    pub fn on(listener: TcpListener, parts: Parts) -> std::io::Result<ApiServer> {
        let addr = listener.local_addr()?;
        Ok(ApiServer { listener, addr, _parts: parts })
    }

    pub fn local_addr(&self) -> SocketAddr {
        self.addr
    }

    /// Serves until `stop`; then ends watches, finishes what is in flight within a deadline, and returns.
    pub async fn run(self, stop: CancellationToken) {
        stop.cancelled().await;
        drop(self.listener);
    }
}
