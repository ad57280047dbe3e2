//! Revokes gateways and certificates: their keys are refused from then on, open join tokens are closed.
//!
//! Every step is one commit upon records of the store; when a method returns, what it did is also in the revocation log,
//! which survives the store. Open sessions hear of it through `revocation`.

use std::collections::BTreeMap;

use causeway_api::management::{RevokedCertificate, RevokedGateway};
use causeway_apiserver::Identity;
use causeway_channel::clock::unix_seconds;
use causeway_channel::{KeyHash, PeerId};
use causeway_store::{Op, Revision, StoreError, StoreRecord};

use super::access::Credential;
use super::audit::AuditLine;
use super::certificates::{self, CertificateRecord};
use super::follow;
use super::gateways::{self, GatewayRecord};
use super::registrar::{ATTEMPTS_MAX, Registrar, encode};
use super::revocation::{self, RevocationReason, RevocationRecord};
use super::revocation_log::RevocationEntry;
use super::token_admin::{TokenProblem, busy, each};
use super::tokens::{self, JoinTokenRecord};

/// The treatment of open join tokens of a gateway that is revoked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenTokens {
    Close,
    Keep,
}

impl Registrar {
    /// Puts a gateway out: its key and its open tokens are not believed by any replica within a second.
    pub async fn revoke_gateway(
        &self,
        gateway: &str,
        open_tokens: OpenTokens,
    ) -> Result<RevokedGateway, TokenProblem> {
        let unknown = || TokenProblem::Invalid {
            field: "gateway",
            why: format!("{gateway:?} was never enrolled; `causeway get egateways` shows all gateways"),
        };
        PeerId::new("any", gateway).map_err(|_| unknown())?;
        // The tokens first: an open one could bring another key.
        let (tokens, closed) = match open_tokens {
            OpenTokens::Close => self.close_tokens(gateway, None).await?,
            OpenTokens::Keep => Default::default(),
        };
        let revoked = self.revoke_up_to(gateway, None).await?;
        let (keys, mut entries) = revoked.unwrap_or_default();
        if keys.is_empty() && tokens.is_empty() && self.gateway_record(gateway).await?.is_none() {
            return Err(unknown());
        }
        entries.extend(closed);
        self.log_revocation(entries, &format!("gateway {gateway} is out")).await?;
        Ok(RevokedGateway { gateway: gateway.to_owned(), keys, tokens })
    }

    /// Revokes the key of a certificate, by its serial number, or the one that `caller` has shown (`current`).
    pub async fn revoke_certificate(
        &self,
        serial: &str,
        caller: &Identity,
    ) -> Result<RevokedCertificate, TokenProblem> {
        let found = match serial {
            "current" => self.certificate_of(caller).await?,
            serial => self.listed_certificate(serial).await?,
        };
        let (serial, certificate) = found;
        let key = KeyHash::from_hex(&certificate.key)
            .ok_or_else(|| TokenProblem::NoCertificate { serial: serial.clone() })?;
        // A revocation names the key, so it lasts as long as the last certificate over that key.
        let (listed, _) = follow::snapshot(&self.store, certificates::PREFIX).await?;
        let until = each::<CertificateRecord>(&listed, certificates::PREFIX)
            .filter(|(_, other)| other.key == certificate.key)
            .map(|(_, other)| other.expires)
            .fold(certificate.expires, i64::max);
        let record = RevocationRecord {
            user: certificate.user.clone(),
            serial: serial.clone(),
            ..RevocationRecord::new("", RevocationReason::Revoked, self.now(), until)
        };
        self.store.put(&revocation::store_key(&key), record.encode()).await?;
        self.revocations.insert(key, record.clone());
        self.audit(&AuditLine {
            event: "certificate-revoked",
            subject: &certificate.user,
            key: &certificate.key,
            reason: &serial,
            ..AuditLine::default()
        });
        // The file in the data dir is rewritten at once, so that operators on this host are not locked out.
        if let Err(error) = self.refresh().await {
            let error = &error as &dyn std::error::Error;
            tracing::error!(error, "the admin kubeconfig cannot be made anew; trying again in a minute");
        }
        let entry = RevocationEntry::Key { key: certificate.key.clone(), record };
        self.log_revocation(vec![entry], &format!("certificate {serial} is not believed")).await?;
        Ok(RevokedCertificate { serial, user: certificate.user, key: certificate.key })
    }

    async fn certificate_of(&self, caller: &Identity) -> Result<(String, CertificateRecord), TokenProblem> {
        let credential = caller.credential.as_deref().and_then(Credential::parse);
        let Some(Credential::Certificate { key, expires, .. }) = credential else {
            let why = "`current` means the certificate you show, and you showed a token: delete that (`causeway token delete`)";
            return Err(TokenProblem::Invalid { field: "certificate", why: why.to_owned() });
        };
        let (listed, _) = follow::snapshot(&self.store, certificates::PREFIX).await?;
        let same = |(_, certificate): &(String, CertificateRecord)| certificate.key == key.to_string();
        let found = each::<CertificateRecord>(&listed, certificates::PREFIX).find(same);
        // Certificates from before the list are revoked by their key all the same.
        Ok(found.unwrap_or_else(|| {
            let certificate = CertificateRecord {
                user: caller.user.clone(),
                group: caller.groups.first().cloned().unwrap_or_default(),
                key: key.to_string(),
                created: 0,
                expires,
            };
            ("current".to_owned(), certificate)
        }))
    }

    async fn listed_certificate(&self, serial: &str) -> Result<(String, CertificateRecord), TokenProblem> {
        let missing = || TokenProblem::NoCertificate { serial: serial.chars().take(64).collect() };
        if !certificates::is_serial(serial) {
            return Err(missing());
        }
        let found = self.load::<CertificateRecord>(&certificates::store_key(serial)).await?;
        found.map(|(certificate, _)| (serial.to_owned(), certificate)).ok_or_else(missing)
    }

    /// The names of gateways that could come to the cloud, with a key that is believed or a token that is open, and the
    /// revision of the oldest of these.
    pub async fn admitted(&self) -> Result<BTreeMap<String, Revision>, StoreError> {
        let now = self.now();
        let (enrolled, _) = follow::snapshot(&self.store, gateways::PREFIX).await?;
        let (join, _) = follow::snapshot(&self.store, tokens::JOIN_PREFIX).await?;
        let mut admitted: BTreeMap<String, Revision> = BTreeMap::new();
        let mut admit = |gateway: &str, revision: Revision| {
            let oldest = admitted.entry(gateway.to_owned()).or_insert(revision);
            *oldest = revision.min(*oldest);
        };
        for record in &enrolled {
            let gateway = record.key.strip_prefix(gateways::PREFIX);
            let has_key = serde_json::from_slice::<GatewayRecord>(&record.value)
                .is_ok_and(|gateway| gateway.key.is_some());
            if let Some(gateway) = gateway.filter(|_| has_key) {
                admit(gateway, record.revision);
            }
        }
        for record in &join {
            if let Ok(token) = serde_json::from_slice::<JoinTokenRecord>(&record.value)
                && token.is_open(now)
            {
                admit(&token.gateway, record.created);
            }
        }
        Ok(admitted)
    }

    /// Revokes the open tokens and the key that a gateway was given up to a revision. Later credentials stay
    /// valid, so that a gateway may be deleted and created again.
    pub async fn dismiss_gateway(&self, gateway: &str, upto: Revision) -> Result<(), TokenProblem> {
        let (_, mut entries) = self.close_tokens(gateway, Some(upto)).await?;
        entries.extend(
            self.revoke_up_to(gateway, Some(upto)).await?.map(|(_, entries)| entries).unwrap_or_default(),
        );
        match self.log_revocation(entries, &format!("gateway {gateway} is out")).await {
            // The gateway is out; doing it again would not write the log.
            Err(problem @ TokenProblem::NotLogged { .. }) => {
                tracing::error!(
                    error = &problem as &dyn std::error::Error,
                    gateway,
                    "the deleted gateway is revoked, but the revocation log cannot be written"
                );
                Ok(())
            }
            logged => logged,
        }
    }

    /// Closes the open tokens of a gateway that were made up to a revision. Returns their ids.
    async fn close_tokens(
        &self,
        gateway: &str,
        upto: Option<Revision>,
    ) -> Result<(Vec<String>, Vec<RevocationEntry>), TokenProblem> {
        let now = self.now();
        let (join, _) = follow::snapshot(&self.store, tokens::JOIN_PREFIX).await?;
        let is_meant = |record: &StoreRecord| upto.is_none_or(|upto| record.created <= upto);
        let made: Vec<StoreRecord> = join.into_iter().filter(is_meant).collect();
        let (mut ids, mut entries) = (Vec::new(), Vec::new());
        for (id, token) in each::<JoinTokenRecord>(&made, tokens::JOIN_PREFIX) {
            if token.gateway == gateway
                && token.is_open(now)
                && let Some(entry) = self.close_token(&id).await?
            {
                ids.push(id);
                entries.push(entry);
            }
        }
        Ok((ids, entries))
    }

    /// `None`: it was closed meanwhile.
    async fn close_token(&self, id: &str) -> Result<Option<RevocationEntry>, TokenProblem> {
        let key = super::registrar::join_key(id);
        for _ in 0..ATTEMPTS_MAX {
            let Some((mut record, revision)) = self.load::<JoinTokenRecord>(&key).await? else {
                return Ok(None);
            };
            let now = self.now();
            if !record.is_open(now) {
                return Ok(None);
            }
            record.deleted = Some(unix_seconds(now));
            match self.store.update(&key, encode(&record), revision).await {
                Ok(_) => {
                    self.audit(&AuditLine { event: "token-deleted", reason: id, ..AuditLine::default() });
                    return Ok(RevocationEntry::of_join_token(id, &record));
                }
                Err(StoreError::Conflict { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(busy(id).into())
    }

    async fn gateway_record(&self, gateway: &str) -> Result<Option<GatewayRecord>, StoreError> {
        let found = self.load::<GatewayRecord>(&gateways::store_key(gateway)).await?;
        Ok(found.map(|(record, _)| record))
    }

    /// Revokes the key of a gateway, unless it was enrolled again behind `upto`. `None`: it was never enrolled.
    async fn revoke_up_to(
        &self,
        gateway: &str,
        upto: Option<Revision>,
    ) -> Result<Option<(Vec<String>, Vec<RevocationEntry>)>, TokenProblem> {
        let key = gateways::store_key(gateway);
        for _ in 0..ATTEMPTS_MAX {
            let Some((record, revision)) = self.load::<GatewayRecord>(&key).await? else {
                return Ok(None);
            };
            let hash = record.key.as_deref().and_then(KeyHash::from_hex);
            let Some(hash) = hash.filter(|_| upto.is_none_or(|upto| revision <= upto)) else {
                return Ok(Some((Vec::new(), Vec::new())));
            };
            let now = self.now();
            let revocation = RevocationRecord {
                site: record.site.clone(),
                ..RevocationRecord::new(gateway, RevocationReason::Revoked, now, record.expires)
            };
            let ops = vec![
                Op::Update { key: key.clone(), value: record.revoked(now).encode(), expected: revision },
                Op::Put { key: revocation::store_key(&hash), value: revocation.encode() },
            ];
            match self.store.commit(ops).await {
                Ok(_) => {
                    self.revocations.insert(hash, revocation.clone());
                    self.audit(&AuditLine {
                        event: "revoked",
                        site: &record.site,
                        gateway,
                        key: &hash.to_string(),
                        ..AuditLine::default()
                    });
                    let entry = RevocationEntry::Key { key: hash.to_string(), record: revocation };
                    return Ok(Some((vec![hash.to_string()], vec![entry])));
                }
                Err(StoreError::Conflict { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(busy(gateway).into())
    }
}
