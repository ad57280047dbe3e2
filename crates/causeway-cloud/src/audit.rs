//! Reads the records of what crossed, here and at the other replicas: `causeway audit`.
//!
//! `upstream` writes the journal; this is its reader. `query` says what is wanted, `line` what a line says, both pure; `tail`
//! reads the files in a thread of its own, `merge` joins the replicas' answers, drops repeats and counts. An answer
//! holds a few chunks in memory, or as many records as the caller limited it to; what a slow reader does not take is not read.

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

pub use merge::Merge;
pub use query::Query;

/// Readers at a time. Each holds a thread while it reads.
const READERS_MAX: usize = 32;
/// Chunks that wait for a reader, at most `tail::CHUNK_BYTES` each.
pub const CHUNKS_MAX: usize = 8;
/// A replica that does not begin to answer within this is left out, and the reader is told.
pub const REPLICA_DEADLINE: Duration = Duration::from_secs(3);

/// Whole lines of a journal, in pieces; ends when the journal does, unless it is followed.
pub type Chunks = mpsc::Receiver<Bytes>;

/// The journal of this replica.
#[derive(Debug, Clone)]
pub struct Journals {
    folder: PathBuf,
    readers: Arc<Semaphore>,
}

impl Journals {
    pub fn new(folder: &Path) -> Journals {
        Journals { folder: folder.to_owned(), readers: Arc::new(Semaphore::new(READERS_MAX)) }
    }

    /// The lines that a query wants, as they stand in the files. None: too many read already.
    pub fn read(&self, query: Query) -> Option<Chunks> {
        let permit = self.readers.clone().try_acquire_owned().ok()?;
        let (chunks, lines) = mpsc::channel(CHUNKS_MAX);
        let folder = self.folder.clone();
        tokio::task::spawn_blocking(move || run(&folder, &query, &chunks, permit));
        Some(lines)
    }
}

fn run(folder: &Path, query: &Query, chunks: &mpsc::Sender<Bytes>, permit: OwnedSemaphorePermit) {
    if let Err(error) = tail::run(folder, query, chunks) {
        tracing::warn!(%error, "the journal cannot be read");
    }
    drop(permit);
}

/// The lines that another replica sends on a stream.
pub fn from_stream(mut stream: Stream) -> Chunks {
    let (chunks, lines) = mpsc::channel(CHUNKS_MAX);
    tokio::spawn(async move {
        let mut rest = Vec::new();
        let mut buffer = vec![0; tail::CHUNK_BYTES];
        // A replica that breaks off is as one that ended: the summary counts what came.
        while let Ok(read @ 1..) = stream.read(&mut buffer).await {
            rest.extend_from_slice(&buffer[..read]);
            let Some(end) = rest.iter().rposition(|byte| *byte == b'\n') else {
                if rest.len() > tail::LINE_BYTES_MAX {
                    return;
                }
                continue;
            };
            let whole = rest.drain(..=end).collect::<Vec<u8>>();
            if chunks.send(whole.into()).await.is_err() {
                return;
            }
        }
    });
    lines
}

#[cfg(test)]
mod tests;
