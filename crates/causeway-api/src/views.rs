//! Writes Kubernetes' views of stored objects as JSON text: lists, tables and PartialObjectMetadata, for any resource.
//!
//! Input: the stored form of objects (see `wire`) and the names of their resource. Objects are copied, not parsed.
//! The cells of a table's rows come from the caller.

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::Revision;
use crate::request::media::MetaVersion;

/// The metadata of a list or table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageMetadata<'a> {
    pub revision: Revision,
    /// The continue token of the next page.
    pub next: Option<&'a str>,
    /// The number of objects behind this page, when it is known.
    pub remaining: Option<u64>,
}

impl PageMetadata<'_> {
    fn to_json(self) -> String {
        let mut metadata = json!({ "resourceVersion": self.revision.to_string() });
        if let Some(token) = self.next {
            metadata["continue"] = token.into();
        }
        if let Some(remaining) = self.remaining {
            metadata["remainingItemCount"] = remaining.into();
        }
        metadata.to_string()
    }
}

/// Appends the part of a list before its first item. `]}` ends the list.
pub fn open_list(out: &mut Vec<u8>, list_kind: &str, api_version: &str, page: PageMetadata<'_>) {
    let metadata = page.to_json();
    let open =
        format!(r#"{{"kind":"{list_kind}","apiVersion":"{api_version}","metadata":{metadata},"items":["#);
    out.extend_from_slice(open.as_bytes());
}

/// Appends the part of a Table before its first row. `]}` ends the table. Tables after the first of a watch have no
/// column definitions.
pub fn open_table(out: &mut Vec<u8>, meta: MetaVersion, columns: &Value, page: PageMetadata<'_>) {
    let (version, metadata) = (meta.api_version(), page.to_json());
    let open = format!(
        r#"{{"kind":"Table","apiVersion":"{version}","metadata":{metadata},"columnDefinitions":{columns},"rows":["#
    );
    out.extend_from_slice(open.as_bytes());
}

/// Appends PartialObjectMetadata: the text of the metadata with its revision, without parsing its fields.
pub fn partial_object_metadata(out: &mut Vec<u8>, meta: MetaVersion, revision: Revision, stored: &[u8]) {
    #[derive(Deserialize)]
    struct Outline<'a> {
        #[serde(borrow)]
        metadata: &'a RawValue,
    }
    let outline = serde_json::from_slice::<Outline<'_>>(stored);
    let metadata = outline.as_ref().map_or(r#"{"name":""}"#, |outline| outline.metadata.get());
    let version = meta.api_version();
    let open = format!(
        r#"{{"kind":"PartialObjectMetadata","apiVersion":"{version}","metadata":{{"resourceVersion":"{revision}","#
    );
    out.extend_from_slice(open.as_bytes());
    out.extend_from_slice(metadata.get(1..).unwrap_or("}").as_bytes());
    out.push(b'}');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table;

    #[test]
    fn a_table_of_any_resource_is_json() {
        let mut out = Vec::new();
        let page = PageMetadata { revision: Revision(9), next: Some("token"), remaining: Some(3) };
        open_table(&mut out, MetaVersion::V1, &table::definitions_of(&table::DEFAULT_COLUMNS), page);
        out.extend_from_slice(br#"{"cells":["a","5m"],"object":"#);
        partial_object_metadata(&mut out, MetaVersion::V1, Revision(4), br#"{"metadata":{"name":"a"}}"#);
        out.extend_from_slice(b"}]}");
        let found: Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(
            found["metadata"],
            json!({"resourceVersion": "9", "continue": "token", "remainingItemCount": 3})
        );
        assert_eq!(found["columnDefinitions"][0]["name"], "Name");
        assert_eq!(found["rows"][0]["object"]["metadata"], json!({"resourceVersion": "4", "name": "a"}));
    }
}
