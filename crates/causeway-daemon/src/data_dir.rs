//! The directory a process owns: made 0700, locked by one process, files written whole or not at all.
//!
//! The contents of the files are defined by the modules that write them.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{FlockOperation, flock};

use crate::role::{self, ProcessRole};

const DIRECTORY_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;
const LOCK_FILE: &str = "lock";

static TEMPORARY_NUMBER: AtomicU64 = AtomicU64::new(0);

/// A data dir that this process holds. The lock ends with the value, and with the process.
#[derive(Debug)]
pub struct DataDir {
    path: PathBuf,
    _lock: File,
}

#[derive(Debug, thiserror::Error)]
pub enum DataDirError {
    #[error("data dir {} is in use{}; stop that process or choose another --data-dir", path.display(), holder(*pid))]
    Locked { path: PathBuf, pid: Option<u32> },
    #[error(
        "data dir {} belongs to {} ({evidence} in it): start it with `causeway {found}`, or choose another --data-dir \
         for the {wanted}; if nothing in it is needed any more, empty it",
        path.display(), a(*found)
    )]
    OtherRole { path: PathBuf, wanted: ProcessRole, found: ProcessRole, evidence: String },
    #[error("data dir {} cannot be used: {action} failed{}", path.display(), fix(source))]
    Io { path: PathBuf, action: &'static str, source: io::Error },
}

fn a(role: ProcessRole) -> &'static str {
    match role {
        ProcessRole::Cloud => "a cloud",
        ProcessRole::Edge => "an edge",
    }
}

/// Only causes that have one fix: a full disk names itself.
fn fix(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::PermissionDenied => {
            " (run this as root or as the user of the data dir, or choose another --data-dir)"
        }
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory | io::ErrorKind::ReadOnlyFilesystem => {
            " (choose another --data-dir)"
        }
        _ => "",
    }
}

fn holder(pid: Option<u32>) -> String {
    pid.map(|pid| format!(" by process {pid}")).unwrap_or_default()
}

impl DataDir {
    /// Makes the directory when it is missing and takes its lock.
    ///
    /// A directory that was there keeps its mode: it may be shared on purpose, and every secret
    /// in it has a mode of its own.
    pub fn open(path: impl Into<PathBuf>) -> Result<DataDir, DataDirError> {
        let path = path.into();
        let failed = |action| {
            let path = path.clone();
            move |source| DataDirError::Io { path, action, source }
        };
        DirBuilder::new()
            .recursive(true)
            .mode(DIRECTORY_MODE)
            .create(&path)
            .map_err(failed("making the directory"))?;
        let mode = fs::metadata(&path).map_err(failed("reading its mode"))?.permissions().mode();
        if mode & 0o022 != 0 {
            tracing::warn!(path = %path.display(), mode = format!("{:o}", mode & 0o7777), "other users can write to the data dir: remove their permission with chmod");
        }
        let lock = lock(&path)?;
        Ok(DataDir { path, _lock: lock })
    }

    /// As `open`, for one role. A data dir of the other role is refused.
    pub fn open_as(path: impl Into<PathBuf>, role: ProcessRole) -> Result<DataDir, DataDirError> {
        let dir = DataDir::open(path)?;
        role::claim(&dir.path, role)?;
        Ok(dir)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path of a file or folder inside.
    pub fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path.join(name)
    }

    /// Makes a folder inside, mode 0700.
    pub fn folder(&self, name: impl AsRef<Path>) -> Result<PathBuf, DataDirError> {
        let path = self.join(name);
        make_folder(&path).map_err(|source| DataDirError::Io {
            path: path.clone(),
            action: "making the folder",
            source,
        })?;
        Ok(path)
    }

    /// Writes a file inside, whole or not at all, mode 0600.
    pub fn write(&self, name: impl AsRef<Path>, content: &[u8]) -> Result<PathBuf, DataDirError> {
        let path = self.join(name);
        write_atomic(&path, content).map_err(|source| DataDirError::Io {
            path: path.clone(),
            action: "writing the file",
            source,
        })?;
        Ok(path)
    }
}

/// Makes a folder and its parents, mode 0700; one that exists is left as it is.
pub fn make_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(path)
}

/// Replaces `path` with `content`, mode 0600, whole or not at all.
pub fn write_atomic(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = AtomicFile::create(path)?;
    file.write_all(content)?;
    file.commit()
}

/// Writes `path`, mode 0600, whole or not at all, and only if there is none: `AlreadyExists` leaves the other's as it is.
pub fn create_atomic(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = AtomicFile::create(path)?;
    file.write_all(content)?;
    file.commit_new()
}

/// A file that takes its place only when it is complete. After a crash there is the old file or the
/// new one, never a half: a temporary file is filled and synced, renamed over, and the folder synced.
#[derive(Debug)]
pub struct AtomicFile {
    path: PathBuf,
    folder: PathBuf,
    temporary: PathBuf,
    file: File,
    committed: bool,
}

impl AtomicFile {
    /// Opens the temporary file beside `path`, mode 0600. Dropped without `commit`, it vanishes.
    pub fn create(path: &Path) -> io::Result<AtomicFile> {
        let folder = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
            _ => PathBuf::from("."),
        };
        let name = path.file_name().ok_or_else(|| io::Error::other("the path names no file"))?;
        // Process and number keep writers apart; a leftover of a dead process is replaced.
        let number = TEMPORARY_NUMBER.fetch_add(1, Ordering::Relaxed);
        let temporary =
            folder.join(format!(".{}.{}-{number}.tmp", name.to_string_lossy(), std::process::id()));
        match fs::remove_file(&temporary) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let file = OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(&temporary)?;
        Ok(AtomicFile { path: path.to_owned(), folder, temporary, file, committed: false })
    }

    /// The file is complete: it becomes durable and takes its place.
    pub fn commit(mut self) -> io::Result<()> {
        self.file.sync_all()?;
        fs::rename(&self.temporary, &self.path)?;
        self.committed = true;
        File::open(&self.folder)?.sync_all()
    }

    /// As `commit`, and refuses with `AlreadyExists` when the place is taken.
    pub fn commit_new(self) -> io::Result<()> {
        self.file.sync_all()?;
        // A rename would replace; a link does not. The temporary name goes when `self` is dropped.
        fs::hard_link(&self.temporary, &self.path)?;
        File::open(&self.folder)?.sync_all()
    }
}

impl Write for AtomicFile {
    fn write(&mut self, content: &[u8]) -> io::Result<usize> {
        self.file.write(content)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for AtomicFile {
    fn drop(&mut self) {
        if !self.committed {
            let _ = fs::remove_file(&self.temporary);
        }
    }
}

fn lock(path: &Path) -> Result<File, DataDirError> {
    let failed = |action| move |source| DataDirError::Io { path: path.to_owned(), action, source };
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(FILE_MODE)
        .open(path.join(LOCK_FILE))
        .map_err(failed("opening the lock file"))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let mut pid = String::new();
            let _ = file.read_to_string(&mut pid);
            return Err(DataDirError::Locked { path: path.to_owned(), pid: pid.trim().parse().ok() });
        }
        Err(error) => return Err(failed("taking the lock")(error.into())),
    }
    // The number is for people who meet the lock; the lock itself is the kernel's. So a full disk,
    // which cannot take the number, does not keep the process from starting.
    let noted = file
        .set_len(0)
        .and_then(|()| file.rewind())
        .and_then(|()| file.write_all(format!("{}\n", std::process::id()).as_bytes()));
    if let Err(error) = noted {
        tracing::warn!(%error, "the lock file does not name this process");
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn a_new_data_dir_is_private_and_its_files_too() {
        let base = tempfile::tempdir().unwrap();
        let dir = DataDir::open(base.path().join("a/b")).unwrap();
        assert_eq!(mode(dir.path()), 0o700);
        let file = dir.write("secret", b"one").unwrap();
        dir.write("secret", b"two").unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"two");
        assert_eq!(mode(&file), 0o600);
        assert_eq!(mode(&dir.folder("run/deep").unwrap()), 0o700);
    }

    #[test]
    fn a_second_holder_is_told_who_holds_it() {
        let base = tempfile::tempdir().unwrap();
        let first = DataDir::open(base.path()).unwrap();
        let text = DataDir::open(base.path()).unwrap_err().to_string();
        assert!(text.contains(&format!("process {}", std::process::id())), "{text}");
        drop(first);
        DataDir::open(base.path()).unwrap();
    }

    #[test]
    fn the_first_of_two_creators_wins() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("file");
        create_atomic(&path, b"first").unwrap();
        let second = create_atomic(&path, b"second").unwrap_err();
        assert_eq!(second.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read(&path).unwrap(), b"first");
        assert_eq!((fs::read_dir(base.path()).unwrap().count(), mode(&path)), (1, 0o600));
    }

    #[test]
    fn a_write_that_fails_leaves_the_old_file_and_nothing_else() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("file");
        write_atomic(&path, b"old").unwrap();
        let mut file = AtomicFile::create(&path).unwrap();
        file.write_all(b"half").unwrap();
        drop(file);
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(fs::read_dir(base.path()).unwrap().count(), 1);
    }
}
