//! Keeps the table in step with the store: renews the record of this replica, writes the gateways attached
//! here, follows the records of other replicas.
//!
//! With SQLite there is one replica, and nothing is written: the table in memory is the whole truth. With
//! etcd, writes are gathered for a moment and committed together. Trouble with the store is waited out; the
//! table goes on with what it knows.

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

/// Attachments within this time share a commit: a fleet that comes back is a few hundred commits, not twenty
/// thousand.
const GATHER: Duration = Duration::from_millis(50);
/// Pause after a failed write: the watch brings the missing change, or the store comes back.
const PAUSE: Duration = Duration::from_millis(100);
const SWEEP: Duration = Duration::from_secs(30);
/// Time for a replica that stops to remove its records; other replicas would notice its end by themselves.
const FAREWELL: Duration = Duration::from_secs(2);
/// Capacity of the channel of replaced sessions. A receiver that falls further behind compares all its
/// sessions with `newest`.
const REPLACED_MAX: usize = 1024;

/// A session somewhere else that replaces one here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SupersededSession {
    pub gateway: String,
    pub by: SessionKey,
}

/// The addresses of a replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplicaAddress {
    /// Its channel port, by other replicas.
    pub address: String,
    /// By edges.
    pub endpoints: Vec<String>,
}

pub struct SessionDirectory {
    shared: Option<Shared>,
    table: Mutex<AttachmentTable>,
    changed: Notify,
    replaced: broadcast::Sender<SupersededSession>,
    clock: Clock,
}

/// State of a replica that is one of several.
struct Shared {
    store: Store,
    place: ReplicaAddress,
    started: String,
    /// Older than the first picture; following goes on from there.
    since: Revision,
}

/// By its address; several that share one are still told apart.
fn label(address: &str, id: &str) -> String {
    format!("{address} ({id})")
}

impl SessionDirectory {
    /// The only replica there is.
    pub fn alone(clock: Clock) -> Arc<SessionDirectory> {
        SessionDirectory::new(None, clock)
    }

    /// One of several on the same store, at `place`.
    pub async fn open(
        store: Store,
        place: ReplicaAddress,
        clock: Clock,
    ) -> Result<Arc<SessionDirectory>, StoreError> {
        let since = store.revision().await?;
        let (replicas, _) = follow::snapshot(&store, REPLICAS).await?;
        let (entries, _) = follow::snapshot(&store, DIRECTORY).await?;
        let started = UtcTimestamp(clock.now()).to_string();
        let directory = SessionDirectory::new(Some(Shared { store, place, started, since }), clock);
        directory.apply_replicas(FollowedChange::All(replicas));
        directory.apply_entries(FollowedChange::All(entries));
        directory.renew_once(0).await?;
        Ok(directory)
    }

    fn new(shared: Option<Shared>, clock: Clock) -> Arc<SessionDirectory> {
        let secret = TokenSecret::generate();
        let id: String = secret.expose()[..8].iter().map(|byte| format!("{byte:02x}")).collect();
        let (replaced, _) = broadcast::channel(REPLACED_MAX);
        let table = Mutex::new(AttachmentTable::new(id, Instant::now()));
        Arc::new(SessionDirectory { shared, table, changed: Notify::new(), replaced, clock })
    }

    /// This replica's name, new with every start.
    pub fn id(&self) -> String {
        self.with(|table| table.me().to_owned())
    }

    /// Returns the label of this replica in messages; `None` when there is no other. New with every start.
    pub fn label(&self) -> Option<String> {
        self.shared.as_ref().map(|shared| label(&shared.place.address, &self.id()))
    }

    /// Returns the labels of the replicas that are alive, this one included, by id. None: there is only this
    /// one.
    pub fn live_replicas(&self) -> Option<BTreeMap<String, String>> {
        let own = (self.id(), self.label()?);
        let others = self.others().into_iter().map(|(id, address)| (id.clone(), label(&address, &id)));
        Some(others.chain([own]).collect())
    }

    /// Sets the gateways that are attached here, with their sessions.
    pub fn set_attached(&self, attached: &[(String, SessionKey)]) {
        let since = UtcTimestamp(self.clock.now()).to_string();
        self.with(|table| table.handle_local(attached, &since));
        self.changed.notify_one();
    }

    pub fn whereabouts(&self, gateway: &str) -> GatewayLocation {
        self.with(|table| table.whereabouts(gateway))
    }

    /// The newest session known of a gateway, wherever it is.
    pub fn newest(&self, gateway: &str) -> Option<SessionKey> {
        self.with(|table| table.newest(gateway))
    }

    /// The other replicas that seem to be alive: id and address.
    pub fn others(&self) -> Vec<(String, String)> {
        self.with(|table| table.others())
    }

    /// Returns the endpoints of the other replicas, which edges dial when this one is gone.
    pub fn endpoints_of_others(&self) -> Vec<String> {
        self.with(|table| table.endpoints_of_others())
    }

    /// Sessions here that were replaced by newer ones elsewhere, as they are noticed.
    pub fn replaced(&self) -> broadcast::Receiver<SupersededSession> {
        self.replaced.subscribe()
    }

    /// Goes on until told to stop, then takes this replica out of the directory.
    pub async fn run(&self, stop: CancellationToken) {
        let Some(shared) = &self.shared else { return stop.cancelled().await };
        let replicas = follow::follow(&shared.store, REPLICAS, shared.since, &stop, |change| {
            self.apply_replicas(change);
        });
        let entries = follow::follow(&shared.store, DIRECTORY, shared.since, &stop, |change| {
            self.apply_entries(change);
        });
        let upkeep = async {
            tokio::select! {
                () = stop.cancelled() => {}
                () = self.renew() => {}
                () = self.write() => {}
                () = self.sweep(shared) => {}
            }
        };
        // Boxed, because watches of the store are large and other futures hold this one.
        tokio::join!(Box::pin(replicas), Box::pin(entries), Box::pin(upkeep));
        if tokio::time::timeout(FAREWELL, self.leave(shared)).await.is_err() {
            tracing::warn!("the directory still names this replica; the others will notice that it is gone");
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
        let Some(shared) = &self.shared else { return Ok(()) };
        let ReplicaAddress { address, endpoints } = shared.place.clone();
        let record = encode(&ReplicaRecord { address, endpoints, started: shared.started.clone(), renewal });
        // A store that hangs must not keep the next renewal from being tried.
        let key = format!("{REPLICAS}{}", self.id());
        let put = shared.store.put(&key, record);
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
            tokio::time::sleep(GATHER).await;
            if !self.write_some().await {
                tokio::time::sleep(PAUSE).await;
            }
        }
    }

    /// One commit. False when it has to be tried again.
    async fn write_some(&self) -> bool {
        let Some(shared) = &self.shared else { return true };
        let ops = self.with(|table| table.next_writes());
        match ops.is_empty() || self.commit(&shared.store, &ops).await {
            true => true,
            // One operation was overtaken by another replica: the rest does not wait for it.
            false => {
                let mut all = true;
                for op in ops {
                    all &= self.commit(&shared.store, &[op]).await;
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
                tracing::debug!(%error, "the directory could not be written; looking again");
                if ops.len() == 1 {
                    self.with(|table| table.handle_unwritten(ops));
                }
                false
            }
        }
    }

    async fn sweep(&self, shared: &Shared) {
        loop {
            tokio::time::sleep(SWEEP).await;
            let ops = self.with(|table| table.leftovers());
            // Another replica may do the same at this moment; a failed removal is left for the next round.
            for op in ops {
                let _ = shared.store.commit(vec![op]).await;
            }
        }
    }

    async fn leave(&self, shared: &Shared) {
        self.with(|table| table.handle_local(&[], ""));
        while self.with(|table| table.has_writes()) {
            if !self.write_some().await {
                tokio::time::sleep(PAUSE).await;
            }
        }
        let _ = shared.store.delete(&format!("{REPLICAS}{}", self.id()), None).await;
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

// A record that cannot be read is as good as none: its owner writes it anew, or it is swept.
fn read<T: DeserializeOwned>(value: &[u8]) -> Option<T> {
    serde_json::from_slice(value).ok()
}
