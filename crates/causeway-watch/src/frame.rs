//! One change as watchers see it, encoded once for each form that a watcher asked for.
//!
//! Without a selector the type of the event is that of the change. With one, an object that enters the selection was
//! added and one that leaves it was deleted, whatever happened to it in the store.

use std::sync::{Mutex, OnceLock};

use bytes::Bytes;
use causeway_api::Revision;
use causeway_api::request::media::ObjectView;
use causeway_api::selector::Selector;
use causeway_api::sync::MutexExt;
use causeway_api::watch_event::{self, WatchEventType};

use crate::ring::RingEntry;
use crate::source::{EventEncoder, ObjectChange, WatchFormat, WatchSource};

/// A change of a collection, with its encoded lines.
pub struct WatchFrame<S: WatchSource> {
    collection: S::Collection,
    change: ObjectChange,
    /// The position and the key of a local change.
    local: Option<(Revision, String)>,
    now: DecodedSide<S>,
    before: DecodedSide<S>,
    /// Lines of whole objects, by version and type: the form of nearly every watcher. Encoded once, read without a lock.
    plain: [OnceLock<Bytes>; 3 * PLAIN_VERSIONS],
    /// Lines of tables, metadata and further versions: few forms, so a list is searched.
    views: Mutex<Vec<(LineKey<S>, Bytes)>>,
}

// Every kind of Causeway has one or two versions; so has nearly every resource of Kubernetes.
const PLAIN_VERSIONS: usize = 2;

/// By form and type; `bool` tells whether a table has its column headers.
type LineKey<S> = (WatchFormat<<S as WatchSource>::Version>, WatchEventType, bool);

/// The object on one side of the change, decoded when a selector asks. `None` inside: it cannot be read, so no selector
/// matches.
type DecodedSide<S> = OnceLock<Option<Box<<S as WatchSource>::Object>>>;

impl<S: WatchSource> RingEntry for WatchFrame<S> {
    fn revision(&self) -> Revision {
        self.local.as_ref().map_or(self.change.revision, |(at, _)| *at)
    }

    fn local_key(&self) -> Option<&str> {
        self.local.as_ref().map(|(_, key)| key.as_str())
    }

    fn size_bytes(&self) -> usize {
        let value = self.change.value.as_ref().map_or(0, Bytes::len);
        // The value, its encoded copy, the previous value, and the frame around them.
        2 * value + self.change.previous.as_ref().map_or(0, Bytes::len) + 512
    }
}

impl<S: WatchSource> WatchFrame<S> {
    pub fn new(collection: S::Collection, change: ObjectChange) -> WatchFrame<S> {
        WatchFrame {
            collection,
            change,
            local: None,
            now: OnceLock::new(),
            before: OnceLock::new(),
            plain: Default::default(),
            views: Mutex::new(Vec::new()),
        }
    }

    /// A local change of the object under `key`, after everything up to `at`.
    pub fn local(
        collection: S::Collection,
        at: Revision,
        key: String,
        change: ObjectChange,
    ) -> WatchFrame<S> {
        WatchFrame { local: Some((at, key)), ..WatchFrame::new(collection, change) }
    }

    /// Returns the type of this change for a watcher with this selector; `None` when the watcher does not see it.
    pub fn event_type(&self, selector: Option<&Selector>, source: &S) -> Option<WatchEventType> {
        let Some(selector) = selector else {
            return Some(match (&self.change.value, self.change.created == self.change.revision) {
                (None, _) => WatchEventType::Deleted,
                (Some(_), true) => WatchEventType::Added,
                (Some(_), false) => WatchEventType::Modified,
            });
        };
        let before = self.matches(source, selector, &self.before, self.change.previous.as_ref());
        let now = self.matches(source, selector, &self.now, self.change.value.as_ref());
        match (before, now) {
            (false, true) => Some(WatchEventType::Added),
            (true, true) => Some(WatchEventType::Modified),
            (true, false) => Some(WatchEventType::Deleted),
            (false, false) => None,
        }
    }

    fn matches(
        &self,
        source: &S,
        selector: &Selector,
        side: &DecodedSide<S>,
        stored: Option<&Bytes>,
    ) -> bool {
        let Some(stored) = stored else { return false };
        let object = side.get_or_init(|| source.decode(&self.collection, stored).map(Box::new));
        object.as_ref().is_some_and(|object| source.selects(selector, object))
    }

    /// Returns the line for watchers of this form. `headers` asks for the columns of a table.
    pub fn line(
        &self,
        format: &WatchFormat<S::Version>,
        event_type: WatchEventType,
        headers: bool,
        encoder: &impl EventEncoder<S>,
    ) -> Bytes {
        let slot = 3 * S::version_index(format.version) + event_type as usize;
        if let (ObjectView::Object, Some(plain)) = (format.view, self.plain.get(slot)) {
            return plain.get_or_init(|| self.encode(format, event_type, headers, encoder)).clone();
        }
        let key = (*format, event_type, headers);
        let views = || self.views.lock_ignoring_poison();
        if let Some((_, line)) = views().iter().find(|(other, _)| *other == key) {
            return line.clone();
        }
        // Encoding outside the lock may happen twice; that is cheaper than making one watcher wait for another.
        let line = self.encode(format, event_type, headers, encoder);
        views().push((key, line.clone()));
        line
    }

    fn encode(
        &self,
        format: &WatchFormat<S::Version>,
        event_type: WatchEventType,
        headers: bool,
        encoder: &impl EventEncoder<S>,
    ) -> Bytes {
        let stored = self.stored(event_type);
        let mut out = Vec::with_capacity(stored.len() + 192);
        watch_event::open(&mut out, event_type.as_str());
        encoder.append_object(&mut out, format, &self.collection, self.change.revision, stored, headers);
        watch_event::close(&mut out);
        out.into()
    }

    /// A deletion shows the object as it last was.
    fn stored(&self, event_type: WatchEventType) -> &[u8] {
        let side = match event_type {
            WatchEventType::Deleted => &self.change.previous,
            WatchEventType::Added | WatchEventType::Modified => &self.change.value,
        };
        side.as_deref().unwrap_or(br#"{"metadata":{"name":""}}"#)
    }
}

#[cfg(test)]
mod tests {
    use causeway_api::request::options::IncludeObject;
    use causeway_api::{ApiVersion, Kind};

    use super::*;
    use crate::memory_source::{MemorySource, SpliceEncoder};

    fn frame(previous: Option<&str>, value: Option<&str>) -> WatchFrame<MemorySource> {
        let stored = |tier: &str| {
            Bytes::from(format!(r#"{{"metadata":{{"name":"a","labels":{{"tier":"{tier}"}}}}}}"#))
        };
        let change = ObjectChange {
            revision: Revision(7),
            value: value.map(stored),
            previous: previous.map(stored),
            created: Revision(if previous.is_none() { 7 } else { 3 }),
        };
        WatchFrame::new(Kind::ESite, change)
    }

    #[test]
    fn a_selector_turns_entering_and_leaving_into_added_and_deleted() {
        use WatchEventType::*;
        let source = MemorySource;
        let selector = Selector::parse(Kind::ESite, "tier=factory", "").unwrap();
        let check = |previous, value, plain: WatchEventType, selected: Option<WatchEventType>| {
            let frame = frame(previous, value);
            assert_eq!(frame.event_type(None, &source), Some(plain));
            assert_eq!(frame.event_type(Some(&selector), &source), selected, "{previous:?} {value:?}");
        };
        check(None, Some("factory"), Added, Some(Added));
        check(None, Some("office"), Added, None);
        check(Some("office"), Some("factory"), Modified, Some(Added));
        check(Some("factory"), Some("factory"), Modified, Some(Modified));
        check(Some("factory"), Some("office"), Modified, Some(Deleted));
        check(Some("office"), Some("office"), Modified, None);
        check(Some("factory"), None, Deleted, Some(Deleted));
        check(Some("office"), None, Deleted, None);
    }

    #[test]
    fn a_line_is_encoded_once_and_a_deletion_shows_what_was() {
        let encoder = SpliceEncoder;
        let form = WatchFormat {
            version: ApiVersion::Group,
            view: ObjectView::Object,
            include: IncludeObject::Metadata,
        };
        let frame = frame(Some("old"), Some("new"));
        let first = frame.line(&form, WatchEventType::Modified, false, &encoder);
        let second = frame.line(&form, WatchEventType::Modified, false, &encoder);
        assert_eq!(first.as_ptr(), second.as_ptr());
        assert_eq!(
            first,
            r#"{"type":"MODIFIED","object":{"kind":"ESite","apiVersion":"causeway.io/v1","metadata":{"resourceVersion":"7","name":"a","labels":{"tier":"new"}}}}"#.to_owned() + "\n"
        );
        let core = WatchFormat { version: ApiVersion::Core, ..form };
        let deleted = frame.line(&core, WatchEventType::Deleted, false, &encoder);
        let deleted: serde_json::Value = serde_json::from_slice(&deleted).unwrap();
        assert_eq!(deleted["object"]["metadata"]["labels"]["tier"], "old");
        assert_eq!(deleted["object"]["apiVersion"], "v1");
    }
}
