//! Receives the spool of edges: audit records go into a journal in the data dir, the newest status beside the cursor.
//!
//! For each gateway the store keeps a cursor, `upstream/GATEWAY`: the queue it sends from and how far that was taken.
//! Audit records are on this replica's disk before the cursor moves, and the cursor moves before the edge is told. A
//! crash in between repeats records; they carry queue and number, and readers drop repeats (`LineDeduplicator`). The
//! gateway of a record comes from the session's certificate, never from the record.

mod cloud_records;
mod compact;
mod cursor;
mod deduplicate;
mod fair;
mod journal;
mod lines;
mod metrics;
mod pace;
mod record;

#[cfg(test)]
mod tests;

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use causeway_api::sync::MutexExt;
use causeway_channel::wire::control::{SpoolAck, SpoolBatch};
use causeway_channel::{Clock, PeerId};
use causeway_daemon::audit::LineTap;
use causeway_daemon::rotated::RotationLimits;
use causeway_store::{Revision, Store, StoreError};

pub use cloud_records::{CloudRecordQueue, CloudRecordWriter, own_records};
pub use cursor::{LatestStatus, MalformedBatch, ReceivedBatch, SpoolCursor};
pub use deduplicate::LineDeduplicator;
pub use metrics::SpoolIntakeMetrics;

use crate::reports::ReportInbox;
use crate::sessions::{SessionFuture, SpoolSink};
use cursor::CursorStep;
use journal::JournalWriter;
use pace::Paces;

pub const PREFIX: &str = "upstream/";
/// Compare-and-swap is tried this often; each failure means that another replica took something of this
/// gateway.
const ATTEMPTS_MAX: usize = 16;
/// Delay before a failed write to the disk or the store is retried. The edge keeps its records meanwhile.
const RETRY_DELAY: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// Why a batch could not be taken.
#[derive(Debug, thiserror::Error)]
pub enum SpoolIntakeError {
    #[error("the batch makes no sense")]
    Malformed(#[from] MalformedBatch),
    #[error("the records cannot be written")]
    Journal(#[source] io::Error),
    #[error("the cursor cannot be kept")]
    Store(#[from] StoreError),
}

/// Hands the batches of sessions to the intake.
pub struct SpoolIntakeHandle {
    pub intake: Arc<SpoolIntake>,
    /// The inbox from which a gateway's newest status is read at once.
    pub inbox: Arc<ReportInbox>,
}

impl SpoolSink for SpoolIntakeHandle {
    fn take(&self, peer: &PeerId, message: SpoolBatch) -> SessionFuture<'static, Option<SpoolAck>> {
        let (intake, inbox, peer) = (self.intake.clone(), self.inbox.clone(), peer.clone());
        Box::pin(async move {
            let settled = match ReceivedBatch::from_message(message) {
                Ok(batch) => {
                    let settled = intake.store_batch(&peer, &batch).await;
                    if let Some(status) = cursor::latest_status(&batch, 0, intake.clock.now()) {
                        inbox.put_status(peer.site(), peer.gateway(), &status.record);
                    }
                    settled
                }
                Err(malformed) => Err(malformed),
            };
            if let Err(error) = &settled {
                tracing::warn!(%peer, %error, "malformed batch of records from an edge: not acknowledged");
            }
            settled.ok().map(SettledRecords::to_message)
        })
    }
}

/// Everything up to `seq` is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SettledRecords {
    pub queue: [u8; 16],
    pub seq: u64,
}

impl SettledRecords {
    /// As it is said to the edge.
    pub fn to_message(self) -> SpoolAck {
        SpoolAck { queue_id: self.queue.to_vec().into(), seq: self.seq }
    }
}

/// Takes the batches of all gateways attached here.
pub struct SpoolIntake {
    store: Store,
    journal: JournalWriter,
    clock: Clock,
    metrics: SpoolIntakeMetrics,
    paces: Mutex<Paces>,
}

impl SpoolIntake {
    /// The journal is `fleet.jsonl` in `folder`. `tap` is given a copy of its lines.
    pub fn open(
        folder: &Path,
        limits: RotationLimits,
        store: Store,
        clock: Clock,
        tap: Option<Box<dyn LineTap>>,
    ) -> io::Result<SpoolIntake> {
        let journal = JournalWriter::open(folder, limits, tap)?;
        let paces = Mutex::default();
        Ok(SpoolIntake { store, journal, clock, metrics: SpoolIntakeMetrics::default(), paces })
    }

    pub fn metrics(&self) -> &SpoolIntakeMetrics {
        &self.metrics
    }

    /// Takes a batch of `peer`, and retries while the disk or the store fails. The caller may stop waiting:
    /// the edge sends the batch again with its next session.
    pub async fn store_batch(
        &self,
        peer: &PeerId,
        batch: &ReceivedBatch,
    ) -> Result<SettledRecords, MalformedBatch> {
        let bytes = batch.records.iter().map(|record| record.len() as u64).sum();
        let wait = self.paces.lock_ignoring_poison().take(peer.gateway(), bytes, Instant::now());
        // Its records wait in its own queue, and no other gateway waits for them.
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
        let mut pause = RETRY_DELAY;
        loop {
            match self.take(peer, batch).await {
                Ok(settled) => return Ok(settled),
                Err(SpoolIntakeError::Malformed(error)) => return Err(error),
                Err(error) => {
                    self.metrics.trouble();
                    tracing::warn!(%peer, error = &error as &dyn std::error::Error, "cannot write a batch of records from an edge: trying again");
                }
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// One try.
    pub async fn take(
        &self,
        peer: &PeerId,
        batch: &ReceivedBatch,
    ) -> Result<SettledRecords, SpoolIntakeError> {
        let key = format!("{PREFIX}{}", peer.gateway());
        let mut is_written = false;
        for _ in 0..ATTEMPTS_MAX {
            let (cursor, revision) = self.load(&key).await?;
            let CursorStep::Take { skip, mut cursor, newly_lost } = cursor::decide(cursor.as_ref(), batch)
            else {
                self.metrics.repeated(batch.records.len());
                return Ok(SettledRecords { queue: batch.queue, seq: cursor.map_or(0, |cursor| cursor.seq) });
            };
            // Once is enough, however often the cursor has to be looked at again.
            if !is_written {
                let lines = lines::render(peer, batch, skip, newly_lost, self.clock.now());
                if !lines.is_empty() {
                    self.journal.append(lines).await.map_err(SpoolIntakeError::Journal)?;
                }
                is_written = true;
            }
            if let Some(status) = cursor::latest_status(batch, skip, self.clock.now()) {
                cursor.status = Some(status);
            }
            let seq = cursor.seq;
            if self.save(&key, &cursor, revision).await? {
                self.metrics.count_stored(batch, skip, newly_lost);
                return Ok(SettledRecords { queue: batch.queue, seq });
            }
        }
        Err(StoreError::Unavailable { reason: format!("{key} changes all the time"), source: None }.into())
    }

    /// Returns the cursor of a gateway's queue, and its newest status.
    pub async fn cursor(&self, gateway: &str) -> Result<Option<SpoolCursor>, StoreError> {
        Ok(self.load(&format!("{PREFIX}{gateway}")).await?.0)
    }

    async fn load(&self, key: &str) -> Result<(Option<SpoolCursor>, Option<Revision>), StoreError> {
        let Some(record) = self.store.get(key).await? else { return Ok((None, None)) };
        let cursor = serde_json::from_slice(&record.value).ok();
        if cursor.is_none() {
            tracing::error!(key, "a cursor cannot be read; it begins anew and readers will see repeats");
        }
        Ok((cursor, Some(record.revision)))
    }

    /// False when another replica was faster.
    async fn save(
        &self,
        key: &str,
        cursor: &SpoolCursor,
        expected: Option<Revision>,
    ) -> Result<bool, StoreError> {
        let value: bytes::Bytes =
            serde_json::to_vec(cursor).expect("strings and numbers are always JSON").into();
        let saved = match expected {
            Some(revision) => self.store.update(key, value, revision).await,
            None => self.store.create(key, value).await,
        };
        match saved {
            Ok(_) => Ok(true),
            Err(
                StoreError::Conflict { .. } | StoreError::AlreadyExists { .. } | StoreError::NotFound { .. },
            ) => Ok(false),
            Err(error) => Err(error),
        }
    }
}
