//! Keeps a picture of one part of the store fresh.
//!
//! The caller takes a first picture (`snapshot`) before it serves anybody, then lets `follow` bring every
//! change. After any trouble the whole is read again, so the picture heals by itself.

use std::sync::Arc;
use std::time::Duration;

use causeway_store::{ListRange, Revision, Store, StoreError, StoreEvent, StoreRecord, WatchSignal};
use tokio_util::sync::CancellationToken;

/// What happened to the part of the store that is followed.
#[derive(Debug)]
pub enum FollowedChange {
    /// Everything anew.
    All(Vec<StoreRecord>),
    One(Arc<StoreEvent>),
}

/// Short, because revocations wait for it; a store that is away is not made worse by one list per moment.
const PAUSE: Duration = Duration::from_millis(300);

pub async fn snapshot(store: &Store, prefix: &str) -> Result<(Vec<StoreRecord>, Revision), StoreError> {
    let listing = store.list(prefix, ListRange::default()).await?;
    Ok((listing.records, listing.revision))
}

/// Brings every change behind `after` until told to stop.
pub async fn follow(
    store: &Store,
    prefix: &str,
    mut after: Revision,
    stop: &CancellationToken,
    mut apply: impl FnMut(FollowedChange),
) {
    loop {
        let trouble = tokio::select! {
            biased;
            () = stop.cancelled() => return,
            Err(error) = watch(store, prefix, after, &mut apply) => error,
        };
        if matches!(trouble, StoreError::Closed) {
            return;
        }
        match &trouble {
            // The store logs its outages itself.
            StoreError::Unavailable { .. } => {
                tracing::debug!(prefix, error = %trouble, "the watch on the store broke; listing again")
            }
            _ => tracing::warn!(prefix, error = %trouble, "the watch on the store broke; listing again"),
        }
        let Some((records, revision)) = read_again(store, prefix, stop).await else { return };
        apply(FollowedChange::All(records));
        after = revision;
    }
}

async fn watch(
    store: &Store,
    prefix: &str,
    after: Revision,
    apply: &mut impl FnMut(FollowedChange),
) -> Result<std::convert::Infallible, StoreError> {
    let mut watch = store.watch(prefix, after).await?;
    loop {
        if let WatchSignal::Event(event) = watch.next().await? {
            apply(FollowedChange::One(event));
        }
    }
}

async fn read_again(
    store: &Store,
    prefix: &str,
    stop: &CancellationToken,
) -> Option<(Vec<StoreRecord>, Revision)> {
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => return None,
            () = tokio::time::sleep(PAUSE) => {}
        }
        match snapshot(store, prefix).await {
            Ok(picture) => return Some(picture),
            Err(StoreError::Closed) => return None,
            Err(error) => tracing::debug!(prefix, %error, "the store cannot be read"),
        }
    }
}
