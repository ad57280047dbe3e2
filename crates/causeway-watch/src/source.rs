//! The interface to a server: where changes come from, how selectors see objects, and how events are encoded.

use std::error::Error;
use std::future::Future;
use std::hash::Hash;

use bytes::Bytes;
use causeway_api::request::media::ObjectView;
use causeway_api::request::options::IncludeObject;
use causeway_api::selector::Selector;
use causeway_api::{Revision, Status};

/// One change of one object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectChange {
    pub revision: Revision,
    /// The object after the change; `None` when it was deleted.
    pub value: Option<Bytes>,
    /// The object before the change; `None` when it is new.
    pub previous: Option<Bytes>,
    /// The revision that created the object; equal to `revision` when it is new.
    pub created: Revision,
}

/// One message of a `ChangeFeed`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChangeSignal {
    Change(ObjectChange),
    /// A change that the authority does not know yet. It takes no revision of its own: it comes after everything up to `at`, and
    /// an object keeps the revision of its change. A watcher may see the newest local change of an object twice.
    Local {
        at: Revision,
        key: String,
        change: ObjectChange,
    },
    /// All changes up to this revision were delivered.
    Progress(Revision),
}

/// The objects of a collection at one revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    pub revision: Revision,
    /// Each object with the revision that last wrote it.
    pub objects: Vec<(Revision, Bytes)>,
}

/// The changes of one collection, in order, without gap or repeat. Dropping it ends the feed.
pub trait ChangeFeed: Send + 'static {
    type Error;

    /// Returns the next message. The future may be dropped while it waits without losing a message. All changes of one
    /// revision follow each other.
    fn next(&mut self) -> impl Future<Output = Result<ChangeSignal, Self::Error>> + Send;
}

/// A store of collections that can be listed and watched.
pub trait WatchSource: Send + Sync + 'static {
    /// Names one collection: the objects of one resource.
    type Collection: Clone + Eq + Hash + Send + Sync + 'static;
    /// The API version that a client watches the collection under.
    type Version: Copy + Eq + Send + Sync + 'static;
    /// An object as selectors look at it.
    type Object: Send + Sync + 'static;
    type Error: Error + Send + Sync + 'static;
    type Feed: ChangeFeed<Error = Self::Error>;

    /// Returns the position of a version among those that a collection is served under. Lines of whole objects under
    /// the first two are kept for reading without a lock.
    fn version_index(version: Self::Version) -> usize;

    /// Returns the newest revision.
    fn revision(&self) -> impl Future<Output = Result<Revision, Self::Error>> + Send;

    fn list(
        &self,
        collection: &Self::Collection,
    ) -> impl Future<Output = Result<Snapshot, Self::Error>> + Send;

    /// Returns all changes later than `after`.
    fn watch(
        &self,
        collection: &Self::Collection,
        after: Revision,
    ) -> impl Future<Output = Result<Self::Feed, Self::Error>> + Send;

    /// Decodes an object for selectors. `None` when it cannot be read; then no selector matches it.
    fn decode(&self, collection: &Self::Collection, stored: &Bytes) -> Option<Self::Object>;

    fn selects(&self, selector: &Selector, object: &Self::Object) -> bool;

    /// Like `decode` and `selects`, for an object that is looked at once.
    fn selects_stored(&self, collection: &Self::Collection, selector: &Selector, stored: &Bytes) -> bool {
        self.decode(collection, stored).is_some_and(|object| self.selects(selector, &object))
    }

    /// Returns true if a watch may begin after a revision that the source has not reached. It is then silent until that
    /// revision is passed, as at an API server that serves watches from a cache. Otherwise such a watch is refused with 410.
    fn allows_future_revision(&self) -> bool {
        false
    }

    /// Reports that the reader of a collection ended. Its watchers end too, and resume with a new reader.
    fn reader_ended(&self, collection: &Self::Collection, error: &Self::Error);

    /// Returns the error event for a watch that failed. `None` ends the watch without one; the client resumes from the
    /// revision that it saw.
    fn failure(
        &self,
        collection: &Self::Collection,
        version: Self::Version,
        error: &Self::Error,
    ) -> Option<Status>;
}

/// The form in which a watcher receives objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WatchFormat<V> {
    pub version: V,
    pub view: ObjectView,
    /// The part of each object that a table's rows carry.
    pub include: IncludeObject,
}

/// Encodes the objects of a source for clients.
pub trait EventEncoder<S: WatchSource>: Send + Sync + 'static {
    /// Appends an object as JSON. `headers` asks for the column definitions of a table.
    fn append_object(
        &self,
        out: &mut Vec<u8>,
        format: &WatchFormat<S::Version>,
        collection: &S::Collection,
        revision: Revision,
        stored: &[u8],
        headers: bool,
    );

    /// Returns the line of a bookmark. `initial_end` marks the end of the state that a watch began with.
    fn bookmark(
        &self,
        format: &WatchFormat<S::Version>,
        collection: &S::Collection,
        revision: Revision,
        initial_end: bool,
    ) -> Bytes;
}
