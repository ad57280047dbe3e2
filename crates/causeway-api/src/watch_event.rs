//! Writes the lines of a watch: events, bookmarks and errors, in the JSON of Kubernetes' WatchEvent.

use bytes::Bytes;

use crate::request::media::ObjectView;
use crate::{Revision, Status};

/// The type of an event about an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WatchEventType {
    Added,
    Modified,
    Deleted,
}

impl WatchEventType {
    pub const fn as_str(self) -> &'static str {
        match self {
            WatchEventType::Added => "ADDED",
            WatchEventType::Modified => "MODIFIED",
            WatchEventType::Deleted => "DELETED",
        }
    }
}

/// Returns one line of a watch: a type and an object that is already JSON.
pub fn line(event_type: &str, object: &[u8]) -> Bytes {
    let mut out = Vec::with_capacity(object.len() + 40);
    open(&mut out, event_type);
    out.extend_from_slice(object);
    close(&mut out);
    out.into()
}

/// Appends the part of a line before its object.
pub fn open(out: &mut Vec<u8>, event_type: &str) {
    out.extend_from_slice(br#"{"type":""#);
    out.extend_from_slice(event_type.as_bytes());
    out.extend_from_slice(br#"","object":"#);
}

/// Appends the part of a line after its object.
pub fn close(out: &mut Vec<u8>) {
    out.extend_from_slice(b"}\n");
}

/// Returns a bookmark: all changes up to `revision` were sent. `initial_end` marks the end of the state that a watch
/// began with.
pub fn bookmark(
    (kind, api_version): (&str, &str),
    view: ObjectView,
    revision: Revision,
    initial_end: bool,
) -> Bytes {
    let annotations = if initial_end { r#","annotations":{"k8s.io/initial-events-end":"true"}"# } else { "" };
    let object = match view {
        ObjectView::Object => format!(
            r#"{{"kind":"{kind}","apiVersion":"{api_version}","metadata":{{"resourceVersion":"{revision}","creationTimestamp":null{annotations}}}}}"#
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

/// Returns the line of an error, after which a watch ends.
pub fn error(status: &Status) -> Bytes {
    line("ERROR", &status.to_json())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::media::MetaVersion;

    #[test]
    fn bookmarks_are_json_in_every_view() {
        let versions = [MetaVersion::V1, MetaVersion::V1Beta1];
        let views =
            versions.into_iter().flat_map(|meta| [ObjectView::Table(meta), ObjectView::Metadata(meta)]);
        for view in views.chain([ObjectView::Object]) {
            let line = bookmark(("ESite", "v1"), view, Revision(9), true);
            let value: serde_json::Value = serde_json::from_slice(&line).unwrap();
            assert_eq!(value["object"]["metadata"]["resourceVersion"], "9");
        }
    }
}
