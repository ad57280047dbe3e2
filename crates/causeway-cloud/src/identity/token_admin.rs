//! Creates, lists and deletes tokens.
//!
//! The token actions of the API, as methods of the registrar. Each is one decision on records of the store and one
//! commit. `tokens` judges a presented token, `revoke` revokes gateways.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use causeway_api::management::{TokenKind, TokenSummary};
use causeway_channel::clock::{UtcTimestamp, from_unix_seconds, unix_seconds};
use causeway_channel::{JoinToken, PeerId, TokenSecret};
use causeway_store::{Op, StoreError, StoreRecord};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::audit::AuditLine;
use super::follow;
use super::registrar::{ATTEMPTS_MAX, Registrar, api_key, encode, join_key};
use super::revocation_log::RevocationEntry;
use super::tokens::{self, ApiRole, ApiTokenRecord, DeletedApiToken, JoinTokenRecord, OnEnrolled};

/// Why a token was not made, found or deleted.
#[derive(Debug, thiserror::Error)]
pub enum TokenProblem {
    #[error("{field}: {why}")]
    Invalid { field: &'static str, why: String },
    #[error("there is no token {id:?}")]
    NotFound { id: String },
    #[error(
        "gateway {gateway} is enrolled (its certificate lasts until {until}): when another host joins under its name, its key is revoked and it is put out for good; \
         for a second host choose another name (--gateway NAME2), to replace the host that is enrolled say --replace"
    )]
    Enrolled { gateway: String, until: String },
    #[error("there is no certificate {serial:?} in the list (`causeway kubeconfig --list`)")]
    NoCertificate { serial: String },
    /// It is in force, and a restored backup would undo it.
    #[error(
        "{what} from now on, but the revocation log {} cannot be written, so that restoring a backup would undo it: \
         make room there; the cloud tries again every minute", path.display()
    )]
    NotLogged { what: String, path: PathBuf, source: std::io::Error },
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A join token just made. This is the only time its text exists at the cloud; `Debug` does not show it.
#[derive(Debug, Clone)]
pub struct IssuedJoinToken {
    pub id: String,
    pub token: JoinToken,
    pub expires: SystemTime,
    pub uses: u32,
    /// The gateway that is enrolled now and is put out when the token is used.
    pub replaces: Option<EnrolledGateway>,
}

/// A gateway that has a certificate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct EnrolledGateway {
    pub gateway: String,
    /// When its certificate ends.
    pub until: String,
}

/// An API token just made. `text` is the secret.
#[derive(Clone)]
pub struct IssuedApiToken {
    pub id: String,
    pub text: String,
    pub role: ApiRole,
    pub expires: SystemTime,
}

impl Registrar {
    /// Checks that such a join token can be made, before its objects are made: a refusal leaves nothing behind.
    pub fn validate_new_join_token(
        &self,
        site: &str,
        gateway: &str,
        ttl: Duration,
        uses: u32,
    ) -> Result<PeerId, TokenProblem> {
        let invalid = |field, why: String| TokenProblem::Invalid { field, why };
        let peer = PeerId::new(site, gateway).map_err(|error| invalid("site, gateway", error.to_string()))?;
        check_ttl(ttl)?;
        if uses != 1 {
            let why = "must be 1: a gateway has one key, so a second host that joins under the same name puts the first out; \
                       make one token for each host, under names of their own (--gateway NAME2)";
            return Err(invalid("uses", why.to_owned()));
        }
        if self.config.advertise.is_empty() {
            let why = "the cloud does not know its own endpoint; start it with --advertise";
            return Err(invalid("advertise", why.into()));
        }
        Ok(peer)
    }

    /// The gateway of this name, if it is enrolled and could come back by itself.
    pub async fn enrolled(&self, gateway: &str) -> Result<Option<EnrolledGateway>, TokenProblem> {
        let Some((record, _)) = self.current_gateway(gateway).await? else { return Ok(None) };
        let is_alive = record.is_alive(self.now(), self.config.grace);
        let until = UtcTimestamp(from_unix_seconds(record.expires)).to_string();
        Ok(is_alive.then(|| EnrolledGateway { gateway: gateway.to_owned(), until }))
    }

    /// Returns the end of the last certificate of a gateway. None: it has no valid key, because it was never enrolled or was
    /// revoked.
    pub async fn certificate_end(&self, gateway: &str) -> Result<Option<SystemTime>, StoreError> {
        let found = self.current_gateway(gateway).await?;
        let valid = found.filter(|(record, _)| record.key.is_some());
        Ok(valid.map(|(record, _)| from_unix_seconds(record.expires)))
    }

    /// Makes a join token for one gateway. The objects of site and gateway are the caller's business.
    pub async fn create_join_token(
        &self,
        site: &str,
        gateway: &str,
        ttl: Duration,
        on_enrolled: OnEnrolled,
    ) -> Result<IssuedJoinToken, TokenProblem> {
        let uses = 1;
        let peer = self.validate_new_join_token(site, gateway, ttl, uses)?;
        let replaces = self.enrolled(gateway).await?;
        if let (Some(enrolled), OnEnrolled::Refuse) = (&replaces, on_enrolled) {
            let EnrolledGateway { gateway, until } = enrolled.clone();
            return Err(TokenProblem::Enrolled { gateway, until });
        }
        let secret = TokenSecret::generate();
        let (id, now, authorities) = (tokens::id(&secret), self.now(), self.cas.load().ids());
        let record = JoinTokenRecord {
            replaces: on_enrolled == OnEnrolled::Replace,
            ..JoinTokenRecord::new(&secret, &peer, now, ttl, uses, &authorities)
        };
        self.store.create(&join_key(&id), encode(&record)).await?;
        self.audit(&AuditLine { event: "token-created", site, gateway, reason: &id, ..AuditLine::default() });
        let token = JoinToken { secret, endpoints: self.all_endpoints(), authorities, peer };
        Ok(IssuedJoinToken { id, token, expires: from_unix_seconds(record.expires), uses, replaces })
    }

    /// Makes a bearer token for the API.
    pub async fn create_api_token(
        &self,
        role: ApiRole,
        ttl: Duration,
    ) -> Result<IssuedApiToken, TokenProblem> {
        check_ttl(ttl)?;
        let secret = TokenSecret::generate();
        let id = tokens::id(&secret);
        let record = ApiTokenRecord::new(&secret, role, self.now(), ttl);
        self.store.create(&api_key(&id), encode(&record)).await?;
        self.audit(&AuditLine {
            event: "token-created",
            subject: role.group(),
            reason: &id,
            ..AuditLine::default()
        });
        Ok(IssuedApiToken {
            id,
            text: tokens::api_text(&secret),
            role,
            expires: from_unix_seconds(record.expires),
        })
    }

    /// Every token that was not deleted, oldest first.
    pub async fn tokens(&self) -> Result<Vec<TokenSummary>, StoreError> {
        let now = self.now();
        let (join, _) = follow::snapshot(&self.store, tokens::JOIN_PREFIX).await?;
        let (api, _) = follow::snapshot(&self.store, tokens::API_PREFIX).await?;
        let mut dated = Vec::new();
        for (id, record) in each::<JoinTokenRecord>(&join, tokens::JOIN_PREFIX) {
            if record.deleted.is_none() {
                dated.push((record.created, summary_of_join(id, record, now)));
            }
        }
        for (id, record) in each::<ApiTokenRecord>(&api, tokens::API_PREFIX) {
            dated.push((record.created, summary_of_api(id, &record, now)));
        }
        dated.sort_by(|a, b| (a.0, &a.1.id).cmp(&(b.0, &b.1.id)));
        Ok(dated.into_iter().map(|(_, summary)| summary).collect())
    }

    /// Deletes a token of either kind. It is worth nothing from now on.
    pub async fn delete_token(&self, id: &str) -> Result<(), TokenProblem> {
        let not_found = || TokenProblem::NotFound { id: id.chars().take(64).collect() };
        if !tokens::is_id(id) {
            return Err(not_found());
        }
        if self.delete_api_token(id).await? {
            return Ok(());
        }
        // A join token stays as a mark, so that a host that presents it is told that it was deleted.
        for _ in 0..ATTEMPTS_MAX {
            let Some((mut record, revision)) = self.load::<JoinTokenRecord>(&join_key(id)).await? else {
                return Err(not_found());
            };
            if record.deleted.is_some() {
                return Err(not_found());
            }
            record.deleted = Some(unix_seconds(self.now()));
            match self.store.update(&join_key(id), encode(&record), revision).await {
                Ok(_) => {
                    self.audit(&AuditLine { event: "token-deleted", reason: id, ..AuditLine::default() });
                    let closed = RevocationEntry::of_join_token(id, &record).into_iter().collect();
                    return self.log_revocation(closed, &format!("token {id} is worth nothing")).await;
                }
                Err(StoreError::Conflict { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(busy(id).into())
    }

    /// False: there is no API token of this id.
    async fn delete_api_token(&self, id: &str) -> Result<bool, TokenProblem> {
        for _ in 0..ATTEMPTS_MAX {
            let Some((record, revision)) = self.load::<ApiTokenRecord>(&api_key(id)).await? else {
                return Ok(false);
            };
            let deleted = DeletedApiToken { expires: record.expires };
            let ops = vec![
                Op::Delete { key: api_key(id), expected: Some(revision) },
                Op::Put { key: tokens::deleted_key(id), value: encode(&deleted) },
            ];
            match self.store.commit(ops).await {
                Ok(_) => {
                    self.audit(&AuditLine { event: "token-deleted", reason: id, ..AuditLine::default() });
                    let entry = RevocationEntry::ApiToken { id: id.to_owned(), expires: record.expires };
                    self.log_revocation(vec![entry], &format!("token {id} is worth nothing")).await?;
                    return Ok(true);
                }
                Err(StoreError::Conflict { .. } | StoreError::NotFound { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(busy(id).into())
    }
}

impl std::fmt::Debug for IssuedApiToken {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "IssuedApiToken({} {:?})", self.id, self.role)
    }
}

fn summary_of_join(id: String, record: JoinTokenRecord, now: SystemTime) -> TokenSummary {
    TokenSummary {
        id,
        kind: TokenKind::Join,
        site: Some(record.site),
        gateway: Some(record.gateway),
        created: UtcTimestamp(from_unix_seconds(record.created)).to_string(),
        expires: UtcTimestamp(from_unix_seconds(record.expires)).to_string(),
        expired: now >= from_unix_seconds(record.expires),
        uses: Some(record.uses),
        used: Some(record.redeemed.len() as u32),
    }
}

fn summary_of_api(id: String, record: &ApiTokenRecord, now: SystemTime) -> TokenSummary {
    TokenSummary {
        id,
        kind: match record.role {
            ApiRole::Viewer => TokenKind::Viewer,
            ApiRole::Admin => TokenKind::Admin,
        },
        site: None,
        gateway: None,
        created: UtcTimestamp(from_unix_seconds(record.created)).to_string(),
        expires: UtcTimestamp(from_unix_seconds(record.expires)).to_string(),
        expired: record.has_expired(now),
        uses: None,
        used: None,
    }
}

// Records that cannot be read are passed over in lists: one damaged token must not hide the rest.
pub(super) fn each<'a, T: DeserializeOwned>(
    records: &'a [StoreRecord],
    prefix: &'a str,
) -> impl Iterator<Item = (String, T)> + 'a {
    records.iter().filter_map(move |record| {
        let id = record.key.strip_prefix(prefix)?.to_owned();
        Some((id, serde_json::from_slice(&record.value).ok()?))
    })
}

pub(super) fn check_ttl(ttl: Duration) -> Result<(), TokenProblem> {
    if ttl < Duration::from_secs(1) || ttl > tokens::TTL_MAX {
        return Err(TokenProblem::Invalid {
            field: "ttl",
            why: "must be from one second to ten years".into(),
        });
    }
    Ok(())
}

pub(super) fn busy(what: &str) -> StoreError {
    StoreError::Unavailable { reason: format!("{what} is being changed by too many at once"), source: None }
}
