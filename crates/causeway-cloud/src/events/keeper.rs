//! Deletes events that are too old or too many.
//!
//! Follows all events in the store, of every author. `causeway_api::events::surplus` decides which are deleted. Every
//! replica deletes the same events; one that another replica has deleted already is skipped. Clients cannot create
//! events while far more than the bound exist (`Registry::count_events`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use causeway_api::events::{KeptEvent, surplus};
use causeway_api::{Kind, Object, Time};
use causeway_apiserver::Registry;
use causeway_apiserver::registry::{key, prefix};
use causeway_store::{FollowBackoff, Followed, Revision, StoreError, StoreFollower, StoreRecord};
use futures_util::StreamExt;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Pause after the store failed.
const BACKOFF: FollowBackoff = FollowBackoff::constant(Duration::from_secs(1));
/// Time from a change to the check of the bounds.
const CHECK_AFTER_CHANGE: Duration = Duration::from_millis(500);
/// Interval between checks for age.
const CHECK_INTERVAL: Duration = Duration::from_secs(30);
/// Concurrent deletions: enough to fill a group commit.
const DELETIONS_MAX: usize = 32;

pub struct EventKeeper {
    registry: Arc<Registry>,
}

impl EventKeeper {
    pub fn new(registry: Arc<Registry>) -> EventKeeper {
        EventKeeper { registry }
    }

    pub async fn run(self, stop: CancellationToken) {
        stop.run_until_cancelled(self.follow()).await;
    }

    /// Follows the events until the store is closed.
    async fn follow(&self) {
        let events = prefix(Kind::Event);
        let name = |key: &str| key.strip_prefix(&events).unwrap_or(key).to_owned();
        let mut follower = StoreFollower::records(self.registry.store(), &events, BACKOFF);
        // Empty until the first load.
        let mut kept = BTreeMap::new();
        let mut check_at = None;
        loop {
            tokio::select! {
                biased;
                step = follower.next() => match step {
                    None => return,
                    Some(Followed::Loaded { state, .. }) => {
                        let read = |record: &StoreRecord| {
                            (name(&record.key), self.read(&record.value, record.revision, Seen::Loaded))
                        };
                        kept = state.iter().map(read).collect();
                        check_at = Some(Instant::now());
                    }
                    Some(Followed::Event(event)) => {
                        match &event.value {
                            Some(value) => {
                                kept.insert(name(&event.key), self.read(value, event.revision, Seen::Watched))
                            }
                            None => kept.remove(&name(&event.key)),
                        };
                        let soon = Instant::now() + CHECK_AFTER_CHANGE;
                        check_at = check_at.map(|at: Instant| at.min(soon));
                    }
                    // Nothing is deleted until the events are loaded again.
                    Some(Followed::Failed(_)) => check_at = None,
                    Some(Followed::Progress(_)) => continue,
                },
                () = until(check_at) => match self.drop_surplus(&kept).await {
                    Ok(()) => check_at = Some(Instant::now() + CHECK_INTERVAL),
                    Err(error) => {
                        check_at = None;
                        follower.restart(&error);
                    }
                },
            }
            self.registry.count_events(kept.len());
        }
    }

    /// Reads a stored event. The time of writing is known only for an event that the watch reports. A loaded event says it
    /// itself, and a time in the future is replaced by now.
    fn read(&self, stored: &[u8], revision: Revision, seen: Seen) -> KeptEvent {
        let now = self.registry.now();
        match Object::from_stored(Kind::Event, stored) {
            Ok(Object::Event(event)) => {
                let written = match seen {
                    Seen::Watched => now,
                    Seen::Loaded => event.last_seen().map_or(now, |time| time.min(now)),
                };
                KeptEvent::of(&event, written, revision.0)
            }
            // An event that cannot be read is deleted by the first check.
            _ => KeptEvent {
                object: Default::default(),
                source: String::new(),
                written: Time::from_second(0),
                revision: revision.0,
            },
        }
    }

    async fn drop_surplus(&self, kept: &BTreeMap<String, KeptEvent>) -> Result<(), StoreError> {
        let names = surplus(kept, self.registry.now());
        if names.is_empty() {
            return Ok(());
        }
        tracing::debug!(count = names.len(), of = kept.len(), "deleting events that are too old or too many");
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
    Loaded,
    Watched,
}

async fn until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}
