//! The role a data dir belongs to: `causeway cloud` or `causeway edge`.
//!
//! Input: the marker file `role` and the names of the files in the data dir. Output: permission to use it, or an error
//! that names the evidence. Data dirs from before the marker are recognised by their files.

use std::fmt;
use std::io;
use std::path::Path;

use crate::data_dir::{DataDirError, write_atomic};

const MARKER: &str = "role";

/// The role of a process, as the marker file in its data dir names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcessRole {
    Cloud,
    Edge,
}

impl ProcessRole {
    fn other(self) -> ProcessRole {
        match self {
            ProcessRole::Cloud => ProcessRole::Edge,
            ProcessRole::Edge => ProcessRole::Cloud,
        }
    }

    fn parse(text: &str) -> Option<ProcessRole> {
        [ProcessRole::Cloud, ProcessRole::Edge].into_iter().find(|role| role.to_string() == text.trim())
    }

    /// Files that only this role writes.
    fn files(self) -> &'static [&'static str] {
        match self {
            ProcessRole::Cloud => &["store.db", "seal.key", "admin.kubeconfig", "channel.keys"],
            ProcessRole::Edge => &["identity.pem", "edge.json", "pending.key"],
        }
    }
}

impl fmt::Display for ProcessRole {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            ProcessRole::Cloud => "cloud",
            ProcessRole::Edge => "edge",
        })
    }
}

/// Checks that the data dir is free for `role`, and marks it. Call with the lock held.
pub(crate) fn claim(path: &Path, role: ProcessRole) -> Result<(), DataDirError> {
    let marker = match std::fs::read_to_string(path.join(MARKER)) {
        Ok(text) => ProcessRole::parse(&text),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(source) => {
            return Err(DataDirError::Io { path: path.to_owned(), action: "reading its role", source });
        }
    };
    if let Some(evidence) = evidence_of_other_role(marker, role, |name| path.join(name).exists()) {
        let path = path.to_owned();
        return Err(DataDirError::OtherRole { path, wanted: role, found: role.other(), evidence });
    }
    // A full disk does not keep a process from starting: without the marker its files still show the role.
    if marker.is_none()
        && let Err(error) = write_atomic(&path.join(MARKER), format!("{role}\n").as_bytes())
    {
        tracing::warn!(%error, path = %path.display(), "cannot write the role marker of the data dir");
    }
    Ok(())
}

/// Returns the evidence that a data dir belongs to the other role, if there is any. Without a marker, files
/// of both roles prove nothing: programs before the marker let both start on one data dir.
fn evidence_of_other_role(
    marker: Option<ProcessRole>,
    wanted: ProcessRole,
    has: impl Fn(&str) -> bool,
) -> Option<String> {
    match marker {
        Some(role) if role == wanted => None,
        Some(_) => Some(MARKER.to_owned()),
        None if wanted.files().iter().any(|name| has(name)) => None,
        None => {
            let found: Vec<&str> = wanted.other().files().iter().copied().filter(|name| has(name)).collect();
            (!found.is_empty()).then(|| found.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DataDir;

    #[test]
    fn a_data_dir_belongs_to_one_role() {
        let check = |marker, wanted, files: &[&str], evidence: Option<&str>| {
            let found = evidence_of_other_role(marker, wanted, |name| files.contains(&name));
            assert_eq!(found.as_deref(), evidence, "{marker:?} {wanted:?} {files:?}");
        };
        check(None, ProcessRole::Cloud, &[], None);
        check(None, ProcessRole::Edge, &[], None);
        check(None, ProcessRole::Cloud, &["store.db", "seal.key"], None);
        check(None, ProcessRole::Cloud, &["identity.pem", "edge.json"], Some("identity.pem, edge.json"));
        check(None, ProcessRole::Edge, &["seal.key"], Some("seal.key"));
        check(None, ProcessRole::Edge, &["seal.key", "identity.pem"], None);
        check(Some(ProcessRole::Edge), ProcessRole::Edge, &["seal.key"], None);
        check(Some(ProcessRole::Edge), ProcessRole::Cloud, &["seal.key"], Some("role"));
        check(Some(ProcessRole::Cloud), ProcessRole::Edge, &[], Some("role"));
    }

    #[test]
    fn the_first_role_marks_the_data_dir_and_the_other_is_told() {
        let base = tempfile::tempdir().unwrap();
        drop(DataDir::open_as(base.path(), ProcessRole::Edge).unwrap());
        drop(DataDir::open_as(base.path(), ProcessRole::Edge).unwrap());
        let text = DataDir::open_as(base.path(), ProcessRole::Cloud).unwrap_err().to_string();
        for part in ["belongs to an edge", "causeway edge", "--data-dir", "role"] {
            assert!(text.contains(part), "{part} is missing in {text}");
        }
        let old = tempfile::tempdir().unwrap();
        std::fs::write(old.path().join("seal.key"), "").unwrap();
        let text = DataDir::open_as(old.path(), ProcessRole::Edge).unwrap_err().to_string();
        assert!(text.contains("belongs to a cloud (seal.key"), "{text}");
    }
}
