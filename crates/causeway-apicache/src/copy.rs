//! The local copy of the cluster: objects in SQLite, their newest changes in memory.
//!
//! `tables` reads and writes the database, `collection` is one subscription with its watchers, `local` lays unsent
//! changes of the site over it, `source` connects it with `causeway-watch`. An object is stored once however many subscriptions hold it. The file is readable by its owner only.

pub mod collection;
pub mod local;
pub mod source;
pub mod tables;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use causeway_daemon::sync::MutexExt;
use rusqlite::Connection;

/// A handle; clones share the database.
#[derive(Clone)]
pub struct CopyDatabase {
    path: Arc<PathBuf>,
    writer: Arc<Mutex<Connection>>,
    /// Connections that are not in use; at most `READERS_MAX` are kept.
    readers: Arc<Mutex<Vec<Connection>>>,
    bytes_max: Arc<AtomicU64>,
}

#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    #[error("the database of the API cache failed")]
    Database(#[from] rusqlite::Error),
    #[error("the file of the API cache cannot be made")]
    File(#[from] std::io::Error),
    #[error("a task of the API cache was ended")]
    Ended,
    #[error("the copy of the API has the bytes that `[kubernetes] bytes-max` allows ({0})")]
    Full(u64),
}

/// The right of a write to disk that is nearly full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskShare {
    /// A copy that begins, or is not complete.
    New,
    /// A copy that is complete or pinned.
    Kept,
}

// Copies that are complete or pinned have this part of the disk when new ones get no more.
const KEPT_PART: u64 = 8;

/// Returns true if a write may begin while the file has `used` bytes.
fn has_room(share: DiskShare, used: u64, bytes_max: u64) -> bool {
    match share {
        DiskShare::New => used < bytes_max - bytes_max / KEPT_PART,
        DiskShare::Kept => used < bytes_max,
    }
}

const READERS_MAX: usize = 4;

impl CopyDatabase {
    /// Opens the database, and creates it when there is none. A file that is damaged or of another format is replaced:
    /// it is a copy. Another failure, such as a full disk, leaves the file: without the cloud nothing can replace it.
    pub fn open(path: &Path) -> Result<CopyDatabase, CopyError> {
        let writer = match tables::open(path) {
            Ok(writer) => writer,
            Err(error) if !tables::is_damage(&error) => return Err(error.into()),
            Err(error) => {
                tracing::warn!(%error, path = %path.display(), "the copy of the API cache cannot be read and is made anew");
                for ending in ["", "-wal", "-shm"] {
                    let _ = std::fs::remove_file(format!("{}{ending}", path.display()));
                }
                tables::open(path)?
            }
        };
        Ok(CopyDatabase {
            path: Arc::new(path.to_owned()),
            writer: Arc::new(Mutex::new(writer)),
            readers: Arc::default(),
            bytes_max: Arc::new(AtomicU64::new(u64::MAX)),
        })
    }

    /// Bounds the bytes of copies in the file.
    pub fn set_bytes_max(&self, bytes_max: u64) {
        self.bytes_max.store(bytes_max, Ordering::Relaxed);
    }

    /// Like `write`, for objects; `Full` when the file has no room for this share.
    pub async fn write_within<T: Send + 'static>(
        &self,
        share: DiskShare,
        work: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, CopyError> {
        let bytes_max = self.bytes_max.load(Ordering::Relaxed);
        let written = self.write(move |connection| {
            let has_room = has_room(share, tables::used_bytes(connection)?, bytes_max);
            has_room.then(|| work(connection)).transpose()
        });
        written.await?.ok_or(CopyError::Full(bytes_max))
    }

    /// Runs a write on a thread that may block. All of it is one transaction.
    pub async fn write<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, CopyError> {
        let writer = self.writer.clone();
        let done = tokio::task::spawn_blocking(move || {
            let mut writer = writer.lock_ignoring_poison();
            let transaction = writer.transaction()?;
            let result = work(&transaction)?;
            transaction.commit()?;
            Ok(result)
        });
        done.await.map_err(|_| CopyError::Ended)?
    }

    /// Runs a read on a thread that may block. All of it sees one state.
    pub async fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, CopyError> {
        let database = self.clone();
        let done = tokio::task::spawn_blocking(move || {
            let taken = database.readers.lock_ignoring_poison().pop();
            let mut reader = match taken {
                Some(reader) => reader,
                None => tables::open_reader(&database.path)?,
            };
            let transaction = reader.transaction()?;
            let result = work(&transaction)?;
            drop(transaction);
            let mut readers = database.readers.lock_ignoring_poison();
            if readers.len() < READERS_MAX {
                readers.push(reader);
            }
            Ok(result)
        });
        done.await.map_err(|_| CopyError::Ended)?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_that_cannot_be_opened_now_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("copy.db");
        let connection = tables::open(&path).unwrap();
        tables::keep_document(&connection, "/version", "application/json", 1, b"{}").unwrap();
        // Every start empties `staged`. The trigger fails that step, as a full disk does.
        let failing = "INSERT INTO staged VALUES (1, 1, 'a', 1, NULL);
            CREATE TRIGGER full BEFORE DELETE ON staged BEGIN SELECT RAISE(FAIL, 'no room'); END";
        connection.execute_batch(failing).unwrap();
        assert!(CopyDatabase::open(&path).is_err());
        connection.execute_batch("DROP TRIGGER full").unwrap();
        drop(connection);
        CopyDatabase::open(&path).unwrap();
        let connection = tables::open_reader(&path).unwrap();
        assert!(tables::document(&connection, "/version").unwrap().is_some());
    }

    #[test]
    fn the_last_part_of_the_disk_is_left_to_copies_that_are_there() {
        let check = |used: u64, new: bool, kept: bool| {
            let found = [DiskShare::New, DiskShare::Kept].map(|share| has_room(share, used, 800));
            assert_eq!(found, [new, kept], "{used}");
        };
        check(0, true, true);
        check(699, true, true);
        check(700, false, true);
        check(800, false, false);
        assert!(has_room(DiskShare::New, 1 << 50, u64::MAX));
    }

    #[test]
    fn a_damaged_copy_is_made_anew() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("copy.db");
        std::fs::write(&path, vec![b'x'; 8_192]).unwrap();
        CopyDatabase::open(&path).unwrap();
    }
}
