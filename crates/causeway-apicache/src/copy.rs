//! The local copy of the cluster: objects in SQLite, their newest changes in memory.
//!
//! `tables` reads and writes the database, `collection` is one subscription with its watchers, `local` lays unsent
//! changes of the site over it, `source` connects it with `causeway-watch`. An object is stored once however many subscriptions hold it. The file is readable by its owner only.

pub mod collection;
pub mod local;
pub mod source;
pub mod tables;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rusqlite::Connection;

/// A handle; clones share the database.
#[derive(Clone)]
pub struct CopyDatabase {
    path: Arc<PathBuf>,
    writer: Arc<Mutex<Connection>>,
    /// Connections that are not in use; at most `READERS_MAX` are kept.
    readers: Arc<Mutex<Vec<Connection>>>,
}

#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    #[error("the database of the API cache failed")]
    Database(#[from] rusqlite::Error),
    #[error("the file of the API cache cannot be made")]
    File(#[from] std::io::Error),
    #[error("a task of the API cache was ended")]
    Ended,
}

const READERS_MAX: usize = 4;

impl CopyDatabase {
    /// Opens the database, and creates it when there is none. A file that is damaged or of another format is replaced:
    /// it is a copy.
    pub fn open(path: &Path) -> Result<CopyDatabase, CopyError> {
        let writer = match tables::open(path) {
            Ok(writer) => writer,
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
        })
    }

    /// Runs a write on a thread that may block. All of it is one transaction.
    pub async fn write<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, CopyError> {
        let writer = self.writer.clone();
        let done = tokio::task::spawn_blocking(move || {
            let mut writer = writer.lock().unwrap_or_else(PoisonError::into_inner);
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
            let taken = database.readers.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let mut reader = match taken {
                Some(reader) => reader,
                None => tables::open_reader(&database.path)?,
            };
            let transaction = reader.transaction()?;
            let result = work(&transaction)?;
            drop(transaction);
            let mut readers = database.readers.lock().unwrap_or_else(PoisonError::into_inner);
            if readers.len() < READERS_MAX {
                readers.push(reader);
            }
            Ok(result)
        });
        done.await.map_err(|_| CopyError::Ended)?
    }
}
