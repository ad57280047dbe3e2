//! TLS to collectors: trusted roots from a file or of the host, and a client certificate where one is named.
//!
//! Files are read for each connection, so that renewed certificates need no restart.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::CollectorError;

/// The certificates of one destination.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// The CA of the collector. None: those that the host trusts.
    pub ca: Option<PathBuf>,
    /// The client certificate and its key.
    pub client: Option<(PathBuf, PathBuf)>,
}

pub async fn connect(
    files: &TlsFiles,
    host: &str,
    stream: TcpStream,
) -> Result<TlsStream<TcpStream>, CollectorError> {
    let name = ServerName::try_from(host.trim_matches(['[', ']']).to_owned())
        .map_err(|_| CollectorError::Host(host.to_owned()))?;
    let config = client_config(files)?;
    Ok(TlsConnector::from(Arc::new(config)).connect(name, stream).await?)
}

fn client_config(files: &TlsFiles) -> Result<ClientConfig, CollectorError> {
    let mut roots = RootCertStore::empty();
    match &files.ca {
        Some(path) => {
            for certificate in certificates(path)? {
                roots.add(certificate)?;
            }
        }
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots);
    Ok(match &files.client {
        Some((certificate, key)) => {
            let text = read(key)?;
            let key = PrivateKeyDer::from_pem_slice(&text)
                .map_err(|_| CollectorError::Pem { path: key.clone() })?;
            builder.with_client_auth_cert(certificates(certificate)?, key)?
        }
        None => builder.with_no_client_auth(),
    })
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, CollectorError> {
    let text = read(path)?;
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    read.ok().filter(|found| !found.is_empty()).ok_or_else(|| CollectorError::Pem { path: path.to_owned() })
}

fn read(path: &Path) -> Result<Vec<u8>, CollectorError> {
    std::fs::read(path).map_err(|source| CollectorError::File { path: path.to_owned(), source })
}
