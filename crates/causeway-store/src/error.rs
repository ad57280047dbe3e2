//! The errors of a store, by the reaction of the caller.
//!
//! One enum for the whole interface: the API server maps each variant to one Status. Cloneable, because a
//! failed group commit returns the same cause to many callers.

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
    /// The requested history is compacted; list again.
    #[error("revision {requested} has been compacted, the oldest is {oldest}")]
    Compacted { requested: Revision, oldest: Revision },
    #[error("revision {requested} has not happened yet, the store is at {current}")]
    Future { requested: Revision, current: Revision },
    /// The watcher read too slowly and was ended; watch again from the last revision it saw.
    #[error("the watcher fell behind and was cut off")]
    Lagged,
    /// No space to write. Reads work, and writes work again as soon as there is space.
    #[error("the store's disk is full or cannot be written")]
    Full { source: SharedCause },
    #[error("{key}: {bytes} bytes, at most {limit_bytes} are allowed")]
    TooLarge { key: String, bytes: usize, limit_bytes: usize },
    /// A mistake of the caller: no operations, a key twice, an empty key.
    #[error("{reason}")]
    Invalid { reason: String },
    /// The engine did not respond. A write may or may not have happened.
    #[error("the store is not available: {reason}")]
    Unavailable { reason: String, source: Option<SharedCause> },
    /// The data, or a backup, is damaged or was not made by Causeway.
    #[error("damaged: {reason}")]
    Corrupt { reason: String, source: Option<SharedCause> },
    /// Written by a newer program; this one would damage it.
    #[error("the store has format {found}, this program knows up to {supported}: use a newer causeway")]
    TooNew { found: u64, supported: u64 },
    /// A backup is restored only into an empty store.
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
