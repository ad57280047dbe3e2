//! Reads the changes of each collection from the source, once, and puts them into its ring.
//!
//! A reader starts with the first watcher of its collection. When the source ends its feed, the ring closes, its watchers
//! end, and the next watcher starts a new reader; clients resume from the revision they saw, through `catch_up`. It keeps no state
//! that a new list could repair, so it does not load again as the followers of the store do (`causeway_store::follow`).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use causeway_api::Revision;
use causeway_api::sync::MutexExt;
use futures_util::FutureExt;
use tokio::task::AbortHandle;

use crate::frame::WatchFrame;
use crate::ring::Ring;
use crate::source::{ChangeFeed, ChangeSignal, WatchSource};

// A watcher that is this many changes behind is cut off. Frames are shared, so this is per collection, not per watcher.
const FRAMES_MAX: usize = 8_192;
// The memory that the frames of one collection may hold.
const FRAMES_BYTES_MAX: usize = 8 << 20;
// Changes that are handed to the watchers together, when the source has them ready.
const BATCH_MAX: usize = 128;

/// The readers of all collections that have had a watcher.
pub struct CollectionReaders<S: WatchSource> {
    source: Arc<S>,
    /// As many entries as the source has collections, at most.
    readers: Mutex<HashMap<S::Collection, CollectionReader<S>>>,
}

struct CollectionReader<S: WatchSource> {
    ring: Arc<Ring<WatchFrame<S>>>,
    task: AbortHandle,
}

impl<S: WatchSource> CollectionReaders<S> {
    pub fn new(source: S) -> CollectionReaders<S> {
        CollectionReaders { source: Arc::new(source), readers: Mutex::default() }
    }

    pub(crate) fn source(&self) -> &Arc<S> {
        &self.source
    }

    /// Returns the ring of a collection. All changes from now on are put into it.
    pub async fn ring(&self, collection: &S::Collection) -> Result<Arc<Ring<WatchFrame<S>>>, S::Error> {
        if let Some(ring) = open_ring(&self.lock(), collection) {
            return Ok(ring);
        }
        let start = self.source.revision().await?;
        let mut readers = self.lock();
        if let Some(ring) = open_ring(&readers, collection) {
            return Ok(ring);
        }
        let ring = Arc::new(Ring::new(start, FRAMES_MAX, FRAMES_BYTES_MAX));
        let dispatching = dispatch(self.source.clone(), collection.clone(), ring.clone(), start);
        let task = tokio::spawn(dispatching).abort_handle();
        readers.insert(collection.clone(), CollectionReader { ring: ring.clone(), task });
        Ok(ring)
    }

    /// Ends all watches.
    pub fn close(&self) {
        for (_, reader) in self.lock().drain() {
            reader.task.abort();
            reader.ring.close();
        }
    }

    // A panic while the lock was held leaves a whole map: every change is one insertion or removal.
    fn lock(&self) -> MutexGuard<'_, HashMap<S::Collection, CollectionReader<S>>> {
        self.readers.lock_ignoring_poison()
    }
}

impl<S: WatchSource> Drop for CollectionReaders<S> {
    fn drop(&mut self) {
        self.close();
    }
}

fn open_ring<S: WatchSource>(
    readers: &HashMap<S::Collection, CollectionReader<S>>,
    collection: &S::Collection,
) -> Option<Arc<Ring<WatchFrame<S>>>> {
    readers.get(collection).map(|reader| reader.ring.clone()).filter(|ring| !ring.is_closed())
}

async fn dispatch<S: WatchSource>(
    source: Arc<S>,
    collection: S::Collection,
    ring: Arc<Ring<WatchFrame<S>>>,
    start: Revision,
) {
    let ended = match source.watch(&collection, start).await {
        Ok(mut feed) => fill::<S>(&mut feed, &collection, &ring).await,
        Err(error) => error,
    };
    source.reader_ended(&collection, &ended);
    ring.close();
}

/// Moves changes into the ring until the source ends the feed.
async fn fill<S: WatchSource>(
    feed: &mut S::Feed,
    collection: &S::Collection,
    ring: &Ring<WatchFrame<S>>,
) -> S::Error {
    let mut batch = Vec::new();
    loop {
        let mut signal = match feed.next().await {
            Ok(signal) => signal,
            Err(error) => return error,
        };
        let ended = loop {
            match signal {
                ChangeSignal::Change(change) => {
                    batch.push(Arc::new(WatchFrame::new(collection.clone(), change)));
                }
                ChangeSignal::Local { at, key, change } => {
                    batch.push(Arc::new(WatchFrame::local(collection.clone(), at, key, change)));
                }
                ChangeSignal::Progress(revision) => {
                    ring.push(batch.drain(..));
                    ring.advance(revision);
                }
            }
            if batch.len() >= BATCH_MAX {
                break None;
            }
            // Changes that are ready go out in one push: each push wakes every watcher.
            match feed.next().now_or_never() {
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
