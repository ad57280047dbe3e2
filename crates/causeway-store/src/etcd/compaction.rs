//! Compacts old history by the same rule as the embedded engine, on one replica at a time.
//!
//! The compacted revision and the age of history are in one key. The replica that writes that key first does
//! the work of this minute; the other replicas see that it was done.

use std::sync::Arc;

use etcd_client::{Compare, CompareOp, Txn, TxnOp};
use serde::{Deserialize, Serialize};

use super::members::{self, EtcdFailure, RetryPolicy};
use super::{EtcdShared, keys};
use crate::retention::{self, RevisionTime};
use crate::{Revision, StoreError};

/// The value of the key.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct CompactionState {
    compacted: u64,
    moments: Vec<RevisionTime>,
    /// The time of the last write of the key, so that replicas take turns.
    #[serde(default)]
    unix_seconds: u64,
}

impl CompactionState {
    /// Parses the value. An absent or unreadable value means that Causeway has compacted nothing.
    pub fn parse(value: Option<&[u8]>) -> CompactionState {
        value.and_then(|value| serde_json::from_slice(value).ok()).unwrap_or_default()
    }

    pub fn at(compacted: Revision) -> CompactionState {
        CompactionState { compacted: compacted.0, ..CompactionState::default() }
    }

    pub fn compacted(&self) -> Revision {
        Revision(self.compacted)
    }

    pub fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("numbers and lists always encode")
    }

    /// Returns the value that this minute's turn writes; `None` when there is nothing to write.
    fn turn(&self, last_write: Revision, current: Revision, now: u64) -> Option<CompactionState> {
        let taken = now.saturating_sub(self.unix_seconds) < retention::TICK.as_secs() / 2;
        // When the newest revision is the last write of this key, nothing has happened since.
        if taken || last_write == current {
            return None;
        }
        let moments = retention::note(&self.moments, RevisionTime { revision: current.0, unix_seconds: now });
        let due = retention::due(&moments, now, current).map_or(0, |upto| upto.0);
        Some(CompactionState { compacted: self.compacted.max(due), moments, unix_seconds: now })
    }
}

/// The key as it was read.
struct Seen {
    state: CompactionState,
    last_write: Revision,
    current: Revision,
}

/// Checks once whether history can be compacted. A failure is retried in a minute.
pub(super) async fn compact_if_due(shared: Arc<EtcdShared>) {
    if let Err(error) = turn(&shared).await {
        tracing::warn!(error = %error, "cannot compact the history in etcd; retrying in a minute");
    }
}

async fn turn(shared: &EtcdShared) -> Result<(), StoreError> {
    let seen = read(shared).await?;
    let Some(next) = seen.state.turn(seen.last_write, seen.current, retention::unix_seconds()) else {
        return Ok(());
    };
    if write(shared, &seen, &next).await? && next.compacted > seen.state.compacted {
        forget(shared, next.compacted()).await?;
    }
    Ok(())
}

pub(super) async fn compact(shared: &EtcdShared, upto: Revision) -> Result<Revision, StoreError> {
    loop {
        let seen = read(shared).await?;
        if upto > seen.current {
            return Err(StoreError::Future { requested: upto, current: seen.current });
        }
        if upto <= seen.state.compacted() {
            return Ok(seen.state.compacted());
        }
        let next = CompactionState { compacted: upto.0, ..seen.state.clone() };
        if write(shared, &seen, &next).await? {
            forget(shared, upto).await?;
            return Ok(upto);
        }
    }
}

async fn read(shared: &EtcdShared) -> Result<Seen, StoreError> {
    let name = shared.keys.meta("compaction");
    let answer = shared.members.call(RetryPolicy::Again, |mut kv| {
        let name = name.clone();
        async move { kv.get(name, None).await }
    });
    let answer = answer.await.map_err(EtcdFailure::into_error)?;
    let found = answer.kvs().first();
    Ok(Seen {
        state: CompactionState::parse(found.map(|found| found.value())),
        last_write: keys::revision(found.map_or(0, |found| found.mod_revision())),
        current: members::revision(answer.header())?,
    })
}

/// Writes the key. False when another replica was first.
async fn write(shared: &EtcdShared, seen: &Seen, next: &CompactionState) -> Result<bool, StoreError> {
    let name = shared.keys.meta("compaction");
    let answer = shared.members.call(RetryPolicy::Once, |mut kv| {
        let unchanged = Compare::mod_revision(name.clone(), CompareOp::Equal, seen.last_write.0 as i64);
        let transaction =
            Txn::new().when([unchanged]).and_then([TxnOp::put(name.clone(), next.encode(), None)]);
        async move { kv.txn(transaction).await }
    });
    Ok(answer.await.map_err(EtcdFailure::into_error)?.succeeded())
}

pub(super) async fn forget(shared: &EtcdShared, upto: Revision) -> Result<(), StoreError> {
    shared.compacted.fetch_max(upto.0, std::sync::atomic::Ordering::AcqRel);
    let answer = shared
        .members
        .call(RetryPolicy::Again, |mut kv| async move { kv.compact(upto.0 as i64, None).await });
    match answer.await {
        // etcd's own auto-compaction may have compacted more already.
        Ok(_) | Err(EtcdFailure::Compacted) => Ok(()),
        Err(failure) => Err(failure.into_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_replica_takes_the_turn_and_an_idle_store_writes_nothing() {
        let state = CompactionState {
            compacted: 5,
            moments: vec![RevisionTime { revision: 9_000, unix_seconds: 0 }],
            unix_seconds: 1_000,
        };
        assert_eq!(state.turn(Revision(7), Revision(30_000), 1_010), None, "another replica was here");
        assert_eq!(state.turn(Revision(30_000), Revision(30_000), 1_100), None, "nothing happened");
        let next = state.turn(Revision(7), Revision(30_000), 1_100).unwrap();
        assert_eq!(next.compacted, 9_000);
        assert_eq!(next.moments.len(), 2);
        assert_eq!(CompactionState::parse(Some(&next.encode())), next);
        assert_eq!(CompactionState::parse(Some(b"rubbish")), CompactionState::default());
    }
}
