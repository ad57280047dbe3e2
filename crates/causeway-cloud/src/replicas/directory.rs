//! Session directory of the cloud: the table of attached gateways, kept in step with the store. Renews the record
//! of this replica, writes the gateways attached here, watches the records of other replicas.
//!
//! With SQLite there is one replica: the table is only in memory, and nothing is written. With etcd, writes are
//! committed in batches. Store errors are retried; until then lookups use the last known state.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use causeway_api::sync::MutexExt;
use causeway_channel::clock::UtcTimestamp;
use causeway_channel::{Clock, TokenSecret};
use causeway_store::{Op, Revision, Store, StoreError, StoreRecord};
use serde::de::DeserializeOwned;
use tokio::sync::{Notify, broadcast};
use tokio_util::sync::CancellationToken;

use super::table::{
    AttachmentTable, DIRECTORY, GatewayLocation, RENEW, REPLICAS, ReplicaRecord, SessionKey, encode,
};
use crate::identity::follow::{self, FollowedChange};

/// Attachments within this time share a commit: a fleet of twenty thousand gateways that reconnects makes a few
/// hundred commits.
const WRITE_BATCH_DELAY: Duration = Duration::from_millis(50);
/// Delay after a failed write: the watch delivers the conflicting change, or the store is available again.
const WRITE_RETRY_DELAY: Duration = Duration::from_millis(100);
const STALE_RECORD_CLEANUP_INTERVAL: Duration = Duration::from_secs(30);
/// Time for a stopping replica to remove its records. Other replicas drop records that are no longer renewed.
const DEREGISTER_TIMEOUT: Duration = Duration::from_secs(2);
/// Capacity of the channel of replaced sessions. A receiver that falls further behind compares all its
/// sessions with `newest`.
const REPLACED_MAX: usize = 1024;

/// A session at another replica that replaces one of this replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SupersededSession {
    pub gateway: String,
    pub by: SessionKey,
}

/// The addresses of a replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplicaAddress {
    /// The channel port, as other replicas dial it.
    pub address: String,
    /// The addresses that edges dial.
    pub endpoints: Vec<String>,
}

pub struct SessionDirectory {
    etcd: Option<EtcdReplica>,
    table: Mutex<AttachmentTable>,
    changed: Notify,
    replaced: broadcast::Sender<SupersededSession>,
    clock: Clock,
}

/// The part of a directory that is shared by several replicas through etcd.
struct EtcdReplica {
    store: Store,
    own_address: ReplicaAddress,
    started: String,
    /// A revision before the first list; the watch starts there.
    since: Revision,
}

/// Returns the address with the id: several replicas may share an address.
fn label(address: &str, id: &str) -> String {
    format!("{address} ({id})")
}

impl SessionDirectory {
    /// Makes the directory of a cloud with one replica.
    pub fn single_replica(clock: Clock) -> Arc<SessionDirectory> {
        SessionDirectory::new(None, clock)
    }

    /// Opens the directory of one of several replicas on the same store, reached at `own_address`.
    pub async fn open(
        store: Store,
        own_address: ReplicaAddress,
        clock: Clock,
    ) -> Result<Arc<SessionDirectory>, StoreError> {
        let since = store.revision().await?;
        let (replicas, _) = follow::snapshot(&store, REPLICAS).await?;
        let (entries, _) = follow::snapshot(&store, DIRECTORY).await?;
        let started = UtcTimestamp(clock.now()).to_string();
        let directory =
            SessionDirectory::new(Some(EtcdReplica { store, own_address, started, since }), clock);
        directory.apply_replicas(FollowedChange::All(replicas));
        directory.apply_entries(FollowedChange::All(entries));
        directory.renew_once(0).await?;
        Ok(directory)
    }

    fn new(etcd: Option<EtcdReplica>, clock: Clock) -> Arc<SessionDirectory> {
        let secret = TokenSecret::generate();
        let id: String = secret.expose()[..8].iter().map(|byte| format!("{byte:02x}")).collect();
        let (replaced, _) = broadcast::channel(REPLACED_MAX);
        let table = Mutex::new(AttachmentTable::new(id, Instant::now()));
        Arc::new(SessionDirectory { etcd, table, changed: Notify::new(), replaced, clock })
    }

    /// This replica's name, new with every start.
    pub fn id(&self) -> String {
        self.with(|table| table.me().to_owned())
    }

    /// Returns the label of this replica in messages; `None` when there is no other. New with every start.
    pub fn label(&self) -> Option<String> {
        self.etcd.as_ref().map(|etcd| label(&etcd.own_address.address, &self.id()))
    }

    /// Returns the labels of the replicas that are alive, this one included, by id. None: there is only this
    /// one.
    pub fn live_replicas(&self) -> Option<BTreeMap<String, String>> {
        let own = (self.id(), self.label()?);
        let others =
            self.other_replicas().into_iter().map(|(id, address)| (id.clone(), label(&address, &id)));
        Some(others.chain([own]).collect())
    }

    /// Sets the gateways that are attached here, with their sessions.
    pub fn set_attached(&self, attached: &[(String, SessionKey)]) {
        let since = UtcTimestamp(self.clock.now()).to_string();
        self.with(|table| table.handle_local(attached, &since));
        self.changed.notify_one();
    }

    pub fn location_of(&self, gateway: &str) -> GatewayLocation {
        self.with(|table| table.location_of(gateway))
    }

    /// The newest session known of a gateway, wherever it is.
    pub fn newest(&self, gateway: &str) -> Option<SessionKey> {
        self.with(|table| table.newest(gateway))
    }

    /// The other replicas that seem to be alive: id and address.
    pub fn other_replicas(&self) -> Vec<(String, String)> {
        self.with(|table| table.other_replicas())
    }

    /// Returns the endpoints of the other replicas, which edges dial when this one is gone.
    pub fn other_endpoints(&self) -> Vec<String> {
        self.with(|table| table.other_endpoints())
    }

    /// Sessions here that were replaced by newer ones elsewhere, as they are noticed.
    pub fn replaced(&self) -> broadcast::Receiver<SupersededSession> {
        self.replaced.subscribe()
    }

    /// Runs until `stop`, then removes the records of this replica.
    pub async fn run(&self, stop: CancellationToken) {
        let Some(etcd) = &self.etcd else { return stop.cancelled().await };
        let replicas = follow::follow(&etcd.store, REPLICAS, etcd.since, &stop, |change| {
            self.apply_replicas(change);
        });
        let entries = follow::follow(&etcd.store, DIRECTORY, etcd.since, &stop, |change| {
            self.apply_entries(change);
        });
        let upkeep = async {
            tokio::select! {
                () = stop.cancelled() => {}
                () = self.renew() => {}
                () = self.write() => {}
                () = self.remove_stale_records(etcd) => {}
            }
        };
        // Boxed, because watches of the store are large and other futures hold this one.
        tokio::join!(Box::pin(replicas), Box::pin(entries), Box::pin(upkeep));
        if tokio::time::timeout(DEREGISTER_TIMEOUT, self.deregister(etcd)).await.is_err() {
            tracing::warn!(
                "cannot remove the record of this replica; other replicas drop it when it is no longer renewed"
            );
        }
    }

    async fn renew(&self) {
        for renewal in 1u64.. {
            tokio::time::sleep(RENEW).await;
            match self.renew_once(renewal).await {
                Ok(()) => {}
                // The store logs its outages itself.
                Err(error @ StoreError::Unavailable { .. }) => {
                    tracing::debug!(%error, "cannot renew the record of this replica");
                }
                Err(error) => {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(error, "cannot renew the record of this replica");
                }
            }
        }
    }

    async fn renew_once(&self, renewal: u64) -> Result<(), StoreError> {
        let Some(etcd) = &self.etcd else { return Ok(()) };
        let ReplicaAddress { address, endpoints } = etcd.own_address.clone();
        let record = encode(&ReplicaRecord { address, endpoints, started: etcd.started.clone(), renewal });
        // A store that hangs must not delay the next renewal.
        let key = format!("{REPLICAS}{}", self.id());
        let put = etcd.store.put(&key, record);
        match tokio::time::timeout(RENEW, put).await {
            Ok(put) => put.map(|_| ()),
            Err(_) => Err(StoreError::Unavailable { reason: "no answer".into(), source: None }),
        }
    }

    async fn write(&self) {
        loop {
            if !self.with(|table| table.has_writes()) {
                self.changed.notified().await;
            }
            tokio::time::sleep(WRITE_BATCH_DELAY).await;
            if !self.commit_pending().await {
                tokio::time::sleep(WRITE_RETRY_DELAY).await;
            }
        }
    }

    /// Commits the pending writes. False when some have to be retried.
    async fn commit_pending(&self) -> bool {
        let Some(etcd) = &self.etcd else { return true };
        let ops = self.with(|table| table.next_writes());
        match ops.is_empty() || self.commit(&etcd.store, &ops).await {
            true => true,
            // One operation conflicts with another replica: the rest is committed one by one.
            false => {
                let mut all = true;
                for op in ops {
                    all &= self.commit(&etcd.store, &[op]).await;
                }
                all
            }
        }
    }

    async fn commit(&self, store: &Store, ops: &[Op]) -> bool {
        match store.commit(ops.to_vec()).await {
            Ok(committed) => {
                self.with(|table| table.handle_written(ops, committed.revision));
                true
            }
            Err(error) => {
                tracing::debug!(%error, "cannot write the session directory; retrying");
                if ops.len() == 1 {
                    self.with(|table| table.handle_unwritten(ops));
                }
                false
            }
        }
    }

    async fn remove_stale_records(&self, etcd: &EtcdReplica) {
        loop {
            tokio::time::sleep(STALE_RECORD_CLEANUP_INTERVAL).await;
            let ops = self.with(|table| table.stale_records());
            // Another replica may remove the same record; a failed removal is retried in the next round.
            for op in ops {
                let _ = etcd.store.commit(vec![op]).await;
            }
        }
    }

    async fn deregister(&self, etcd: &EtcdReplica) {
        self.with(|table| table.handle_local(&[], ""));
        while self.with(|table| table.has_writes()) {
            if !self.commit_pending().await {
                tokio::time::sleep(WRITE_RETRY_DELAY).await;
            }
        }
        let _ = etcd.store.delete(&format!("{REPLICAS}{}", self.id()), None).await;
    }

    fn apply_replicas(&self, change: FollowedChange) {
        let now = Instant::now();
        self.with(|table| match change {
            FollowedChange::All(records) => {
                table.forget_others(&names(&records, REPLICAS));
                for record in records {
                    let id = record.key.strip_prefix(REPLICAS).unwrap_or_default();
                    table.handle_replica(id, read(&record.value), record.revision, now);
                }
            }
            FollowedChange::One(event) => {
                let id = event.key.strip_prefix(REPLICAS).unwrap_or_default();
                table.handle_replica(id, event.value.as_deref().and_then(read), event.revision, now);
            }
        });
    }

    fn apply_entries(&self, change: FollowedChange) {
        let changes: Vec<(String, Option<bytes::Bytes>, Revision)> = match change {
            FollowedChange::All(records) => {
                self.with(|table| table.forget_entries(&names(&records, DIRECTORY)));
                let change =
                    |record: StoreRecord| (record.key.to_string(), Some(record.value), record.revision);
                records.into_iter().map(change).collect()
            }
            FollowedChange::One(event) => vec![(event.key.to_string(), event.value.clone(), event.revision)],
        };
        for (key, value, revision) in changes {
            let gateway = key.strip_prefix(DIRECTORY).unwrap_or_default();
            let entry = value.as_deref().and_then(read);
            if let Some(by) = self.with(|table| table.handle_entry(gateway, entry, revision)) {
                // Without a receiver there is no session to end.
                let _ = self.replaced.send(SupersededSession { gateway: gateway.to_owned(), by });
            }
        }
        self.changed.notify_one();
    }

    fn with<T>(&self, act: impl FnOnce(&mut AttachmentTable) -> T) -> T {
        act(&mut self.table.lock_ignoring_poison())
    }
}

fn names(records: &[StoreRecord], prefix: &str) -> BTreeSet<String> {
    records.iter().filter_map(|record| record.key.strip_prefix(prefix)).map(str::to_owned).collect()
}

// A record that cannot be parsed is ignored: its owner writes it again, or it is removed as stale.
fn read<T: DeserializeOwned>(value: &[u8]) -> Option<T> {
    serde_json::from_slice(value).ok()
}
