//! One change as watchers see it, encoded once for each form that anyone asked for.
//!
//! Without a selector the type of the event is the store's. With one, an object that enters the selection was added and one
//! that leaves it was deleted, whatever happened to it in the store.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use bytes::Bytes;
use causeway_api::selector::Selector;
use causeway_api::{ApiVersion, Kind, Object, Status, wire};
use causeway_store::{Revision, StoreEvent};

use crate::render::Renderer;
use crate::request::media::ObjectView;
use crate::request::options::IncludeObject;
use causeway_watch::ring::RingEntry;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EventType {
    Added,
    Modified,
    Deleted,
}

impl EventType {
    pub const fn as_str(self) -> &'static str {
        match self {
            EventType::Added => "ADDED",
            EventType::Modified => "MODIFIED",
            EventType::Deleted => "DELETED",
        }
    }
}

/// How a watcher wants its objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WatchFormat {
    pub version: ApiVersion,
    pub view: ObjectView,
    /// For tables.
    pub include: IncludeObject,
}

pub struct WatchFrame {
    kind: Kind,
    event: Arc<StoreEvent>,
    now: Side,
    before: Side,
    /// Whole objects, by version and type: what nearly every watcher wants.
    plain: [OnceLock<Bytes>; 6],
    /// Tables and metadata: few forms, so a list is searched.
    views: Mutex<Vec<(ShownAs, Bytes)>>,
}

/// By form and type; `bool` tells whether a table has its column headers.
type ShownAs = (WatchFormat, EventType, bool);

/// The object on one side of the change, read when a selector asks. `None` inside: it cannot be read, so nothing matches.
type Side = OnceLock<Option<Box<Object>>>;

impl RingEntry for WatchFrame {
    fn revision(&self) -> Revision {
        self.event.revision
    }

    fn size_bytes(&self) -> usize {
        let value = self.event.value.as_ref().map_or(0, Bytes::len);
        // The value, its encoded copy, what stood there before, and the frame around them.
        2 * value + self.event.previous.as_ref().map_or(0, Bytes::len) + 512
    }
}

impl WatchFrame {
    pub fn new(kind: Kind, event: Arc<StoreEvent>) -> WatchFrame {
        WatchFrame {
            kind,
            event,
            now: OnceLock::new(),
            before: OnceLock::new(),
            plain: Default::default(),
            views: Mutex::new(Vec::new()),
        }
    }

    /// What this change is to a watcher with this selector; `None`: nothing.
    pub fn event_type(&self, selector: Option<&Selector>) -> Option<EventType> {
        let Some(selector) = selector else {
            return Some(match (&self.event.value, self.event.created == self.event.revision) {
                (None, _) => EventType::Deleted,
                (Some(_), true) => EventType::Added,
                (Some(_), false) => EventType::Modified,
            });
        };
        let before = self.matches(selector, &self.before, self.event.previous.as_ref());
        let now = self.matches(selector, &self.now, self.event.value.as_ref());
        match (before, now) {
            (false, true) => Some(EventType::Added),
            (true, true) => Some(EventType::Modified),
            (true, false) => Some(EventType::Deleted),
            (false, false) => None,
        }
    }

    fn matches(&self, selector: &Selector, side: &Side, stored: Option<&Bytes>) -> bool {
        let Some(stored) = stored else { return false };
        let object = side.get_or_init(|| Object::from_stored(self.kind, stored).ok().map(Box::new));
        object.as_ref().is_some_and(|object| selector.matches_object(object))
    }

    /// The line that goes to watchers of this form. `headers` wants the columns of a table.
    pub fn line(&self, form: &WatchFormat, kind: EventType, headers: bool, renderer: &Renderer) -> Bytes {
        if form.view == ObjectView::Object {
            // No kind has more than two versions, one of them the core version.
            let slot = 3 * usize::from(form.version != ApiVersion::Core) + kind as usize;
            return self.plain[slot].get_or_init(|| self.encode_plain(form.version, kind)).clone();
        }
        let key = (*form, kind, headers);
        let views = || self.views.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, line)) = views().iter().find(|(other, _)| *other == key) {
            return line.clone();
        }
        // Two watchers may both encode it; that is cheaper than making one wait for the other.
        let object = renderer.object(form, self.kind, self.event.revision, self.stored(kind), headers);
        let line = line(kind.as_str(), &object);
        views().push((key, line.clone()));
        line
    }

    fn encode_plain(&self, version: ApiVersion, kind: EventType) -> Bytes {
        let stored = self.stored(kind);
        let mut out = Vec::with_capacity(stored.len() + 192);
        open(&mut out, kind.as_str());
        wire::splice(&mut out, self.kind, version, self.event.revision.0, stored);
        out.extend_from_slice(b"}\n");
        out.into()
    }

    /// A deletion shows the object as it last was.
    fn stored(&self, kind: EventType) -> &[u8] {
        let side = match kind {
            EventType::Deleted => &self.event.previous,
            EventType::Added | EventType::Modified => &self.event.value,
        };
        side.as_deref().unwrap_or(br#"{"metadata":{"name":""}}"#)
    }
}

/// One line of a watch: a type and an object that is already JSON.
pub fn line(kind: &str, object: &[u8]) -> Bytes {
    let mut out = Vec::with_capacity(object.len() + 40);
    open(&mut out, kind);
    out.extend_from_slice(object);
    out.extend_from_slice(b"}\n");
    out.into()
}

pub(super) fn open(out: &mut Vec<u8>, kind: &str) {
    out.extend_from_slice(br#"{"type":""#);
    out.extend_from_slice(kind.as_bytes());
    out.extend_from_slice(br#"","object":"#);
}

/// A bookmark: everything up to `revision` has been sent. `initial_end` marks the end of the state a watch began with.
pub fn bookmark(kind: Kind, form: &WatchFormat, revision: Revision, initial_end: bool) -> Bytes {
    let annotations = if initial_end { r#","annotations":{"k8s.io/initial-events-end":"true"}"# } else { "" };
    let (name, version) = (kind.name(), form.version.as_str());
    let object = match form.view {
        ObjectView::Object => format!(
            r#"{{"kind":"{name}","apiVersion":"{version}","metadata":{{"resourceVersion":"{revision}","creationTimestamp":null{annotations}}}}}"#
        ),
        ObjectView::Metadata(meta) => format!(
            r#"{{"kind":"PartialObjectMetadata","apiVersion":"{meta}","metadata":{{"resourceVersion":"{revision}","creationTimestamp":null{annotations}}}}}"#,
            meta = meta.api_version()
        ),
        // kubectl reads the revision of a table's bookmark from its only row.
        ObjectView::Table(meta) => format!(
            r#"{{"kind":"Table","apiVersion":"{meta}","metadata":{{"resourceVersion":"{revision}"}},"columnDefinitions":[],"rows":[{{"cells":[],"object":{{"kind":"PartialObjectMetadata","apiVersion":"{meta}","metadata":{{"resourceVersion":"{revision}","creationTimestamp":null{annotations}}}}}}}]}}"#,
            meta = meta.api_version()
        ),
    };
    line("BOOKMARK", object.as_bytes())
}

pub fn error(status: &Status) -> Bytes {
    line("ERROR", &status.to_json())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::media::MetaVersion;

    fn frame(previous: Option<&str>, value: Option<&str>) -> WatchFrame {
        let stored = |tier: &str| {
            Bytes::from(format!(r#"{{"metadata":{{"name":"a","labels":{{"tier":"{tier}"}}}}}}"#))
        };
        let event = StoreEvent {
            revision: Revision(7),
            key: "esites/a".into(),
            value: value.map(stored),
            previous: previous.map(stored),
            created: Revision(if previous.is_none() { 7 } else { 3 }),
        };
        WatchFrame::new(Kind::ESite, Arc::new(event))
    }

    #[test]
    fn a_selector_turns_entering_and_leaving_into_added_and_deleted() {
        use EventType::*;
        let selector = Selector::parse(Kind::ESite, "tier=factory", "").unwrap();
        let check = |previous, value, plain: EventType, selected: Option<EventType>| {
            let frame = frame(previous, value);
            assert_eq!(frame.event_type(None), Some(plain));
            assert_eq!(frame.event_type(Some(&selector)), selected, "{previous:?} {value:?}");
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
        let renderer = Renderer::plain();
        let form = WatchFormat {
            version: ApiVersion::Group,
            view: ObjectView::Object,
            include: IncludeObject::Metadata,
        };
        let frame = frame(Some("old"), Some("new"));
        let first = frame.line(&form, EventType::Modified, false, &renderer);
        let second = frame.line(&form, EventType::Modified, false, &renderer);
        assert_eq!(first.as_ptr(), second.as_ptr());
        assert_eq!(
            first,
            r#"{"type":"MODIFIED","object":{"kind":"ESite","apiVersion":"causeway.io/v1","metadata":{"resourceVersion":"7","name":"a","labels":{"tier":"new"}}}}"#.to_owned() + "\n"
        );
        let core = WatchFormat { version: ApiVersion::Core, ..form };
        let deleted = frame.line(&core, EventType::Deleted, false, &renderer);
        let deleted: serde_json::Value = serde_json::from_slice(&deleted).unwrap();
        assert_eq!(deleted["object"]["metadata"]["labels"]["tier"], "old");
        assert_eq!(deleted["object"]["apiVersion"], "v1");
    }

    #[test]
    fn bookmarks_are_json_in_every_view() {
        let versions = [MetaVersion::V1, MetaVersion::V1Beta1];
        let views =
            versions.into_iter().flat_map(|meta| [ObjectView::Table(meta), ObjectView::Metadata(meta)]);
        for view in views.chain([ObjectView::Object]) {
            let form = WatchFormat { version: ApiVersion::Core, view, include: IncludeObject::Metadata };
            let line = bookmark(Kind::ESite, &form, Revision(9), true);
            let value: serde_json::Value = serde_json::from_slice(&line).unwrap();
            assert_eq!(value["object"]["metadata"]["resourceVersion"], "9");
        }
    }
}
