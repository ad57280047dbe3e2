//! A watcher that begins before its collection's ring: reads history from the store until it meets the ring.

use std::sync::Arc;

use causeway_api::Kind;
use causeway_store::{Revision, StoreError, StoreWatch, WatchSignal};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use super::frame::WatchFrame;
use crate::registry::prefix;
use crate::watch::CollectionReaders;
use causeway_watch::ring::Ring;

/// A private watch on the store, for the way up to the ring.
pub(super) struct CatchUp {
    kind: Kind,
    ring: Arc<Ring<WatchFrame>>,
    /// The revision of the last event that was handed on. Events of one revision follow each other, so it is complete
    /// when an event of a later one arrives.
    last: Revision,
    watch: StoreWatch,
}

/// One step of the way.
pub(super) struct CatchUpStep {
    pub frames: Vec<Arc<WatchFrame>>,
    pub next: CatchUpNext,
}

pub(super) enum CatchUpNext {
    More(CatchUp),
    /// Everything up to here was handed on; the ring has the rest.
    Ring(Arc<Ring<WatchFrame>>, Revision),
    Failed(StoreError),
}

pub(super) type CatchUpFuture = BoxFuture<'static, CatchUpStep>;

// Events handed on at once.
const STEP_MAX: usize = 64;

impl CatchUp {
    pub async fn begin(
        hubs: &CollectionReaders,
        kind: Kind,
        ring: Arc<Ring<WatchFrame>>,
        after: Revision,
    ) -> Result<CatchUp, StoreError> {
        let watch = hubs.store().watch(&prefix(kind), after).await?;
        Ok(CatchUp { kind, ring, last: after, watch })
    }

    pub fn walk(mut self) -> CatchUpFuture {
        Box::pin(async move {
            let mut frames = Vec::new();
            let mut signal = self.watch.next().await;
            loop {
                match signal {
                    Err(error) => return CatchUpStep { frames, next: CatchUpNext::Failed(error) },
                    Ok(WatchSignal::Progress(revision)) => {
                        self.last = self.last.max(revision);
                        if self.meets_ring() {
                            return CatchUpStep { frames, next: CatchUpNext::Ring(self.ring, self.last) };
                        }
                    }
                    Ok(WatchSignal::Event(event)) => {
                        // The ring has this event too, since it has everything behind `last`.
                        if event.revision > self.last && self.meets_ring() {
                            return CatchUpStep { frames, next: CatchUpNext::Ring(self.ring, self.last) };
                        }
                        self.last = event.revision;
                        frames.push(Arc::new(WatchFrame::new(self.kind, event)));
                    }
                }
                if frames.len() >= STEP_MAX {
                    return CatchUpStep { frames, next: CatchUpNext::More(self) };
                }
                let ready = self.watch.next().now_or_never();
                match ready {
                    Some(next) => signal = next,
                    None if frames.is_empty() => signal = self.watch.next().await,
                    None => return CatchUpStep { frames, next: CatchUpNext::More(self) },
                }
            }
        })
    }

    fn meets_ring(&self) -> bool {
        self.last >= self.ring.floor()
    }
}
