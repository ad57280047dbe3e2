//! Objects as bytes: the stored form, and its conversion to the form for clients.
//!
//! The stored form is JSON that begins with `{"metadata":{` and has neither kind, apiVersion nor
//! resourceVersion. So a read needs no parsing: `splice` writes those three in front and copies the rest.

use bytes::Bytes;
use serde_json::Value;

use crate::kinds::event;
use crate::object::Object;
use crate::{GROUP, Kind, VERSION};

/// The API version under which an object is served; both show the same objects.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ApiVersion {
    /// `apiVersion: v1`, as the design documents write it.
    Core,
    /// `apiVersion: causeway.io/v1`.
    Group,
    /// `apiVersion: events.k8s.io/v1`: events alone, with some fields under other names.
    Events,
}

impl ApiVersion {
    pub const fn as_str(self) -> &'static str {
        match self {
            ApiVersion::Core => "v1",
            ApiVersion::Group => "causeway.io/v1",
            ApiVersion::Events => "events.k8s.io/v1",
        }
    }

    /// The group alone; empty for the core path.
    pub const fn group(self) -> &'static str {
        match self {
            ApiVersion::Core => "",
            ApiVersion::Group => GROUP,
            ApiVersion::Events => "events.k8s.io",
        }
    }

    pub const fn version(self) -> &'static str {
        VERSION
    }

    pub const ALL: [ApiVersion; 3] = [ApiVersion::Core, ApiVersion::Group, ApiVersion::Events];

    pub fn parse(text: &str) -> Option<ApiVersion> {
        ApiVersion::ALL.into_iter().find(|version| version.as_str() == text)
    }
}

/// The beginning of every stored object.
pub const STORED_PREFIX: &str = r#"{"metadata":{"#;

impl Object {
    /// The stored form.
    pub fn encode(&self) -> Bytes {
        let stored = serde_json::to_vec(self).expect("objects have only string keys and finite numbers");
        debug_assert!(stored.starts_with(STORED_PREFIX.as_bytes()));
        stored.into()
    }

    /// Returns the form for clients, as a value. For whole lists use `splice`.
    pub fn to_value(&self, version: ApiVersion, revision: u64) -> Value {
        let mut value = serde_json::to_value(self).expect("objects have only string keys and finite numbers");
        value["kind"] = self.kind().name().into();
        value["apiVersion"] = version.as_str().into();
        if revision > 0 {
            value["metadata"]["resourceVersion"] = revision.to_string().into();
        }
        value
    }
}

/// Appends the client's form of a stored object to `out`. Copies without parsing, except for events under
/// events.k8s.io/v1, whose fields have other names there.
pub fn splice(out: &mut Vec<u8>, kind: Kind, version: ApiVersion, revision: u64, stored: &[u8]) {
    debug_assert!(stored.starts_with(STORED_PREFIX.as_bytes()));
    if version == ApiVersion::Events
        && let Ok(mut value) = serde_json::from_slice::<Value>(stored)
    {
        event::rename(&mut value, version);
        return splice_text(out, kind, version, revision, with_metadata_first(&value).as_bytes());
    }
    splice_text(out, kind, version, revision, stored);
}

/// Returns JSON text that begins as the stored form does.
fn with_metadata_first(value: &Value) -> String {
    let mut rest = value.clone();
    let metadata = rest.as_object_mut().and_then(|fields| fields.remove("metadata")).unwrap_or_default();
    let rest = rest.to_string();
    let comma = if rest == "{}" { "" } else { "," };
    format!(r#"{{"metadata":{metadata}{comma}{}"#, rest.get(1..).unwrap_or("}"))
}

fn splice_text(out: &mut Vec<u8>, kind: Kind, version: ApiVersion, revision: u64, stored: &[u8]) {
    // A revision has at most 20 digits, the text around it 64 bytes, kind and version together fewer than 40.
    out.reserve(stored.len() + 128);
    out.extend_from_slice(br#"{"kind":""#);
    out.extend_from_slice(kind.name().as_bytes());
    out.extend_from_slice(br#"","apiVersion":""#);
    out.extend_from_slice(version.as_str().as_bytes());
    out.extend_from_slice(br#"","metadata":{"resourceVersion":""#);
    push_decimal(out, revision);
    out.extend_from_slice(br#"","#);
    out.extend_from_slice(stored.get(STORED_PREFIX.len()..).unwrap_or_default());
}

/// Returns the client's form of a stored object as a value, for patches. Events keep the names of `v1`.
pub fn client_value(
    kind: Kind,
    version: ApiVersion,
    revision: u64,
    stored: &[u8],
) -> Result<Value, serde_json::Error> {
    let mut text = Vec::new();
    splice_text(&mut text, kind, version, revision, stored);
    serde_json::from_slice(&text)
}

fn push_decimal(out: &mut Vec<u8>, mut number: u64) {
    let mut digits = [0u8; 20];
    let mut start = digits.len();
    loop {
        start -= 1;
        digits[start] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[start..]);
}

#[cfg(test)]
mod tests;
