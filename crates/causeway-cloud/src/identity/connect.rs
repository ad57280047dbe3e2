//! Authenticates CONNECT requests from the network: certificates of our own CA that are valid for CONNECT alone.
//!
//! The cloud keeps one ready in its data dir while the CONNECT listener is open, in the form that kube-apiserver and Prometheus read: a file
//! with key and certificate, and one with the CAs. It is made anew when it is old, was revoked, or comes from a CA of yesterday.

use std::io;
use std::path::Path;
use std::time::SystemTime;

use causeway_apiserver::AuthFailure;
use causeway_channel::{CertificateFacts, PrivateKey, pem, tls};
use causeway_daemon::data_dir::{make_folder, write_atomic};
use rustls_pki_types::CertificateDer;

use super::authority::{ADMIN_LIFETIME, CertificateSubject};
use super::ca_store::CaSet;
use super::kubeconfig::KubeconfigError;
use super::registrar::Registrar;
use super::revocation::Revocations;
use super::serving::spki;
use super::tokens::ADMIN_GROUP;

/// The organisation in such a certificate. The API knows no role for it.
pub const GROUP: &str = "causeway:connect";
/// In the data dir.
pub const FOLDER: &str = "connect";
/// Key and certificate in one file, so that they always belong together.
const CLIENT: &str = "client.pem";
const AUTHORITIES: &str = "ca.pem";

/// Makes the files fit. Says whether the client's was written.
pub fn reconcile(
    folder: &Path,
    cas: &CaSet,
    revocations: &Revocations,
    now: SystemTime,
) -> Result<bool, KubeconfigError> {
    let (client, authorities) = (folder.join(CLIENT), folder.join(AUTHORITIES));
    let failed = |path: &Path, action| {
        let path = path.to_owned();
        move |source| KubeconfigError::File { path, action, source }
    };
    make_folder(folder).map_err(failed(folder, "made"))?;
    let bundle = pem::encode(&cas.bundle());
    if std::fs::read(&authorities).ok().as_deref() != Some(bundle.as_bytes()) {
        write_atomic(&authorities, bundle.as_bytes()).map_err(failed(&authorities, "written"))?;
    }
    match std::fs::read(&client) {
        Ok(text) if is_good(&text, cas, revocations, now) => return Ok(false),
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed(&client, "read")(error)),
    }
    let key = PrivateKey::generate()?;
    let subject = CertificateSubject::User { name: "connect".to_owned(), organization: GROUP };
    let signed = cas.issuing().sign(&subject, &spki(&key)?, now, ADMIN_LIFETIME)?;
    let text = format!("{}{}", key.to_pem(), pem::encode(std::slice::from_ref(&signed.certificate)));
    write_atomic(&client, text.as_bytes()).map_err(failed(&client, "written"))?;
    Ok(true)
}

/// The client's certificate in the folder; `None` when there is none that can be read.
pub fn certificate(folder: &Path) -> Option<CertificateDer<'static>> {
    pem::decode(&std::fs::read(folder.join(CLIENT)).ok()?)?.into_iter().next()
}

fn is_good(text: &[u8], cas: &CaSet, revocations: &Revocations, now: SystemTime) -> bool {
    let certificates = pem::decode(text).unwrap_or_default();
    let [certificate] = &certificates[..] else { return false };
    let Ok(facts) = CertificateFacts::read(certificate) else { return false };
    !revocations.contains(&facts.key)
        && !super::is_past_two_thirds(facts.not_before, facts.not_after, now)
        && tls::verify_client(certificate, &[cas.issuing().certificate().clone()]).is_ok()
}

impl Registrar {
    /// Returns whether this certificate may use CONNECT. Administrators may.
    pub fn may_connect(&self, shown: Option<&CertificateDer<'_>>) -> Result<(), AuthFailure> {
        let leaf = shown.ok_or_else(|| AuthFailure::Malformed("there is no certificate".to_owned()))?;
        let facts =
            CertificateFacts::read(leaf).map_err(|error| AuthFailure::Malformed(error.to_string()))?;
        let has = |group: &str| facts.organizations.iter().any(|organization| organization == group);
        if facts.peer.is_some() || !(has(GROUP) || has(ADMIN_GROUP)) {
            return Err(AuthFailure::Unknown);
        }
        let now = self.now();
        if now < facts.not_before {
            return Err(AuthFailure::NotYetValid);
        }
        if now > facts.not_after {
            return Err(AuthFailure::Expired);
        }
        if self.is_revoked(&facts.key) {
            return Err(AuthFailure::Revoked);
        }
        // By a CA of now; the handshake may have begun with one of yesterday.
        tls::verify_client(leaf, &self.cas.load().bundle()).map_err(|_| AuthFailure::Unknown)
    }
}
