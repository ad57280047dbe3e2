//! Links from this replica to other replicas, dialled when first needed and kept.
//!
//! Mutual TLS under the replica ALPN: the other side shows the cloud's own certificate, and so do we.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use causeway_api::sync::MutexExt;
use causeway_channel::dial::{DialConfig, DialError, LinkDialer};
use causeway_channel::link::Link;
use rustls_pki_types::CertificateDer;
use tokio::sync::OnceCell;

use crate::identity::{Registrar, ReplicaIdentityError};

#[derive(Debug, Clone, thiserror::Error)]
pub enum DialPeerError {
    #[error("{address:?} is no address")]
    Address { address: String },
    #[error("no certificate could be made")]
    Certificate(#[source] ReplicaIdentityError),
    #[error(transparent)]
    Dial(Arc<DialError>),
}

pub struct ReplicaLinks {
    /// Asked for each dial and each link, because certificates and CAs change.
    registrar: Arc<Registrar>,
    /// One place per replica; a caller that comes during a dial waits for the same dial.
    links: Mutex<HashMap<String, Arc<OnceCell<Link>>>>,
}

impl ReplicaLinks {
    /// Tells whether this is the certificate of a replica.
    pub fn admits(&self, certificate: &CertificateDer<'_>) -> bool {
        self.registrar.admits(certificate)
    }

    pub fn new(registrar: Arc<Registrar>) -> ReplicaLinks {
        ReplicaLinks { registrar, links: Mutex::default() }
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
        let endpoint = address.parse().map_err(|_| DialPeerError::Address { address: address.to_owned() })?;
        let config = self.registrar.dial_config().map_err(DialPeerError::Certificate)?;
        let dialer = LinkDialer::new(DialConfig { endpoints: vec![endpoint], ..config });
        // TCP: between replicas bulk counts, and the kernel of a replica that was killed says so at once.
        dialer.dial_tcp().await.map_err(|error| DialPeerError::Dial(Arc::new(error)))
    }

    fn links(&self) -> std::sync::MutexGuard<'_, HashMap<String, Arc<OnceCell<Link>>>> {
        self.links.lock_ignoring_poison()
    }
}
