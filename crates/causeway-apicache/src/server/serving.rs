//! The serving certificate of the edge's API, from a CA of its own, and the kubeconfig for local components.
//!
//! The CA is made once and kept; the certificate is made at every start. The kubeconfig holds no credential: a component
//! brings its own.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use causeway_daemon::data_dir::write_atomic;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use rustls::ServerConfig;
use rustls::server::WebPkiClientVerifier;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

#[derive(Debug, thiserror::Error)]
pub enum ServingFilesError {
    #[error("a file of the API at the edge cannot be read or written")]
    File(#[from] io::Error),
    #[error("a certificate of the API at the edge cannot be made")]
    Certificate(#[from] rcgen::Error),
    #[error("the TLS configuration of the API at the edge is wrong")]
    Tls(#[from] rustls::Error),
    #[error("the client CA of the cluster cannot be used: {0}")]
    ClientCa(String),
}

const CA_FILE: &str = "ca.pem";
const CA_KEY_FILE: &str = "ca.key";
const KUBECONFIG_FILE: &str = "kubeconfig";
// The names by which pods and components call the API server.
const NAMES: [&str; 5] = [
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
];

/// The certificate and key that the API serves with.
pub struct ServingIdentity {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    ca_pem: String,
}

impl ServingIdentity {
    /// Reads or makes the CA in `folder`, and makes a certificate for `addresses`.
    pub fn open(folder: &Path, addresses: &[IpAddr]) -> Result<ServingIdentity, ServingFilesError> {
        causeway_daemon::data_dir::make_folder(folder)?;
        let (ca_path, key_path) = (folder.join(CA_FILE), folder.join(CA_KEY_FILE));
        if !ca_path.exists() || !key_path.exists() {
            make_ca(&ca_path, &key_path)?;
        }
        let ca_pem = std::fs::read_to_string(&ca_path)?;
        let issuer =
            Issuer::from_ca_cert_pem(&ca_pem, KeyPair::from_pem(&std::fs::read_to_string(&key_path)?)?)?;
        let mut names: Vec<String> = NAMES.iter().map(|name| (*name).to_owned()).collect();
        names.extend(addresses.iter().map(ToString::to_string));
        let mut params = CertificateParams::new(names)?;
        params.distinguished_name.push(DnType::CommonName, "causeway edge API");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &issuer)?;
        let key = PrivateKeyDer::try_from(key.serialize_der())
            .map_err(|error| io::Error::other(error.to_owned()))?;
        Ok(ServingIdentity { chain: vec![certificate.der().clone()], key, ca_pem })
    }

    /// The TLS configuration. With the cluster's client CA, client certificates are verified; without one they are not
    /// asked for.
    pub fn tls(&self, client_ca: Option<&str>) -> Result<Arc<ServerConfig>, ServingFilesError> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder =
            ServerConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions()?;
        let builder = match client_ca {
            None => builder.with_no_client_auth(),
            Some(pem) => {
                let mut roots = rustls::RootCertStore::empty();
                for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
                    let certificate =
                        certificate.map_err(|error| ServingFilesError::ClientCa(error.to_string()))?;
                    roots.add(certificate).map_err(|error| ServingFilesError::ClientCa(error.to_string()))?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                let verifier = verifier.allow_unauthenticated().build();
                builder.with_client_cert_verifier(
                    verifier.map_err(|error| ServingFilesError::ClientCa(error.to_string()))?,
                )
            }
        };
        let mut config = builder.with_single_cert(self.chain.clone(), self.key.clone_key())?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }

    /// Writes the kubeconfig for local components.
    pub fn write_kubeconfig(&self, folder: &Path, address: SocketAddr) -> io::Result<()> {
        let ca = STANDARD.encode(&self.ca_pem);
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: edge\nclusters:\n- name: edge\n  cluster:\n    server: https://{address}\n    \
             certificate-authority-data: {ca}\ncontexts:\n- name: edge\n  context: {{cluster: edge, user: component}}\nusers:\n\
             - name: component\n  user: {{}}\n"
        );
        write_atomic(&folder.join(KUBECONFIG_FILE), text.as_bytes())
    }
}

fn make_ca(ca_path: &Path, key_path: &Path) -> Result<(), ServingFilesError> {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "causeway edge API CA");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let key = KeyPair::generate()?;
    let certificate = params.self_signed(&key)?;
    write_atomic(key_path, key.serialize_pem().as_bytes())?;
    write_atomic(ca_path, certificate.pem().as_bytes())?;
    Ok(())
}
