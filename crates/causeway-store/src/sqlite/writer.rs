//! The writer thread: takes the waiting requests, makes them one transaction, syncs, responds and publishes.
//!
//! Each commit of a group has its own revision; a refused one does not affect the rest. No request is
//! answered before the transaction is on disk. When the disk fails the whole group is refused, and the next
//! one tries again.

use std::fs::File;
use std::sync::Arc;

use rusqlite::{Connection, TransactionBehavior, params};
use tokio::sync::mpsc::error::TryRecvError;
use tokio::sync::{mpsc, oneshot};

use super::apply::{AppliedCommit, apply};
use super::schema::{StoreMeta, load, save};
use super::{SqliteShared, import, translate_write};
use crate::backup::{BackupChunk, BackupHeader, ImportResult};
use crate::retention::{self, RevisionTime};
use crate::{Committed, Op, Revision, StoreError};

type Answer<T> = oneshot::Sender<Result<T, StoreError>>;

pub(crate) enum WriteRequest {
    Commit { ops: Vec<Op>, answer: Answer<Committed> },
    Compact { upto: Revision, answer: Answer<Compaction> },
    Import { header: BackupHeader, rows: mpsc::Receiver<BackupChunk>, answer: Answer<ImportResult> },
    Tick,
    Close { answer: Answer<()> },
}

/// One step of compaction.
pub(crate) struct Compaction {
    pub compacted: Revision,
    pub done: bool,
}

/// The limit of a group, so that its first request does not wait long.
const GROUP_MAX: usize = 512;
/// Rows deleted in one step of compaction: some milliseconds.
const COMPACT_ROWS: usize = 2000;

pub(super) struct WriterThread {
    connection: Connection,
    meta: StoreMeta,
    shared: Arc<SqliteShared>,
    /// The target of a compaction in progress that was decided by age and count.
    compacting: Option<Revision>,
}

struct Waiting {
    ops: Vec<Op>,
    answer: Answer<Committed>,
}

impl WriterThread {
    pub fn start(
        connection: Connection,
        lock: File,
        meta: StoreMeta,
        shared: Arc<SqliteShared>,
        requests: mpsc::Receiver<WriteRequest>,
    ) -> Result<(), StoreError> {
        connection.set_prepared_statement_cache_capacity(32);
        let writer = WriterThread { connection, meta, shared, compacting: None };
        std::thread::Builder::new()
            .name("store-writer".into())
            .spawn(move || writer.run(requests, lock))
            .map(drop)
            .map_err(|error| StoreError::Unavailable {
                reason: "cannot start a thread".into(),
                source: Some(Arc::new(error)),
            })
    }

    fn run(mut self, mut requests: mpsc::Receiver<WriteRequest>, lock: File) {
        let mut next = requests.blocking_recv();
        while let Some(request) = next.take() {
            match request {
                WriteRequest::Commit { ops, answer } => {
                    next = self.commit_group(Waiting { ops, answer }, &mut requests)
                }
                WriteRequest::Compact { upto, answer } => drop(answer.send(self.compact(upto))),
                WriteRequest::Import { header, rows, answer } => {
                    drop(answer.send(self.import(&header, rows)))
                }
                WriteRequest::Tick => self.tick(),
                WriteRequest::Close { answer } => {
                    self.end(lock);
                    drop(answer.send(Ok(())));
                    return;
                }
            }
            if next.is_none() {
                next = self.wait(&mut requests);
            }
        }
        self.end(lock);
    }

    /// Returns the next request. A compaction in progress continues in between, at least one step for each
    /// group.
    fn wait(&mut self, requests: &mut mpsc::Receiver<WriteRequest>) -> Option<WriteRequest> {
        while let Some(upto) = self.compacting {
            self.compact_a_little(upto);
            match requests.try_recv() {
                Ok(request) => return Some(request),
                Err(TryRecvError::Empty) => {}
                Err(TryRecvError::Disconnected) => return None,
            }
        }
        requests.blocking_recv()
    }

    fn end(self, lock: File) {
        self.shared.hub.close();
        if let Err((_, error)) = self.connection.close() {
            tracing::warn!(error = %error, "the database did not close cleanly; the next start recovers it");
        }
        // The lock is dropped last, so that its next holder finds a closed file.
        drop(lock);
    }

    /// Commits a group. Returns the request that ended the group, when it was not a commit.
    fn commit_group(
        &mut self,
        first: Waiting,
        requests: &mut mpsc::Receiver<WriteRequest>,
    ) -> Option<WriteRequest> {
        let mut group = vec![first];
        let mut other = None;
        while group.len() < GROUP_MAX {
            match requests.try_recv() {
                Ok(WriteRequest::Commit { ops, answer }) => group.push(Waiting { ops, answer }),
                Ok(request) => {
                    other = Some(request);
                    break;
                }
                Err(_) => break,
            }
        }
        match self.write_group(&group) {
            Ok((outcomes, meta)) => self.acknowledge(group, outcomes, meta),
            Err(error) => {
                tracing::debug!(error = %error, commits = group.len(), "cannot write a group of commits");
                let refusal = translate_write(error);
                group.into_iter().for_each(|waiting| drop(waiting.answer.send(Err(refusal.clone()))));
            }
        }
        other
    }

    fn write_group(
        &mut self,
        group: &[Waiting],
    ) -> rusqlite::Result<(Vec<Result<AppliedCommit, StoreError>>, StoreMeta)> {
        // Dropped on any error, which rolls everything back.
        let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let mut meta = self.meta;
        let mut outcomes = Vec::with_capacity(group.len());
        for waiting in group {
            let outcome = apply(&transaction, meta.revision.next(), &waiting.ops)?;
            if outcome.is_ok() {
                meta.revision = meta.revision.next();
            }
            outcomes.push(outcome);
        }
        if meta != self.meta {
            save(&transaction, "revision", meta.revision.0)?;
            transaction.commit()?;
        }
        Ok((outcomes, meta))
    }

    fn acknowledge(
        &mut self,
        group: Vec<Waiting>,
        outcomes: Vec<Result<AppliedCommit, StoreError>>,
        meta: StoreMeta,
    ) {
        self.remember(meta);
        let mut events = Vec::new();
        for (waiting, outcome) in group.into_iter().zip(outcomes) {
            let answer = outcome.map(|applied| {
                events.extend(applied.events);
                applied.committed
            });
            // The caller may have disconnected; the commit stays.
            drop(waiting.answer.send(answer));
        }
        if !events.is_empty() {
            self.shared.hub.publish(&events, meta.revision);
        }
    }

    /// Deletes some of the history that ended at or before `upto`.
    fn compact(&mut self, upto: Revision) -> Result<Compaction, StoreError> {
        if upto > self.meta.revision {
            return Err(StoreError::Future { requested: upto, current: self.meta.revision });
        }
        let mut meta = self.meta;
        meta.compacted = meta.compacted.max(upto);
        let deleted = self.delete_history(meta.compacted).map_err(translate_write)?;
        self.remember(meta);
        Ok(Compaction { compacted: meta.compacted, done: deleted < COMPACT_ROWS })
    }

    fn delete_history(&mut self, upto: Revision) -> rusqlite::Result<usize> {
        let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        save(&transaction, "compacted", upto.0)?;
        let deleted = transaction
            .prepare_cached(
                "DELETE FROM history WHERE (until, key) IN
                 (SELECT until, key FROM history WHERE until <= ?1 ORDER BY until, key LIMIT ?2)",
            )?
            .execute(params![upto.0, COMPACT_ROWS as i64])?;
        transaction.commit()?;
        Ok(deleted)
    }

    fn tick(&mut self) {
        match self.note_moment() {
            Ok(upto) => self.compacting = upto.filter(|upto| *upto > self.meta.compacted),
            Err(error) => {
                tracing::warn!(error = %error, "cannot record the age of the store's history; retrying in a minute")
            }
        }
    }

    fn compact_a_little(&mut self, upto: Revision) {
        match self.compact(upto) {
            Ok(Compaction { done: false, .. }) => {}
            Ok(Compaction { compacted, .. }) => {
                tracing::debug!(revision = %compacted, "history compacted");
                self.compacting = None;
            }
            Err(error) => {
                tracing::warn!(error = %error, "cannot compact the store's history; retrying in a minute");
                self.compacting = None;
            }
        }
    }

    fn note_moment(&mut self) -> rusqlite::Result<Option<Revision>> {
        let now = RevisionTime { revision: self.meta.revision.0, unix_seconds: retention::unix_seconds() };
        let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let known = transaction
            .prepare_cached("SELECT revision, unix_seconds FROM moments ORDER BY revision")?
            .query_map([], |row| Ok(RevisionTime { revision: row.get(0)?, unix_seconds: row.get(1)? }))?
            .collect::<rusqlite::Result<Vec<_>>>()?;
        let moments = retention::note(&known, now);
        if moments != known {
            transaction.execute("DELETE FROM moments", [])?;
            for moment in &moments {
                transaction.execute(
                    "INSERT INTO moments (revision, unix_seconds) VALUES (?1, ?2)",
                    params![moment.revision, moment.unix_seconds],
                )?;
            }
            transaction.commit()?;
        }
        Ok(retention::due(&moments, now.unix_seconds, self.meta.revision))
    }

    fn import(
        &mut self,
        header: &BackupHeader,
        rows: mpsc::Receiver<BackupChunk>,
    ) -> Result<ImportResult, StoreError> {
        let imported = import::import(&mut self.connection, header, rows)?;
        let meta = load(&self.connection)?;
        self.remember(meta);
        self.shared.hub.cut(meta.revision);
        Ok(imported)
    }

    fn remember(&mut self, meta: StoreMeta) {
        // The whole store relies on this invariant.
        assert!(meta.revision >= self.meta.revision, "the revision must never go back");
        self.meta = meta;
        self.shared.set(meta);
    }
}
