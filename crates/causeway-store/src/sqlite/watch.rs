//! A watch on the embedded engine: reads history until it overlaps with the hub, then reads from the hub.
//!
//! History is read in pages and only on demand, so a slow reader costs nothing. A reader that compaction
//! overtakes gets an error. `next` can be dropped at any await without losing an event.

use std::collections::VecDeque;
use std::sync::Arc;

use super::SqliteShared;
use super::query::{self, EventCursor};
use super::readers::Readers;
use crate::hub::Subscription;
use crate::{Revision, StoreError, StoreEvent, WatchSignal};

/// Events read at once.
const PAGE: usize = 512;

pub(crate) struct SqliteWatch {
    prefix: Arc<str>,
    shared: Arc<SqliteShared>,
    readers: Arc<Readers>,
    /// All events up to this position were delivered or are in `ready`.
    cursor: EventCursor,
    ready: VecDeque<Arc<StoreEvent>>,
    stage: Stage,
}

enum Stage {
    /// Far behind: reads pages of history without a subscription, so that no queue can overflow.
    Chasing,
    /// The subscription collects new events; history fills the gap up to its start.
    Closing(Subscription),
    Live(Subscription),
}

impl SqliteWatch {
    pub fn new(
        prefix: &str,
        after: Revision,
        shared: &Arc<SqliteShared>,
        readers: Arc<Readers>,
    ) -> SqliteWatch {
        let subscription = shared.hub.subscribe(prefix, after);
        let behind = subscription.from.0.saturating_sub(after.0);
        let stage = match behind {
            0 => Stage::Live(subscription),
            _ if behind <= PAGE as u64 => Stage::Closing(subscription),
            _ => Stage::Chasing,
        };
        SqliteWatch {
            prefix: prefix.into(),
            shared: Arc::clone(shared),
            readers,
            cursor: EventCursor::after(after),
            ready: VecDeque::new(),
            stage,
        }
    }

    pub async fn next(&mut self) -> Result<WatchSignal, StoreError> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Ok(WatchSignal::Event(event));
            }
            let upto = match &mut self.stage {
                Stage::Live(subscription) => match subscription.next().await? {
                    WatchSignal::Event(event) if !is_behind(&self.cursor, &event) => continue,
                    WatchSignal::Progress(revision) if revision < self.cursor.revision => continue,
                    signal => return Ok(signal),
                },
                Stage::Chasing => None,
                Stage::Closing(subscription) => Some(subscription.from),
            };
            if let Some(progress) = self.read_page(upto).await? {
                return Ok(progress);
            }
        }
    }

    /// Reads one page, and enters the next stage when history ends. Returns the progress when there were no
    /// events.
    async fn read_page(&mut self, upto: Option<Revision>) -> Result<Option<WatchSignal>, StoreError> {
        let (prefix, cursor) = (Arc::clone(&self.prefix), self.cursor.clone());
        let page = self
            .readers
            .read(move |connection| query::events(connection, &prefix, &cursor, upto, PAGE))
            .await?;
        self.ready.extend(page.events);
        self.cursor = page.cursor;
        self.shared.observe(self.cursor.revision);
        if page.complete {
            self.stage = match std::mem::replace(&mut self.stage, Stage::Chasing) {
                Stage::Chasing => {
                    Stage::Closing(self.shared.hub.subscribe(&self.prefix, self.cursor.revision))
                }
                Stage::Closing(subscription) | Stage::Live(subscription) => Stage::Live(subscription),
            };
        }
        let caught_up = matches!(self.stage, Stage::Live(_)) && self.ready.is_empty();
        Ok(caught_up.then_some(WatchSignal::Progress(self.cursor.revision)))
    }
}

fn is_behind(cursor: &EventCursor, event: &StoreEvent) -> bool {
    (event.revision, &event.key) > (cursor.revision, &cursor.key)
}
