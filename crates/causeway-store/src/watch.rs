//! A running watch of either engine: events after a revision, in order, with no gap and no repeat.

use crate::etcd::EtcdWatch;
use crate::sqlite::SqliteWatch;
use crate::{StoreError, WatchSignal};

/// A running watch. Dropping it ends the watch.
pub struct StoreWatch {
    pub(crate) source: EngineWatch,
}

pub(crate) enum EngineWatch {
    Sqlite(SqliteWatch),
    Etcd(Box<EtcdWatch>),
}

impl StoreWatch {
    /// Returns the next event, or the progress of the watch when it was quiet. May be dropped while it waits
    /// (in a `select!`) without losing anything. All events of one revision follow each other; a client that
    /// stops between two of them and resumes from that revision misses the rest, so resume from a revision
    /// that was complete.
    pub async fn next(&mut self) -> Result<WatchSignal, StoreError> {
        match &mut self.source {
            EngineWatch::Sqlite(watch) => watch.next().await,
            EngineWatch::Etcd(watch) => watch.next().await,
        }
    }
}
