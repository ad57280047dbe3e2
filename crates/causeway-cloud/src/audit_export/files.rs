//! Writes records to `causeway-audit.jsonl` in a folder, for a collector on this host that follows files.
//!
//! Files are rotated by renaming, as collectors expect, and bounded in size and number like the journals.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use causeway_api::sync::MutexExt;
use causeway_daemon::rotated::{RotatedFiles, RotationLimits};

use super::{ExportBatch, ExportError};

const NAME: &str = "causeway-audit";

pub struct FileSender {
    folder: PathBuf,
    /// Shared with a write that outlives its deadline.
    files: Arc<Mutex<RotatedFiles>>,
}

impl FileSender {
    pub fn open(folder: &Path, limits: RotationLimits) -> io::Result<FileSender> {
        Ok(FileSender {
            folder: folder.to_owned(),
            files: Arc::new(Mutex::new(RotatedFiles::open(folder, NAME, limits)?)),
        })
    }

    pub async fn send(&mut self, batch: &ExportBatch) -> Result<(), ExportError> {
        let lines = batch.to_json_lines();
        let files = self.files.clone();
        let written = tokio::task::spawn_blocking(move || {
            let mut files = files.lock_ignoring_poison();
            files.append(&lines).and_then(|_| files.sync())
        });
        let written = written.await.map_err(io::Error::other).flatten();
        written.map_err(|source| ExportError::Files { folder: self.folder.clone(), source })
    }
}
