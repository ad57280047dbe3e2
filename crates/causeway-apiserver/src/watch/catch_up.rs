//! A watcher that begins before its collection's ring: reads history from the store until it meets the ring.

use std::sync::Arc;

use causeway_api::Kind;
use causeway_store::{Revision, Signal, StoreError, Watch};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use super::frame::Frame;
use super::ring::Ring;
use crate::registry::prefix;
use crate::watch::Hubs;

/// A private watch on the store, for the way up to the ring.
pub(super) struct CatchUp {
    kind: Kind,
    ring: Arc<Ring<Frame>>,
    /// The revision of the last event that was handed on. Events of one revision follow each other, so it is complete
    /// when an event of a later one arrives.
    last: Revision,
    watch: Watch,
}

/// One step of the way.
pub(super) struct Step {
    pub frames: Vec<Arc<Frame>>,
    pub next: Next,
}

pub(super) enum Next {
    More(CatchUp),
    /// Everything up to here was handed on; the ring has the rest.
    Ring(Arc<Ring<Frame>>, Revision),
    Failed(StoreError),
}

pub(super) type Walk = BoxFuture<'static, Step>;

// Events handed on at once.
const STEP_MAX: usize = 64;

impl CatchUp {
    pub async fn begin(
        hubs: &Hubs,
        kind: Kind,
        ring: Arc<Ring<Frame>>,
        after: Revision,
    ) -> Result<CatchUp, StoreError> {
        let watch = hubs.store().watch(&prefix(kind), after).await?;
        Ok(CatchUp { kind, ring, last: after, watch })
    }

    pub fn walk(mut self) -> Walk {
        Box::pin(async move {
            let mut frames = Vec::new();
            let mut signal = self.watch.next().await;
            loop {
                match signal {
                    Err(error) => return Step { frames, next: Next::Failed(error) },
                    Ok(Signal::Progress(revision)) => {
                        self.last = self.last.max(revision);
                        if self.meets_ring() {
                            return Step { frames, next: Next::Ring(self.ring, self.last) };
                        }
                    }
                    Ok(Signal::Event(event)) => {
                        // The ring has this event too, since it has everything behind `last`.
                        if event.revision > self.last && self.meets_ring() {
                            return Step { frames, next: Next::Ring(self.ring, self.last) };
                        }
                        self.last = event.revision;
                        frames.push(Arc::new(Frame::new(self.kind, event)));
                    }
                }
                if frames.len() >= STEP_MAX {
                    return Step { frames, next: Next::More(self) };
                }
                let ready = self.watch.next().now_or_never();
                match ready {
                    Some(next) => signal = next,
                    None if frames.is_empty() => signal = self.watch.next().await,
                    None => return Step { frames, next: Next::More(self) },
                }
            }
        })
    }

    fn meets_ring(&self) -> bool {
        self.last >= self.ring.floor()
    }
}
