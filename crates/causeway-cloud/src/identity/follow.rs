//! Keeps a copy of one part of the store up to date.
//!
//! The caller takes a first `snapshot` before it serves requests. `follow` then applies every change. After a failure
//! the whole part is read again, so the copy heals by itself (`causeway_store::StoreFollower`).

use std::sync::Arc;
use std::time::Duration;

use causeway_store::{
    FollowBackoff, Followed, ListRange, Revision, Store, StoreError, StoreEvent, StoreFollower, StoreRecord,
};
use tokio_util::sync::CancellationToken;

/// A change of the part of the store that is followed.
#[derive(Debug)]
pub enum FollowedChange {
    /// All records. They replace everything that came before.
    All(Vec<StoreRecord>),
    One(Arc<StoreEvent>),
}

/// Short, because revocations wait for it. One list per pause does not overload a store that is recovering.
const BACKOFF: FollowBackoff = FollowBackoff::constant(Duration::from_millis(300));

pub async fn snapshot(store: &Store, prefix: &str) -> Result<(Vec<StoreRecord>, Revision), StoreError> {
    let listing = store.list(prefix, ListRange::default()).await?;
    Ok((listing.records, listing.revision))
}

/// Applies every change behind `after` until `stop` is cancelled or the store is closed.
pub async fn follow(
    store: &Store,
    prefix: &str,
    after: Revision,
    stop: &CancellationToken,
    mut apply: impl FnMut(FollowedChange),
) {
    let mut follower = StoreFollower::records(store, prefix, BACKOFF).resume(after);
    while let Some(Some(step)) = stop.run_until_cancelled(follower.next()).await {
        match step {
            Followed::Loaded { state, .. } => apply(FollowedChange::All(state)),
            Followed::Event(event) => apply(FollowedChange::One(event)),
            Followed::Progress(_) | Followed::Failed(_) => {}
        }
    }
}
