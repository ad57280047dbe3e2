//! A running watch, whatever the engine: events behind a revision, in order, with no gap and no repeat.

use crate::etcd::EtcdWatch;
use crate::sqlite::SqliteWatch;
use crate::{Signal, StoreError};

/// Dropping it ends the watch.
pub struct Watch {
    pub(crate) source: Source,
}

pub(crate) enum Source {
    Sqlite(SqliteWatch),
    Etcd(Box<EtcdWatch>),
}

impl Watch {
    /// The next event, or how far the watch is when it was quiet. May be dropped while it waits (in a `select!`)
    /// without losing anything. All events of one revision follow each other; a client that stops between two of
    /// them and resumes from that revision misses the rest, so resume from a revision that was complete.
    pub async fn next(&mut self) -> Result<Signal, StoreError> {
        match &mut self.source {
            Source::Sqlite(watch) => watch.next().await,
            Source::Etcd(watch) => watch.next().await,
        }
    }
}
