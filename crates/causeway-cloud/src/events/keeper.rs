//! Drops events that are old or too many.
//!
//! Follows all events in the store, whoever wrote them. Which are to go is decided in `causeway_api::events::surplus`. In several
//! replicas each deletes the same; what another has deleted already is done. Clients create no more events while far more than
//! the bound are there (`Registry::count_events`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use causeway_api::events::{Kept, surplus};
use causeway_api::{Kind, Object, Time};
use causeway_apiserver::Registry;
use causeway_apiserver::registry::{key, prefix};
use causeway_store::{ListRange, Revision, StoreError, WatchSignal};
use futures_util::StreamExt;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Pause after the store failed.
const PAUSE: Duration = Duration::from_secs(1);
/// How soon after a change the bounds are looked at.
const SOON: Duration = Duration::from_millis(500);
/// How often events are looked at for their age.
const LATER: Duration = Duration::from_secs(30);
/// Deletions at once: enough to fill a group commit.
const DELETIONS_MAX: usize = 32;

pub struct EventKeeper {
    registry: Arc<Registry>,
}

impl EventKeeper {
    pub fn new(registry: Arc<Registry>) -> EventKeeper {
        EventKeeper { registry }
    }

    pub async fn run(self, stop: CancellationToken) {
        loop {
            let failed = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                Err(failed) = self.follow() => failed,
            };
            match failed {
                StoreError::Closed => return,
                // The store logs its outages itself.
                StoreError::Compacted { .. } | StoreError::Lagged | StoreError::Unavailable { .. } => {}
                error => {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(error, "old events cannot be dropped; trying again");
                }
            }
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = tokio::time::sleep(PAUSE) => {}
            }
        }
    }

    async fn follow(&self) -> Result<std::convert::Infallible, StoreError> {
        let events = prefix(Kind::Event);
        let listing = self.registry.store().list(&events, ListRange::default()).await?;
        let mut kept = BTreeMap::new();
        for record in &listing.records {
            let name = record.key.strip_prefix(&events).unwrap_or(&record.key);
            kept.insert(name.to_owned(), self.read(&record.value, record.revision, Seen::AtTheStart));
        }
        let mut watch = self.registry.store().watch(&events, listing.revision).await?;
        let mut look_at = Instant::now();
        loop {
            self.registry.count_events(kept.len());
            tokio::select! {
                biased;
                signal = watch.next() => {
                    let WatchSignal::Event(event) = signal? else { continue };
                    let name = event.key.strip_prefix(&events).unwrap_or(&event.key).to_owned();
                    match &event.value {
                        Some(value) => kept.insert(name, self.read(value, event.revision, Seen::Now)),
                        None => kept.remove(&name),
                    };
                    look_at = look_at.min(Instant::now() + SOON);
                }
                () = tokio::time::sleep_until(look_at) => {
                    self.drop_surplus(&kept).await?;
                    look_at = Instant::now() + LATER;
                }
            }
        }
    }

    /// When an event was written is known only of those that are written now. The others are believed, but not about the future.
    fn read(&self, stored: &[u8], revision: Revision, seen: Seen) -> Kept {
        let now = self.registry.now();
        match Object::from_stored(Kind::Event, stored) {
            Ok(Object::Event(event)) => {
                let written = match seen {
                    Seen::Now => now,
                    Seen::AtTheStart => event.last_seen().map_or(now, |time| time.min(now)),
                };
                Kept::of(&event, written, revision.0)
            }
            // What cannot be read is of no use: it goes with the first look.
            _ => Kept {
                object: Default::default(),
                source: String::new(),
                written: Time::from_second(0),
                revision: revision.0,
            },
        }
    }

    async fn drop_surplus(&self, kept: &BTreeMap<String, Kept>) -> Result<(), StoreError> {
        let names = surplus(kept, self.registry.now());
        if names.is_empty() {
            return Ok(());
        }
        tracing::debug!(count = names.len(), of = kept.len(), "dropping events that are old or too many");
        let deletions = futures_util::stream::iter(names).map(|name| {
            let store = self.registry.store().clone();
            async move { store.delete(&key(Kind::Event, &name), None).await }
        });
        let mut deletions = deletions.buffer_unordered(DELETIONS_MAX);
        while let Some(deleted) = deletions.next().await {
            match deleted {
                Ok(_) | Err(StoreError::NotFound { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

#[derive(Clone, Copy)]
enum Seen {
    AtTheStart,
    Now,
}
