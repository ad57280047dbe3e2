//! Follows a part of the store: loads its state, watches its changes, and loads again when events were missed.
//!
//! The caller provides the load function, which returns its state and the revision at which it is valid, and
//! calls `next` in its loop. Every error of loading or watching is followed by a pause and a new load, so the
//! caller's state recovers by itself. A watch whose history was compacted, or which fell behind, is followed
//! by a load without a pause.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, Sleep};

use crate::{ListRange, Revision, Store, StoreError, StoreEvent, StoreRecord, StoreWatch, WatchSignal};

/// A running load: the state, and the revision after which events follow.
pub type LoadFuture<'a, T> = Pin<Box<dyn Future<Output = Result<(T, Revision), StoreError>> + Send + 'a>>;
type OpenFuture = Pin<Box<dyn Future<Output = Result<StoreWatch, StoreError>> + Send>>;

/// One step of following.
#[derive(Debug)]
pub enum Followed<T> {
    /// The whole state, at the beginning and after events were missed. Replaces all earlier state.
    Loaded { state: T, revision: Revision },
    /// One change after the revision of the last load.
    Event(Arc<StoreEvent>),
    /// Every event up to this revision was delivered.
    Progress(Revision),
    /// The store cannot be read at the moment. A load follows after a pause; until then the last state is
    /// valid.
    Failed(StoreError),
}

/// The pauses between failed attempts: the first, doubled after each, up to a maximum.
#[derive(Debug, Clone, Copy)]
pub struct FollowBackoff {
    pub first: Duration,
    pub max: Duration,
}

impl FollowBackoff {
    /// Returns a backoff with the same pause after every failure.
    pub const fn constant(pause: Duration) -> FollowBackoff {
        FollowBackoff { first: pause, max: pause }
    }
}

/// Follows the keys with one prefix.
pub struct StoreFollower<'a, T> {
    store: Store,
    prefix: String,
    load: Box<dyn FnMut() -> LoadFuture<'a, T> + Send + 'a>,
    state: FollowState<'a, T>,
    backoff: FollowBackoff,
    /// The next pause.
    pause: Duration,
    loaded_at: Option<Instant>,
}

enum FollowState<'a, T> {
    Loading(LoadFuture<'a, T>),
    Opening { opening: OpenFuture, loaded: Option<(T, Revision)> },
    Watching(Box<StoreWatch>),
    Paused(Pin<Box<Sleep>>),
    Closed,
}

impl<'a, T> StoreFollower<'a, T> {
    /// Follows the keys that begin with `prefix`. `load` runs first, and again whenever events were missed.
    pub fn new(
        store: &Store,
        prefix: impl Into<String>,
        backoff: FollowBackoff,
        mut load: impl FnMut() -> LoadFuture<'a, T> + Send + 'a,
    ) -> StoreFollower<'a, T> {
        let state = FollowState::Loading(load());
        StoreFollower {
            store: store.clone(),
            prefix: prefix.into(),
            load: Box::new(load),
            state,
            backoff,
            pause: backoff.first,
            loaded_at: None,
        }
    }

    /// Begins with the events after `after`, for a caller that has loaded the state before.
    pub fn resume(mut self, after: Revision) -> StoreFollower<'a, T> {
        self.state = FollowState::Opening { opening: open(&self.store, &self.prefix, after), loaded: None };
        self
    }

    /// Returns the next step; `None` when the store is closed. May be dropped while it waits (in a `select!`) without
    /// losing anything.
    pub async fn next(&mut self) -> Option<Followed<T>> {
        loop {
            let error = match &mut self.state {
                FollowState::Closed => return None,
                FollowState::Paused(sleep) => {
                    sleep.as_mut().await;
                    self.state = FollowState::Loading((self.load)());
                    continue;
                }
                FollowState::Loading(load) => match load.await {
                    Ok((state, revision)) => {
                        let opening = open(&self.store, &self.prefix, revision);
                        self.state = FollowState::Opening { opening, loaded: Some((state, revision)) };
                        continue;
                    }
                    Err(error) => error,
                },
                FollowState::Opening { opening, loaded } => match opening.await {
                    Ok(watch) => {
                        let loaded = loaded.take();
                        self.state = FollowState::Watching(Box::new(watch));
                        self.pause = self.backoff.first;
                        self.loaded_at = Some(Instant::now());
                        let Some((state, revision)) = loaded else { continue };
                        return Some(Followed::Loaded { state, revision });
                    }
                    Err(error) => error,
                },
                FollowState::Watching(watch) => match watch.next().await {
                    Ok(WatchSignal::Event(event)) => return Some(Followed::Event(event)),
                    Ok(WatchSignal::Progress(revision)) => return Some(Followed::Progress(revision)),
                    Err(error) => error,
                },
            };
            if self.recover(&error) {
                return Some(Followed::Failed(error));
            }
        }
    }

    /// Loads everything again after a pause, because the caller could not handle an event.
    pub fn restart(&mut self, error: &StoreError) {
        self.recover(error);
    }

    /// Decides the next state after an error. Returns whether the caller gets the error.
    fn recover(&mut self, error: &StoreError) -> bool {
        let prefix = self.prefix.as_str();
        match error {
            StoreError::Closed => {
                self.state = FollowState::Closed;
                return false;
            }
            StoreError::Compacted { .. } | StoreError::Future { .. } | StoreError::Lagged => {
                tracing::debug!(prefix, %error, "events of the store were missed; loading its state again");
                // A load that is outdated at once would otherwise be repeated without end.
                if self.loaded_at.is_none_or(|at| at.elapsed() >= self.backoff.first) {
                    self.loaded_at = Some(Instant::now());
                    self.state = FollowState::Loading((self.load)());
                    return false;
                }
            }
            // The store logs its outages itself.
            StoreError::Unavailable { .. } => {
                tracing::debug!(prefix, %error, "cannot follow the store; trying again");
            }
            error => {
                let error = error as &dyn std::error::Error;
                tracing::warn!(prefix, error, "cannot follow the store; trying again");
            }
        }
        self.state = FollowState::Paused(Box::pin(tokio::time::sleep(self.pause)));
        self.pause = (self.pause * 2).min(self.backoff.max);
        !matches!(error, StoreError::Compacted { .. } | StoreError::Future { .. } | StoreError::Lagged)
    }
}

impl StoreFollower<'static, Vec<StoreRecord>> {
    /// Follows the keys that begin with `prefix`. The state is their records.
    pub fn records(store: &Store, prefix: &str, backoff: FollowBackoff) -> Self {
        let (source, wanted) = (store.clone(), prefix.to_owned());
        StoreFollower::new(store, prefix, backoff, move || {
            let (store, prefix) = (source.clone(), wanted.clone());
            Box::pin(async move {
                let listing = store.list(&prefix, ListRange::default()).await?;
                Ok((listing.records, listing.revision))
            })
        })
    }
}

fn open(store: &Store, prefix: &str, after: Revision) -> OpenFuture {
    let (store, prefix) = (store.clone(), prefix.to_owned());
    Box::pin(async move { store.watch(&prefix, after).await })
}
