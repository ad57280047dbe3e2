//! Certificates of people and programs: signed on request, listed, and forgotten when they have ended.
//!
//! `identity/certificates/SERIAL` names the user, the role and the key; the private key is made by the client and
//! never comes here. The ones the cloud keeps in its data dir are listed too. They are revoked in `revoke`.

use std::time::{Duration, SystemTime};

use causeway_api::management::{CertificateSummary, IssuedUserCertificate};
use causeway_channel::clock::{UtcTimestamp, from_unix_seconds, unix_seconds};
use causeway_channel::key::CertificateRequest;
use causeway_channel::{CertificateFacts, KeyHash, pem};
use causeway_store::StoreError;
use rustls_pki_types::CertificateDer;
use serde::{Deserialize, Serialize};

use super::audit::AuditLine;
use super::authority::{ADMIN_LIFETIME, CertificateSubject, CloudServerName};
use super::follow;
use super::registrar::{Registrar, encode};
use super::token_admin::{TokenProblem, each};
use super::tokens::ApiRole;

pub const PREFIX: &str = "identity/certificates/";

pub fn store_key(serial: &str) -> String {
    format!("{PREFIX}{serial}")
}

/// Returns true for the form of a serial number of this CA. Any other text must not become part of a store key.
pub fn is_serial(text: &str) -> bool {
    (1..=40).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_hexdigit() && !byte.is_ascii_uppercase())
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CertificateRecord {
    pub user: String,
    /// The group that gives the role.
    pub group: String,
    /// The hash of its key.
    pub key: String,
    pub created: i64,
    pub expires: i64,
}

impl CertificateRecord {
    fn of(facts: &CertificateFacts) -> CertificateRecord {
        CertificateRecord {
            user: facts.common_name.clone(),
            group: facts.organizations.first().cloned().unwrap_or_default(),
            key: facts.key.to_string(),
            created: unix_seconds(facts.not_before),
            expires: unix_seconds(facts.not_after),
        }
    }

    pub fn is_forgettable(&self, now: SystemTime) -> bool {
        now > from_unix_seconds(self.expires)
    }
}

/// The longest name of a user: X.520 ends a common name there.
const USER_CHARS_MAX: usize = 64;

impl Registrar {
    /// Signs a certificate for the API over the key of `csr`. The names in the request do not matter.
    pub async fn issue_certificate(
        &self,
        role: ApiRole,
        user: &str,
        ttl: Duration,
        csr: &[u8],
    ) -> Result<IssuedUserCertificate, TokenProblem> {
        let invalid = |field, why: String| TokenProblem::Invalid { field, why };
        check_user(user).map_err(|why| invalid("user", why.to_owned()))?;
        if ttl < Duration::from_secs(1) || ttl > ADMIN_LIFETIME {
            return Err(invalid("ttl", "must be from one second to a year".to_owned()));
        }
        let request = CertificateRequest::read(csr).map_err(|error| invalid("csr", error.to_string()))?;
        if self.is_revoked(&request.key) {
            return Err(invalid("csr", "its key was revoked: make another one".to_owned()));
        }
        let cas = self.cas.load_full();
        let subject = CertificateSubject::User { name: user.to_owned(), organization: role.group() };
        let signed = cas.issuing().sign(&subject, &request.spki, self.now(), ttl);
        let signed = signed.map_err(|error| StoreError::Unavailable {
            reason: "the CA cannot sign".to_owned(),
            source: Some(std::sync::Arc::new(error)),
        })?;
        let record = CertificateRecord {
            user: user.to_owned(),
            group: role.group().to_owned(),
            key: request.key.to_string(),
            created: unix_seconds(self.now()),
            expires: unix_seconds(signed.not_after),
        };
        // Listed before it is sent.
        self.store.create(&store_key(&signed.serial), encode(&record)).await?;
        self.audit(&AuditLine {
            event: "certificate-created",
            subject: user,
            key: &record.key,
            reason: &signed.serial,
            ..AuditLine::default()
        });
        let name = |name: &CloudServerName| match name {
            CloudServerName::Dns(name) => name.clone(),
            CloudServerName::Ip(address) => address.to_string(),
        };
        Ok(IssuedUserCertificate {
            serial: signed.serial,
            user: user.to_owned(),
            role,
            expires: UtcTimestamp(signed.not_after).to_string(),
            certificate: pem::encode(std::slice::from_ref(&signed.certificate)),
            authorities: pem::encode(&cas.bundle()),
            server: self.config.api_url.clone(),
            names: super::registrar::names(&self.config).iter().map(name).collect(),
        })
    }

    /// Every certificate of a person or a program that has not ended, oldest first.
    pub async fn certificates(&self) -> Result<Vec<CertificateSummary>, StoreError> {
        let now = self.now();
        let (records, _) = follow::snapshot(&self.store, PREFIX).await?;
        let mut listed: Vec<(String, CertificateRecord)> = each(&records, PREFIX).collect();
        listed.sort_by(|a, b| (a.1.created, &a.0).cmp(&(b.1.created, &b.0)));
        let summary = |(serial, record): (String, CertificateRecord)| CertificateSummary {
            serial,
            revoked: KeyHash::from_hex(&record.key).is_some_and(|key| self.is_revoked(&key)),
            created: UtcTimestamp(from_unix_seconds(record.created)).to_string(),
            expires: UtcTimestamp(from_unix_seconds(record.expires)).to_string(),
            expired: record.is_forgettable(now),
            user: record.user,
            group: record.group,
        };
        Ok(listed.into_iter().map(summary).collect())
    }

    /// Lists a certificate that the cloud made for its own data dir.
    pub(super) async fn list_own_certificate(
        &self,
        certificate: &CertificateDer<'_>,
    ) -> Result<(), StoreError> {
        let Ok(facts) = CertificateFacts::read(certificate) else { return Ok(()) };
        let key = store_key(&facts.serial);
        if self.store.get(&key).await?.is_some() {
            return Ok(());
        }
        match self.store.create(&key, encode(&CertificateRecord::of(&facts))).await {
            Ok(_) | Err(StoreError::AlreadyExists { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// Names that the API reserves are not available to users.
fn check_user(user: &str) -> Result<(), &'static str> {
    if user.is_empty() || user.chars().count() > USER_CHARS_MAX {
        return Err("must have 1 to 64 characters");
    }
    if !user.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.@+".contains(&byte)) {
        return Err("may hold letters, digits and - _ . @ + only");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_and_serials_are_plain() {
        for (user, is_good) in
            [("ann", true), ("ann@example.org", true), ("", false), ("system:masters", false), ("a b", false)]
        {
            assert_eq!(check_user(user).is_ok(), is_good, "{user}");
        }
        assert!(check_user(&"a".repeat(65)).is_err());
        for (serial, is_good) in
            [("4f00", true), ("", false), ("../ca", false), ("4F00", false), (&"a".repeat(41), false)]
        {
            assert_eq!(is_serial(serial), is_good, "{serial}");
        }
    }
}
