//! The admin kubeconfig in the data dir: the first credential of a new cloud.
//!
//! Made at first start, looked at again whenever something could have changed it, and written anew when the
//! certificate in it is old, was revoked, comes from a CA of yesterday, or the address of the API is another.

use std::io;
use std::path::Path;
use std::time::SystemTime;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use causeway_channel::key::KeyError;
use causeway_channel::{CertificateFacts, PrivateKey, pem, tls};
use causeway_daemon::data_dir::write_atomic;
use rustls_pki_types::CertificateDer;

use super::authority::{ADMIN_LIFETIME, AuthorityError, CertificateSubject};
use super::ca_store::CaSet;
use super::revocation::Revocations;
use super::serving::spki;
use super::tokens::ADMIN_GROUP;

pub const FILE: &str = "admin.kubeconfig";

#[derive(Debug, thiserror::Error)]
pub enum KubeconfigError {
    #[error("the admin kubeconfig {} cannot be {action}", path.display())]
    File { path: std::path::PathBuf, action: &'static str, source: io::Error },
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    #[error(transparent)]
    Key(#[from] KeyError),
}

/// Makes the file fit. Says whether it was written.
pub fn reconcile(
    path: &Path,
    server: &str,
    cas: &CaSet,
    revocations: &Revocations,
    now: SystemTime,
) -> Result<bool, KubeconfigError> {
    let failed = |action| move |source| KubeconfigError::File { path: path.to_owned(), action, source };
    match std::fs::read_to_string(path) {
        Ok(text) if is_good(&text, server, cas, revocations, now) => return Ok(false),
        Ok(_) => {}
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidData) => {}
        Err(error) => return Err(failed("read")(error)),
    }
    let key = PrivateKey::generate()?;
    let admin = CertificateSubject::User { name: "admin".to_owned(), organization: ADMIN_GROUP };
    let signed = cas.issuing().sign(&admin, &spki(&key)?, now, ADMIN_LIFETIME)?;
    let text = write(server, &cas.bundle(), &signed.certificate, &key);
    write_atomic(path, text.as_bytes()).map_err(failed("written"))?;
    Ok(true)
}

/// The certificate in the file; `None` when there is none that can be read.
pub fn certificate(path: &Path) -> Option<CertificateDer<'static>> {
    let text = std::fs::read_to_string(path).ok()?;
    let data = text.lines().find_map(|line| line.trim().strip_prefix("client-certificate-data: "))?;
    pem::decode(&STANDARD.decode(data).ok()?)?.into_iter().next()
}

fn write(
    server: &str,
    bundle: &[CertificateDer<'_>],
    certificate: &CertificateDer<'_>,
    key: &PrivateKey,
) -> String {
    text(
        server,
        "admin",
        &pem::encode(bundle),
        &pem::encode(std::slice::from_ref(certificate)),
        &key.to_pem(),
    )
}

/// A kubeconfig with one cluster, one user and one context. CAs, certificate and key are PEM.
pub fn text(server: &str, user: &str, authorities: &str, certificate: &str, key: &str) -> String {
    let authorities = STANDARD.encode(authorities);
    let certificate = STANDARD.encode(certificate);
    let key = STANDARD.encode(key);
    format!(
        "apiVersion: v1\n\
         kind: Config\n\
         clusters:\n\
         - name: causeway\n\
         \x20 cluster:\n\
         \x20   server: {server}\n\
         \x20   certificate-authority-data: {authorities}\n\
         users:\n\
         - name: {user}\n\
         \x20 user:\n\
         \x20   client-certificate-data: {certificate}\n\
         \x20   client-key-data: {key}\n\
         contexts:\n\
         - name: causeway\n\
         \x20 context:\n\
         \x20   cluster: causeway\n\
         \x20   user: {user}\n\
         current-context: causeway\n"
    )
}

// Causeway writes the file and knows its form, so its lines are compared instead of parsing YAML. A file that
// was edited into another form is written again.
fn is_good(text: &str, server: &str, cas: &CaSet, revocations: &Revocations, now: SystemTime) -> bool {
    let field = |name: &str| {
        text.lines().find_map(|line| line.trim().strip_prefix(name)?.strip_prefix(':')).map(str::trim)
    };
    let data = |name: &str| STANDARD.decode(field(name)?).ok();
    let certificates = |name: &str| pem::decode(&data(name)?);
    let check = || -> Option<bool> {
        let [certificate] = &certificates("client-certificate-data")?[..] else { return None };
        let facts = CertificateFacts::read(certificate).ok()?;
        let key = PrivateKey::from_pem(&String::from_utf8(data("client-key-data")?).ok()?).ok()?;
        Some(
            field("server")? == server
                && certificates("certificate-authority-data")? == cas.bundle()
                && facts.key == key.hash()
                && facts.organizations == [ADMIN_GROUP]
                && !revocations.contains(&facts.key)
                && !super::is_past_two_thirds(facts.not_before, facts.not_after, now)
                && tls::verify_client(certificate, &[cas.issuing().certificate().clone()]).is_ok(),
        )
    };
    check().unwrap_or(false)
}
