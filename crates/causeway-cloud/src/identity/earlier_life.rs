//! Protects a fleet whose store was lost: a new CA is not made where a cloud has run before.
//!
//! Input: the names of files in the data dir. Output: permission to make a CA, or an error that names the files. A
//! start that ended in the middle of making the first CA leaves a mark, and may go on.

use std::io;
use std::path::{Path, PathBuf};

use causeway_daemon::data_dir::write_atomic;

use super::{kubeconfig, revocation_log};

/// Stands while the first CA is made.
const MARK: &str = "first-start";
const SEAL_KEY: &str = "seal.key";

#[derive(Debug, thiserror::Error)]
pub enum EarlierLifeError {
    #[error(
        "the store holds no CA, but a cloud has run in {} before ({} in it). A new CA would lock out every edge and replace the admin kubeconfig. \
         Put the store back (store.db, or --store with the etcd of this cloud), or restore a backup: `causeway restore FILE --data-dir {}`; \
         to begin a new fleet here all the same, or with a seal key that you prepared: --new-fleet",
        data_dir.display(), traces.join(", "), data_dir.display()
    )]
    Traces { data_dir: PathBuf, traces: Vec<&'static str> },
    #[error("{} cannot be written", path.display())]
    Mark { path: PathBuf, source: io::Error },
}

/// Call when the store holds no CA, before one is made.
pub fn begin(data_dir: &Path, is_seal_key_elsewhere: bool, new_fleet: bool) -> Result<(), EarlierLifeError> {
    let mark = data_dir.join(MARK);
    let found = traces(is_seal_key_elsewhere, |name| data_dir.join(name).exists());
    if !found.is_empty() && !new_fleet && !mark.exists() {
        return Err(EarlierLifeError::Traces { data_dir: data_dir.to_owned(), traces: found });
    }
    write_atomic(&mark, b"").map_err(|source| EarlierLifeError::Mark { path: mark, source })
}

/// Call when the store holds a CA.
pub fn end(data_dir: &Path) {
    // Only a mark that is there is worth a word.
    match std::fs::remove_file(data_dir.join(MARK)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(%error, "the mark {MARK} in the data dir cannot be removed");
        }
        _ => {}
    }
}

/// Files that a cloud writes when it has a CA. A seal key at a place of its own may have been prepared for a first start.
fn traces(is_seal_key_elsewhere: bool, has: impl Fn(&str) -> bool) -> Vec<&'static str> {
    let all = [SEAL_KEY, kubeconfig::FILE, "channel.keys", revocation_log::FILE];
    all.into_iter().filter(|name| has(name) && !(is_seal_key_elsewhere && *name == SEAL_KEY)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_ca_is_made_only_where_none_was_before() {
        let check = |files: &[&str], elsewhere: bool, new_fleet: bool, expected: Result<(), &str>| {
            let folder = tempfile::tempdir().unwrap();
            files.iter().for_each(|name| std::fs::write(folder.path().join(name), "").unwrap());
            match (begin(folder.path(), elsewhere, new_fleet), expected) {
                (Ok(()), Ok(())) => {}
                (Err(error), Err(part)) => {
                    let text = error.to_string();
                    for part in [part, "causeway restore", "--new-fleet", folder.path().to_str().unwrap()] {
                        assert!(text.contains(part), "{part} is missing in {text}");
                    }
                }
                (found, expected) => panic!("{files:?}: {found:?} instead of {expected:?}"),
            }
        };
        check(&[], false, false, Ok(()));
        check(&["lock", "store.db", "role"], false, false, Ok(()));
        check(&["seal.key"], false, false, Err("seal.key in it"));
        check(&["seal.key"], true, false, Ok(()));
        check(&["admin.kubeconfig"], true, false, Err("admin.kubeconfig in it"));
        check(&["seal.key", "channel.keys"], false, false, Err("seal.key, channel.keys"));
        check(&["revocations.jsonl"], false, false, Err("revocations.jsonl"));
        check(&["seal.key", "admin.kubeconfig"], false, true, Ok(()));
        // The first start was killed between the seal key and the CA.
        check(&["seal.key", "first-start"], false, false, Ok(()));
    }
}
