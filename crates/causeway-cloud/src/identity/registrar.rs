//! The public interface of identity: opens its state in the store and the data dir, and keeps it up to date.
//!
//! `open` does everything that must be right before the first caller comes; `run` follows the store and
//! renews certificates. Tokens are in `token_admin`, certificates for gateways in `enrolment`, the change of CA in
//! `rotation`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwap;
use causeway_channel::clock::{UtcTimestamp, from_unix_seconds};
use causeway_channel::{ChannelEndpoint, Clock, KeyHash};
use causeway_daemon::AuditLog;
use causeway_store::{Revision, Store, StoreError, StoreRecord};
use rustls::ServerConfig;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::{Notify, broadcast, mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::access::CredentialCache;
use super::authority::CloudServerName;
use super::ca_store::{self, CaSet, CaStoreError, SealKeyLocation};
use super::certificates::{self, CertificateRecord};
use super::connect;
use super::earlier_life;
use super::follow::{self, FollowedChange};
use super::kubeconfig::{self, KubeconfigError};
use super::metrics::IdentityMetrics;
use super::replay;
use super::revocation::{self, RevocationRecord, Revocations};
use super::revocation_log::{self, RevocationEntry, RevocationLog, RevocationLogError};
use super::seal::SealKey;
use super::serving::{self, ServingError, ServingTls};
use super::token_admin::TokenProblem;
use super::tokens::{self, ApiTokenRecord, DeletedApiToken, JoinTokenRecord};

/// The configuration of identity.
#[derive(Debug, Clone)]
pub struct IdentityConfig {
    pub data_dir: PathBuf,
    /// `None`: `seal.key` in the data dir.
    pub seal_key: Option<PathBuf>,
    /// The channel endpoints edges are given.
    pub advertise: Vec<ChannelEndpoint>,
    /// The listeners of the API and the channel; addresses that are not wildcards are in the server certificate.
    pub listen: Vec<SocketAddr>,
    /// Further names and addresses for the server certificate.
    pub names: Vec<String>,
    /// The `server` of the admin kubeconfig.
    pub api_url: String,
    /// True if CONNECT is served on the network: then a certificate for it is kept ready.
    pub connect: bool,
    /// The time after its end in which a gateway's certificate may be replaced with its old key. Zero: never.
    pub grace: Duration,
    /// Make a CA although the data dir shows that a cloud with another one has run there.
    pub new_fleet: bool,
    pub clock: Clock,
    pub audit: Option<AuditLog>,
}

impl IdentityConfig {
    /// Everything else at its default.
    pub fn new(
        data_dir: impl Into<PathBuf>,
        advertise: Vec<ChannelEndpoint>,
        api_url: impl Into<String>,
    ) -> IdentityConfig {
        IdentityConfig {
            data_dir: data_dir.into(),
            seal_key: None,
            advertise,
            listen: Vec::new(),
            names: Vec::new(),
            api_url: api_url.into(),
            connect: false,
            grace: GRACE,
            new_fleet: false,
            clock: Clock::system(),
            audit: None,
        }
    }
}

/// A site that is switched off over a season comes back by itself; a machine that was sold does not for ever.
const GRACE: Duration = Duration::from_secs(90 * 24 * 3600);
/// Interval of the upkeep of certificates and old records. All of them are valid for hours at least.
const UPKEEP: Duration = Duration::from_secs(60);
/// Old records are looked for in every sixtieth round: they have had no effect for days.
const FORGET_EVERY: u64 = 60;
/// Entries from the watches that wait for the revocation log; beyond it the log is compared with the whole store.
const LOG_QUEUE_MAX: usize = 4096;
/// Lines of the log that are written and synced at once.
const LOG_BATCH: usize = 256;
/// Attempts of a compare-and-swap; each failure means that another writer succeeded.
pub(super) const ATTEMPTS_MAX: usize = 16;

#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    #[error(transparent)]
    CaStore(#[from] CaStoreError),
    #[error("the cloud's own certificate cannot be made")]
    Serving(#[from] ServingError),
    #[error(transparent)]
    Kubeconfig(#[from] KubeconfigError),
    #[error(transparent)]
    RevocationLog(#[from] RevocationLogError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The identity of the fleet. Shared by the API server, the channel port and the actions.
pub struct Registrar {
    pub(super) store: Store,
    pub(super) config: IdentityConfig,
    pub(super) place: SealKeyLocation,
    pub(super) seal: SealKey,
    pub(super) cas: ArcSwap<CaSet>,
    pub(super) revocations: Revocations,
    pub(super) credentials: CredentialCache,
    pub(super) metrics: IdentityMetrics,
    serving: ServingTls,
    log: RevocationLog,
    /// Something may be in the store and not in the revocation log.
    is_log_behind: AtomicBool,
    /// Older than the first pictures of the store; `run` goes on from there.
    since: Revision,
    cas_changed: Notify,
    bundle_changed: watch::Sender<u64>,
    /// The endpoints at which edges reach the other replicas, as far as they are known.
    pub(super) other_endpoints: ArcSwap<Vec<ChannelEndpoint>>,
    /// CAs were added or removed since the start: a handshake may have trusted a CA that is not trusted now.
    have_authorities_changed: AtomicBool,
}

impl Registrar {
    /// Opens the CA, or makes it; afterwards everything can be answered.
    pub async fn open(store: Store, config: IdentityConfig) -> Result<Arc<Registrar>, IdentityError> {
        let path = config.seal_key.clone().unwrap_or_else(|| config.data_dir.join("seal.key"));
        let place = SealKeyLocation { path, host: serving::host_name() };
        let now = config.clock.now();
        // Following begins before the first picture is taken; seeing a change twice is harmless, missing one is not.
        let since = store.revision().await?;
        let mut makes_ca = false;
        let may_create = || {
            makes_ca = true;
            earlier_life::begin(&config.data_dir, config.seal_key.is_some(), config.new_fleet)
        };
        let (cas, seal) = ca_store::open_or_create(&store, &place, now, may_create).await?;
        earlier_life::end(&config.data_dir);
        if config.new_fleet && !makes_ca {
            tracing::warn!("--new-fleet has no effect, because the store holds a CA: remove the flag");
        }
        let log = open_log(&store, &config, now).await?;
        let (revoked, _) = follow::snapshot(&store, revocation::PREFIX).await?;
        let (api_tokens, _) = follow::snapshot(&store, tokens::API_PREFIX).await?;
        let names = names(&config);
        let registrar = Registrar {
            serving: ServingTls::new(names, &cas, now)?,
            since,
            cas: ArcSwap::from_pointee(cas),
            revocations: Revocations::new(revoked),
            credentials: CredentialCache::new(api_tokens),
            metrics: IdentityMetrics::default(),
            log,
            is_log_behind: AtomicBool::new(true),
            cas_changed: Notify::new(),
            bundle_changed: watch::channel(0).0,
            other_endpoints: ArcSwap::default(),
            have_authorities_changed: AtomicBool::new(false),
            store,
            config,
            place,
            seal,
        };
        registrar.reconcile_connect()?;
        if let Err(error) = registrar.reconcile_kubeconfig() {
            // A cloud whose disk is full goes on with the file it has; a new one must have its first.
            if !registrar.kubeconfig_path().exists() {
                return Err(error);
            }
            let error = &error as &dyn std::error::Error;
            tracing::warn!(error, "the admin kubeconfig is out of date; trying again in a minute");
        }
        registrar.catch_up().await;
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

    /// Returns the path of the admin kubeconfig.
    pub fn kubeconfig_path(&self) -> PathBuf {
        self.config.data_dir.join(kubeconfig::FILE)
    }

    pub fn metrics(&self) -> &IdentityMetrics {
        &self.metrics
    }

    pub fn is_revoked(&self, key: &KeyHash) -> bool {
        self.revocations.contains(key)
    }

    /// Reports keys as they are revoked, for the holders of sessions. After `Lagged`, ask `is_revoked` for each session.
    pub fn revoked_keys(&self) -> broadcast::Receiver<KeyHash> {
        self.revocations.ended()
    }

    /// Changes when CAs come or go: edges should renew then.
    pub fn bundle_changes(&self) -> watch::Receiver<u64> {
        self.bundle_changed.subscribe()
    }

    /// Returns true if every certificate of a handshake is verified against exactly the CAs that are trusted now.
    pub(super) fn trusts_handshakes(&self) -> bool {
        !self.have_authorities_changed.load(Ordering::SeqCst)
    }

    /// The time by the clock that certificates are checked against.
    pub fn time(&self) -> SystemTime {
        self.now()
    }

    pub(super) fn now(&self) -> SystemTime {
        self.config.clock.now()
    }

    /// Follows the store and keeps certificates fresh until told to stop.
    pub async fn run(&self, stop: CancellationToken) {
        let (queue, waiting) = mpsc::channel(LOG_QUEUE_MAX);
        let log = |change: &FollowedChange| self.queue_for_log(change, &queue);
        let revocations = follow::follow(&self.store, revocation::PREFIX, self.since, &stop, |change| {
            log(&change);
            if concerns_users(&change) {
                // The admin kubeconfig may be the one that was revoked.
                self.cas_changed.notify_one();
            }
            self.revocations.apply(change);
        });
        let join_tokens = follow::follow(&self.store, tokens::JOIN_PREFIX, self.since, &stop, |change| {
            log(&change);
        });
        let deleted_tokens =
            follow::follow(&self.store, tokens::DELETED_PREFIX, self.since, &stop, |change| {
                log(&change);
            });
        let api_tokens = follow::follow(&self.store, tokens::API_PREFIX, self.since, &stop, |change| {
            self.credentials.apply(change);
        });
        let authorities = follow::follow(&self.store, ca_store::KEY, self.since, &stop, |change| {
            self.apply_cas(change);
        });
        // Boxed, because watches of the store are large and callers hold this future.
        let following =
            async { tokio::join!(revocations, api_tokens, authorities, join_tokens, deleted_tokens) };
        tokio::join!(Box::pin(following), Box::pin(self.keep_fresh(&stop)), self.write_log(waiting, &stop));
    }

    fn queue_for_log(&self, change: &FollowedChange, queue: &mpsc::Sender<RevocationEntry>) {
        let entries = match change {
            FollowedChange::All(records) => revocation_log::entries_of(records),
            FollowedChange::One(event) => event
                .value
                .as_ref()
                .and_then(|value| RevocationEntry::of(&event.key, value))
                .into_iter()
                .collect(),
        };
        // Full: the log is compared with the whole store within a minute.
        if entries.into_iter().any(|entry| queue.try_send(entry).is_err()) {
            self.is_log_behind.store(true, Ordering::SeqCst);
        }
    }

    async fn write_log(&self, mut waiting: mpsc::Receiver<RevocationEntry>, stop: &CancellationToken) {
        let mut batch = Vec::new();
        loop {
            tokio::select! {
                biased;
                // The next start finds the remaining entries in the store.
                () = stop.cancelled() => return,
                count = waiting.recv_many(&mut batch, LOG_BATCH) => if count == 0 { return },
            }
            let _ = self.append_to_log(std::mem::take(&mut batch)).await;
        }
    }

    pub(super) async fn append_to_log(&self, entries: Vec<RevocationEntry>) -> std::io::Result<()> {
        let appended = self.log.append(entries, self.now()).await;
        if let Err(error) = &appended {
            self.is_log_behind.store(true, Ordering::SeqCst);
            tracing::error!(%error, path = %self.log.path().display(), "the revocation log cannot be written; trying again in a minute");
        }
        appended
    }

    /// Writes revocations to the log before they are acknowledged.
    pub(super) async fn log_revocation(
        &self,
        entries: Vec<RevocationEntry>,
        what: &str,
    ) -> Result<(), TokenProblem> {
        self.append_to_log(entries).await.map_err(|source| TokenProblem::NotLogged {
            what: what.to_owned(),
            path: self.log.path().to_owned(),
            source,
        })
    }

    /// Adds the revocations in the store to the revocation log.
    async fn log_everything(&self) -> Result<(), StoreError> {
        let mut entries = Vec::new();
        for prefix in [revocation::PREFIX, tokens::JOIN_PREFIX, tokens::DELETED_PREFIX] {
            let (records, _) = follow::snapshot(&self.store, prefix).await?;
            entries.extend(revocation_log::entries_of(&records));
        }
        // Before the write: an entry that cannot be written sets it again.
        self.is_log_behind.store(false, Ordering::SeqCst);
        let _ = self.append_to_log(entries).await;
        Ok(())
    }

    // Necessary work that may be late: a full disk does not keep a cloud from starting.
    async fn catch_up(&self) {
        if self.is_log_behind.load(Ordering::SeqCst)
            && let Err(error) = self.log_everything().await
        {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(
                error,
                "the revocation log cannot be compared with the store; trying again in a minute"
            );
        }
        let folder = self.config.data_dir.join(connect::FOLDER);
        let own = [kubeconfig::certificate(&self.kubeconfig_path()), connect::certificate(&folder)];
        for certificate in own.into_iter().flatten() {
            if let Err(error) = self.list_own_certificate(&certificate).await {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, "the cloud's own admin certificate is not in the list yet");
            }
        }
    }

    async fn keep_fresh(&self, stop: &CancellationToken) {
        for round in 1u64.. {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = self.cas_changed.notified() => {}
                () = tokio::time::sleep(UPKEEP) => {}
            }
            let kept = match round % FORGET_EVERY {
                0 => self.upkeep().await,
                _ => self.refresh().await,
            };
            if let Err(error) = kept {
                tracing::error!(
                    error = &error as &dyn std::error::Error,
                    "identity cannot be kept fresh; trying again in a minute"
                );
            }
        }
    }

    /// One round of the periodic work of `run`. For tests, which set the clock.
    pub async fn upkeep(&self) -> Result<(), IdentityError> {
        self.refresh().await?;
        self.forget_old_records().await?;
        Ok(())
    }

    pub(super) async fn refresh(&self) -> Result<(), IdentityError> {
        let cas = self.cas.load_full();
        if self.serving.reconcile(names(&self.config), &cas, self.now())? {
            tracing::info!(until = %UtcTimestamp(self.serving.not_after()), "shows a new server certificate");
        }
        self.reconcile_connect()?;
        self.reconcile_kubeconfig()?;
        self.catch_up().await;
        Ok(())
    }

    fn reconcile_connect(&self) -> Result<(), IdentityError> {
        let folder = self.config.data_dir.join(connect::FOLDER);
        let cas = self.cas.load();
        if self.config.connect && connect::reconcile(&folder, &cas, &self.revocations, self.now())? {
            tracing::info!(folder = %folder.display(), "wrote a certificate for callers of CONNECT");
        }
        Ok(())
    }

    fn reconcile_kubeconfig(&self) -> Result<(), IdentityError> {
        let path = self.kubeconfig_path();
        let cas = self.cas.load();
        if kubeconfig::reconcile(&path, &self.config.api_url, &cas, &self.revocations, self.now())? {
            tracing::info!(path = %path.display(), "wrote the admin kubeconfig");
        }
        Ok(())
    }

    /// Takes a set of CAs that this replica wrote or another one did. An older one than we have is ignored.
    pub(super) fn publish_cas(&self, cas: CaSet) {
        let newer = Arc::new(cas);
        if newer.ids() != self.cas.load().ids() {
            // Before the CAs themselves: a reader of both never takes the new set for the first.
            self.have_authorities_changed.store(true, Ordering::SeqCst);
        }
        self.cas
            .rcu(|current| if newer.revision > current.revision { newer.clone() } else { current.clone() });
        self.cas_changed.notify_one();
        self.bundle_changed.send_modify(|count| *count += 1);
    }

    fn apply_cas(&self, change: FollowedChange) {
        let (value, revision) = match &change {
            FollowedChange::All(records) => match records.iter().find(|record| &*record.key == ca_store::KEY)
            {
                Some(record) => (&record.value, record.revision),
                None => return,
            },
            FollowedChange::One(event) => match &event.value {
                Some(value) if &*event.key == ca_store::KEY => (value, event.revision),
                _ => return,
            },
        };
        if revision <= self.cas.load().revision {
            return;
        }
        match ca_store::decode(value, revision, &self.seal) {
            Ok(cas) => self.publish_cas(cas),
            Err(error) => {
                tracing::error!(
                    error = &error as &dyn std::error::Error,
                    "the CAs in the store changed and cannot be read; going on with those known"
                );
            }
        }
    }

    // Records that can have no effect any more. A replica that does it at the same moment finds less to do.
    async fn forget_old_records(&self) -> Result<(), StoreError> {
        let now = self.now();
        let (join, _) = follow::snapshot(&self.store, tokens::JOIN_PREFIX).await?;
        let (api, _) = follow::snapshot(&self.store, tokens::API_PREFIX).await?;
        let join_is_old = |record: &&StoreRecord| {
            serde_json::from_slice::<JoinTokenRecord>(&record.value)
                .is_ok_and(|token| token.is_forgettable(now))
        };
        let api_is_old = |record: &&StoreRecord| {
            serde_json::from_slice::<ApiTokenRecord>(&record.value)
                .is_ok_and(|token| token.has_expired(now - tokens::REMEMBERED))
        };
        let (deleted, _) = follow::snapshot(&self.store, tokens::DELETED_PREFIX).await?;
        let mark_is_old = |record: &&StoreRecord| {
            serde_json::from_slice::<DeletedApiToken>(&record.value)
                .is_ok_and(|token| now > from_unix_seconds(token.expires))
        };
        let (certificates, _) = follow::snapshot(&self.store, certificates::PREFIX).await?;
        let certificate_is_old = |record: &&StoreRecord| {
            serde_json::from_slice::<CertificateRecord>(&record.value)
                .is_ok_and(|certificate| certificate.is_forgettable(now))
        };
        let old_records = join
            .iter()
            .filter(join_is_old)
            .chain(api.iter().filter(api_is_old))
            .chain(deleted.iter().filter(mark_is_old))
            .chain(certificates.iter().filter(certificate_is_old));
        for record in old_records {
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
        Ok(self.load_record(key).await?.map(|(value, record)| (value, record.revision)))
    }

    /// As `load`, with everything the store says of the record.
    pub(super) async fn load_record<T: DeserializeOwned>(
        &self,
        key: &str,
    ) -> Result<Option<(T, StoreRecord)>, StoreError> {
        let Some(record) = self.store.get(key).await? else { return Ok(None) };
        let value = serde_json::from_slice(&record.value).map_err(|error| StoreError::Corrupt {
            reason: format!("the record {key} cannot be read"),
            source: Some(Arc::new(error)),
        })?;
        Ok(Some((value, record)))
    }
}

/// Opens the revocation log and applies the entries that the store does not have: it was replaced by an older copy.
async fn open_log(
    store: &Store,
    config: &IdentityConfig,
    now: SystemTime,
) -> Result<RevocationLog, IdentityError> {
    let path = config.data_dir.join(revocation_log::FILE);
    let (log, entries) = RevocationLog::open(path.clone(), now)?;
    let replayed = replay::replay(store, &entries, now, config.grace).await?;
    if replayed.count() > 0 {
        tracing::warn!(
            log = %path.display(),
            gateways = replayed.gateways.len(),
            certificates = replayed.certificates.len(),
            join_tokens = replayed.join_tokens.len(),
            api_tokens = replayed.api_tokens.len(),
            "the store had forgotten what was revoked, it was put back from an older copy: applied again"
        );
    }
    Ok(log)
}

/// Returns whether a certificate of a user or a program is among the records.
fn concerns_users(change: &FollowedChange) -> bool {
    let of_user = |value: &[u8]| {
        serde_json::from_slice::<RevocationRecord>(value).is_ok_and(|record| record.gateway.is_empty())
    };
    match change {
        FollowedChange::All(records) => records.iter().any(|record| of_user(&record.value)),
        FollowedChange::One(event) => event.value.as_ref().is_some_and(|value| of_user(value)),
    }
}

pub(super) fn names(config: &IdentityConfig) -> Vec<CloudServerName> {
    let (host, outward) = (serving::host_name(), serving::outward_addresses());
    serving::names(&config.advertise, &config.listen, &config.names, &host, &outward)
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
