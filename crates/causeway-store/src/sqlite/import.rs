//! Restores a backup into an empty database, in one transaction that is committed only after the backup's
//! last line was verified.
//!
//! The revision continues far above the backup's and everything before is marked compacted, so that a watcher
//! with a revision of the lost store must list again instead of receiving wrong events.

use rusqlite::{Connection, Transaction, TransactionBehavior, params};
use tokio::sync::mpsc;

use super::apply::TextOrBlob;
use super::schema::{load, save};
use super::translate_write;
use crate::backup::{BackupChunk, BackupHeader, BackupRow, ImportResult, REVISION_GAP};
use crate::{Revision, StoreError};

/// Restores a backup. Blocks the writer until the backup ends: an empty store has no other work.
pub(super) fn import(
    connection: &mut Connection,
    header: &BackupHeader,
    mut rows: mpsc::Receiver<BackupChunk>,
) -> Result<ImportResult, StoreError> {
    let transaction =
        connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(translate_write)?;
    check_empty(&transaction)?;
    let meta = load(&transaction)?;
    let revision = Revision(meta.revision.0.max(header.revision) + REVISION_GAP);
    let epoch = meta.epoch.max(header.epoch) + 1;
    let mut records = 0;
    loop {
        match rows.blocking_recv() {
            Some(BackupChunk::Rows(rows)) => {
                records += rows.len() as u64;
                rows.iter()
                    .try_for_each(|row| insert(&transaction, revision, row))
                    .map_err(translate_write)?;
            }
            Some(BackupChunk::End) => break,
            None => return Err(StoreError::corrupt("the backup ended early; nothing was imported")),
        }
    }
    finish(transaction, revision, epoch).map_err(translate_write)?;
    Ok(ImportResult { records, revision, epoch, time: None })
}

fn check_empty(transaction: &Transaction<'_>) -> Result<(), StoreError> {
    let count: u64 = transaction
        .query_row("SELECT count(*) FROM objects", [], |row| row.get(0))
        .map_err(translate_write)?;
    if count == 0 { Ok(()) } else { Err(StoreError::NotEmpty { count }) }
}

fn insert(transaction: &Transaction<'_>, revision: Revision, row: &BackupRow) -> rusqlite::Result<()> {
    transaction
        .prepare_cached("INSERT INTO objects (key, value, revision, created) VALUES (?1, ?2, ?3, ?3)")?
        .execute(params![row.key, TextOrBlob(&row.value), revision.0])
        .map(drop)
}

fn finish(transaction: Transaction<'_>, revision: Revision, epoch: u64) -> rusqlite::Result<()> {
    transaction.execute("DELETE FROM history", [])?;
    transaction.execute("DELETE FROM moments", [])?;
    save(&transaction, "revision", revision.0)?;
    save(&transaction, "compacted", revision.0)?;
    save(&transaction, "epoch", epoch)?;
    transaction.commit()
}
