//! Stores bytes under keys, with one revision counter: list at a revision, watch from a revision.
//!
//! Two engines behind one interface, `Store`: SQLite inside the data dir, and etcd. The kinds of objects are
//! unknown here. A commit is atomic and durable when it is acknowledged; a watch has no gap and no repeat.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod backup;
mod decide;
mod error;
mod etcd;
mod follow;
mod housekeeping;
mod hub;
mod model;
mod restore;
mod retention;
mod sqlite;
mod store;
mod watch;

pub use backup::ImportResult;
pub use error::{SharedCause, StoreError};
pub use follow::{FollowBackoff, Followed, LoadFuture, StoreFollower};
pub use model::{
    COMMIT_BYTES_MAX, Committed, EtcdTls, KEY_BYTES_MAX, ListRange, Listing, OPS_MAX, Op, Revision,
    StoreEvent, StoreRecord, StoreSpec, VALUE_BYTES_MAX, WatchSignal,
};
pub use restore::RestoreTarget;
pub use store::{BackupExport, Store};
pub use watch::StoreWatch;

use causeway_api::sync;
