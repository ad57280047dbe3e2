//! TLS to a backend, as its service requires: verified by the CA bundle of the service or by the trust store
//! of the host, or not verified.

use std::sync::{Arc, OnceLock};

use causeway_netmap::{BackendTlsSettings, BackendTlsVerification, ServiceEntry};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// The TLS client for the backends of one service.
#[derive(Clone)]
pub struct BackendTlsClient {
    config: Arc<ClientConfig>,
    /// None: the dialled address.
    name: Option<ServerName<'static>>,
}

#[derive(Debug, thiserror::Error)]
pub enum BackendTlsError {
    #[error("the CA bundle of the service cannot be read")]
    Bundle,
    #[error("the server name of the service is not a valid name")]
    Name,
    #[error("the trust store of this host is empty, and the service has no CA bundle")]
    NoRoots,
    #[error("TLS cannot be set up")]
    Config(#[from] rustls::Error),
}

impl BackendTlsClient {
    /// `requests_over_h2`: ALPN offers h2.
    pub fn new(
        service: &ServiceEntry,
        tls: &BackendTlsSettings,
        requests_over_h2: bool,
    ) -> Result<BackendTlsClient, BackendTlsError> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let verifier: Arc<dyn ServerCertVerifier> = match tls.mode {
            BackendTlsVerification::Insecure => Arc::new(Unverified(provider.clone())),
            BackendTlsVerification::Verify => {
                let roots = roots(&tls.ca_bundle)?;
                let built = WebPkiServerVerifier::builder_with_provider(roots, provider.clone()).build();
                built.map_err(|_| BackendTlsError::Bundle)?
            }
        };
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .dangerous()
            .with_custom_certificate_verifier(verifier)
            .with_no_client_auth();
        let alpn: &[u8] = if requests_over_h2 { b"h2" } else { b"http/1.1" };
        config.alpn_protocols = vec![alpn.to_vec()];
        let domain = service.domain_name.as_ref().map(|name| name.as_str()).unwrap_or_default();
        let name = match tls.server_name.is_empty() {
            true => domain,
            false => tls.server_name.as_str(),
        };
        let name = match name.is_empty() {
            true => None,
            false => Some(ServerName::try_from(name.to_owned()).map_err(|_| BackendTlsError::Name)?),
        };
        Ok(BackendTlsClient { config: Arc::new(config), name })
    }

    pub async fn connect(&self, stream: TcpStream) -> std::io::Result<TlsStream<TcpStream>> {
        let name = match &self.name {
            Some(name) => name.clone(),
            None => ServerName::IpAddress(stream.peer_addr()?.ip().to_canonical().into()),
        };
        TlsConnector::from(self.config.clone()).connect(name, stream).await
    }
}

/// Returns the roots of the bundle, or those of the host: operators expect that of a program on the host, and
/// add their own CA there. They are read once; a changed trust store takes effect after a restart.
fn roots(bundle: &str) -> Result<Arc<RootCertStore>, BackendTlsError> {
    static OF_THE_HOST: OnceLock<Arc<RootCertStore>> = OnceLock::new();
    if bundle.is_empty() {
        let roots = OF_THE_HOST.get_or_init(|| {
            let mut roots = RootCertStore::empty();
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            Arc::new(roots)
        });
        return if roots.is_empty() { Err(BackendTlsError::NoRoots) } else { Ok(roots.clone()) };
    }
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(bundle.as_bytes()) {
        roots.add(certificate.map_err(|_| BackendTlsError::Bundle)?).map_err(|_| BackendTlsError::Bundle)?;
    }
    if roots.is_empty() { Err(BackendTlsError::Bundle) } else { Ok(Arc::new(roots)) }
}

/// Accepts any certificate: the mode `Insecure`. The other end must still have its key.
#[derive(Debug)]
struct Unverified(Arc<CryptoProvider>);

impl ServerCertVerifier for Unverified {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
