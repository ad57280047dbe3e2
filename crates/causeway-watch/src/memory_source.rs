//! A source for the tests of this crate: objects of Causeway's kinds in memory, without changes of their own.

use std::convert::Infallible;
use std::future::{Future, pending, ready};

use bytes::Bytes;
use causeway_api::selector::Selector;
use causeway_api::watch_event;
use causeway_api::{ApiVersion, Kind, Object, Revision, Status, wire};

use crate::source::{ChangeFeed, ChangeSignal, EventEncoder, Snapshot, WatchFormat, WatchSource};

#[derive(Default)]
pub struct MemorySource;

/// A feed that never delivers a message.
pub struct SilentFeed;

impl ChangeFeed for SilentFeed {
    type Error = Infallible;

    fn next(&mut self) -> impl Future<Output = Result<ChangeSignal, Infallible>> + Send {
        pending()
    }
}

impl WatchSource for MemorySource {
    type Collection = Kind;
    type Version = ApiVersion;
    type Object = Object;
    type Error = Infallible;
    type Feed = SilentFeed;

    fn version_index(version: ApiVersion) -> usize {
        usize::from(version != ApiVersion::Core)
    }

    fn revision(&self) -> impl Future<Output = Result<Revision, Infallible>> + Send {
        ready(Ok(Revision(7)))
    }

    fn list(&self, _: &Kind) -> impl Future<Output = Result<Snapshot, Infallible>> + Send {
        ready(Ok(Snapshot { revision: Revision(7), objects: Vec::new() }))
    }

    fn watch(&self, _: &Kind, _: Revision) -> impl Future<Output = Result<SilentFeed, Infallible>> + Send {
        ready(Ok(SilentFeed))
    }

    fn decode(&self, kind: &Kind, stored: &Bytes) -> Option<Object> {
        Object::from_stored(*kind, stored).ok()
    }

    fn selects(&self, selector: &Selector, object: &Object) -> bool {
        selector.matches_object(object)
    }

    fn reader_ended(&self, _: &Kind, _: &Infallible) {}

    fn failure(&self, _: &Kind, _: ApiVersion, _: &Infallible) -> Option<Status> {
        None
    }
}

/// Encodes whole objects only.
pub struct SpliceEncoder;

impl EventEncoder<MemorySource> for SpliceEncoder {
    fn append_object(
        &self,
        out: &mut Vec<u8>,
        format: &WatchFormat<ApiVersion>,
        kind: &Kind,
        revision: Revision,
        stored: &[u8],
        _headers: bool,
    ) {
        wire::splice(out, *kind, format.version, revision.0, stored);
    }

    fn bookmark(
        &self,
        format: &WatchFormat<ApiVersion>,
        kind: &Kind,
        revision: Revision,
        initial_end: bool,
    ) -> Bytes {
        watch_event::bookmark((kind.name(), format.version.as_str()), format.view, revision, initial_end)
    }
}
