//! The links from this replica to the others, dialled when first needed and kept.
//!
//! Mutual TLS under the replica ALPN: the other side shows the cloud's own certificate, and so do we.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use causeway_channel::link::Link;
use causeway_channel::quic::{ConnectError, QuicClient, QuicOptions};
use rustls_pki_types::CertificateDer;
use tokio::sync::OnceCell;

/// As for edges: an address that does not answer within this does not answer.
const DIAL: Duration = Duration::from_secs(2);

/// What a replica shows to the others, and whom it believes. Asked each time, because both change.
pub trait PeerDoor: Send + Sync + 'static {
    /// For one dial, under the replica ALPN.
    fn dial_tls(&self) -> Result<rustls::ClientConfig, DoorError>;
    /// Is this the certificate of a replica?
    fn admits(&self, certificate: &CertificateDer<'_>) -> bool;
}

pub type DoorError = Arc<dyn std::error::Error + Send + Sync>;

#[derive(Debug, Clone, thiserror::Error)]
pub enum DialPeerError {
    #[error("the name cannot be resolved")]
    Name(#[source] Arc<std::io::Error>),
    #[error("the name has no address")]
    NoAddress,
    #[error("TLS cannot be set up")]
    Tls(#[source] DoorError),
    #[error("no socket can be opened")]
    Socket(#[source] Arc<std::io::Error>),
    #[error("the handshake failed")]
    Connect(#[source] Arc<ConnectError>),
    #[error("no answer within {} seconds", DIAL.as_secs())]
    Timeout,
}

pub struct Peers {
    door: Arc<dyn PeerDoor>,
    client: OnceCell<QuicClient>,
    /// One place per replica; whoever comes while it is dialled waits for the same dial.
    links: Mutex<HashMap<String, Arc<OnceCell<Link>>>>,
}

impl Peers {
    pub fn door(&self) -> &dyn PeerDoor {
        &*self.door
    }

    pub fn new(door: Arc<dyn PeerDoor>) -> Peers {
        Peers { door, client: OnceCell::new(), links: Mutex::default() }
    }

    /// The link to a replica.
    pub async fn link(&self, replica: &str, address: &str) -> Result<Link, DialPeerError> {
        let place = self.links().entry(replica.to_owned()).or_default().clone();
        let link = place.get_or_try_init(|| self.dial(address)).await?;
        Ok(link.clone())
    }

    /// This link is of no use any more.
    pub fn forget(&self, replica: &str, link: &Link) {
        let mut links = self.links();
        // Another one may have dialled anew meanwhile; the remote address and the transport cannot tell them
        // apart, but a second dial is all that a mistake costs.
        let is_same = |place: &Arc<OnceCell<Link>>| {
            place.get().is_none_or(|held| held.remote_address() == link.remote_address())
        };
        if links.get(replica).is_some_and(is_same) {
            links.remove(replica);
        }
    }

    /// Only these replicas are still there.
    pub fn retain(&self, replicas: &[(String, String)]) {
        self.links().retain(|replica, _| replicas.iter().any(|(id, _)| id == replica));
    }

    async fn dial(&self, address: &str) -> Result<Link, DialPeerError> {
        tokio::time::timeout(DIAL, self.dial_any(address)).await.map_err(|_| DialPeerError::Timeout)?
    }

    async fn dial_any(&self, address: &str) -> Result<Link, DialPeerError> {
        let resolved = tokio::net::lookup_host(address).await;
        let addresses: Vec<SocketAddr> =
            resolved.map_err(|error| DialPeerError::Name(Arc::new(error)))?.collect();
        let mut last = DialPeerError::NoAddress;
        for address in addresses {
            match self.dial_one(address).await {
                Ok(link) => return Ok(link),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    async fn dial_one(&self, address: SocketAddr) -> Result<Link, DialPeerError> {
        let bind = || async { QuicClient::bind(QuicOptions::default()) };
        let client = self.client.get_or_try_init(bind).await;
        let client = client.map_err(|error| DialPeerError::Socket(Arc::new(error)))?;
        let config = self.door.dial_tls().map_err(DialPeerError::Tls)?;
        client.connect(address, config).await.map_err(|error| DialPeerError::Connect(Arc::new(error)))
    }

    fn links(&self) -> std::sync::MutexGuard<'_, HashMap<String, Arc<OnceCell<Link>>>> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
