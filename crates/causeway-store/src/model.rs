//! The data types of the store: revisions, records, operations, events, pages, and their limits.
//!
//! Values only, without I/O. Both engines and all callers share them.

use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
pub use causeway_api::Revision;

use crate::StoreError;

/// The largest value, the same on both engines. etcd refuses requests above 1.5 MiB by default.
pub const VALUE_BYTES_MAX: usize = 1 << 20;
/// The largest sum of keys and values in one commit; leaves room for framing below etcd's 1.5 MiB.
pub const COMMIT_BYTES_MAX: usize = 1_400_000;
/// The most operations in one commit; etcd's default is 128, and the engine adds a few comparisons.
pub const OPS_MAX: usize = 100;
/// The longest key. Kubernetes names have at most 253 bytes; reservations join two of them.
pub const KEY_BYTES_MAX: usize = 1024;

/// The current record of a key: its value, the revision of its last write and of its creation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreRecord {
    pub key: Arc<str>,
    pub value: Bytes,
    pub revision: Revision,
    pub created: Revision,
}

/// One operation of a commit. A commit names every key at most once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    /// The key must not exist.
    Create { key: String, value: Bytes },
    /// The key must exist at exactly this revision.
    Update { key: String, value: Bytes, expected: Revision },
    /// The key must exist, at exactly this revision when one is given.
    Delete { key: String, expected: Option<Revision> },
    /// Writes the value without a precondition.
    Put { key: String, value: Bytes },
}

impl Op {
    pub fn key(&self) -> &str {
        match self {
            Op::Create { key, .. }
            | Op::Update { key, .. }
            | Op::Delete { key, .. }
            | Op::Put { key, .. } => key,
        }
    }

    pub(crate) fn value(&self) -> Option<&Bytes> {
        match self {
            Op::Create { value, .. } | Op::Update { value, .. } | Op::Put { value, .. } => Some(value),
            Op::Delete { .. } => None,
        }
    }
}

/// The result of a commit: the revision of all its keys, and the records before it, in the order of the operations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Committed {
    pub revision: Revision,
    pub previous: Vec<Option<StoreRecord>>,
}

/// One change of one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreEvent {
    pub revision: Revision,
    pub key: Arc<str>,
    /// `None`: the key was deleted.
    pub value: Option<Bytes>,
    /// The value before; `None` when the key is new.
    pub previous: Option<Bytes>,
    /// The revision at which the key was created; equal to `revision` when it is new.
    pub created: Revision,
}

/// One message of a watch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WatchSignal {
    Event(Arc<StoreEvent>),
    /// All events up to this revision have been delivered; a watch may be resumed from it.
    Progress(Revision),
}

/// The part of a range to list, and the revision to list it at.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListRange {
    /// `None`: the current revision.
    pub at: Option<Revision>,
    /// Only keys after this one.
    pub after: Option<String>,
    /// `None`: no limit.
    pub limit: Option<usize>,
}

/// Records in the order of their keys, all at `revision`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listing {
    pub records: Vec<StoreRecord>,
    pub revision: Revision,
    /// The number of further records after the last one.
    pub remaining: u64,
}

/// The engine of a store and its location.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreSpec {
    Sqlite { path: PathBuf },
    Etcd { endpoints: Vec<String>, tls: Option<EtcdTls>, prefix: String },
}

impl StoreSpec {
    /// Returns the spec of a store in etcd under the default prefix.
    pub fn etcd(endpoints: Vec<String>, tls: Option<EtcdTls>) -> StoreSpec {
        StoreSpec::Etcd { endpoints, tls, prefix: "/causeway/".into() }
    }
}

/// PEM files for TLS connections to etcd; used when its addresses begin with `https`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EtcdTls {
    pub ca: Option<PathBuf>,
    pub cert: Option<PathBuf>,
    pub key: Option<PathBuf>,
}

/// Returns the first string after every string that begins with `prefix`; `None` when there is no such bound.
/// UTF-8 sorts by code points, so replacing the last code point with the next one gives the bound.
pub(crate) fn prefix_end(prefix: &str) -> Option<String> {
    let mut chars: Vec<char> = prefix.chars().collect();
    while let Some(last) = chars.pop() {
        // `next` skips the surrogate gap and ends at the last code point.
        if let Some(next) = (last..=char::MAX).nth(1) {
            chars.push(next);
            return Some(chars.into_iter().collect());
        }
    }
    None
}

/// Refuses commits that no engine could store: empty, too many or too large, or with a key named twice.
pub(crate) fn check_limits(ops: &[Op]) -> Result<(), StoreError> {
    if ops.is_empty() {
        return Err(StoreError::Invalid { reason: "a commit needs at least one operation".into() });
    }
    if ops.len() > OPS_MAX {
        return Err(StoreError::Invalid {
            reason: format!("{} operations in one commit, at most {OPS_MAX}", ops.len()),
        });
    }
    let mut total_bytes = 0;
    for (place, op) in ops.iter().enumerate() {
        check_key(op.key())?;
        let value_bytes = op.value().map_or(0, Bytes::len);
        if value_bytes > VALUE_BYTES_MAX {
            return Err(StoreError::TooLarge {
                key: op.key().into(),
                bytes: value_bytes,
                limit_bytes: VALUE_BYTES_MAX,
            });
        }
        total_bytes += value_bytes + op.key().len();
        if total_bytes > COMMIT_BYTES_MAX {
            return Err(StoreError::TooLarge {
                key: op.key().into(),
                bytes: total_bytes,
                limit_bytes: COMMIT_BYTES_MAX,
            });
        }
        if ops[..place].iter().any(|earlier| earlier.key() == op.key()) {
            return Err(StoreError::Invalid { reason: format!("{:?} stands twice in one commit", op.key()) });
        }
    }
    Ok(())
}

pub(crate) fn check_key(key: &str) -> Result<(), StoreError> {
    if key.is_empty() {
        return Err(StoreError::Invalid { reason: "a key must not be empty".into() });
    }
    if key.len() > KEY_BYTES_MAX {
        return Err(StoreError::TooLarge {
            key: key.chars().take(64).collect(),
            bytes: key.len(),
            limit_bytes: KEY_BYTES_MAX,
        });
    }
    // SQLite's own tools end a text at NUL, so such a key would look like another one.
    if key.contains('\0') {
        return Err(StoreError::Invalid { reason: format!("{key:?} holds a NUL") });
    }
    // The last code point is no character; it is used as a bound after every key.
    if key.contains(char::MAX) {
        return Err(StoreError::Invalid { reason: format!("{key:?} holds U+10FFFF, which is no character") });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_prefix_is_behind_everything_that_begins_with_it() {
        assert_eq!(prefix_end("esites/").as_deref(), Some("esites0"));
        assert_eq!(prefix_end("").as_deref(), None);
        assert_eq!(prefix_end("a\u{10FFFF}").as_deref(), Some("b"));
        assert_eq!(prefix_end("\u{D7FF}").as_deref(), Some("\u{E000}"));
        assert_eq!(prefix_end("\u{10FFFF}").as_deref(), None);
    }
}
