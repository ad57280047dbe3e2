//! The records of the cloud's own gateway: into the same journal as those of the edges, and in the same form.
//!
//! `append` never waits: between it and the disk stands a short queue, and records that do not fit are counted and reported in a line
//! of its own, as edges tell it. There is no cursor: nothing is sent twice.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use causeway_channel::{PeerId, TokenSecret};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::cursor::ReceivedBatch;
use super::{SpoolIntake, lines};
use crate::bootstrap::CLOUD;

/// A burst of a second while the disk is busy; a record is below a kilobyte.
const WAITING_MAX: usize = 8192;
/// Records that are written and synced together.
const BATCH_MAX: usize = 512;
/// The number of audit records in `spool_intake::record`.
const AUDIT: u8 = 2;
/// Delay before a failed write to disk is retried.
const RETRY_DELAY: Duration = Duration::from_millis(500);

/// Takes the records. Clones share the queue.
#[derive(Clone)]
pub struct CloudRecordQueue {
    waiting: mpsc::Sender<Bytes>,
    lost: Arc<AtomicU64>,
}

/// Writes them.
pub struct CloudRecordWriter {
    intake: Arc<SpoolIntake>,
    waiting: mpsc::Receiver<Bytes>,
    lost: Arc<AtomicU64>,
    peer: PeerId,
    queue: [u8; 16],
    next: u64,
}

pub fn own_records(intake: &Arc<SpoolIntake>) -> (CloudRecordQueue, CloudRecordWriter) {
    let (sender, waiting) = mpsc::channel(WAITING_MAX);
    let lost = Arc::new(AtomicU64::new(0));
    let peer = PeerId::new(CLOUD, CLOUD).expect("`cloud` is a name");
    let mut queue = [0; 16];
    queue.copy_from_slice(&TokenSecret::generate().expose()[..16]);
    let writer =
        CloudRecordWriter { intake: intake.clone(), waiting, lost: lost.clone(), peer, queue, next: 1 };
    (CloudRecordQueue { waiting: sender, lost }, writer)
}

impl CloudRecordQueue {
    /// Returns true if the queue has so little room that clients must share it.
    pub fn is_pressed(&self) -> bool {
        self.waiting.capacity() < self.waiting.max_capacity() / 4 * 3
    }

    /// Hands over one record, as JSON. Never waits; a record that finds no room is counted as lost.
    pub fn append(&self, record: &[u8]) {
        let mut bytes = BytesMut::with_capacity(record.len() + 1);
        bytes.put_u8(AUDIT);
        bytes.put_slice(record);
        if self.waiting.try_send(bytes.freeze()).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl CloudRecordWriter {
    /// Writes records until told to stop, and then those that still wait.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut records = Vec::new();
        loop {
            tokio::select! {
                biased;
                taken = self.waiting.recv_many(&mut records, BATCH_MAX) => if taken == 0 {
                    return stop.cancelled().await;
                },
                () = stop.cancelled() => return,
            }
            while let Err(error) = self.write(&records).await {
                tracing::warn!(%error, "records of the cloud's own gateway wait for the disk");
                tokio::select! {
                    biased;
                    () = stop.cancelled() => return,
                    () = tokio::time::sleep(RETRY_DELAY) => {}
                }
            }
            self.next += records.len() as u64;
            records.clear();
        }
    }

    async fn write(&self, records: &[Bytes]) -> std::io::Result<()> {
        let batch = ReceivedBatch { queue: self.queue, first: self.next, records: records.to_vec(), lost: 0 };
        let lost = self.lost.swap(0, Ordering::Relaxed);
        let lines = lines::render(&self.peer, &batch, 0, lost, self.intake.clock.now());
        self.intake.journal.append(lines).await.inspect_err(|_| {
            self.lost.fetch_add(lost, Ordering::Relaxed);
        })
    }
}
