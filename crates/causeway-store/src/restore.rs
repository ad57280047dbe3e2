//! The target of a restore: a store that replaces nothing until the restore is complete.
//!
//! A new SQLite database is filled under a temporary name and renamed by `finish`. A restore that fails leaves no
//! `store.db` behind, which a cloud would take for a new store. A store that exists already, and etcd, are filled in
//! place: `Store::import` is atomic there, and accepts only a store without records.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::{Store, StoreError, StoreSpec};

/// An open store for `Store::import`. If it is dropped without `finish`, a new database is removed.
pub struct RestoreTarget {
    store: Store,
    temporary: Option<TemporaryDatabase>,
}

impl RestoreTarget {
    /// Opens the target for `spec`. The caller makes sure that no other process uses the store.
    pub async fn open(spec: StoreSpec) -> Result<RestoreTarget, StoreError> {
        let path = match &spec {
            StoreSpec::Sqlite { path } if !path.exists() => path.clone(),
            _ => return Ok(RestoreTarget { store: Store::open(spec).await?, temporary: None }),
        };
        let temporary = TemporaryDatabase::new(path);
        // Left by a restore that was killed.
        temporary.remove();
        let store = Store::open(StoreSpec::Sqlite { path: temporary.temporary.clone() }).await?;
        Ok(RestoreTarget { store, temporary: Some(temporary) })
    }

    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Returns true if the store gets its final name only with `finish`.
    pub fn is_temporary(&self) -> bool {
        self.temporary.is_some()
    }

    /// Closes the store and gives it its final name.
    pub async fn finish(self) -> Result<(), StoreError> {
        self.store.close().await?;
        let Some(temporary) = self.temporary else { return Ok(()) };
        temporary.rename().map_err(|error| StoreError::Unavailable {
            reason: format!("the restored store cannot be renamed to {}", temporary.path.display()),
            source: Some(Arc::new(error)),
        })
    }
}

struct TemporaryDatabase {
    path: PathBuf,
    temporary: PathBuf,
}

/// Names of the files that SQLite and the store keep beside a database.
const SIDE_FILES: [&str; 4] = ["-wal", "-shm", "-journal", "-lock"];

impl TemporaryDatabase {
    fn new(path: PathBuf) -> TemporaryDatabase {
        let temporary = beside(&path, ".restoring");
        TemporaryDatabase { path, temporary }
    }

    fn rename(&self) -> io::Result<()> {
        // The last connection merges the write-ahead log into the database when it closes, and removes it.
        if beside(&self.temporary, "-wal").metadata().is_ok_and(|log| log.len() > 0) {
            return Err(io::Error::other("its write-ahead log is not empty"));
        }
        // SQLite would apply the log of a lost database to the new one.
        for name in ["-wal", "-shm", "-journal"] {
            remove_if_exists(&beside(&self.path, name))?;
        }
        std::fs::rename(&self.temporary, &self.path)?;
        match self.path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => File::open(folder)?.sync_all(),
            _ => Ok(()),
        }
    }

    fn remove(&self) {
        let _ = remove_if_exists(&self.temporary);
        for name in SIDE_FILES {
            let _ = remove_if_exists(&beside(&self.temporary, name));
        }
    }
}

impl Drop for TemporaryDatabase {
    fn drop(&mut self) {
        self.remove();
    }
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

fn remove_if_exists(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
