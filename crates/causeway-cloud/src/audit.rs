//! Reads the journals, here and at the other replicas: traffic (`causeway audit`) and actions of administrators (`--admin`).
//!
//! `spool_intake` and `admin_journal` write them. `query` is the filter, `line` and `admin_line` parse a line, all pure; `tail`
//! reads the files in a thread of its own, `merge` joins the replicas' answers, drops repeats and counts. An answer
//! holds a few chunks in memory, or as many records as the caller limited it to; it reads no faster than its reader.

mod admin_line;
mod line;
mod merge;
mod query;
mod tail;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::AsyncReadExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use causeway_channel::link::Stream;

pub use merge::JournalMerge;
pub use query::{AuditQuery, JournalKind};

/// Readers at a time. Each holds a thread while it reads.
const READERS_MAX: usize = 32;
/// Chunks that wait for a reader, at most `tail::CHUNK_BYTES` each.
pub const CHUNKS_MAX: usize = 8;
/// A replica that does not begin to answer within this is left out, and the reader is told.
pub const REPLICA_DEADLINE: Duration = Duration::from_secs(3);

/// A line that a replica's journal cannot hold: it did not answer, or not to the end.
const REPLICA_SILENT: &str = "replica-silent";

/// Whole lines of a journal, in pieces; ends when the journal does, unless it is followed.
pub type JournalChunks = mpsc::Receiver<Bytes>;

/// The journals of this replica.
#[derive(Debug, Clone)]
pub struct AuditJournal {
    folder: PathBuf,
    readers: Arc<Semaphore>,
}

impl AuditJournal {
    pub fn new(folder: &Path) -> AuditJournal {
        AuditJournal { folder: folder.to_owned(), readers: Arc::new(Semaphore::new(READERS_MAX)) }
    }

    /// The lines that a query wants, as they stand in the files. None: too many read already.
    pub fn read(&self, query: AuditQuery) -> Option<JournalChunks> {
        let permit = self.readers.clone().try_acquire_owned().ok()?;
        let (chunks, lines) = mpsc::channel(CHUNKS_MAX);
        let folder = self.folder.clone();
        tokio::task::spawn_blocking(move || run(&folder, &query, &chunks, permit));
        Some(lines)
    }
}

fn run(folder: &Path, query: &AuditQuery, chunks: &mpsc::Sender<Bytes>, permit: OwnedSemaphorePermit) {
    if let Err(error) = tail::run(folder, query, chunks) {
        tracing::warn!(%error, "the journal cannot be read");
    }
    drop(permit);
}

/// The lines that another replica sends on a stream. One that refuses or breaks off is told of in a line of its own.
pub fn from_stream(replica: String, mut stream: Stream) -> JournalChunks {
    let (chunks, lines) = mpsc::channel(CHUNKS_MAX);
    tokio::spawn(async move {
        if copy_lines(&mut stream, &chunks).await.is_err() {
            let line = serde_json::json!({"event": REPLICA_SILENT, "gateway": replica});
            // The reader may be gone by now.
            let _ = chunks.send(format!("{line}\n").into()).await;
        }
    });
    lines
}

/// Forwards whole lines until the stream ends or the reader is gone.
async fn copy_lines(stream: &mut Stream, chunks: &mpsc::Sender<Bytes>) -> std::io::Result<()> {
    let mut rest = Vec::new();
    let mut buffer = vec![0; tail::CHUNK_BYTES];
    loop {
        let read = stream.read(&mut buffer).await?;
        if read == 0 {
            return Ok(());
        }
        rest.extend_from_slice(&buffer[..read]);
        if let Some(end) = rest.iter().rposition(|byte| *byte == b'\n') {
            let whole: Vec<u8> = rest.drain(..=end).collect();
            if chunks.send(whole.into()).await.is_err() {
                return Ok(());
            }
        } else if rest.len() > tail::LINE_BYTES_MAX {
            return Err(std::io::Error::other("a line without end"));
        }
    }
}

#[cfg(test)]
mod tests;
