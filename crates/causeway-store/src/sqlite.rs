//! The embedded engine: one file that a user can open with `sqlite3` and read.
//!
//! One writer thread turns waiting commits into one durable transaction (`writer`); a few connections read
//! concurrently (`readers`, `query`). They share three numbers and the hub. Only one process may open the
//! file.

mod apply;
mod import;
mod query;
mod readers;
mod remaining;
mod schema;
mod watch;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::{CancellationToken, DropGuard};

use self::readers::Readers;
use self::remaining::Remaining;
use self::writer::{WriteRequest, WriterThread};
use crate::backup::{BackupChunk, BackupHeader, ImportResult};
use crate::hub::{HubRetention, WatchHub};
use crate::{
    Committed, ListRange, Listing, Op, Revision, SharedCause, StoreError, StoreRecord, housekeeping,
};

pub(crate) use self::watch::SqliteWatch;

/// Further commits wait in their callers.
const REQUESTS_MAX: usize = 1024;

pub(crate) struct Sqlite {
    requests: mpsc::Sender<WriteRequest>,
    readers: Arc<Readers>,
    pages: Arc<Remaining>,
    shared: Arc<SqliteShared>,
    _stop: DropGuard,
}

/// The state that the writer publishes after each transaction.
pub(crate) struct SqliteShared {
    revision: AtomicU64,
    compacted: AtomicU64,
    epoch: AtomicU64,
    hub: Arc<WatchHub>,
}

impl SqliteShared {
    fn revision(&self) -> Revision {
        Revision(self.revision.load(Ordering::Acquire))
    }

    /// Takes note of a revision that was read. A commit is visible to readers a moment before the writer publishes its
    /// revision; a caller that has seen it must not be told an older one, nor that it asks for the future.
    fn observe(&self, revision: Revision) {
        self.revision.fetch_max(revision.0, Ordering::AcqRel);
    }

    fn compacted(&self) -> Revision {
        Revision(self.compacted.load(Ordering::Acquire))
    }

    fn set(&self, meta: schema::StoreMeta) {
        self.observe(meta.revision);
        self.compacted.store(meta.compacted.0, Ordering::Release);
        self.epoch.store(meta.epoch, Ordering::Release);
    }
}

impl Sqlite {
    pub async fn open(path: PathBuf) -> Result<Sqlite, StoreError> {
        blocking(move || Self::open_blocking(&path)).await?.map(|(sqlite, stop)| {
            let requests = sqlite.requests.clone();
            // After the writer has ended, no ticks are needed.
            let look = move || {
                let requests = requests.clone();
                async move { drop(requests.send(WriteRequest::Tick).await) }
            };
            tokio::spawn(housekeeping::run(Arc::clone(&sqlite.shared.hub), stop, look));
            sqlite
        })
    }

    fn open_blocking(path: &Path) -> Result<(Sqlite, CancellationToken), StoreError> {
        let (connection, lock, meta) = schema::open(path)?;
        let shared = Arc::new(SqliteShared {
            revision: AtomicU64::default(),
            compacted: AtomicU64::default(),
            epoch: AtomicU64::default(),
            hub: WatchHub::new(meta.revision, HubRetention::NOTHING),
        });
        shared.set(meta);
        let readers = Arc::new(Readers::open(path)?);
        let (requests, waiting) = mpsc::channel(REQUESTS_MAX);
        WriterThread::start(connection, lock, meta, Arc::clone(&shared), waiting)?;
        let stop = CancellationToken::new();
        let pages = Arc::default();
        let sqlite = Sqlite { requests, readers, pages, shared, _stop: stop.clone().drop_guard() };
        Ok((sqlite, stop))
    }

    pub async fn get(&self, key: &str) -> Result<Option<StoreRecord>, StoreError> {
        let key = key.to_owned();
        let record = self.readers.read(move |connection| query::record(connection, &key)).await?;
        if let Some(record) = &record {
            self.shared.observe(record.revision);
        }
        Ok(record)
    }

    pub async fn list(&self, prefix: &str, page: ListRange) -> Result<Listing, StoreError> {
        let (prefix, pages) = (prefix.to_owned(), Arc::clone(&self.pages));
        let listing =
            self.readers.read(move |connection| query::list(connection, &prefix, &page, &pages)).await?;
        self.shared.observe(listing.revision);
        Ok(listing)
    }

    pub async fn commit(&self, ops: Vec<Op>) -> Result<Committed, StoreError> {
        self.ask(|answer| WriteRequest::Commit { ops, answer }).await
    }

    /// Compacts in small steps, so that commits are executed in between.
    pub async fn compact(&self, upto: Revision) -> Result<Revision, StoreError> {
        loop {
            let progress = self.ask(|answer| WriteRequest::Compact { upto, answer }).await?;
            if progress.done {
                return Ok(progress.compacted);
            }
        }
    }

    pub fn watch(&self, prefix: &str, after: Revision) -> Result<SqliteWatch, StoreError> {
        let current = self.shared.revision();
        if after > current {
            return Err(StoreError::Future { requested: after, current });
        }
        let compacted = self.shared.compacted();
        if after < compacted {
            return Err(StoreError::Compacted { requested: after, oldest: compacted });
        }
        Ok(SqliteWatch::new(prefix, after, &self.shared, Arc::clone(&self.readers)))
    }

    pub async fn import(
        &self,
        header: BackupHeader,
        rows: mpsc::Receiver<BackupChunk>,
    ) -> Result<ImportResult, StoreError> {
        self.ask(|answer| WriteRequest::Import { header, rows, answer }).await
    }

    pub fn revision(&self) -> Revision {
        self.shared.revision()
    }

    pub fn epoch(&self) -> u64 {
        self.shared.epoch.load(Ordering::Acquire)
    }

    /// Closes the store. Returns when everything is on disk and another process may open the file.
    pub async fn close(&self) -> Result<(), StoreError> {
        // Readers are closed first: the last connection to close merges the log into the file.
        self.readers.close().await;
        self.ask(|answer| WriteRequest::Close { answer }).await
    }

    async fn ask<T>(
        &self,
        request: impl FnOnce(oneshot::Sender<Result<T, StoreError>>) -> WriteRequest,
    ) -> Result<T, StoreError> {
        let (answer, answered) = oneshot::channel();
        self.requests.send(request(answer)).await.map_err(|_| StoreError::Closed)?;
        answered.await.map_err(|_| StoreError::Closed)?
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, StoreError> {
    tokio::task::spawn_blocking(work).await.map_err(|error| StoreError::Unavailable {
        reason: "a database thread ended early".into(),
        source: Some(Arc::new(error)),
    })
}

/// Translates an error of a read.
fn translate(error: rusqlite::Error) -> StoreError {
    use rusqlite::ErrorCode;
    let code = error.sqlite_error_code();
    let source: SharedCause = Arc::new(error);
    match code {
        Some(ErrorCode::DiskFull) => StoreError::Full { source },
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
            StoreError::Corrupt { reason: "the database file cannot be read".into(), source: Some(source) }
        }
        _ => StoreError::Unavailable { reason: "the database refused".into(), source: Some(source) },
    }
}

/// Translates an error of a write: quotas, and a full disk while the log's index grows, are reported as
/// failed I/O.
fn translate_write(error: rusqlite::Error) -> StoreError {
    match error.sqlite_error_code() {
        Some(rusqlite::ErrorCode::SystemIoFailure) => StoreError::Full { source: Arc::new(error) },
        _ => translate(error),
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::WatchSignal;

    async fn put(sqlite: &Sqlite, key: &str) -> Revision {
        let op = Op::Put { key: key.to_owned(), value: Bytes::from_static(b"{}") };
        sqlite.commit(vec![op]).await.unwrap().revision
    }

    /// The state between a commit and its publication by the writer, which readers see for a moment.
    fn unpublish(sqlite: &Sqlite, to: Revision) {
        sqlite.shared.revision.store(to.0, Ordering::Release);
    }

    #[tokio::test]
    async fn a_revision_that_was_read_is_not_in_the_future() {
        let folder = tempfile::tempdir().unwrap();
        let sqlite = Sqlite::open(folder.path().join("store.db")).await.unwrap();
        let before = put(&sqlite, "a/1").await;
        let newest = put(&sqlite, "a/2").await;

        unpublish(&sqlite, before);
        assert_eq!(sqlite.get("a/2").await.unwrap().unwrap().revision, newest);
        assert_eq!(sqlite.revision(), newest);

        unpublish(&sqlite, before);
        assert_eq!(sqlite.list("a/", ListRange::default()).await.unwrap().revision, newest);
        assert!(sqlite.watch("a/", newest).is_ok(), "a watch from a list that was just answered");

        let mut watch = sqlite.watch("a/", before).unwrap();
        unpublish(&sqlite, before);
        assert!(matches!(watch.next().await.unwrap(), WatchSignal::Event(event) if event.revision == newest));
        assert_eq!(sqlite.revision(), newest);
    }
}
