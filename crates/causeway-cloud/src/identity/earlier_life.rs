//! Protects a fleet whose store was lost: no new CA is made in a data dir where a cloud has run before.
//!
//! Input: the files in the data dir. Output: permission to make a CA, or an error that names the files. A start that
//! ends while it makes the first CA leaves a mark and may be repeated. A restore that fails leaves a mark that counts as
//! a file of an earlier cloud.

use std::io;
use std::path::{Path, PathBuf};

use causeway_daemon::data_dir::write_atomic;

use super::{kubeconfig, revocation_log};
use crate::audit_export;

/// Exists while the first CA is made.
const MARK: &str = "first-start";
/// Exists from the beginning of a restore to its successful end.
const RESTORE_MARK: &str = "restore-unfinished";
const SEAL_KEY: &str = "seal.key";
/// The folder of the audit log, the admin journal and the records of edges. A start makes it before it makes the CA, so
/// only a file with content counts.
const AUDIT: &str = "audit";

#[derive(Debug, thiserror::Error)]
pub enum EarlierLifeError {
    #[error(
        "the store holds no CA, but a cloud has run in {} before ({} in it). A new CA would lock out every edge and replace the admin kubeconfig. \
         Put the store back (store.db, or --store with the etcd of this cloud), or restore a backup: `causeway restore FILE --data-dir {}`; \
         to begin a new fleet here all the same, or with a seal key that you prepared: --new-fleet",
        data_dir.display(), traces.join(", "), data_dir.display()
    )]
    Traces { data_dir: PathBuf, traces: Vec<&'static str> },
    #[error("cannot write the file {}", path.display())]
    Mark { path: PathBuf, source: io::Error },
}

/// Call when the store holds no CA, before one is made.
pub fn begin(data_dir: &Path, is_seal_key_elsewhere: bool, new_fleet: bool) -> Result<(), EarlierLifeError> {
    let mark = data_dir.join(MARK);
    let found = traces(is_seal_key_elsewhere, |name| is_trace(&data_dir.join(name)));
    // A first start that failed may be repeated, unless a restore has begun since.
    let is_repeated = mark.exists() && !data_dir.join(RESTORE_MARK).exists();
    if !found.is_empty() && !new_fleet && !is_repeated {
        return Err(EarlierLifeError::Traces { data_dir: data_dir.to_owned(), traces: found });
    }
    write_atomic(&mark, b"").map_err(|source| EarlierLifeError::Mark { path: mark, source })
}

/// Call when the store holds a CA.
pub fn end(data_dir: &Path) {
    remove_mark(data_dir, MARK);
    remove_mark(data_dir, RESTORE_MARK);
}

/// Call before a backup is restored.
pub fn begin_restore(data_dir: &Path) -> Result<(), EarlierLifeError> {
    let mark = data_dir.join(RESTORE_MARK);
    write_atomic(&mark, b"").map_err(|source| EarlierLifeError::Mark { path: mark, source })
}

/// Call when the restored store is complete.
pub fn end_restore(data_dir: &Path) {
    remove_mark(data_dir, RESTORE_MARK);
}

fn remove_mark(data_dir: &Path, name: &str) {
    match std::fs::remove_file(data_dir.join(name)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(%error, "cannot remove the file {name} in the data dir");
        }
        _ => {}
    }
}

/// Returns the files that a cloud writes only when it has a CA. A seal key at a configured path may have been prepared
/// for a first start.
fn traces(is_seal_key_elsewhere: bool, has: impl Fn(&str) -> bool) -> Vec<&'static str> {
    let all = [SEAL_KEY, kubeconfig::FILE, "channel.keys", revocation_log::FILE, AUDIT, RESTORE_MARK];
    all.into_iter().filter(|name| has(name) && !(is_seal_key_elsewhere && *name == SEAL_KEY)).collect()
}

/// Returns whether `path` is a file, or a folder that holds a file with content. The spool of the audit's export does not count: it has
/// its name and cursors before the CA is made, and every record in it is also in a journal beside it.
fn is_trace(path: &Path) -> bool {
    let Ok(entries) = std::fs::read_dir(path) else { return path.exists() };
    let is_spool =
        |entry: &std::fs::DirEntry| path.ends_with(AUDIT) && entry.file_name() == audit_export::FOLDER;
    entries.flatten().filter(|entry| !is_spool(entry)).any(|entry| {
        entry.metadata().is_ok_and(|metadata| match metadata.is_dir() {
            true => is_trace(&entry.path()),
            false => metadata.len() > 0,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_ca_is_made_only_where_none_was_before() {
        let check = |files: &[&str], elsewhere: bool, new_fleet: bool, expected: Result<(), &str>| {
            let folder = tempfile::tempdir().unwrap();
            for name in files {
                let (name, content) = name.split_once('=').unwrap_or((*name, ""));
                let path = folder.path().join(name);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, content).unwrap();
            }
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
        // The audit log is opened before the CA is made; a line in it comes later.
        check(&["audit/audit.jsonl", "audit/admin.jsonl"], false, false, Ok(()));
        // So is the spool of its export, which has a name from the beginning.
        check(
            &["audit/audit.jsonl", "audit/export/source=a", "audit/export/otlp.cursor=0"],
            false,
            false,
            Ok(()),
        );
        check(&["audit/audit.jsonl={}", "audit/export/source=a"], false, false, Err("audit in it"));
        check(&["audit/fleet/export/a=a"], false, false, Err("audit in it"));
        check(&["audit/audit.jsonl={}"], false, false, Err("audit in it"));
        check(&["audit/admin.jsonl={}"], false, false, Err("audit in it"));
        check(&["audit/fleet/fleet.1.jsonl={}"], false, false, Err("audit in it"));
        check(&["audit/admin.jsonl={}"], false, true, Ok(()));
        check(&["restore-unfinished"], false, false, Err("restore-unfinished in it"));
        // The first start was killed between the seal key and the CA.
        check(&["seal.key", "first-start"], false, false, Ok(()));
    }

    #[test]
    fn a_restore_leaves_its_mark_until_it_is_complete() {
        let folder = tempfile::tempdir().unwrap();
        begin_restore(folder.path()).unwrap();
        assert!(matches!(begin(folder.path(), false, false), Err(EarlierLifeError::Traces { .. })));
        end_restore(folder.path());
        begin(folder.path(), false, false).unwrap();
        begin_restore(folder.path()).unwrap();
        end(folder.path());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
