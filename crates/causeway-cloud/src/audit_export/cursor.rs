//! The number of the next record for one destination, in a file of its own. It moves after the collector has the records.

use std::io;
use std::path::{Path, PathBuf};

use causeway_daemon::data_dir::write_atomic;

#[derive(Debug)]
pub struct ExportCursor {
    path: PathBuf,
    next: u64,
}

impl ExportCursor {
    /// Reads the cursor of `name` in `folder`. A new destination begins with `first`, the oldest record that is kept.
    pub fn open(folder: &Path, name: &str, first: u64) -> io::Result<ExportCursor> {
        let path = folder.join(format!("{name}.cursor"));
        let next = match std::fs::read_to_string(&path) {
            // A file that cannot be read repeats records; it loses none.
            Ok(text) => text.trim().parse().unwrap_or(first),
            Err(error) if error.kind() == io::ErrorKind::NotFound => first,
            Err(error) => return Err(error),
        };
        Ok(ExportCursor { path, next })
    }

    pub fn next(&self) -> u64 {
        self.next
    }

    pub fn advance(&mut self, next: u64) -> io::Result<()> {
        // In memory first: records that were delivered are repeated after a restart, and not before.
        self.next = next;
        write_atomic(&self.path, format!("{next}\n").as_bytes())
    }
}
