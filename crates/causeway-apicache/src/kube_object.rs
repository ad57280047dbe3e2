//! Kubernetes objects as text: identity, the form in which they are kept, and the forms in which clients get them.
//!
//! The kept form is the server's JSON. Built-in kinds lose `kind` and `apiVersion` in front, as kube-apiserver omits them
//! inside lists; custom resources keep theirs, as there too. No other byte is changed, so no field is lost.

use std::borrow::Cow;

use bytes::{BufMut, Bytes, BytesMut};
use causeway_api::Revision;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::resource::ResourceDescription;

/// One object at one revision.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KubeObject {
    /// `NAMESPACE/NAME`, or `NAME`. The order of keys is that of etcd.
    pub key: String,
    pub uid: String,
    pub revision: Revision,
    /// The kept form.
    pub body: Bytes,
    /// The cells of the object's row in the server's table, as a JSON array; empty when there is none.
    pub cells: Bytes,
}

#[derive(Deserialize)]
struct Outline<'a> {
    #[serde(borrow)]
    metadata: &'a RawValue,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Identity<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(borrow, default)]
    namespace: Cow<'a, str>,
    #[serde(borrow, default)]
    uid: Cow<'a, str>,
    #[serde(borrow, default)]
    resource_version: Cow<'a, str>,
}

/// An object that the API server sent and that cannot be kept.
#[derive(Debug, thiserror::Error)]
pub enum ObjectError {
    #[error("an object is no JSON with metadata")]
    Malformed(#[from] serde_json::Error),
    #[error("the resourceVersion {0:?} of an object is no number")]
    Revision(String),
}

impl KubeObject {
    /// Reads an object as the API server wrote it.
    pub fn read(
        description: &ResourceDescription,
        text: &[u8],
        cells: Bytes,
    ) -> Result<KubeObject, ObjectError> {
        let outline: Outline<'_> = serde_json::from_slice(text)?;
        let identity: Identity<'_> = serde_json::from_str(outline.metadata.get())?;
        let revision = parse_revision(&identity.resource_version)?;
        let key = match &*identity.namespace {
            "" => identity.name.into_owned(),
            namespace => format!("{namespace}/{}", identity.name),
        };
        let body = kept_form(description, text);
        Ok(KubeObject { key, uid: identity.uid.into_owned(), revision, body, cells })
    }

    /// Body and cells in one value, for watches.
    pub fn pack(&self) -> Bytes {
        let mut packed = BytesMut::with_capacity(4 + self.cells.len() + self.body.len());
        packed.put_u32(u32::try_from(self.cells.len()).unwrap_or(0));
        packed.extend_from_slice(&self.cells);
        packed.extend_from_slice(&self.body);
        packed.freeze()
    }
}

/// Returns the body and the cells of a packed object.
pub fn unpack(packed: &[u8]) -> (&[u8], &[u8]) {
    let Some((length, rest)) = packed.split_first_chunk::<4>() else { return (b"", b"") };
    let length = (u32::from_be_bytes(*length) as usize).min(rest.len());
    let (cells, body) = rest.split_at(length);
    (body, cells)
}

/// The revision of an object in the text of an answer; `None` when it has none.
pub fn revision_of(text: &[u8]) -> Option<Revision> {
    let outline: Outline<'_> = serde_json::from_slice(text).ok()?;
    let identity: Identity<'_> = serde_json::from_str(outline.metadata.get()).ok()?;
    parse_revision(&identity.resource_version).ok().filter(|revision| revision.0 > 0)
}

/// Reads a resourceVersion; the empty text is revision 0.
pub fn parse_revision(text: &str) -> Result<Revision, ObjectError> {
    match text {
        "" => Ok(Revision(0)),
        text => {
            text.parse().map(Revision).map_err(|_| ObjectError::Revision(text.chars().take(40).collect()))
        }
    }
}

fn kept_form(description: &ResourceDescription, text: &[u8]) -> Bytes {
    match text.strip_prefix(type_head(description).as_bytes()) {
        Some(rest) => {
            let mut body = BytesMut::with_capacity(rest.len() + 1);
            body.put_u8(b'{');
            body.extend_from_slice(rest);
            body.freeze()
        }
        None => Bytes::copy_from_slice(text),
    }
}

/// The beginning of an object of a built-in kind.
fn type_head(description: &ResourceDescription) -> String {
    format!(r#"{{"kind":"{}","apiVersion":"{}","#, description.kind, description.name.api_version())
}

// An object of a custom resource begins with its apiVersion, which sorts before its metadata.
const WITHOUT_TYPE: &[u8] = br#"{"metadata":"#;

/// Writes a changed object in the kept form: metadata first, as the API server does for built-in kinds.
pub fn kept_text(object: &serde_json::Value) -> String {
    let fields = object.as_object().filter(|fields| !fields.contains_key("apiVersion"));
    let Some((fields, metadata)) = fields.and_then(|fields| Some((fields, fields.get("metadata")?))) else {
        return object.to_string();
    };
    let mut text = format!(r#"{{"metadata":{metadata}"#);
    for (name, value) in fields.iter().filter(|(name, _)| *name != "metadata") {
        text.push_str(&format!(",{}:{value}", serde_json::Value::from(name.as_str())));
    }
    text.push('}');
    text
}

/// Appends an object as a client gets it alone: with kind and apiVersion, and at `revision`.
pub fn append_object(out: &mut Vec<u8>, description: &ResourceDescription, revision: Revision, body: &[u8]) {
    let body = at_revision(body, revision);
    match body.strip_prefix(b"{").filter(|_| body.starts_with(WITHOUT_TYPE)) {
        Some(rest) => {
            out.extend_from_slice(type_head(description).as_bytes());
            out.extend_from_slice(rest);
        }
        None => out.extend_from_slice(&body),
    }
}

/// Returns the object with another resourceVersion: a deletion carries the revision that deleted the object.
fn at_revision(body: &[u8], revision: Revision) -> Cow<'_, [u8]> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Version<'a> {
        #[serde(borrow)]
        resource_version: &'a RawValue,
    }
    let read = || {
        let outline: Outline<'_> = serde_json::from_slice(body).ok()?;
        let version: Version<'_> = serde_json::from_str(outline.metadata.get()).ok()?;
        let text = version.resource_version.get();
        // A raw value is a part of the text that it was read from.
        let start = (text.as_ptr() as usize).checked_sub(body.as_ptr() as usize)?;
        Some((start, text.len(), text.trim_matches('"') == revision.to_string()))
    };
    match read() {
        Some((start, length, false)) if start + length <= body.len() => {
            let mut text = Vec::with_capacity(body.len() + 8);
            text.extend_from_slice(&body[..start]);
            text.extend_from_slice(format!("\"{revision}\"").as_bytes());
            text.extend_from_slice(&body[start + length..]);
            Cow::Owned(text)
        }
        _ => Cow::Borrowed(body),
    }
}

/// Appends the PartialObjectMetadata of an object at `revision`.
pub fn append_metadata(out: &mut Vec<u8>, meta_version: &str, revision: Revision, body: &[u8]) {
    let body = at_revision(body, revision);
    let outline = serde_json::from_slice::<Outline<'_>>(&body);
    let metadata = outline.as_ref().map_or("{}", |outline| outline.metadata.get());
    let head = format!(r#"{{"kind":"PartialObjectMetadata","apiVersion":"{meta_version}","metadata":"#);
    out.extend_from_slice(head.as_bytes());
    out.extend_from_slice(metadata.as_bytes());
    out.push(b'}');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::ResourceName;

    fn description(group: &str, kind: &str) -> ResourceDescription {
        ResourceDescription {
            name: ResourceName::new(group, "v1", "things"),
            kind: kind.into(),
            list_kind: format!("{kind}List"),
            is_namespaced: true,
            columns: "[]".into(),
        }
    }

    #[test]
    fn a_built_in_kind_is_kept_without_its_type_and_given_with_it() {
        let description = description("", "Thing");
        let text = br#"{"kind":"Thing","apiVersion":"v1","metadata":{"name":"a","namespace":"shop","uid":"u","resourceVersion":"7"},"x":1}"#;
        let object = KubeObject::read(&description, text, Bytes::new()).unwrap();
        assert_eq!((object.key.as_str(), object.uid.as_str(), object.revision), ("shop/a", "u", Revision(7)));
        assert!(object.body.starts_with(WITHOUT_TYPE));
        let mut out = Vec::new();
        append_object(&mut out, &description, Revision(7), &object.body);
        assert_eq!(out, text);
        out.clear();
        append_object(&mut out, &description, Revision(1234), &object.body);
        assert_eq!(
            String::from_utf8(out).unwrap(),
            String::from_utf8_lossy(text).replace("\"7\"", "\"1234\"")
        );
    }

    #[test]
    fn a_custom_resource_keeps_every_byte() {
        let description = description("example.org", "Thing");
        let text = br#"{"apiVersion":"example.org/v1","kind":"Thing","metadata":{"name":"a","resourceVersion":"7"},"y":[1.0]}"#;
        let object = KubeObject::read(&description, text, Bytes::from_static(b"[1]")).unwrap();
        assert_eq!((object.key.as_str(), &object.body[..]), ("a", &text[..]));
        assert_eq!(unpack(&object.pack()), (&text[..], &b"[1]"[..]));
        let mut out = Vec::new();
        append_object(&mut out, &description, Revision(7), &object.body);
        assert_eq!(out, text);
        out.clear();
        append_metadata(&mut out, "meta.k8s.io/v1", Revision(9), &object.body);
        let found: serde_json::Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(found["metadata"]["resourceVersion"], "9");
    }

    #[test]
    fn a_changed_object_is_written_in_the_kept_form() {
        let slice = serde_json::json!({"addressType": "IPv4", "metadata": {"name": "a"}, "z\"": 1});
        assert_eq!(kept_text(&slice), r#"{"metadata":{"name":"a"},"addressType":"IPv4","z\"":1}"#);
        let custom = serde_json::json!({"apiVersion": "x/v1", "kind": "X", "metadata": {}});
        assert_eq!(kept_text(&custom), custom.to_string());
        assert_eq!(kept_text(&serde_json::json!([1])), "[1]");
    }

    #[test]
    fn foreign_bytes_are_refused() {
        let description = description("", "Thing");
        for text in
            ["", "[]", "{}", r#"{"metadata":1}"#, r#"{"metadata":{"name":"a","resourceVersion":"x"}}"#]
        {
            assert!(KubeObject::read(&description, text.as_bytes(), Bytes::new()).is_err(), "{text}");
        }
        assert_eq!(unpack(b"\xff\xff\xff\xffab"), (&b""[..], &b"ab"[..]));
    }
}
