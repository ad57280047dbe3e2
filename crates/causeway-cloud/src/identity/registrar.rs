//! The face of identity: opens what the store and the data dir hold, hands out tokens, revokes, keeps fresh.
//!
//! `open` does everything that must be right before the first caller comes; `run` follows the store and
//! renews what gets old. Certificates for gateways are in `enrolment`, the change of CA in `rotation`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwap;
use causeway_channel::clock::{Moment, from_unix_seconds, unix_seconds};
use causeway_channel::{Clock, Endpoint, JoinToken, KeyHash, PeerId, Secret};
use causeway_daemon::AuditLog;
use causeway_store::{Op, Record, Revision, Store, StoreError};
use rustls::ServerConfig;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::{Notify, broadcast};
use tokio_util::sync::CancellationToken;

use super::access::Credentials;
use super::figures::Figures;
use super::follow::{self, Change};
use super::gateways::{self, GatewayRecord};
use super::kubeconfig::{self, KubeconfigError};
use super::revocation::{self, Reason, RevocationRecord, Revocations};
use super::roll::{self, Roll, RollError, SealPlace};
use super::seal::SealKey;
use super::serving::{self, Serving, ServingError};
use super::tokens::{self, ApiRole, ApiTokenRecord, JoinTokenRecord};

/// What identity has to know from the configuration.
#[derive(Debug, Clone)]
pub struct IdentityConfig {
    pub data_dir: PathBuf,
    /// `None`: `seal.key` in the data dir.
    pub seal_key: Option<PathBuf>,
    /// The channel endpoints edges are given.
    pub advertise: Vec<Endpoint>,
    /// Where the API and the channel listen; what is not a wildcard stands in the server certificate.
    pub listen: Vec<SocketAddr>,
    /// Further names and addresses for the server certificate.
    pub names: Vec<String>,
    /// The `server` of the admin kubeconfig.
    pub api_url: String,
    /// How long after its end a gateway's certificate may be replaced with its old key. Zero: never.
    pub grace: Duration,
    pub clock: Clock,
    pub audit: Option<AuditLog>,
}

impl IdentityConfig {
    /// Everything else at its default.
    pub fn new(
        data_dir: impl Into<PathBuf>,
        advertise: Vec<Endpoint>,
        api_url: impl Into<String>,
    ) -> IdentityConfig {
        IdentityConfig {
            data_dir: data_dir.into(),
            seal_key: None,
            advertise,
            listen: Vec::new(),
            names: Vec::new(),
            api_url: api_url.into(),
            grace: GRACE,
            clock: Clock::system(),
            audit: None,
        }
    }
}

/// A site that is switched off over a season comes back by itself; a machine that was sold does not for ever.
const GRACE: Duration = Duration::from_secs(90 * 24 * 3600);
/// How often certificates and old records are looked at. All of them live for hours at least.
const UPKEEP: Duration = Duration::from_secs(60);
/// Compare-and-swap is tried this often; each failure means that somebody else succeeded.
pub(super) const ATTEMPTS_MAX: usize = 16;

#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    #[error(transparent)]
    Roll(#[from] RollError),
    #[error("the cloud's own certificate cannot be made")]
    Serving(#[from] ServingError),
    #[error(transparent)]
    Kubeconfig(#[from] KubeconfigError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

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

/// The identity of the fleet. Shared by the API server, the channel port and the actions.
pub struct Registrar {
    pub(super) store: Store,
    pub(super) config: IdentityConfig,
    pub(super) place: SealPlace,
    pub(super) seal: SealKey,
    pub(super) roll: ArcSwap<Roll>,
    pub(super) revocations: Revocations,
    pub(super) credentials: Credentials,
    pub(super) figures: Figures,
    serving: Serving,
    /// Older than the first pictures of the store; `run` goes on from there.
    since: Revision,
    roll_changed: Notify,
}

impl Registrar {
    /// Opens the CA, or makes it; afterwards everything can be answered.
    pub async fn open(store: Store, config: IdentityConfig) -> Result<Arc<Registrar>, IdentityError> {
        let host = serving::host_name();
        let path = config.seal_key.clone().unwrap_or_else(|| config.data_dir.join("seal.key"));
        let place = SealPlace { path, host: host.clone() };
        let now = config.clock.now();
        // Following begins before the first picture is taken; seeing a change twice is harmless, missing one is not.
        let since = store.revision().await?;
        let (roll, seal) = roll::open_or_create(&store, &place, now).await?;
        let (revoked, _) = follow::snapshot(&store, revocation::PREFIX).await?;
        let (api_tokens, _) = follow::snapshot(&store, tokens::API_PREFIX).await?;
        let names = serving::names(&config.advertise, &config.listen, &config.names, &host);
        let registrar = Registrar {
            serving: Serving::new(names, &roll, now)?,
            since,
            roll: ArcSwap::from_pointee(roll),
            revocations: Revocations::new(revoked),
            credentials: Credentials::new(api_tokens),
            figures: Figures::default(),
            roll_changed: Notify::new(),
            store,
            config,
            place,
            seal,
        };
        registrar.reconcile_kubeconfig()?;
        Ok(Arc::new(registrar))
    }

    /// TLS for the API; swapped while it runs.
    pub fn api_tls(&self) -> Arc<ArcSwap<ServerConfig>> {
        self.serving.api()
    }

    /// TLS for the channel port; swapped while it runs.
    pub fn channel_tls(&self) -> Arc<ArcSwap<ServerConfig>> {
        self.serving.channel()
    }

    /// Where the admin kubeconfig is.
    pub fn kubeconfig_path(&self) -> PathBuf {
        self.config.data_dir.join(kubeconfig::FILE)
    }

    pub fn figures(&self) -> &Figures {
        &self.figures
    }

    pub fn is_revoked(&self, key: &KeyHash) -> bool {
        self.revocations.contains(key)
    }

    /// Keys as they are revoked, for whoever holds sessions. After `Lagged`, ask `is_revoked` for each session.
    pub fn revoked_keys(&self) -> broadcast::Receiver<KeyHash> {
        self.revocations.ended()
    }

    pub(super) fn now(&self) -> SystemTime {
        self.config.clock.now()
    }

    /// Follows the store and keeps certificates fresh until told to stop.
    pub async fn run(&self, stop: CancellationToken) {
        let revocations = follow::follow(&self.store, revocation::PREFIX, self.since, &stop, |change| {
            self.revocations.apply(change);
        });
        let api_tokens = follow::follow(&self.store, tokens::API_PREFIX, self.since, &stop, |change| {
            self.credentials.apply(change);
        });
        let authorities = follow::follow(&self.store, roll::KEY, self.since, &stop, |change| {
            self.apply_roll(change);
        });
        tokio::join!(revocations, api_tokens, authorities, self.keep_fresh(&stop));
    }

    async fn keep_fresh(&self, stop: &CancellationToken) {
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = self.roll_changed.notified() => {}
                () = tokio::time::sleep(UPKEEP) => {}
            }
            if let Err(error) = self.upkeep().await {
                tracing::error!(
                    error = &error as &dyn std::error::Error,
                    "identity cannot be kept fresh; trying again in a minute"
                );
            }
        }
    }

    /// One round of what `run` does every minute. For whoever sets the clock by hand.
    pub async fn upkeep(&self) -> Result<(), IdentityError> {
        let roll = self.roll.load_full();
        if self.serving.reconcile(&roll, self.now())? {
            tracing::info!(until = %Moment(self.serving.not_after()), "shows a new server certificate");
        }
        self.reconcile_kubeconfig()?;
        self.forget_old_records().await?;
        Ok(())
    }

    fn reconcile_kubeconfig(&self) -> Result<(), IdentityError> {
        let path = self.kubeconfig_path();
        let roll = self.roll.load();
        if kubeconfig::reconcile(&path, &self.config.api_url, &roll, &self.revocations, self.now())? {
            tracing::info!(path = %path.display(), "wrote the admin kubeconfig");
        }
        Ok(())
    }

    /// Takes a roll that this replica wrote or another one did. An older one than we have is ignored.
    pub(super) fn publish_roll(&self, roll: Roll) {
        let newer = Arc::new(roll);
        self.roll
            .rcu(|current| if newer.revision > current.revision { newer.clone() } else { current.clone() });
        self.roll_changed.notify_one();
    }

    fn apply_roll(&self, change: Change) {
        let (value, revision) = match &change {
            Change::All(records) => match records.iter().find(|record| &*record.key == roll::KEY) {
                Some(record) => (&record.value, record.revision),
                None => return,
            },
            Change::One(event) => match &event.value {
                Some(value) if &*event.key == roll::KEY => (value, event.revision),
                _ => return,
            },
        };
        if revision <= self.roll.load().revision {
            return;
        }
        match roll::decode(value, revision, &self.seal) {
            Ok(roll) => self.publish_roll(roll),
            Err(error) => {
                tracing::error!(
                    error = &error as &dyn std::error::Error,
                    "the CAs in the store changed and cannot be read; going on with those known"
                );
            }
        }
    }

    /// Makes a join token for one gateway. The objects of site and gateway are the caller's business.
    pub async fn create_join_token(
        &self,
        site: &str,
        gateway: &str,
        ttl: Duration,
        uses: u32,
    ) -> Result<IssuedJoinToken, TokenProblem> {
        let invalid = |field, why: String| TokenProblem::Invalid { field, why };
        let peer = PeerId::new(site, gateway).map_err(|error| invalid("site, gateway", error.to_string()))?;
        check_ttl(ttl)?;
        if !(1..=tokens::USES_MAX).contains(&uses) {
            return Err(invalid("uses", format!("must be from 1 to {}", tokens::USES_MAX)));
        }
        if self.config.advertise.is_empty() {
            return Err(invalid(
                "advertise",
                "the cloud does not know its own endpoint; start it with --advertise".into(),
            ));
        }
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
                return Ok(self.audit(&AuditLine {
                    event: "token-deleted",
                    reason: id,
                    ..AuditLine::default()
                }));
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
                    return Ok(self.audit(&AuditLine {
                        event: "token-deleted",
                        reason: id,
                        ..AuditLine::default()
                    }));
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
        let key = gateways::store_key(gateway);
        for _ in 0..ATTEMPTS_MAX {
            let Some((record, revision)) = self.load::<GatewayRecord>(&key).await? else {
                return Err(unknown());
            };
            let Some(hash) = record.key.as_deref().and_then(KeyHash::from_hex) else {
                return Ok(Revoked { gateway: gateway.to_owned(), keys: Vec::new() });
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
                    return Ok(Revoked { gateway: gateway.to_owned(), keys: vec![hash.to_string()] });
                }
                Err(StoreError::Conflict { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(busy(gateway).into())
    }

    // Records that can have no effect any more. A replica that does it at the same moment finds less to do.
    async fn forget_old_records(&self) -> Result<(), StoreError> {
        let now = self.now();
        let (join, _) = follow::snapshot(&self.store, tokens::JOIN_PREFIX).await?;
        let (api, _) = follow::snapshot(&self.store, tokens::API_PREFIX).await?;
        let join_is_old = |record: &&Record| {
            serde_json::from_slice::<JoinTokenRecord>(&record.value)
                .is_ok_and(|token| token.is_forgettable(now))
        };
        let api_is_old = |record: &&Record| {
            serde_json::from_slice::<ApiTokenRecord>(&record.value)
                .is_ok_and(|token| token.has_expired(now - tokens::REMEMBERED))
        };
        let old_tokens = join.iter().filter(join_is_old).chain(api.iter().filter(api_is_old));
        for record in old_tokens {
            self.forget(&record.key, Some(record.revision)).await?;
        }
        for key in self.revocations.forgettable(now) {
            self.forget(&revocation::store_key(&key), None).await?;
        }
        self.credentials.forget(now);
        Ok(())
    }

    async fn forget(&self, key: &str, expected: Option<Revision>) -> Result<(), StoreError> {
        match self.store.delete(key, expected).await {
            Ok(_) | Err(StoreError::NotFound { .. } | StoreError::Conflict { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// A record and the revision to replace it at. A damaged one is an error, never a missing one.
    pub(super) async fn load<T: DeserializeOwned>(
        &self,
        key: &str,
    ) -> Result<Option<(T, Revision)>, StoreError> {
        let Some(record) = self.store.get(key).await? else { return Ok(None) };
        let value = serde_json::from_slice(&record.value).map_err(|error| StoreError::Corrupt {
            reason: format!("the record {key} cannot be read"),
            source: Some(Arc::new(error)),
        })?;
        Ok(Some((value, record.revision)))
    }

    pub(super) fn audit(&self, line: &AuditLine<'_>) {
        tracing::info!(
            event = line.event,
            site = line.site,
            gateway = line.gateway,
            subject = line.subject,
            key = line.key,
            client = line.client,
            decision = line.decision,
            reason = line.reason,
            "identity"
        );
        if let Some(audit) = &self.config.audit {
            audit.record(line);
        }
    }
}

/// One line of the audit log. Empty fields are left out.
#[derive(Debug, Default, Serialize)]
pub(super) struct AuditLine<'a> {
    pub event: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub site: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub gateway: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub subject: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub key: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub client: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub decision: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub reason: &'a str,
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

pub(super) fn join_key(id: &str) -> String {
    format!("{}{id}", tokens::JOIN_PREFIX)
}

pub(super) fn api_key(id: &str) -> String {
    format!("{}{id}", tokens::API_PREFIX)
}

pub(super) fn encode(record: &impl Serialize) -> bytes::Bytes {
    serde_json::to_vec(record).expect("strings and numbers are always JSON").into()
}

pub(super) fn busy(what: &str) -> StoreError {
    StoreError::Unavailable { reason: format!("{what} is being changed by too many at once"), source: None }
}
