//! Watches on the kinds of the registry: the store as a source of `causeway-watch`, and the renderer as its encoder.

use std::sync::Arc;

use bytes::Bytes;
use causeway_api::selector::{SelectableFields, Selector};
use causeway_api::watch_event;
use causeway_api::{ApiVersion, Kind, Object, Revision, Status, error_chain};
use causeway_store::{ListRange, Store, StoreError, StoreWatch, WatchSignal};
use causeway_watch::{ChangeFeed, ChangeSignal, EventEncoder, ObjectChange, Snapshot, WatchSource};
pub use causeway_watch::{WatchEnds, WatchObserver, random_fraction};

use crate::errors::{self, ErrorSubject};
use crate::registry::prefix;
use crate::render::Renderer;

/// The form in which a client receives objects.
pub type ObjectFormat = causeway_watch::WatchFormat<ApiVersion>;
pub type KindReaders = causeway_watch::CollectionReaders<StoreSource>;
pub type RenderContext = causeway_watch::WatchContext<Arc<Renderer>>;
pub type KindWatchStream = causeway_watch::WatchStream<StoreSource, Arc<Renderer>>;

/// The store, as the source of watches on its kinds.
pub struct StoreSource(pub Store);

/// A watch of the store.
pub struct StoreFeed(StoreWatch);

impl ChangeFeed for StoreFeed {
    type Error = StoreError;

    async fn next(&mut self) -> Result<ChangeSignal, StoreError> {
        Ok(match self.0.next().await? {
            WatchSignal::Progress(revision) => ChangeSignal::Progress(revision),
            WatchSignal::Event(event) => ChangeSignal::Change(ObjectChange {
                revision: event.revision,
                value: event.value.clone(),
                previous: event.previous.clone(),
                created: event.created,
            }),
        })
    }
}

impl WatchSource for StoreSource {
    type Collection = Kind;
    type Version = ApiVersion;
    type Object = Object;
    type Error = StoreError;
    type Feed = StoreFeed;

    fn version_index(version: ApiVersion) -> usize {
        // No kind has more than two versions, one of them the core version.
        usize::from(version != ApiVersion::Core)
    }

    async fn revision(&self) -> Result<Revision, StoreError> {
        self.0.revision().await
    }

    async fn list(&self, kind: &Kind) -> Result<Snapshot, StoreError> {
        let listing = self.0.list(&prefix(*kind), ListRange::default()).await?;
        let objects = listing.records.into_iter().map(|record| (record.revision, record.value)).collect();
        Ok(Snapshot { revision: listing.revision, objects })
    }

    async fn watch(&self, kind: &Kind, after: Revision) -> Result<StoreFeed, StoreError> {
        self.0.watch(&prefix(*kind), after).await.map(StoreFeed)
    }

    fn decode(&self, kind: &Kind, stored: &Bytes) -> Option<Object> {
        Object::from_stored(*kind, stored).ok()
    }

    fn selects(&self, selector: &Selector, object: &Object) -> bool {
        selector.matches_object(object)
    }

    fn selects_stored(&self, _: &Kind, selector: &Selector, stored: &Bytes) -> bool {
        SelectableFields::from_stored(stored).is_ok_and(|fields| selector.matches(&fields))
    }

    fn reader_ended(&self, kind: &Kind, error: &StoreError) {
        if !matches!(error, StoreError::Closed) {
            tracing::warn!(
                kind = kind.name(),
                error = error_chain(error),
                "the watch on the store ended; clients that watch this kind must start again"
            );
        }
    }

    /// Maps a revision that is compacted, or that this store never had, to 410, on which every client lists
    /// again; some clients repeat a watch that fails in another way for ever.
    fn failure(&self, kind: &Kind, version: ApiVersion, error: &StoreError) -> Option<Status> {
        match error {
            StoreError::Compacted { requested, oldest } => {
                Some(Status::expired(format!("too old resource version: {requested} ({oldest})")))
            }
            StoreError::Future { requested, current } => {
                Some(Status::expired(format!("Too large resource version: {requested}, current: {current}")))
            }
            StoreError::Lagged | StoreError::Closed => None,
            other => Some(errors::from_store(other, ErrorSubject { version, kind: *kind, name: "" })),
        }
    }
}

impl EventEncoder<StoreSource> for Arc<Renderer> {
    fn append_object(
        &self,
        out: &mut Vec<u8>,
        format: &ObjectFormat,
        kind: &Kind,
        revision: Revision,
        stored: &[u8],
        headers: bool,
    ) {
        Renderer::append_object(self, out, format, *kind, revision, stored, headers);
    }

    fn bookmark(&self, format: &ObjectFormat, kind: &Kind, revision: Revision, initial_end: bool) -> Bytes {
        watch_event::bookmark((kind.name(), format.version.as_str()), format.view, revision, initial_end)
    }
}
