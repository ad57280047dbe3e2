//! The distributed engine: several replicas on one etcd cluster, whose revisions are the store's revisions.
//!
//! One shared watch feeds the hub (`feed`); commits are etcd transactions (`transaction`); requests move to
//! another member when one is lost (`members`). Under the prefix, `objects/` holds the records and `meta/`
//! the metadata of the store.

mod compaction;
mod feed;
mod import;
mod keys;
mod members;
mod outage;
mod transaction;
mod watch;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use etcd_client::{Compare, CompareOp, GetOptions, Txn, TxnOp, TxnOpResponse};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};

use self::keys::EtcdKeys;
use self::members::{EtcdFailure, EtcdMembers, RetryPolicy};
use crate::backup::{BackupChunk, BackupHeader, ImportResult};
use crate::hub::{HubRetention, WatchHub};
use crate::sync::MutexExt;
use crate::{Committed, EtcdTls, ListRange, Listing, Op, Revision, StoreError, StoreRecord, housekeeping};

pub(crate) use self::watch::EtcdWatch;

/// The format this program writes. A change that older programs would misread raises it.
const FORMAT: u64 = 1;
/// Records requested at once: a thousand of the largest still fit into one response.
const PAGE: usize = 1000;

/// Recent events that the hub keeps. Catching up through etcd costs a separate watch each time, so the events
/// for clients that return after a moment are kept in memory.
const KEEP: HubRetention = HubRetention { events_max: 2000, bytes_max: 8 << 20 };
/// A new replica begins this many revisions ago, for clients that come from another replica.
const BEGIN_BEFORE: u64 = 1000;

pub(crate) struct Etcd {
    shared: Arc<EtcdShared>,
    tasks: std::sync::Mutex<Vec<JoinHandle<()>>>,
    _stop: DropGuard,
}

/// The state that requests and background tasks share.
pub(crate) struct EtcdShared {
    members: EtcdMembers,
    keys: EtcdKeys,
    hub: Arc<WatchHub>,
    epoch: AtomicU64,
    compacted: AtomicU64,
    import: ImportState,
    /// The revision of the metadata that was read when the store was opened; the feed skips older changes of it.
    opened: Revision,
    stop: CancellationToken,
}

impl Etcd {
    pub async fn open(
        endpoints: Vec<String>,
        tls: Option<EtcdTls>,
        prefix: &str,
    ) -> Result<Etcd, StoreError> {
        let members = EtcdMembers::new(&endpoints, tls).await?;
        let keys = EtcdKeys::new(prefix);
        let start = begin(&members, &keys).await?;
        let stop = CancellationToken::new();
        let shared = Arc::new(EtcdShared {
            members,
            keys,
            hub: WatchHub::new(start.known, KEEP),
            epoch: AtomicU64::new(start.epoch),
            compacted: AtomicU64::new(start.compacted.0),
            import: ImportState { begun: AtomicU64::new(start.importing.0), ended: AtomicU64::new(0) },
            opened: start.revision,
            stop: stop.clone(),
        });
        let tasks = vec![
            tokio::spawn(feed::run(Arc::clone(&shared), start.known)),
            tokio::spawn(housekeeping::run(Arc::clone(&shared.hub), shared.stop.clone(), {
                let shared = Arc::clone(&shared);
                move || compaction::compact_if_due(Arc::clone(&shared))
            })),
        ];
        Ok(Etcd { shared, tasks: std::sync::Mutex::new(tasks), _stop: stop.drop_guard() })
    }

    pub async fn get(&self, key: &str) -> Result<Option<StoreRecord>, StoreError> {
        self.shared.check_open()?;
        let name = self.shared.keys.object(key);
        let answer = self.shared.members.call(RetryPolicy::Again, |mut kv| {
            let name = name.clone();
            async move { kv.get(name, None).await }
        });
        let mut answer = answer.await.map_err(EtcdFailure::into_error)?;
        answer.take_kvs().into_iter().next().map(|found| self.shared.keys.record(found)).transpose()
    }

    pub async fn list(&self, prefix: &str, page: ListRange) -> Result<Listing, StoreError> {
        self.shared.check_open()?;
        if let Some(at) = page.at {
            self.shared.check_kept(at)?;
        }
        let (mut start, end) = self.shared.keys.range(prefix, page.after.as_deref());
        let limit = page.limit.unwrap_or(usize::MAX);
        let mut listing =
            Listing { records: Vec::new(), revision: page.at.unwrap_or_default(), remaining: 0 };
        loop {
            let wanted = limit.saturating_sub(listing.records.len()).min(PAGE);
            let part = self.shared.range(&start, &end, wanted, listing.revision).await?;
            listing.revision = part.revision;
            listing.remaining = part.count.saturating_sub(part.records.len() as u64);
            let Some(last) = part.records.last() else { return Ok(listing) };
            start = self.shared.keys.behind(&last.key);
            listing.records.extend(part.records);
            if listing.remaining == 0 || listing.records.len() >= limit {
                return Ok(listing);
            }
        }
    }

    pub async fn commit(&self, ops: Vec<Op>) -> Result<Committed, StoreError> {
        self.shared.check_open()?;
        let keys = &self.shared.keys;
        let answer = self.shared.members.call(RetryPolicy::Once, |mut kv| {
            let transaction = transaction::build(keys, &ops);
            async move { kv.txn(transaction).await }
        });
        transaction::explain(keys, &ops, answer.await.map_err(EtcdFailure::into_error)?)
    }

    pub async fn watch(&self, prefix: &str, after: Revision) -> Result<EtcdWatch, StoreError> {
        self.shared.check_open()?;
        self.shared.check_kept(after)?;
        let subscription = self.shared.hub.subscribe(prefix, after);
        // Another replica may have sent the client a revision that has not reached this one yet.
        if after > subscription.from {
            let current = self.revision().await?;
            if after > current {
                return Err(StoreError::Future { requested: after, current });
            }
        }
        Ok(EtcdWatch::new(prefix, after, subscription, Arc::clone(&self.shared)))
    }

    pub async fn revision(&self) -> Result<Revision, StoreError> {
        self.shared.check_open()?;
        let (start, end) = self.shared.keys.range("", None);
        let options = GetOptions::new().with_range(end).with_count_only();
        let answer = self.shared.members.call(RetryPolicy::Again, |mut kv| {
            let (start, options) = (start.clone(), options.clone());
            async move { kv.get(start, Some(options)).await }
        });
        members::revision(answer.await.map_err(EtcdFailure::into_error)?.header())
    }

    pub async fn compact(&self, upto: Revision) -> Result<Revision, StoreError> {
        self.shared.check_open()?;
        compaction::compact(&self.shared, upto).await
    }

    pub async fn import(
        &self,
        header: BackupHeader,
        rows: mpsc::Receiver<BackupChunk>,
    ) -> Result<ImportResult, StoreError> {
        if self.shared.stop.is_cancelled() {
            return Err(StoreError::Closed);
        }
        import::import(&self.shared, &header, rows).await
    }

    pub fn epoch(&self) -> u64 {
        self.shared.epoch.load(Ordering::Acquire)
    }

    pub async fn close(&self) -> Result<(), StoreError> {
        self.shared.stop.cancel();
        let tasks: Vec<_> = std::mem::take(&mut *self.tasks.lock_ignoring_poison());
        for task in tasks {
            // A task that panicked has logged it already.
            let _ = task.await;
        }
        self.shared.hub.close();
        Ok(())
    }
}

/// The revisions at which a restore last began and ended on any replica. While one is in progress, the
/// records are incomplete. Revisions, not a flag: the feed may deliver the beginning when this replica
/// already knows of the end.
struct ImportState {
    begun: AtomicU64,
    ended: AtomicU64,
}

impl ImportState {
    fn is_under_way(&self) -> bool {
        self.begun.load(Ordering::Acquire) > self.ended.load(Ordering::Acquire)
    }

    fn begin(&self, at: Revision) {
        self.begun.fetch_max(at.0, Ordering::AcqRel);
    }

    fn end(&self, at: Revision) {
        self.ended.fetch_max(at.0, Ordering::AcqRel);
    }
}

/// A part of a range, all of one revision.
struct Part {
    records: Vec<StoreRecord>,
    revision: Revision,
    count: u64,
}

impl EtcdShared {
    fn compacted(&self) -> Revision {
        Revision(self.compacted.load(Ordering::Acquire))
    }

    fn check_open(&self) -> Result<(), StoreError> {
        if self.stop.is_cancelled() {
            return Err(StoreError::Closed);
        }
        if self.import.is_under_way() {
            return Err(StoreError::unavailable("a restore is under way, or was broken off: run it again"));
        }
        Ok(())
    }

    fn check_kept(&self, revision: Revision) -> Result<(), StoreError> {
        let oldest = self.compacted();
        if revision < oldest { Err(StoreError::Compacted { requested: revision, oldest }) } else { Ok(()) }
    }

    /// Returns the records from `start` to before `end`; `at` 0 means now. Reads are linearizable.
    async fn range(&self, start: &str, end: &str, limit: usize, at: Revision) -> Result<Part, StoreError> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let mut options = GetOptions::new().with_range(end).with_limit(limit).with_revision(at.0 as i64);
        if limit == 0 {
            // For etcd, a limit of 0 means all.
            options = options.with_limit(1).with_count_only();
        }
        let answer = self.members.call(RetryPolicy::Again, |mut kv| {
            let (start, options) = (start.to_owned(), options.clone());
            async move { kv.get(start, Some(options)).await }
        });
        let mut answer = answer.await.map_err(|failure| self.history_error(failure, at))?;
        let revision = if at.0 == 0 { members::revision(answer.header())? } else { at };
        let count = u64::try_from(answer.count()).unwrap_or_default();
        let records =
            answer.take_kvs().into_iter().map(|found| self.keys.record(found)).collect::<Result<_, _>>()?;
        Ok(Part { records, revision, count })
    }

    /// Translates the refusal of a read at an old revision.
    fn history_error(&self, failure: EtcdFailure, requested: Revision) -> StoreError {
        match &failure {
            EtcdFailure::Compacted => {
                // Another client compacted; at least the requested revision is compacted.
                StoreError::Compacted { requested, oldest: self.compacted().max(Revision(requested.0 + 1)) }
            }
            EtcdFailure::Future => StoreError::Future { requested, current: self.hub.delivered() },
            _ => failure.into_error(),
        }
    }
}

/// The records at the time the store was opened.
struct Start {
    revision: Revision,
    /// The revision from which the hub has all events.
    known: Revision,
    epoch: u64,
    compacted: Revision,
    importing: Revision,
}

/// Writes the store's metadata when the prefix is empty, and reads it otherwise, in one transaction: replicas
/// that start together find the same metadata.
async fn begin(members: &EtcdMembers, keys: &EtcdKeys) -> Result<Start, StoreError> {
    let names = [keys.meta("format"), keys.meta("epoch"), keys.meta("compaction"), keys.meta("importing")];
    let answer = members.call(RetryPolicy::Again, |mut kv| {
        let transaction = Txn::new()
            .when([Compare::version(names[0].clone(), CompareOp::Equal, 0)])
            .and_then([
                TxnOp::put(names[0].clone(), FORMAT.to_string(), None),
                TxnOp::put(names[1].clone(), "1", None),
            ])
            .or_else(names.clone().map(|name| TxnOp::get(name, None)));
        async move { kv.txn(transaction).await }
    });
    let answer = answer.await.map_err(EtcdFailure::into_error)?;
    let revision = members::revision(answer.header())?;
    let mut start =
        Start { revision, known: revision, epoch: 1, compacted: Revision(0), importing: Revision(0) };
    if answer.succeeded() {
        return Ok(start);
    }
    let values: Vec<Option<Vec<u8>>> = answer.op_responses().into_iter().map(first_value).collect();
    let [format, epoch, compaction, importing] =
        <[_; 4]>::try_from(values).map_err(|_| StoreError::corrupt("etcd answered another question"))?;
    let found = keys::number(format.as_deref())?;
    if found > FORMAT {
        return Err(StoreError::TooNew { found, supported: FORMAT });
    }
    start.epoch = keys::number(epoch.as_deref())?;
    start.compacted = compaction::CompactionState::parse(compaction.as_deref()).compacted();
    start.known = Revision(revision.0.saturating_sub(BEGIN_BEFORE)).max(start.compacted);
    start.importing = if importing.is_some() { start.revision } else { Revision(0) };
    Ok(start)
}

fn first_value(response: TxnOpResponse) -> Option<Vec<u8>> {
    match response {
        TxnOpResponse::Get(mut get) => {
            get.take_kvs().into_iter().next().map(|found| found.into_key_value().1)
        }
        _ => None,
    }
}
