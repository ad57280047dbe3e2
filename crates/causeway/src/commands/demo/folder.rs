//! The folder of a running demo, and the folders that killed demos have left.
//!
//! A demo holds a lock on a file in its folder. The kernel gives the lock up with the process, however that ends, so the next demo
//! can tell an abandoned folder from one in use and removes it.

use std::fs::File;
use std::path::Path;

use anyhow::Context;
use rustix::fs::{FlockOperation, flock};
use tempfile::TempDir;

use crate::output;

const PREFIX: &str = "causeway-demo-";
const LOCK: &str = "demo.lock";

/// Makes the folder of this demo. It is in use for as long as the file is open.
pub fn make() -> anyhow::Result<(TempDir, File)> {
    let folder = tempfile::Builder::new().prefix(PREFIX).tempdir()?;
    let path = folder.path().join(LOCK);
    let lock = File::create(&path).with_context(|| format!("cannot create {}", output::path(&path)))?;
    flock(&lock, FlockOperation::NonBlockingLockExclusive)
        .with_context(|| format!("cannot lock {}", output::path(&path)))?;
    Ok((folder, lock))
}

/// Removes the folders of demos that were killed. Folders in use, and folders that this user may not remove, stay.
pub fn remove_abandoned(parent: &Path) {
    let Ok(entries) = std::fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        let is_named = entry.file_name().to_string_lossy().starts_with(PREFIX);
        // Not a link: the folder is in a directory that every user may write.
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        if is_named && is_folder && is_abandoned(&entry.path()) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// A folder without the file may belong to a demo that is just starting: it stays.
fn is_abandoned(folder: &Path) -> bool {
    File::open(folder.join(LOCK))
        .is_ok_and(|lock| flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_folders_of_demos_that_are_gone_are_removed() {
        let parent = tempfile::tempdir().unwrap();
        let folder = |name: &str| {
            let path = parent.path().join(name);
            std::fs::create_dir_all(path.join("cloud")).unwrap();
            path
        };
        let (abandoned, used, starting, other) =
            (folder("causeway-demo-a"), folder("causeway-demo-b"), folder("causeway-demo-c"), folder("d"));
        for path in [&abandoned, &used, &other] {
            File::create(path.join(LOCK)).unwrap();
        }
        let lock = File::open(used.join(LOCK)).unwrap();
        flock(&lock, FlockOperation::NonBlockingLockExclusive).unwrap();
        remove_abandoned(parent.path());
        let left = [&abandoned, &used, &starting, &other].map(|path| path.exists());
        assert_eq!(left, [false, true, true, true]);
    }
}
