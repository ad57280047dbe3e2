//! A watcher that begins before its collection's ring: reads history from the source until it reaches the ring.

use std::sync::Arc;

use causeway_api::Revision;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use crate::frame::WatchFrame;
use crate::ring::Ring;
use crate::source::{ChangeFeed, ChangeSignal, WatchSource};

/// A private feed of changes, read until the ring has the rest.
pub(crate) struct CatchUp<S: WatchSource> {
    collection: S::Collection,
    ring: Arc<Ring<WatchFrame<S>>>,
    /// The revision of the last change that was delivered. Changes of one revision follow each other, so it is complete
    /// when a change of a later one arrives.
    last: Revision,
    feed: S::Feed,
}

/// One batch of history.
pub(crate) struct CatchUpStep<S: WatchSource> {
    pub frames: Vec<Arc<WatchFrame<S>>>,
    pub next: CatchUpNext<S>,
}

pub(crate) enum CatchUpNext<S: WatchSource> {
    More(CatchUp<S>),
    /// All changes up to this revision were delivered; the ring has the rest.
    Ring(Arc<Ring<WatchFrame<S>>>, Revision),
    Failed(S::Error),
}

pub(crate) type CatchUpFuture<S> = BoxFuture<'static, CatchUpStep<S>>;

// Changes delivered at once.
const STEP_MAX: usize = 64;

impl<S: WatchSource> CatchUp<S> {
    pub async fn begin(
        source: &S,
        collection: S::Collection,
        ring: Arc<Ring<WatchFrame<S>>>,
        after: Revision,
    ) -> Result<CatchUp<S>, S::Error> {
        let feed = source.watch(&collection, after).await?;
        Ok(CatchUp { collection, ring, last: after, feed })
    }

    pub fn step(mut self) -> CatchUpFuture<S> {
        Box::pin(async move {
            let mut frames = Vec::new();
            let mut signal = self.feed.next().await;
            loop {
                match signal {
                    Err(error) => return CatchUpStep { frames, next: CatchUpNext::Failed(error) },
                    Ok(ChangeSignal::Progress(revision)) => {
                        self.last = self.last.max(revision);
                        if self.has_reached_ring() {
                            return CatchUpStep { frames, next: CatchUpNext::Ring(self.ring, self.last) };
                        }
                    }
                    Ok(ChangeSignal::Local { at, key, change }) => {
                        if self.has_reached_ring() && at >= self.last {
                            return CatchUpStep { frames, next: CatchUpNext::Ring(self.ring, self.last) };
                        }
                        frames.push(Arc::new(WatchFrame::local(self.collection.clone(), at, key, change)));
                    }
                    Ok(ChangeSignal::Change(change)) => {
                        // The ring has this change too, since it has everything after `last`.
                        if change.revision > self.last && self.has_reached_ring() {
                            return CatchUpStep { frames, next: CatchUpNext::Ring(self.ring, self.last) };
                        }
                        self.last = change.revision;
                        frames.push(Arc::new(WatchFrame::new(self.collection.clone(), change)));
                    }
                }
                if frames.len() >= STEP_MAX {
                    return CatchUpStep { frames, next: CatchUpNext::More(self) };
                }
                let ready = self.feed.next().now_or_never();
                match ready {
                    Some(next) => signal = next,
                    None if frames.is_empty() => signal = self.feed.next().await,
                    None => return CatchUpStep { frames, next: CatchUpNext::More(self) },
                }
            }
        })
    }

    fn has_reached_ring(&self) -> bool {
        self.last >= self.ring.floor()
    }
}
