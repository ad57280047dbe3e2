//! The serving certificate of the edge's API, from a CA of its own, and the kubeconfigs for local components.
//!
//! The CA is made once and kept; the certificate is made at every start. No kubeconfig holds a credential: one refers to the certificate files of
//! a component, which brings and renews them, and one names none.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
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
use serde_json::{Value, json};

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
const COMPONENT_KUBECONFIG_FILE: &str = "component.kubeconfig";
// The CA is public; pods that mount the file run under any user.
const CA_MODE: u32 = 0o644;
// The names by which pods and components call the API server.
const NAMES: [&str; 5] = [
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
];

/// The files of a component's client certificate. The component owns them; they need not exist when the kubeconfig is written.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct ComponentCertificate {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

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
        std::fs::set_permissions(&ca_path, std::fs::Permissions::from_mode(CA_MODE))?;
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

    /// The CA of the certificate, as in its file.
    pub fn ca_pem(&self) -> &str {
        &self.ca_pem
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

    /// Writes the kubeconfigs for local components: one without a credential, and one with the certificate files of a component.
    pub fn write_kubeconfigs(
        &self,
        folder: &Path,
        address: SocketAddr,
        component: &ComponentCertificate,
    ) -> io::Result<()> {
        let certificate = json!({"client-certificate": component.certificate, "client-key": component.key});
        for (file, user) in [(KUBECONFIG_FILE, json!({})), (COMPONENT_KUBECONFIG_FILE, certificate)] {
            let text = self.kubeconfig(address, &user);
            write_atomic(&folder.join(file), text.as_bytes())?;
        }
        Ok(())
    }

    /// The text of a kubeconfig. Values are JSON, which is YAML too, so that any path can stand in it.
    fn kubeconfig(&self, address: SocketAddr, user: &Value) -> String {
        let ca = STANDARD.encode(&self.ca_pem);
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: edge\nclusters:\n- name: edge\n  cluster:\n    server: https://{address}\n    \
             certificate-authority-data: {ca}\ncontexts:\n- name: edge\n  context: {{cluster: edge, user: component}}\nusers:\n\
             - name: component\n  user: {user}\n"
        )
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

#[cfg(test)]
mod tests {
    use rustls::pki_types::ServerName;
    use rustls::{ClientConfig, RootCertStore};
    use tokio_rustls::{TlsAcceptor, TlsConnector};

    use super::*;

    /// Returns true if a client that trusts the CA file of `folder` accepts the certificate under `name`.
    async fn is_accepted(folder: &Path, identity: &ServingIdentity, name: &str) -> bool {
        let mut roots = RootCertStore::empty();
        let ca = std::fs::read(folder.join(CA_FILE)).unwrap();
        for certificate in CertificateDer::pem_slice_iter(&ca) {
            roots.add(certificate.unwrap()).unwrap();
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let client =
            ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let client = client.with_root_certificates(roots).with_no_client_auth();
        let (near, far) = tokio::io::duplex(64 << 10);
        let accepting = TlsAcceptor::from(identity.tls(None).unwrap()).accept(far);
        let name = ServerName::try_from(name.to_owned()).unwrap();
        let (connected, _) =
            tokio::join!(TlsConnector::from(Arc::new(client)).connect(name, near), accepting);
        connected.is_ok()
    }

    #[tokio::test]
    async fn the_certificate_names_every_configured_address_and_its_ca_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let open = |addresses: &[&str]| {
            let addresses: Vec<IpAddr> = addresses.iter().map(|text| text.parse().unwrap()).collect();
            ServingIdentity::open(folder.path(), &addresses).unwrap()
        };
        let first = open(&["127.0.0.1"]);
        assert!(is_accepted(folder.path(), &first, "127.0.0.1").await);
        assert!(!is_accepted(folder.path(), &first, "169.254.20.11").await);
        let second = open(&["127.0.0.1", "169.254.20.11", "fe80::7"]);
        assert_eq!(first.ca_pem, second.ca_pem);
        for name in ["127.0.0.1", "169.254.20.11", "fe80::7", "kubernetes.default.svc"] {
            assert!(is_accepted(folder.path(), &second, name).await, "{name}");
        }
        let mode =
            |file: &str| std::fs::metadata(folder.path().join(file)).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(CA_FILE), mode(CA_KEY_FILE)), (0o644, 0o600));
    }

    #[test]
    fn the_kubeconfig_of_components_refers_to_their_own_files() {
        let folder = tempfile::tempdir().unwrap();
        let identity = ServingIdentity::open(folder.path(), &[]).unwrap();
        let component = ComponentCertificate {
            certificate: "/var/lib/kubelet/pki/kubelet-client-current.pem".into(),
            key: "/keys/a: \"b\" #c".into(),
        };
        let address = "127.0.0.1:6444".parse().unwrap();
        identity.write_kubeconfigs(folder.path(), address, &component).unwrap();
        let read = |file: &str| kube::config::Kubeconfig::read_from(folder.path().join(file)).unwrap();
        let user = |file: &str| read(file).auth_infos[0].auth_info.clone().unwrap();
        let found = user(COMPONENT_KUBECONFIG_FILE);
        assert_eq!(found.client_certificate.as_deref(), component.certificate.to_str());
        assert_eq!(found.client_key.as_deref(), component.key.to_str());
        assert_eq!(user(KUBECONFIG_FILE).client_certificate, None);
        for file in [KUBECONFIG_FILE, COMPONENT_KUBECONFIG_FILE] {
            let cluster = read(file).clusters[0].cluster.clone().unwrap();
            assert_eq!(cluster.server.as_deref(), Some("https://127.0.0.1:6444"));
            let ca = STANDARD.decode(cluster.certificate_authority_data.unwrap()).unwrap();
            assert_eq!(ca, identity.ca_pem.as_bytes());
        }
    }
}
