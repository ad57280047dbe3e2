//! TLS for the channel port: trust between cloud and edges.
//!
//! The cloud has one fixed name, so that an edge may reach it under any address; the edge trusts a bundle of
//! CAs, or, at first contact, the CA whose hash is in the token. Both ends accept a certificate whose only
//! fault is its validity period, and note it: the exchange that follows can then tell which clock is wrong,
//! or that the certificate has expired, which a TLS alert could not.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{
    CertificateError, CipherSuite, ClientConfig, DigitallySignedStruct, DistinguishedName, Error,
    RootCertStore, ServerConfig, SignatureScheme,
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};

use crate::peer::{CertificateFacts, KeyHash, sha256};

/// Name in the cloud's certificate that edges require. Gateways never get a certificate with a DNS name.
pub const CLOUD_NAME: &str = "channel.causeway.internal";

/// CAs that an edge accepts for the cloud.
#[derive(Debug, Clone)]
pub enum TrustAnchors {
    /// First contact: the CA whose public key has this hash; the cloud sends the CA along.
    Pinned(Vec<KeyHash>),
    Bundle(Vec<CertificateDer<'static>>),
}

#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("no usable CA")]
    Authorities(#[source] Error),
    #[error("the certificate and the key do not fit TLS")]
    Credentials(#[source] Error),
    #[error("the verifier of client certificates cannot be made")]
    Verifier(#[source] rustls::server::VerifierBuilderError),
}

/// The one crypto stack of the process.
pub fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: OnceLock<Arc<CryptoProvider>> = OnceLock::new();
    let make = || {
        let mut provider = rustls::crypto::aws_lc_rs::default_provider();
        // SHA-256 has CPU instructions and SHA-384 has not: with SHA-384 the hashes of a handshake cost as
        // much as a key exchange. AES-128 is as good for a link; a peer that prefers another suite gets it.
        provider.cipher_suites.sort_by_key(|suite| suite.suite() != CipherSuite::TLS13_AES_128_GCM_SHA256);
        Arc::new(provider)
    };
    PROVIDER.get_or_init(make).clone()
}

/// Identifies a set of trusted CAs, independent of their order.
pub fn bundle_hash(authorities: &[CertificateDer<'_>]) -> [u8; 32] {
    let mut hashes: Vec<_> = authorities.iter().map(|authority| sha256(authority)).collect();
    hashes.sort();
    hashes.dedup();
    sha256(&hashes.concat())
}

/// A certificate and its key, as TLS wants them.
#[derive(Debug)]
pub struct TlsCredentials {
    pub chain: Vec<CertificateDer<'static>>,
    pub key: PrivateKeyDer<'static>,
}

impl Clone for TlsCredentials {
    fn clone(&self) -> TlsCredentials {
        TlsCredentials { chain: self.chain.clone(), key: self.key.clone_key() }
    }
}

/// Credentials with a parsed key. Parsing checks the key, which costs as much as a signature, so frequent
/// dialers keep this.
#[derive(Debug, Clone)]
pub struct TlsSigner(Arc<SingleCertAndKey>);

impl TlsCredentials {
    pub fn signer(self) -> Result<TlsSigner, TlsError> {
        let read =
            CertifiedKey::from_der(self.chain, self.key, &provider()).map_err(TlsError::Credentials)?;
        Ok(TlsSigner(Arc::new(read.into())))
    }
}

/// Client configuration of an edge. The note tells afterwards whether only the validity period was wrong; one
/// config serves one dial.
pub fn client(
    trust: TrustAnchors,
    credentials: Option<TlsCredentials>,
    now: SystemTime,
) -> Result<(ClientConfig, ValidityNote), TlsError> {
    client_as(trust, credentials.map(TlsCredentials::signer).transpose()?, now)
}

/// As `client`, for credentials that were parsed before.
pub fn client_as(
    trust: TrustAnchors,
    signer: Option<TlsSigner>,
    now: SystemTime,
) -> Result<(ClientConfig, ValidityNote), TlsError> {
    let note = ValidityNote::default();
    let verifier = CloudVerifier { trust, now, note: note.clone() };
    let builder = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(TlsError::Credentials)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier));
    let mut config = match signer {
        None => builder.with_no_client_auth(),
        Some(signer) => builder.with_client_cert_resolver(signer.0),
    };
    config.alpn_protocols = vec![crate::wire::ALPN.to_vec()];
    // A resumed session would skip the verifier, and with it the note about the time.
    config.resumption = rustls::client::Resumption::disabled();
    Ok((config, note))
}

/// Server configuration of the cloud, for all of its ports. Client certificates are optional and checked
/// against all of `authorities`; the application checks their validity period and revocation, for every
/// request.
pub fn server(
    credentials: TlsCredentials,
    authorities: &[CertificateDer<'static>],
    alpn: &[&[u8]],
) -> Result<ServerConfig, TlsError> {
    let inner = WebPkiClientVerifier::builder_with_provider(Arc::new(roots(authorities)?), provider())
        .allow_unauthenticated()
        .build()
        .map_err(TlsError::Verifier)?;
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Credentials)?
        .with_client_cert_verifier(Arc::new(AnyTimeClientVerifier { inner }))
        .with_single_cert(credentials.chain, credentials.key)
        .map_err(TlsError::Credentials)?;
    config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
    // A resumed session keeps the chain of its first handshake, also across a change of CA. Handshakes are
    // rare here, so a full one each time costs little.
    config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}

/// Verifies that `certificate` is signed by one of `authorities` and made for a client. Its validity period
/// is not checked.
pub fn verify_client(
    certificate: &CertificateDer<'_>,
    authorities: &[CertificateDer<'static>],
) -> Result<(), TlsError> {
    let inner = WebPkiClientVerifier::builder_with_provider(Arc::new(roots(authorities)?), provider())
        .build()
        .map_err(TlsError::Verifier)?;
    let verifier = AnyTimeClientVerifier { inner };
    verifier.verify_client_cert(certificate, &[], UnixTime::now()).map_err(TlsError::Credentials)?;
    Ok(())
}

/// Returns whether the certificate names the cloud itself. Its signature is not checked. Gateways never get
/// such a certificate.
pub fn is_cloud(certificate: &CertificateDer<'_>) -> bool {
    let name = ServerName::try_from(CLOUD_NAME).expect("the constant is a DNS name");
    let certificate = webpki::EndEntityCert::try_from(certificate);
    certificate.is_ok_and(|certificate| certificate.verify_is_valid_for_subject_name(&name).is_ok())
}

fn roots(authorities: &[CertificateDer<'_>]) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for authority in authorities {
        roots.add(authority.clone().into_owned()).map_err(TlsError::Authorities)?;
    }
    Ok(roots)
}

/// Validity period of a certificate that was accepted although it is not valid now.
#[derive(Debug, Clone, Default)]
pub struct ValidityNote(Arc<OnceLock<(SystemTime, SystemTime)>>);

impl ValidityNote {
    /// Returns `None` when the certificate is valid now.
    pub fn validity(&self) -> Option<(SystemTime, SystemTime)> {
        self.0.get().copied()
    }
}

#[derive(Debug)]
struct CloudVerifier {
    trust: TrustAnchors,
    now: SystemTime,
    note: ValidityNote,
}

impl CloudVerifier {
    fn authorities(&self, presented: &[CertificateDer<'_>]) -> Vec<CertificateDer<'static>> {
        let pins = match &self.trust {
            TrustAnchors::Bundle(bundle) => return bundle.clone(),
            TrustAnchors::Pinned(pins) => pins,
        };
        let is_pinned = |certificate: &&CertificateDer<'_>| {
            CertificateFacts::read(certificate)
                .is_ok_and(|facts| facts.is_authority && pins.contains(&facts.key))
        };
        presented.iter().filter(is_pinned).map(|certificate| certificate.clone().into_owned()).collect()
    }
}

impl ServerCertVerifier for CloudVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let roots = roots(&self.authorities(intermediates))
            .map_err(|_| Error::InvalidCertificate(CertificateError::BadEncoding))?;
        if roots.is_empty() {
            return Err(Error::InvalidCertificate(CertificateError::UnknownIssuer));
        }
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider())
            .build()
            .map_err(|_| Error::InvalidCertificate(CertificateError::UnknownIssuer))?;
        let name = ServerName::try_from(CLOUD_NAME).expect("the constant is a DNS name");
        let verify = |time| verifier.verify_server_cert(end_entity, &[], &name, ocsp_response, time);
        match verify(unix_time(self.now)) {
            Err(Error::InvalidCertificate(error)) if is_about_time(&error) => {
                let (not_before, not_after) = validity(end_entity)?;
                let verified = verify(unix_time(self.now.clamp(not_before, not_after)))?;
                let _ = self.note.0.set((not_before, not_after));
                Ok(verified)
            }
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &provider().signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, cert, dss, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &provider().signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        provider().signature_verification_algorithms.supported_schemes()
    }
}

/// Checks a client certificate except for its validity period.
#[derive(Debug)]
struct AnyTimeClientVerifier {
    inner: Arc<dyn ClientCertVerifier>,
}

impl ClientCertVerifier for AnyTimeClientVerifier {
    fn offer_client_auth(&self) -> bool {
        true
    }

    fn client_auth_mandatory(&self) -> bool {
        self.inner.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.inner.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        // Verified as of its own first second, which lies within the validity of its CA.
        let (not_before, _) = validity(end_entity)?;
        self.inner.verify_client_cert(end_entity, intermediates, unix_time(not_before))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

fn is_about_time(error: &CertificateError) -> bool {
    use CertificateError::{Expired, ExpiredContext, NotValidYet, NotValidYetContext};
    matches!(error, Expired | ExpiredContext { .. } | NotValidYet | NotValidYetContext { .. })
}

fn validity(certificate: &CertificateDer<'_>) -> Result<(SystemTime, SystemTime), Error> {
    match CertificateFacts::read(certificate) {
        Ok(facts) if facts.not_before <= facts.not_after => Ok((facts.not_before, facts.not_after)),
        _ => Err(Error::InvalidCertificate(CertificateError::BadEncoding)),
    }
}

fn unix_time(time: SystemTime) -> UnixTime {
    UnixTime::since_unix_epoch(time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO))
}
