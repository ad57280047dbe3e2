//! The certificate by which a replica proves to another one that it is the cloud.
//!
//! Every replica holds the CA, so it signs for itself: a client certificate with the cloud's own name. Gateways and
//! people never get a certificate with a DNS name, so no other peer has one. It lives in memory, for one dial.

use std::sync::Arc;

use causeway_channel::dial::DialConfig;
use causeway_channel::link::REPLICA_ALPN;
use causeway_channel::tls::{self, TlsCredentials, TrustAnchors};
use causeway_channel::{CertificateFacts, PrivateKey};
use rustls_pki_types::CertificateDer;

use super::authority::{CertificateSubject, SERVER_LIFETIME};
use super::registrar::Registrar;
use super::serving;

/// The reason why no certificate could be made.
pub type ReplicaIdentityError = Arc<dyn std::error::Error + Send + Sync>;

impl Registrar {
    /// Returns the configuration for one dial of another replica; its address is filled in by the caller.
    pub(crate) fn dial_config(&self) -> Result<DialConfig, ReplicaIdentityError> {
        let credentials = self.credentials_of(&CertificateSubject::Replica)?;
        let trust = TrustAnchors::Bundle(self.cas.load().bundle());
        let clock = self.config.clock.clone();
        Ok(DialConfig { alpn: REPLICA_ALPN, clock, ..DialConfig::new(Vec::new(), trust, credentials) })
    }

    /// Tells whether this is the certificate of a replica.
    pub(crate) fn admits(&self, certificate: &CertificateDer<'_>) -> bool {
        let in_time = CertificateFacts::read(certificate).is_ok_and(|facts| self.now() <= facts.not_after);
        // The handshake may have been checked against CAs of yesterday.
        let bundle = self.cas.load().bundle();
        in_time && tls::is_cloud(certificate) && tls::verify_client(certificate, &bundle).is_ok()
    }

    fn credentials_of(&self, subject: &CertificateSubject) -> Result<TlsCredentials, ReplicaIdentityError> {
        let key = PrivateKey::generate().map_err(failed)?;
        let spki = serving::spki(&key).map_err(failed)?;
        let signed = self.cas.load().serving().sign(subject, &spki, self.now(), SERVER_LIFETIME);
        Ok(TlsCredentials { chain: vec![signed.map_err(failed)?.certificate], key: key.to_der() })
    }

    /// As an edge would dial, without the trouble of enrolment.
    #[cfg(test)]
    pub(crate) fn dial_as_gateway(&self, peer: &causeway_channel::PeerId) -> DialConfig {
        let credentials = self.credentials_of(&CertificateSubject::Gateway(peer.clone())).unwrap();
        DialConfig { credentials, ..self.dial_config().unwrap() }
    }
}

fn failed(error: impl std::error::Error + Send + Sync + 'static) -> ReplicaIdentityError {
    Arc::new(error)
}
