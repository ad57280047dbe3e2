//! Renders stored objects in the form that a client asks for: whole, metadata alone, or rows of a table.
//!
//! Whole objects are spliced, never parsed. Tables parse the object and add the live stats of gateways.

use std::sync::Arc;

use causeway_api::views::{self, PageMetadata};
use causeway_api::{Kind, Object, Revision, Status, Time, table, wire};
use serde_json::{Value, json};

use crate::registry::ListPage;
use crate::request::media::{MetaVersion, ObjectView};
use crate::request::options::IncludeObject;
use crate::watch::ObjectFormat;
use crate::{GatewayStatsSource, NoGatewayStats, SystemClock, TimeSource};

pub struct Renderer {
    stats: Arc<dyn GatewayStatsSource>,
    clock: Arc<dyn TimeSource>,
}

impl Renderer {
    pub fn new(stats: Arc<dyn GatewayStatsSource>, clock: Arc<dyn TimeSource>) -> Renderer {
        Renderer { stats, clock }
    }

    /// Renders without live stats.
    pub fn plain() -> Renderer {
        Renderer::new(Arc::new(NoGatewayStats), Arc::new(SystemClock))
    }

    /// Renders one object as JSON. `headers` asks for the columns of a table.
    pub fn object(
        &self,
        form: &ObjectFormat,
        kind: Kind,
        revision: Revision,
        stored: &[u8],
        headers: bool,
    ) -> Vec<u8> {
        let mut out = Vec::with_capacity(stored.len() + 192);
        self.append_object(&mut out, form, kind, revision, stored, headers);
        out
    }

    /// Appends one object as JSON. `headers` asks for the columns of a table.
    pub fn append_object(
        &self,
        out: &mut Vec<u8>,
        form: &ObjectFormat,
        kind: Kind,
        revision: Revision,
        stored: &[u8],
        headers: bool,
    ) {
        match form.view {
            ObjectView::Object if revision == Revision(0) => unwritten(out, form, kind, stored),
            ObjectView::Object => wire::splice(out, kind, form.version, revision.0, stored),
            ObjectView::Metadata(meta) => views::partial_object_metadata(out, meta, revision, stored),
            ObjectView::Table(meta) => {
                let columns = if headers { table::column_definitions(kind) } else { json!([]) };
                views::open_table(
                    out,
                    meta,
                    &columns,
                    PageMetadata { revision, next: None, remaining: None },
                );
                self.row(out, form, kind, revision, stored);
                out.extend_from_slice(b"]}");
            }
        }
    }

    /// Renders a page of a list as JSON, in one buffer.
    pub fn list(&self, form: &ObjectFormat, kind: Kind, page: &ListPage) -> Vec<u8> {
        let values: usize = page.records.iter().map(|record| record.value.len() + 160).sum();
        let mut out = Vec::with_capacity(values + 512);
        let metadata =
            PageMetadata { revision: page.revision, next: page.next.as_deref(), remaining: page.remaining };
        let close: &[u8] = match form.view {
            ObjectView::Object => {
                views::open_list(&mut out, kind.list_name(), form.version.as_str(), metadata);
                b"]}"
            }
            ObjectView::Metadata(meta) => {
                views::open_list(&mut out, "PartialObjectMetadataList", meta.api_version(), metadata);
                b"]}"
            }
            ObjectView::Table(meta) => {
                views::open_table(&mut out, meta, &table::column_definitions(kind), metadata);
                b"]}"
            }
        };
        for (index, record) in page.records.iter().enumerate() {
            if index > 0 {
                out.push(b',');
            }
            match form.view {
                ObjectView::Object => {
                    wire::splice(&mut out, kind, form.version, record.revision.0, &record.value);
                }
                ObjectView::Metadata(meta) => {
                    views::partial_object_metadata(&mut out, meta, record.revision, &record.value);
                }
                ObjectView::Table(_) => self.row(&mut out, form, kind, record.revision, &record.value),
            }
        }
        out.extend_from_slice(close);
        out
    }

    fn row(&self, out: &mut Vec<u8>, form: &ObjectFormat, kind: Kind, revision: Revision, stored: &[u8]) {
        out.extend_from_slice(br#"{"cells":"#);
        let cells = self.cells(kind, stored);
        out.extend_from_slice(Value::Array(cells).to_string().as_bytes());
        match form.include {
            IncludeObject::None => {}
            IncludeObject::Metadata => {
                out.extend_from_slice(br#","object":"#);
                let meta = match form.view {
                    ObjectView::Table(meta) | ObjectView::Metadata(meta) => meta,
                    ObjectView::Object => MetaVersion::V1,
                };
                views::partial_object_metadata(out, meta, revision, stored);
            }
            IncludeObject::Object => {
                out.extend_from_slice(br#","object":"#);
                wire::splice(out, kind, form.version, revision.0, stored);
            }
        }
        out.push(b'}');
    }

    fn cells(&self, kind: Kind, stored: &[u8]) -> Vec<Value> {
        let Ok(object) = Object::from_stored(kind, stored) else {
            // Every object has a row, also one that a newer version wrote.
            let unknown = table::columns(kind).iter().map(|_| json!("<unreadable>"));
            return unknown.collect();
        };
        let stats = match kind {
            Kind::EGateway => self.stats.gateway(object.name()),
            _ => None,
        };
        table::cells(&object, Time::new(self.clock.now()), stats.as_ref())
    }
}

/// Renders an object that a dry run would have created: it has no revision.
fn unwritten(out: &mut Vec<u8>, form: &ObjectFormat, kind: Kind, stored: &[u8]) {
    let mut object = Vec::new();
    wire::splice(&mut object, kind, form.version, 0, stored);
    // A revision of 0 means none, and is not shown.
    let shown = String::from_utf8_lossy(&object).replacen(r#""resourceVersion":"0","#, "", 1);
    out.extend_from_slice(shown.as_bytes());
}

/// Converts JSON to YAML, for clients that ask for it.
pub fn to_yaml(json: &[u8]) -> Result<Vec<u8>, Status> {
    let value: Value = serde_json::from_slice(json).map_err(Status::internal)?;
    serde_saphyr::to_string(&value).map(String::into_bytes).map_err(Status::internal)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use causeway_api::{ApiVersion, GatewayStats};
    use causeway_store::StoreRecord;

    use super::*;

    fn record(name: &str, revision: u64) -> StoreRecord {
        let stored = format!(
            r#"{{"metadata":{{"name":"{name}","creationTimestamp":"2026-11-15T19:00:00Z"}},"eSiteName":"tokyo"}}"#
        );
        let key = format!("egateways/{name}");
        StoreRecord {
            key: key.into(),
            value: Bytes::from(stored),
            revision: Revision(revision),
            created: Revision(1),
        }
    }

    fn page() -> ListPage {
        let records = vec![record("a", 3), record("b", 4)];
        ListPage { records, revision: Revision(9), next: Some("next".into()), remaining: Some(5) }
    }

    fn form(view: ObjectView, include: IncludeObject) -> ObjectFormat {
        ObjectFormat { version: ApiVersion::Group, view, include }
    }

    fn parsed(json: &[u8]) -> Value {
        serde_json::from_slice(json).unwrap()
    }

    #[test]
    fn a_list_is_spliced_from_what_is_stored() {
        let list = parsed(&Renderer::plain().list(
            &form(ObjectView::Object, IncludeObject::None),
            Kind::EGateway,
            &page(),
        ));
        assert_eq!(list["kind"], "EGatewayList");
        assert_eq!(
            list["metadata"],
            json!({"resourceVersion": "9", "continue": "next", "remainingItemCount": 5})
        );
        assert_eq!(list["items"][1]["metadata"]["name"], "b");
        assert_eq!(list["items"][1]["metadata"]["resourceVersion"], "4");
        assert_eq!(list["items"][1]["apiVersion"], "causeway.io/v1");
        let metadata = parsed(&Renderer::plain().list(
            &form(ObjectView::Metadata(MetaVersion::V1), IncludeObject::None),
            Kind::EGateway,
            &page(),
        ));
        assert_eq!(metadata["kind"], "PartialObjectMetadataList");
        assert_eq!(
            metadata["items"][0],
            json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
                "metadata": {"resourceVersion": "3", "name": "a", "creationTimestamp": "2026-11-15T19:00:00Z"}})
        );
    }

    #[test]
    fn a_table_joins_the_stats_of_a_gateway() {
        struct FixedStats;
        impl GatewayStatsSource for FixedStats {
            fn gateway(&self, name: &str) -> Option<GatewayStats> {
                (name == "a").then(|| GatewayStats {
                    connected: true,
                    transport: Some("quic".into()),
                    rtt_ms: Some(12.0),
                    ..GatewayStats::default()
                })
            }
        }
        let clock = || "2026-11-15T19:05:00Z".parse::<jiff::Timestamp>().unwrap();
        let renderer = Renderer::new(Arc::new(FixedStats), Arc::new(clock));
        let table = parsed(&renderer.list(
            &form(ObjectView::Table(MetaVersion::V1), IncludeObject::Metadata),
            Kind::EGateway,
            &page(),
        ));
        let columns: Vec<&str> = table["columnDefinitions"]
            .as_array()
            .unwrap()
            .iter()
            .map(|c| c["name"].as_str().unwrap())
            .collect();
        let cell = |row: usize, name: &str| {
            table["rows"][row]["cells"][columns.iter().position(|c| *c == name).unwrap()].clone()
        };
        assert_eq!(cell(0, "Connected"), "True");
        assert_eq!(cell(0, "Transport"), "quic");
        assert_eq!(cell(1, "Connected"), "False");
        assert_eq!(cell(0, "Age"), "5m");
        assert_eq!(table["rows"][0]["object"]["kind"], "PartialObjectMetadata");
        let bare = parsed(&renderer.object(
            &form(ObjectView::Table(MetaVersion::V1), IncludeObject::None),
            Kind::EGateway,
            Revision(3),
            &record("a", 3).value,
            false,
        ));
        assert_eq!(bare["columnDefinitions"], json!([]));
        assert_eq!(bare["rows"][0].get("object"), None);
    }

    #[test]
    fn what_cannot_be_read_still_has_a_row() {
        let broken = br#"{"metadata":{"name":"x"},"priority":"high"}"#;
        let form = form(ObjectView::Table(MetaVersion::V1), IncludeObject::Metadata);
        let table = parsed(&Renderer::plain().object(&form, Kind::EGateway, Revision(1), broken, true));
        assert_eq!(table["rows"][0]["cells"][0], "<unreadable>");
    }
}
