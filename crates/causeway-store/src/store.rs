//! The public interface: one struct for all engines.
//!
//! Checks limits for all engines and passes the work to the engine. Export and import use this interface
//! only, so that a backup of one engine can be restored into the other.

use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader};
use tokio::sync::mpsc;

use crate::backup::{
    BackupChunk, BackupDecoder, BackupEncoder, BackupHeader, BackupLine, ImportResult, LINE_BYTES_MAX,
};
use crate::etcd::Etcd;
use crate::model::{check_key, check_limits};
use crate::sqlite::Sqlite;
use crate::watch::EngineWatch;
use crate::{Committed, ListRange, Listing, Op, Revision, StoreError, StoreRecord, StoreSpec, StoreWatch};

/// A handle; clones share the same store.
#[derive(Clone)]
pub struct Store {
    engine: Arc<Engine>,
}

enum Engine {
    Sqlite(Sqlite),
    Etcd(Etcd),
}

impl Store {
    /// Opens the store, and creates it when there is none.
    pub async fn open(spec: StoreSpec) -> Result<Store, StoreError> {
        let engine = match spec {
            StoreSpec::Sqlite { path } => Engine::Sqlite(Sqlite::open(path).await?),
            StoreSpec::Etcd { endpoints, tls, prefix } => {
                Engine::Etcd(Etcd::open(endpoints, tls, &prefix).await?)
            }
        };
        Ok(Store { engine: Arc::new(engine) })
    }

    pub async fn get(&self, key: &str) -> Result<Option<StoreRecord>, StoreError> {
        check_key(key)?;
        match &*self.engine {
            Engine::Sqlite(sqlite) => sqlite.get(key).await,
            Engine::Etcd(etcd) => etcd.get(key).await,
        }
    }

    /// Returns the records whose keys begin with `prefix`, at one revision. For the next page call it again
    /// with `at` set to the listing's revision and `after` to its last key.
    pub async fn list(&self, prefix: &str, page: ListRange) -> Result<Listing, StoreError> {
        match &*self.engine {
            Engine::Sqlite(sqlite) => sqlite.list(prefix, page).await,
            Engine::Etcd(etcd) => etcd.list(prefix, page).await,
        }
    }

    /// Executes all operations or none, at one revision; they are on disk when this returns. When the caller
    /// stops waiting the commit may still happen.
    pub async fn commit(&self, ops: Vec<Op>) -> Result<Committed, StoreError> {
        check_limits(&ops)?;
        match &*self.engine {
            Engine::Sqlite(sqlite) => sqlite.commit(ops).await,
            Engine::Etcd(etcd) => etcd.commit(ops).await,
        }
    }

    pub async fn create(&self, key: &str, value: Bytes) -> Result<Revision, StoreError> {
        let committed = self.commit(vec![Op::Create { key: key.into(), value }]).await?;
        Ok(committed.revision)
    }

    pub async fn update(&self, key: &str, value: Bytes, expected: Revision) -> Result<Revision, StoreError> {
        let committed = self.commit(vec![Op::Update { key: key.into(), value, expected }]).await?;
        Ok(committed.revision)
    }

    pub async fn put(&self, key: &str, value: Bytes) -> Result<Revision, StoreError> {
        let committed = self.commit(vec![Op::Put { key: key.into(), value }]).await?;
        Ok(committed.revision)
    }

    pub async fn delete(&self, key: &str, expected: Option<Revision>) -> Result<Revision, StoreError> {
        let committed = self.commit(vec![Op::Delete { key: key.into(), expected }]).await?;
        Ok(committed.revision)
    }

    /// Watches the changes of keys that begin with `prefix` after the revision `after`.
    pub async fn watch(&self, prefix: &str, after: Revision) -> Result<StoreWatch, StoreError> {
        let source = match &*self.engine {
            Engine::Sqlite(sqlite) => EngineWatch::Sqlite(sqlite.watch(prefix, after)?),
            Engine::Etcd(etcd) => EngineWatch::Etcd(Box::new(etcd.watch(prefix, after).await?)),
        };
        Ok(StoreWatch { source })
    }

    pub async fn revision(&self) -> Result<Revision, StoreError> {
        match &*self.engine {
            Engine::Sqlite(sqlite) => Ok(sqlite.revision()),
            Engine::Etcd(etcd) => etcd.revision().await,
        }
    }

    /// Compacts history before `upto`: lists at and watches after `upto` itself still work. Returns the
    /// oldest revision that is kept. History older than ten minutes and 10,000 revisions is compacted
    /// automatically.
    pub async fn compact(&self, upto: Revision) -> Result<Revision, StoreError> {
        match &*self.engine {
            Engine::Sqlite(sqlite) => sqlite.compact(upto).await,
            Engine::Etcd(etcd) => etcd.compact(upto).await,
        }
    }

    /// Returns the epoch, which every import raises: revisions of different epochs must not be compared.
    pub async fn epoch(&self) -> u64 {
        match &*self.engine {
            Engine::Sqlite(sqlite) => sqlite.epoch(),
            Engine::Etcd(etcd) => etcd.epoch(),
        }
    }

    /// Makes a consistent backup of everything, as lines of JSON.
    pub fn export(&self) -> BackupExport {
        BackupExport { store: self.clone(), encoder: BackupEncoder::new(), stage: ExportStage::Header }
    }

    /// Restores a backup into an empty store. When it fails, nothing was restored.
    pub async fn import(&self, backup: impl AsyncRead + Unpin) -> Result<ImportResult, StoreError> {
        let mut lines = BufReader::with_capacity(1 << 16, backup);
        let mut line = Vec::new();
        read_line(&mut lines, &mut line).await?;
        let (mut decoder, header) = BackupDecoder::begin(&line)?;
        let time = header.time;
        // Space for a few chunks; the reader of the file waits for the engine.
        let (rows, chunks) = mpsc::channel(4);
        let feed = async move { feed(&mut lines, &mut decoder, rows).await };
        let (fed, imported) = tokio::join!(feed, self.import_rows(header, chunks));
        fed.and(imported).map(|imported| ImportResult { time, ..imported })
    }

    async fn import_rows(
        &self,
        header: BackupHeader,
        rows: mpsc::Receiver<BackupChunk>,
    ) -> Result<ImportResult, StoreError> {
        match &*self.engine {
            Engine::Sqlite(sqlite) => sqlite.import(header, rows).await,
            Engine::Etcd(etcd) => etcd.import(header, rows).await,
        }
    }

    /// Finishes requests in progress and releases the files. Other handles get `Closed` from now on.
    pub async fn close(self) -> Result<(), StoreError> {
        match &*self.engine {
            Engine::Sqlite(sqlite) => sqlite.close().await,
            Engine::Etcd(etcd) => etcd.close().await,
        }
    }
}

/// Records in one page of an export.
const EXPORT_PAGE: usize = 256;
/// Rows passed to the engine at once: this many, or this many bytes.
const IMPORT_ROWS: usize = 256;
const IMPORT_BYTES: usize = 1 << 20;

/// A running backup. It holds no lock: pages are read at one revision, so writers are not disturbed. A backup
/// that is read so slowly that its revision is compacted ends with that error.
pub struct BackupExport {
    store: Store,
    encoder: BackupEncoder,
    stage: ExportStage,
}

enum ExportStage {
    Header,
    Records { at: Revision, after: String },
    Trailer,
    Ended,
}

impl BackupExport {
    /// Returns the next piece; `None` after the last. A backup is valid only when it was read to its end.
    pub async fn next(&mut self) -> Result<Option<Bytes>, StoreError> {
        let (lines, stage) = match &self.stage {
            ExportStage::Header => {
                let first = self
                    .store
                    .list("", ListRange { limit: Some(EXPORT_PAGE), ..ListRange::default() })
                    .await?;
                let epoch = self.store.epoch().await;
                let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).ok();
                let time = now.and_then(|now| i64::try_from(now.as_secs()).ok());
                let mut lines = self.encoder.header(epoch, first.revision, time).to_vec();
                lines.extend_from_slice(&self.encoder.records(&first.records));
                (lines.into(), after(first))
            }
            ExportStage::Records { at, after: last } => {
                let page = ListRange { at: Some(*at), after: Some(last.clone()), limit: Some(EXPORT_PAGE) };
                let listing = self.store.list("", page).await?;
                (self.encoder.records(&listing.records), after(listing))
            }
            ExportStage::Trailer => (self.encoder.trailer(), ExportStage::Ended),
            ExportStage::Ended => return Ok(None),
        };
        self.stage = stage;
        Ok(Some(lines))
    }
}

fn after(listing: Listing) -> ExportStage {
    match listing.records.last() {
        Some(last) if listing.remaining > 0 => {
            ExportStage::Records { at: listing.revision, after: last.key.to_string() }
        }
        _ => ExportStage::Trailer,
    }
}

/// Sends the rows of a backup to the engine, and the end only when its trailer was right and nothing follows.
async fn feed(
    lines: &mut (impl AsyncBufReadExt + Unpin),
    decoder: &mut BackupDecoder,
    rows: mpsc::Sender<BackupChunk>,
) -> Result<(), StoreError> {
    let mut line = Vec::new();
    let (mut chunk, mut chunk_bytes) = (Vec::new(), 0);
    while read_line(lines, &mut line).await? {
        if let BackupLine::Row(row) = decoder.line(&line)? {
            chunk_bytes += row.value.len();
            chunk.push(row);
        }
        if chunk.len() >= IMPORT_ROWS || chunk_bytes >= IMPORT_BYTES {
            chunk_bytes = 0;
            // The engine ended; its own result gives the reason.
            if rows.send(BackupChunk::Rows(std::mem::take(&mut chunk))).await.is_err() {
                return Ok(());
            }
        }
    }
    decoder.finish()?;
    // As above.
    let _ = rows.send(BackupChunk::Rows(chunk)).await;
    let _ = rows.send(BackupChunk::End).await;
    Ok(())
}

/// Reads one line into `line`, without its end. False at the end of the file.
async fn read_line(
    lines: &mut (impl AsyncBufReadExt + Unpin),
    line: &mut Vec<u8>,
) -> Result<bool, StoreError> {
    line.clear();
    let read = lines.take(LINE_BYTES_MAX as u64).read_until(b'\n', line).await;
    read.map_err(|error| StoreError::Unavailable {
        reason: "the backup cannot be read".into(),
        source: Some(Arc::new(error)),
    })?;
    if line.last() == Some(&b'\n') {
        line.pop();
    } else if line.len() >= LINE_BYTES_MAX {
        return Err(StoreError::corrupt("a line of the backup is longer than any record"));
    }
    Ok(!line.is_empty())
}
