//! Restores a backup into an empty prefix of etcd. A backup is too large for one transaction, so a mark
//! guards it.
//!
//! While `meta/importing` exists, no replica reads or writes objects. The last transaction raises the epoch
//! and removes the mark; a failure removes the imported records. A crash leaves the mark, and the next
//! restore starts over.

use etcd_client::{Compare, CompareOp, DeleteOptions, GetOptions, Txn, TxnOp, TxnResponse};
use tokio::sync::mpsc;

use super::compaction::{self, CompactionState};
use super::keys::number;
use super::members::{self, EtcdFailure, RetryPolicy};
use super::{EtcdShared, first_value};
use crate::StoreError;
use crate::backup::{BackupChunk, BackupHeader, BackupRow, ImportResult};
use crate::model::{COMMIT_BYTES_MAX, OPS_MAX};

pub(super) async fn import(
    shared: &EtcdShared,
    header: &BackupHeader,
    mut rows: mpsc::Receiver<BackupChunk>,
) -> Result<ImportResult, StoreError> {
    let import = Import::begin(shared, header).await?;
    match import.fill(&mut rows).await {
        Ok(records) => import.finish(records).await,
        Err(error) => {
            import.undo().await?;
            Err(error)
        }
    }
}

struct Import<'a> {
    shared: &'a EtcdShared,
    /// The value of this restore's mark: a second restore overwrites it, and the first can then write no
    /// more.
    mark: String,
    epoch: u64,
}

impl<'a> Import<'a> {
    async fn begin(shared: &'a EtcdShared, header: &BackupHeader) -> Result<Import<'a>, StoreError> {
        let names = [shared.keys.meta("importing"), shared.keys.meta("epoch")];
        let (start, end) = shared.keys.range("", None);
        let mark = mark();
        let answer = shared.members.call(RetryPolicy::Again, |mut kv| {
            let count = GetOptions::new().with_range(end.clone()).with_count_only();
            let transaction = Txn::new().and_then([
                TxnOp::get(names[0].clone(), None),
                TxnOp::get(names[1].clone(), None),
                TxnOp::get(start.clone(), Some(count)),
            ]);
            async move { kv.txn(transaction).await }
        });
        let answer = answer.await.map_err(EtcdFailure::into_error)?;
        let count = match answer.op_responses().pop() {
            Some(etcd_client::TxnOpResponse::Get(get)) => u64::try_from(get.count()).unwrap_or_default(),
            _ => 0,
        };
        let mut values = answer.op_responses().into_iter().map(first_value);
        let broken_off = values.next().flatten();
        let epoch = number(values.next().flatten().as_deref())?;
        if broken_off.is_none() && count > 0 {
            return Err(StoreError::NotEmpty { count });
        }
        let import = Import { shared, mark, epoch: epoch.max(header.epoch) + 1 };
        let unchanged = match broken_off {
            Some(old) => Compare::value(names[0].clone(), CompareOp::Equal, old),
            None => Compare::version(names[0].clone(), CompareOp::Equal, 0),
        };
        let changes = [TxnOp::put(names[0].clone(), import.mark.clone(), None), import.delete_all()];
        import.send(unchanged, changes.into()).await?;
        Ok(import)
    }

    async fn fill(&self, rows: &mut mpsc::Receiver<BackupChunk>) -> Result<u64, StoreError> {
        let mut records = 0;
        loop {
            match rows.recv().await {
                Some(BackupChunk::Rows(rows)) => {
                    records += rows.len() as u64;
                    for group in groups(rows) {
                        let puts = group.into_iter().map(|row| {
                            TxnOp::put(self.shared.keys.object(&row.key), row.value.to_vec(), None)
                        });
                        self.send(self.ours(), puts.collect()).await?;
                    }
                }
                Some(BackupChunk::End) => return Ok(records),
                None => return Err(StoreError::corrupt("the backup ended early; nothing was imported")),
            }
        }
    }

    /// Ends the restore. The revision is etcd's own and cannot be raised; everything before this moment is
    /// compacted instead.
    async fn finish(&self, records: u64) -> Result<ImportResult, StoreError> {
        let keys = &self.shared.keys;
        let answer = self
            .send(
                self.ours(),
                vec![
                    TxnOp::put(keys.meta("epoch"), self.epoch.to_string(), None),
                    TxnOp::delete(keys.meta("importing"), None),
                ],
            )
            .await?;
        let revision = members::revision(answer.header())?;
        self.shared.epoch.fetch_max(self.epoch, std::sync::atomic::Ordering::AcqRel);
        self.shared.import.end(revision);
        let compacted = TxnOp::put(keys.meta("compaction"), CompactionState::at(revision).encode(), None);
        let always = Compare::version(keys.meta("importing"), CompareOp::Equal, 0);
        self.send(always, vec![compacted]).await?;
        compaction::forget(self.shared, revision).await?;
        Ok(ImportResult { records, revision, epoch: self.epoch, time: None })
    }

    async fn undo(&self) -> Result<(), StoreError> {
        let unmark = TxnOp::delete(self.shared.keys.meta("importing"), None);
        let answer = self.send(self.ours(), vec![self.delete_all(), unmark]).await?;
        self.shared.import.end(members::revision(answer.header())?);
        Ok(())
    }

    async fn send(&self, condition: Compare, changes: Vec<TxnOp>) -> Result<TxnResponse, StoreError> {
        let answer = self.shared.members.call(RetryPolicy::Once, |mut kv| {
            let transaction = Txn::new().when([condition.clone()]).and_then(changes.clone());
            async move { kv.txn(transaction).await }
        });
        let answer = answer.await.map_err(EtcdFailure::into_error)?;
        if answer.succeeded() {
            Ok(answer)
        } else {
            Err(StoreError::unavailable("another restore has taken over"))
        }
    }

    fn ours(&self) -> Compare {
        Compare::value(self.shared.keys.meta("importing"), CompareOp::Equal, self.mark.clone())
    }

    fn delete_all(&self) -> TxnOp {
        let (start, end) = self.shared.keys.range("", None);
        TxnOp::delete(start, Some(DeleteOptions::new().with_range(end)))
    }
}

/// Splits rows into groups that fit into a transaction.
fn groups(rows: Vec<BackupRow>) -> Vec<Vec<BackupRow>> {
    let mut groups: Vec<Vec<BackupRow>> = Vec::new();
    let mut room_bytes = 0;
    for row in rows {
        let row_bytes = row.key.len() + row.value.len();
        match groups.last_mut() {
            Some(group) if group.len() < OPS_MAX && row_bytes <= room_bytes => group.push(row),
            _ => {
                groups.push(vec![row]);
                room_bytes = COMMIT_BYTES_MAX;
            }
        }
        room_bytes = room_bytes.saturating_sub(row_bytes);
    }
    groups
}

/// Returns a mark that is different for every restore: host and time.
fn mark() -> String {
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |elapsed| elapsed.as_nanos());
    format!("{}-{now}", std::process::id())
}
