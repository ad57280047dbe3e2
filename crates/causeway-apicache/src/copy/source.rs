//! A collection as a source of watches, and its objects as clients see them.

use std::sync::{Arc, Weak};

use bytes::Bytes;
use causeway_api::request::media::{MetaVersion, ObjectView};
use causeway_api::request::options::IncludeObject;
use causeway_api::selector::Selector;
use causeway_api::{Revision, Status, watch_event};
use causeway_watch::{ChangeFeed, ChangeSignal, EventEncoder, Snapshot, WatchFormat, WatchSource};
use serde_json::Value;
use tokio::sync::mpsc;

use super::CopyError;
use super::collection::{Collection, unix_now};
use crate::facets::ObjectFacets;
use crate::kube_object::{self, KubeObject, unpack};
use crate::resource::ResourceDescription;

/// A collection that is dropped ends its watches.
pub struct CollectionSource(pub Weak<Collection>);

#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    #[error("the changes after {0} are gone")]
    Expired(Revision),
    #[error("the reader was too slow")]
    Lagged,
    #[error("the subscription has ended")]
    Ended,
    #[error(transparent)]
    Copy(#[from] CopyError),
}

pub struct CollectionFeed(mpsc::Receiver<ChangeSignal>);

impl ChangeFeed for CollectionFeed {
    type Error = SourceError;

    async fn next(&mut self) -> Result<ChangeSignal, SourceError> {
        self.0.recv().await.ok_or(SourceError::Lagged)
    }
}

impl CollectionSource {
    fn collection(&self) -> Result<Arc<Collection>, SourceError> {
        self.0.upgrade().ok_or(SourceError::Ended)
    }
}

impl WatchSource for CollectionSource {
    type Collection = ();
    type Version = ();
    type Object = ObjectFacets;
    type Error = SourceError;
    type Feed = CollectionFeed;

    fn version_index(_: ()) -> usize {
        0
    }

    async fn revision(&self) -> Result<Revision, SourceError> {
        Ok(self.collection()?.revision())
    }

    async fn list(&self, _: &()) -> Result<Snapshot, SourceError> {
        let (revision, objects) = self.collection()?.list("").await?;
        let objects = objects.iter().map(|object| (object.revision, object.pack())).collect();
        Ok(Snapshot { revision, objects })
    }

    async fn watch(&self, _: &(), after: Revision) -> Result<CollectionFeed, SourceError> {
        self.collection()?.follow(after).map(CollectionFeed).ok_or(SourceError::Expired(after))
    }

    fn decode(&self, _: &(), stored: &Bytes) -> Option<ObjectFacets> {
        let collection = self.collection().ok()?;
        Some(ObjectFacets::read(&collection.scope.resource, unpack(stored).0))
    }

    fn selects(&self, selector: &Selector, object: &ObjectFacets) -> bool {
        selector.matches(object)
    }

    fn allows_future_revision(&self) -> bool {
        true
    }

    fn reader_ended(&self, _: &(), error: &SourceError) {
        tracing::debug!(%error, "a reader of the API cache ended; its watchers resume");
    }

    fn failure(&self, _: &(), _: (), error: &SourceError) -> Option<Status> {
        match error {
            SourceError::Expired(revision) => {
                Some(Status::expired(format!("too old resource version: {revision}")))
            }
            SourceError::Lagged | SourceError::Ended => None,
            SourceError::Copy(error) => Some(Status::internal(causeway_api::error_chain(error))),
        }
    }
}

/// Writes the objects of a resource in the forms that clients ask for.
#[derive(Clone)]
pub struct ObjectRenderer(pub Arc<ResourceDescription>);

impl EventEncoder<CollectionSource> for ObjectRenderer {
    fn append_object(
        &self,
        out: &mut Vec<u8>,
        format: &WatchFormat<()>,
        _: &(),
        revision: Revision,
        stored: &[u8],
        headers: bool,
    ) {
        let (body, cells) = unpack(stored);
        match format.view {
            ObjectView::Object => kube_object::append_object(out, &self.0, revision, body),
            ObjectView::Metadata(meta) => {
                kube_object::append_metadata(out, meta.api_version(), revision, body)
            }
            ObjectView::Table(meta) => {
                self.open_table(out, meta, &format!(r#"{{"resourceVersion":"{revision}"}}"#), headers);
                self.append_row(out, meta, format.include, revision, body, cells);
                out.extend_from_slice(b"]}");
            }
        }
    }

    fn bookmark(&self, format: &WatchFormat<()>, _: &(), revision: Revision, initial_end: bool) -> Bytes {
        let name = self.0.name.api_version();
        watch_event::bookmark((&self.0.kind, &name), format.view, revision, initial_end)
    }
}

impl ObjectRenderer {
    /// Appends the part of a table before its rows. `]}` ends it.
    pub fn open_table(&self, out: &mut Vec<u8>, meta: MetaVersion, metadata: &str, headers: bool) {
        let columns = if headers { self.0.columns.as_str() } else { "null" };
        let head = format!(
            r#"{{"kind":"Table","apiVersion":"{}","metadata":{metadata},"columnDefinitions":{columns},"rows":["#,
            meta.api_version()
        );
        out.extend_from_slice(head.as_bytes());
    }

    /// Appends the row of an object: the server's cells, with ages as of now.
    pub fn append_row(
        &self,
        out: &mut Vec<u8>,
        meta: MetaVersion,
        include: IncludeObject,
        revision: Revision,
        body: &[u8],
        cells: &[u8],
    ) {
        out.extend_from_slice(br#"{"cells":"#);
        out.extend_from_slice(self.cells_now(body, cells).as_bytes());
        match include {
            IncludeObject::None => {}
            IncludeObject::Metadata => {
                out.extend_from_slice(br#","object":"#);
                kube_object::append_metadata(out, meta.api_version(), revision, body);
            }
            IncludeObject::Object => {
                out.extend_from_slice(br#","object":"#);
                kube_object::append_object(out, &self.0, revision, body);
            }
        }
        out.push(b'}');
    }

    fn cells_now(&self, body: &[u8], cells: &[u8]) -> String {
        let columns: Vec<Value> = serde_json::from_str(&self.0.columns).unwrap_or_default();
        let mut cells: Vec<Value> = serde_json::from_slice(cells).unwrap_or_default();
        let object: Value = serde_json::from_slice(body).unwrap_or_default();
        // An object that the API server has not seen has no row there.
        cells.resize(columns.len().max(cells.len()), Value::from(""));
        let created = object["metadata"]["creationTimestamp"].as_str();
        let created: Option<jiff::Timestamp> = created.and_then(|text| text.parse().ok());
        for (column, cell) in columns.iter().zip(&mut cells) {
            if column["format"] == "name" {
                *cell = object["metadata"]["name"].clone();
            }
            if column["name"] == "Age"
                && let Some(created) = created
            {
                let seconds = (unix_now() - created.as_second()).max(0);
                *cell = causeway_api::table::age(u64::try_from(seconds).unwrap_or(0)).into();
            }
        }
        Value::Array(cells).to_string()
    }

    /// Puts objects into the order of the API server's table. It sorts FlowSchemas by precedence and every other kind by key.
    pub fn order_rows(&self, objects: &mut [KubeObject]) {
        let name = &self.0.name;
        if (name.group.as_str(), name.plural.as_str()) == ("flowcontrol.apiserver.k8s.io", "flowschemas") {
            objects.sort_by_cached_key(|object| (matching_precedence(&object.body), object.key.clone()));
        }
    }

    /// Writes a whole list.
    pub fn list(
        &self,
        view: ObjectView,
        include: IncludeObject,
        metadata: &str,
        objects: &[KubeObject],
    ) -> Vec<u8> {
        let size: usize = objects.iter().map(|object| object.body.len() + 1).sum();
        let mut out = Vec::with_capacity(size + 256);
        match view {
            ObjectView::Table(meta) => self.open_table(&mut out, meta, metadata, true),
            ObjectView::Object => {
                let (kind, version) = (&self.0.list_kind, self.0.name.api_version());
                let head =
                    format!(r#"{{"kind":"{kind}","apiVersion":"{version}","metadata":{metadata},"items":["#);
                out.extend_from_slice(head.as_bytes());
            }
            ObjectView::Metadata(meta) => {
                let version = meta.api_version();
                let head = format!(
                    r#"{{"kind":"PartialObjectMetadataList","apiVersion":"{version}","metadata":{metadata},"items":["#
                );
                out.extend_from_slice(head.as_bytes());
            }
        }
        for (number, object) in objects.iter().enumerate() {
            if number > 0 {
                out.push(b',');
            }
            match view {
                ObjectView::Table(meta) => {
                    self.append_row(&mut out, meta, include, object.revision, &object.body, &object.cells);
                }
                // As the API server does: objects of built-in kinds have no type inside a list.
                ObjectView::Object => out.extend_from_slice(&object.body),
                ObjectView::Metadata(meta) => {
                    kube_object::append_metadata(&mut out, meta.api_version(), object.revision, &object.body);
                }
            }
        }
        out.extend_from_slice(b"]}");
        out
    }
}

/// 0 when the field is absent, as in Go.
fn matching_precedence(body: &[u8]) -> i64 {
    let object: Value = serde_json::from_slice(body).unwrap_or_default();
    object["spec"]["matchingPrecedence"].as_i64().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::ResourceName;

    #[test]
    fn rows_of_flow_schemas_are_in_the_order_of_precedence() {
        let renderer = |group: &str, plural: &str| {
            ObjectRenderer(Arc::new(ResourceDescription {
                name: ResourceName::new(group, "v1beta1", plural),
                kind: String::new(),
                list_kind: String::new(),
                is_namespaced: false,
                columns: "[]".into(),
            }))
        };
        let object = |name: &str, precedence: i64| KubeObject {
            key: name.into(),
            revision: Revision(1),
            uid: String::new(),
            body: format!(r#"{{"spec":{{"matchingPrecedence":{precedence}}}}}"#).into(),
            cells: Bytes::new(),
        };
        let order = |renderer: ObjectRenderer| {
            let mut objects = [object("a", 900), object("c", 100), object("b", 100)];
            renderer.order_rows(&mut objects);
            objects.map(|object| object.key).join(" ")
        };
        assert_eq!(order(renderer("flowcontrol.apiserver.k8s.io", "flowschemas")), "b c a");
        assert_eq!(order(renderer("example.org", "flowschemas")), "a c b");
    }
}
