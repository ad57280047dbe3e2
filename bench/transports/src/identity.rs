//! One certificate for both ends, and the TLS configurations made from it.
//!
//! Every transport authenticates both ends, as the product does. The certificate is its own trust anchor:
//! what is compared is the cost of moving bytes, not of long chains.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

pub const SERVER_NAME: &str = "peer.invalid";

/// Writes a new certificate and its key into `folder`.
pub fn create(folder: &Path) -> Result<()> {
    let made = rcgen::generate_simple_self_signed(vec![SERVER_NAME.to_owned()])?;
    fs::create_dir_all(folder)?;
    fs::write(folder.join("certificate.pem"), made.cert.pem())?;
    fs::write(folder.join("key.pem"), made.signing_key.serialize_pem())?;
    Ok(())
}

pub struct Identity {
    certificate: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
    roots: Arc<RootCertStore>,
}

impl Identity {
    pub fn load(folder: &Path) -> Result<Identity> {
        let certificate = CertificateDer::from_pem_file(folder.join("certificate.pem"))
            .context("no certificate: run `transports identity` first")?;
        let key = PrivateKeyDer::from_pem_file(folder.join("key.pem"))?;
        let mut roots = RootCertStore::empty();
        roots.add(certificate.clone())?;
        Ok(Identity { certificate, key, roots: Arc::new(roots) })
    }

    pub fn server(&self, alpn: &str) -> Result<ServerConfig> {
        let verifier = WebPkiClientVerifier::builder_with_provider(self.roots.clone(), provider()).build()?;
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_client_cert_verifier(verifier)
            .with_single_cert(vec![self.certificate.clone()], self.key.clone_key())?;
        config.alpn_protocols = vec![alpn.as_bytes().to_vec()];
        Ok(config)
    }

    pub fn client(&self, alpn: &str) -> Result<ClientConfig> {
        let mut config = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_root_certificates(self.roots.clone())
            .with_client_auth_cert(vec![self.certificate.clone()], self.key.clone_key())?;
        config.alpn_protocols = vec![alpn.as_bytes().to_vec()];
        Ok(config)
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}
