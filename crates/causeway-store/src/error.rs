//! The errors of a store, by the reaction of the caller.
//!
//! One enum for the whole face: the API server maps each variant to one Status.
//! Cloneable, because a group commit that fails answers many callers with the same cause.

use std::sync::Arc;

use crate::Revision;

/// A shared cause, for the log.
pub type SharedCause = Arc<dyn std::error::Error + Send + Sync>;

#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    #[error("{key} already exists")]
    AlreadyExists { key: String },
    #[error("{key} not found")]
    NotFound { key: String },
    #[error("{key} is at revision {actual}, not {expected}")]
    Conflict { key: String, expected: Revision, actual: Revision },
    /// The history asked for is gone; list anew.
    #[error("revision {requested} has been compacted, the oldest is {oldest}")]
    Compacted { requested: Revision, oldest: Revision },
    #[error("revision {requested} has not happened yet, the store is at {current}")]
    Future { requested: Revision, current: Revision },
    /// The watcher read too slowly and was cut off; watch again from the last revision it saw.
    #[error("the watcher fell behind and was cut off")]
    Lagged,
    /// No room to write. Reads go on, and writes will as soon as there is room.
    #[error("the store's disk is full or cannot be written")]
    Full { source: SharedCause },
    #[error("{key}: {bytes} bytes, at most {limit_bytes} are allowed")]
    TooLarge { key: String, bytes: usize, limit_bytes: usize },
    /// The caller's mistake: no operations, a key twice, an empty key.
    #[error("{reason}")]
    Invalid { reason: String },
    /// The engine did not answer. A write may or may not have happened.
    #[error("the store is not available: {reason}")]
    Unavailable { reason: String, source: Option<SharedCause> },
    /// The data, or a backup, is damaged or is no store of ours.
    #[error("damaged: {reason}")]
    Corrupt { reason: String, source: Option<SharedCause> },
    /// Written by a newer program; this one would harm it.
    #[error("the store has format {found}, this program knows up to {supported}: use a newer causeway")]
    TooNew { found: u64, supported: u64 },
    /// A backup goes only into a store that holds nothing.
    #[error("the store is not empty: it holds {count} records")]
    NotEmpty { count: u64 },
    #[error("the store is closed")]
    Closed,
}

impl StoreError {
    pub(crate) fn unavailable(reason: impl Into<String>) -> StoreError {
        StoreError::Unavailable { reason: reason.into(), source: None }
    }

    pub(crate) fn corrupt(reason: impl Into<String>) -> StoreError {
        StoreError::Corrupt { reason: reason.into(), source: None }
    }
}
