//! How a replica proves to another one that it is the cloud.
//!
//! Every replica holds the CA, so it signs for itself: a client certificate with the cloud's own name. Gateways and
//! people never get a certificate with a DNS name, so nobody else has one. It lives in memory, for one dial.

use std::sync::Arc;

use causeway_channel::link::REPLICA_ALPN;
use causeway_channel::tls::{self, Credentials, Trust};
use causeway_channel::{CertificateFacts, Key};
use rustls::ClientConfig;
use rustls_pki_types::CertificateDer;

use super::authority::{SERVER_LIFETIME, Subject};
use super::registrar::Registrar;
use super::serving;
use crate::replicas::{DoorError, PeerDoor};

impl PeerDoor for Registrar {
    fn dial_tls(&self) -> Result<ClientConfig, DoorError> {
        self.dial_as(&Subject::Replica)
    }

    fn admits(&self, certificate: &CertificateDer<'_>) -> bool {
        let in_time = CertificateFacts::read(certificate).is_ok_and(|facts| self.now() <= facts.not_after);
        // The handshake may have been checked against CAs of yesterday.
        let bundle = self.roll.load().bundle();
        in_time && tls::is_cloud(certificate) && tls::verify_client(certificate, &bundle).is_ok()
    }
}

impl Registrar {
    fn dial_as(&self, subject: &Subject) -> Result<ClientConfig, DoorError> {
        let (roll, now) = (self.roll.load(), self.now());
        let key = Key::generate().map_err(failed)?;
        let spki = serving::spki(&key).map_err(failed)?;
        let signed = roll.serving().sign(subject, &spki, now, SERVER_LIFETIME).map_err(failed)?;
        let credentials = Credentials { chain: vec![signed.certificate], key: key.to_der() };
        let (mut config, _) =
            tls::client(Trust::Bundle(roll.bundle()), Some(credentials), now).map_err(failed)?;
        config.alpn_protocols = vec![REPLICA_ALPN.to_vec()];
        Ok(config)
    }

    /// As an edge would dial, without the trouble of enrolment.
    #[cfg(test)]
    pub(crate) fn dial_as_gateway(&self, peer: &causeway_channel::PeerId) -> ClientConfig {
        self.dial_as(&Subject::Gateway(peer.clone())).unwrap()
    }
}

fn failed(error: impl std::error::Error + Send + Sync + 'static) -> DoorError {
    Arc::new(error)
}
