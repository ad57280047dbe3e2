//! Where tokens are handed out and taken back, and gateways are thrown out.
//!
//! What the actions of the API ask for, as methods of the registrar. Each is one decision upon records of the store and
//! one commit; what a presented token is worth is decided in `tokens`.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use causeway_channel::clock::{Moment, from_unix_seconds, unix_seconds};
use causeway_channel::{JoinToken, KeyHash, PeerId, Secret};
use causeway_store::{Op, Record, Revision, StoreError};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::audit::AuditLine;
use super::follow;
use super::gateways::{self, GatewayRecord};
use super::registrar::{ATTEMPTS_MAX, Registrar, api_key, encode, join_key};
use super::revocation::{self, Reason, RevocationRecord};
use super::tokens::{self, ApiRole, ApiTokenRecord, JoinTokenRecord};

/// Why a token was not made, found or deleted.
#[derive(Debug, thiserror::Error)]
pub enum TokenProblem {
    #[error("{field}: {why}")]
    Invalid { field: &'static str, why: String },
    #[error("there is no token {id:?}")]
    NotFound { id: String },
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
}

/// An API token just made. `text` is the secret.
#[derive(Clone)]
pub struct IssuedApiToken {
    pub id: String,
    pub text: String,
    pub role: ApiRole,
    pub expires: SystemTime,
}

/// A token as a list shows it, without its secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TokenSummary {
    pub id: String,
    /// `join`, `viewer` or `admin`.
    pub kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub site: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gateway: Option<String>,
    pub created: String,
    pub expires: String,
    pub expired: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uses: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub used: Option<u32>,
}

/// What a revocation did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Revoked {
    pub gateway: String,
    /// Hashes of the keys that are not believed any more. Empty: the gateway had none.
    pub keys: Vec<String>,
}

impl Registrar {
    /// Could such a join token be made? Asked before its objects are made, so that a refusal leaves nothing behind.
    pub fn check_join_token(
        &self,
        site: &str,
        gateway: &str,
        ttl: Duration,
        uses: u32,
    ) -> Result<PeerId, TokenProblem> {
        let invalid = |field, why: String| TokenProblem::Invalid { field, why };
        let peer = PeerId::new(site, gateway).map_err(|error| invalid("site, gateway", error.to_string()))?;
        check_ttl(ttl)?;
        if !(1..=tokens::USES_MAX).contains(&uses) {
            return Err(invalid("uses", format!("must be from 1 to {}", tokens::USES_MAX)));
        }
        if self.config.advertise.is_empty() {
            let why = "the cloud does not know its own endpoint; start it with --advertise";
            return Err(invalid("advertise", why.into()));
        }
        Ok(peer)
    }

    /// Makes a join token for one gateway. The objects of site and gateway are the caller's business.
    pub async fn create_join_token(
        &self,
        site: &str,
        gateway: &str,
        ttl: Duration,
        uses: u32,
    ) -> Result<IssuedJoinToken, TokenProblem> {
        let peer = self.check_join_token(site, gateway, ttl, uses)?;
        let secret = Secret::generate();
        let (id, now, authorities) = (tokens::id(&secret), self.now(), self.roll.load().ids());
        let record = JoinTokenRecord::new(&secret, &peer, now, ttl, uses, &authorities);
        self.store.create(&join_key(&id), encode(&record)).await?;
        self.audit(&AuditLine { event: "token-created", site, gateway, reason: &id, ..AuditLine::default() });
        let token = JoinToken { secret, endpoints: self.config.advertise.clone(), authorities, peer };
        Ok(IssuedJoinToken { id, token, expires: from_unix_seconds(record.expires), uses })
    }

    /// Makes a bearer token for the API.
    pub async fn create_api_token(
        &self,
        role: ApiRole,
        ttl: Duration,
    ) -> Result<IssuedApiToken, TokenProblem> {
        check_ttl(ttl)?;
        let secret = Secret::generate();
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
        match self.store.delete(&api_key(id), None).await {
            Ok(_) => {
                self.audit(&AuditLine { event: "token-deleted", reason: id, ..AuditLine::default() });
                return Ok(());
            }
            Err(StoreError::NotFound { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        // A join token stays as a mark, so that whoever presents it is told that it was deleted.
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
                    return Ok(());
                }
                Err(StoreError::Conflict { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(busy(id).into())
    }

    /// Throws a gateway out: its key is not believed by any replica within a second.
    pub async fn revoke_gateway(&self, gateway: &str) -> Result<Revoked, TokenProblem> {
        let unknown =
            || TokenProblem::Invalid { field: "gateway", why: format!("{gateway:?} was never enrolled") };
        PeerId::new("any", gateway).map_err(|_| unknown())?;
        self.revoke_up_to(gateway, None).await?.ok_or_else(unknown)
    }

    /// The names of gateways that could come to the cloud: with a key that is believed, or a token that is open.
    pub async fn admitted(&self) -> Result<BTreeSet<String>, StoreError> {
        let now = self.now();
        let (enrolled, _) = follow::snapshot(&self.store, gateways::PREFIX).await?;
        let (join, _) = follow::snapshot(&self.store, tokens::JOIN_PREFIX).await?;
        let with_key = each::<GatewayRecord>(&enrolled, gateways::PREFIX)
            .filter(|(_, record)| record.key.is_some())
            .map(|(gateway, _)| gateway);
        let with_token = each::<JoinTokenRecord>(&join, tokens::JOIN_PREFIX)
            .filter(|(_, token)| token.is_open(now))
            .map(|(_, token)| token.gateway);
        Ok(with_key.chain(with_token).collect())
    }

    /// What a gateway was given up to a revision is worth nothing any more: its open tokens and its key. What it was
    /// given later stays, so that a gateway may be deleted and made anew.
    pub async fn dismiss_gateway(&self, gateway: &str, upto: Revision) -> Result<(), TokenProblem> {
        let now = self.now();
        let (join, _) = follow::snapshot(&self.store, tokens::JOIN_PREFIX).await?;
        let old: Vec<Record> = join.into_iter().filter(|record| record.revision <= upto).collect();
        // The tokens first: an open one could bring another key.
        for (id, token) in each::<JoinTokenRecord>(&old, tokens::JOIN_PREFIX) {
            if token.gateway == gateway && token.is_open(now) {
                match self.delete_token(&id).await {
                    Ok(()) | Err(TokenProblem::NotFound { .. }) => {}
                    Err(problem) => return Err(problem),
                }
            }
        }
        self.revoke_up_to(gateway, Some(upto)).await.map(drop)
    }

    /// Revokes the key of a gateway, unless it was enrolled again behind `upto`. `None`: it was never enrolled.
    async fn revoke_up_to(
        &self,
        gateway: &str,
        upto: Option<Revision>,
    ) -> Result<Option<Revoked>, TokenProblem> {
        let key = gateways::store_key(gateway);
        for _ in 0..ATTEMPTS_MAX {
            let Some((record, revision)) = self.load::<GatewayRecord>(&key).await? else {
                return Ok(None);
            };
            let hash = record.key.as_deref().and_then(KeyHash::from_hex);
            let Some(hash) = hash.filter(|_| upto.is_none_or(|upto| revision <= upto)) else {
                return Ok(Some(Revoked { gateway: gateway.to_owned(), keys: Vec::new() }));
            };
            let now = self.now();
            let revocation = RevocationRecord::new(gateway, Reason::Revoked, now, record.expires);
            let ops = vec![
                Op::Update { key: key.clone(), value: record.revoked(now).encode(), expected: revision },
                Op::Put { key: revocation::store_key(&hash), value: revocation.encode() },
            ];
            match self.store.commit(ops).await {
                Ok(_) => {
                    self.audit(&AuditLine {
                        event: "revoked",
                        site: &record.site,
                        gateway,
                        key: &hash.to_string(),
                        ..AuditLine::default()
                    });
                    return Ok(Some(Revoked { gateway: gateway.to_owned(), keys: vec![hash.to_string()] }));
                }
                Err(StoreError::Conflict { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(busy(gateway).into())
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
        kind: "join",
        site: Some(record.site),
        gateway: Some(record.gateway),
        created: Moment(from_unix_seconds(record.created)).to_string(),
        expires: Moment(from_unix_seconds(record.expires)).to_string(),
        expired: now >= from_unix_seconds(record.expires),
        uses: Some(record.uses),
        used: Some(record.redeemed.len() as u32),
    }
}

fn summary_of_api(id: String, record: &ApiTokenRecord, now: SystemTime) -> TokenSummary {
    TokenSummary {
        id,
        kind: match record.role {
            ApiRole::Viewer => "viewer",
            ApiRole::Admin => "admin",
        },
        site: None,
        gateway: None,
        created: Moment(from_unix_seconds(record.created)).to_string(),
        expires: Moment(from_unix_seconds(record.expires)).to_string(),
        expired: record.has_expired(now),
        uses: None,
        used: None,
    }
}

// Records that cannot be read are passed over in lists: one damaged token must not hide the others.
fn each<'a, T: DeserializeOwned>(
    records: &'a [Record],
    prefix: &'a str,
) -> impl Iterator<Item = (String, T)> + 'a {
    records.iter().filter_map(move |record| {
        let id = record.key.strip_prefix(prefix)?.to_owned();
        Some((id, serde_json::from_slice(&record.value).ok()?))
    })
}

fn check_ttl(ttl: Duration) -> Result<(), TokenProblem> {
    if ttl < Duration::from_secs(1) || ttl > tokens::TTL_MAX {
        return Err(TokenProblem::Invalid {
            field: "ttl",
            why: "must be from one second to ten years".into(),
        });
    }
    Ok(())
}

fn busy(what: &str) -> StoreError {
    StoreError::Unavailable { reason: format!("{what} is being changed by too many at once"), source: None }
}
