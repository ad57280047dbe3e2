//! Lines in files that are bounded in size and number: `NAME.jsonl` is written, `NAME-1.jsonl` is the one before it.
//! The contents of a line are defined by the caller. A line cut by a crash is terminated, one cut by a full
//! disk is removed, so every line that was acknowledged is whole.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::data_dir::make_folder;

/// The bound on disk usage: `files_max` files of about `file_bytes_max` each.
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
    /// As `open`, but no file is ever removed: the caller bounds them in its own way.
    pub fn open_unbounded(
        folder: &Path,
        name: &'static str,
        file_bytes_max: u64,
    ) -> io::Result<RotatedFiles> {
        RotatedFiles::open(folder, name, RotationLimits { file_bytes_max, files_max: usize::MAX })
    }

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

    /// Writes whole lines, all of them into one file. True: that file is a new one.
    pub fn append(&mut self, lines: &[u8]) -> io::Result<bool> {
        let is_full = self.bytes > 0 && self.bytes + lines.len() as u64 > self.limits.file_bytes_max;
        if is_full {
            self.rotate()?;
        }
        if let Err(error) = self.current.write_all(lines) {
            // Take back the half line of a full disk.
            let _ = self.current.set_len(self.bytes);
            return Err(error);
        }
        self.bytes += lines.len() as u64;
        Ok(is_full)
    }

    /// Everything appended so far is on the disk afterwards.
    pub fn sync(&mut self) -> io::Result<()> {
        self.current.sync_data()
    }

    /// NAME.jsonl becomes NAME-1.jsonl, that one NAME-2.jsonl; the oldest goes.
    fn rotate(&mut self) -> io::Result<()> {
        // Lines that were appended and not synced yet must not be lost with the handle.
        self.current.sync_data()?;
        let current = self.folder.join(format!("{}.jsonl", self.name));
        let path = |number: u64| path_of_older(&self.folder, self.name, number);
        for number in older(&self.folder, self.name)?.into_iter().rev() {
            match number + 1 < self.limits.files_max as u64 {
                true => fs::rename(path(number), path(number + 1))?,
                false => fs::remove_file(path(number))?,
            }
        }
        if self.limits.files_max > 1 {
            fs::rename(&current, path(1))?;
        } else {
            fs::remove_file(&current)?;
        }
        self.current = open_append(&current)?;
        self.bytes = 0;
        // The new name too must survive, or the lines in it would not.
        File::open(&self.folder)?.sync_all()
    }
}

/// Returns the path of `NAME-NUMBER.jsonl`.
pub fn path_of_older(folder: &Path, name: &str, number: u64) -> PathBuf {
    folder.join(format!("{name}-{number}.jsonl"))
}

/// The numbers of the files before the current one, the newest first. A missing folder has none.
pub fn older(folder: &Path, name: &str) -> io::Result<Vec<u64>> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut numbers = Vec::new();
    for entry in entries {
        let file_name = entry?.file_name();
        let middle = file_name.to_str().and_then(|text| text.strip_prefix(name)?.strip_prefix('-'));
        let number: Option<u64> = middle.and_then(|text| text.strip_suffix(".jsonl")?.parse().ok());
        numbers.extend(number.filter(|number| *number > 0));
    }
    numbers.sort_unstable();
    Ok(numbers)
}

fn open_append(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(0o600).open(path)
}

fn ends_with_newline(path: &Path, bytes: u64) -> io::Result<bool> {
    let mut last = [0];
    File::open(path)?.read_exact_at(&mut last, bytes - 1)?;
    Ok(last[0] == b'\n')
}
