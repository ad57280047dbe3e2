//! Lines in files that are bounded in size and number: `NAME.jsonl` is written, `NAME-1.jsonl` is the one before it.
//!
//! What a line says is the business of those who write it. A line cut by a crash is ended, one cut by a full disk is
//! taken back, so every line that was acknowledged is whole.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::data_dir::make_folder;

/// How much is kept: `files_max` files of about `file_bytes_max` each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RotationLimits {
    pub file_bytes_max: u64,
    pub files_max: usize,
}

impl Default for RotationLimits {
    /// 160 MiB in all: weeks of administration, and small against any disk.
    fn default() -> RotationLimits {
        RotationLimits { file_bytes_max: 32 << 20, files_max: 5 }
    }
}

#[derive(Debug)]
pub struct RotatedFiles {
    folder: PathBuf,
    name: &'static str,
    limits: RotationLimits,
    current: File,
    bytes: u64,
}

impl RotatedFiles {
    /// Opens `folder`, which is made when missing, and goes on behind what is there.
    pub fn open(folder: &Path, name: &'static str, limits: RotationLimits) -> io::Result<RotatedFiles> {
        make_folder(folder)?;
        let path = folder.join(format!("{name}.jsonl"));
        let mut current = open_append(&path)?;
        let mut bytes = current.metadata()?.len();
        // A line cut by a crash must not swallow the next one.
        if bytes > 0 && !ends_with_newline(&path, bytes)? {
            current.write_all(b"\n")?;
            bytes += 1;
        }
        // A name that is new must survive, or the lines behind it would not.
        File::open(folder)?.sync_all()?;
        Ok(RotatedFiles { folder: folder.to_owned(), name, limits, current, bytes })
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Writes whole lines, all of them into one file.
    pub fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        if self.bytes > 0 && self.bytes + lines.len() as u64 > self.limits.file_bytes_max {
            self.rotate()?;
        }
        if let Err(error) = self.current.write_all(lines) {
            // Take back the half line of a full disk.
            let _ = self.current.set_len(self.bytes);
            return Err(error);
        }
        self.bytes += lines.len() as u64;
        Ok(())
    }

    /// Everything appended so far is on the disk afterwards.
    pub fn sync(&mut self) -> io::Result<()> {
        self.current.sync_data()
    }

    /// NAME.jsonl becomes NAME-1.jsonl, that one NAME-2.jsonl; the oldest goes.
    fn rotate(&mut self) -> io::Result<()> {
        // What was appended and not synced yet must not be forgotten with the handle.
        self.current.sync_data()?;
        let current = self.folder.join(format!("{}.jsonl", self.name));
        let older = |number: usize| self.folder.join(format!("{}-{number}.jsonl", self.name));
        for number in (1..self.limits.files_max.saturating_sub(1)).rev() {
            if older(number).exists() {
                fs::rename(older(number), older(number + 1))?;
            }
        }
        if self.limits.files_max > 1 {
            fs::rename(&current, older(1))?;
        } else {
            fs::remove_file(&current)?;
        }
        self.current = open_append(&current)?;
        self.bytes = 0;
        // The new name too must survive, or the lines in it would not.
        File::open(&self.folder)?.sync_all()
    }
}

fn open_append(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(0o600).open(path)
}

fn ends_with_newline(path: &Path, bytes: u64) -> io::Result<bool> {
    let mut last = [0];
    File::open(path)?.read_exact_at(&mut last, bytes - 1)?;
    Ok(last[0] == b'\n')
}
