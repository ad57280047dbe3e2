//! Reads the changes of each collection from the store, once, and puts them into its ring.
//!
//! A hub starts with its first watcher. When the store cuts it off, its ring closes, its watchers end, and the next watcher
//! starts a new one; clients resume from the revision they saw, through `catch_up`.

use std::sync::{Arc, Mutex, PoisonError};

use causeway_api::Kind;
use causeway_store::{Revision, Store, StoreError, StoreWatch, WatchSignal};
use futures_util::FutureExt;
use tokio::task::AbortHandle;

use super::frame::WatchFrame;
use crate::errors::error_chain;
use crate::registry::prefix;
use causeway_watch::ring::Ring;

// A watcher that is this many events behind is cut off. Frames are shared, so this is per collection, not per watcher.
const FRAMES_MAX: usize = 8_192;
// And the memory they may hold, per collection.
const FRAMES_BYTES_MAX: usize = 8 << 20;
// Events that are handed to the watchers together, when the store has them ready.
const BATCH_MAX: usize = 128;

pub struct CollectionReaders {
    store: Store,
    hubs: [Mutex<Option<CollectionReader>>; Kind::SERVED.len()],
}

struct CollectionReader {
    ring: Arc<Ring<WatchFrame>>,
    task: AbortHandle,
}

impl CollectionReaders {
    pub fn new(store: Store) -> CollectionReaders {
        CollectionReaders { store, hubs: Default::default() }
    }

    pub(super) fn store(&self) -> &Store {
        &self.store
    }

    /// The ring of a collection; whatever happens from now on will be in it.
    pub async fn ring(&self, kind: Kind) -> Result<Arc<Ring<WatchFrame>>, StoreError> {
        let slot = &self.hubs[kind as usize];
        let open = || {
            let hub = slot.lock().unwrap_or_else(PoisonError::into_inner);
            hub.as_ref().map(|hub| hub.ring.clone()).filter(|ring| !ring.is_closed())
        };
        if let Some(ring) = open() {
            return Ok(ring);
        }
        let start = self.store.revision().await?;
        let mut hub = slot.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(hub) = hub.as_ref().filter(|hub| !hub.ring.is_closed()) {
            return Ok(hub.ring.clone());
        }
        let ring = Arc::new(Ring::new(start, FRAMES_MAX, FRAMES_BYTES_MAX));
        let task = tokio::spawn(dispatch(self.store.clone(), kind, ring.clone(), start)).abort_handle();
        *hub = Some(CollectionReader { ring: ring.clone(), task });
        Ok(ring)
    }

    /// Ends all watches.
    pub fn close(&self) {
        for slot in &self.hubs {
            if let Some(hub) = slot.lock().unwrap_or_else(PoisonError::into_inner).take() {
                hub.task.abort();
                hub.ring.close();
            }
        }
    }
}

impl Drop for CollectionReaders {
    fn drop(&mut self) {
        self.close();
    }
}

async fn dispatch(store: Store, kind: Kind, ring: Arc<Ring<WatchFrame>>, start: Revision) {
    let ended = match store.watch(&prefix(kind), start).await {
        Ok(mut watch) => follow(&mut watch, kind, &ring).await,
        Err(error) => error,
    };
    if !matches!(ended, StoreError::Closed) {
        tracing::warn!(kind = kind.name(), error = error_chain(&ended), "watchers must start again");
    }
    ring.close();
}

/// Moves events into the ring until the store says no.
async fn follow(watch: &mut StoreWatch, kind: Kind, ring: &Ring<WatchFrame>) -> StoreError {
    let mut batch = Vec::new();
    loop {
        let mut signal = match watch.next().await {
            Ok(signal) => signal,
            Err(error) => return error,
        };
        let ended = loop {
            match signal {
                WatchSignal::Event(event) => batch.push(Arc::new(WatchFrame::new(kind, event))),
                WatchSignal::Progress(revision) => {
                    ring.push(batch.drain(..));
                    ring.advance(revision);
                }
            }
            if batch.len() >= BATCH_MAX {
                break None;
            }
            // What is ready now goes out in one push: each push wakes every watcher.
            match watch.next().now_or_never() {
                Some(Ok(next)) => signal = next,
                Some(Err(error)) => break Some(error),
                None => break None,
            }
        };
        if !batch.is_empty() {
            ring.push(batch.drain(..));
        }
        if let Some(error) = ended {
            return error;
        }
    }
}
