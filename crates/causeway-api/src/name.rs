//! Names of objects and labels, and the source of a missing name.
//!
//! Names follow the design documents: capitals are allowed. Everything else is as in Kubernetes, so that a
//! name needs no escaping in a URL path.

use serde_json::Value;

use crate::Kind;

// Kubernetes' bounds.
const NAME_MAX: usize = 253;
const LABEL_NAME_MAX: usize = 63;
/// Characters the server appends to `generateName`.
pub const SUFFIX_LENGTH: usize = 5;

/// Checks the name of an object. The error says what is allowed.
pub fn check(name: &str) -> Result<(), String> {
    match name.len() <= NAME_MAX && is_name(name) {
        true => Ok(()),
        false => Err(format!(
            "a name has letters, digits, '-' and '.', begins and ends with a letter or a digit, has no '..', \
             and at most {NAME_MAX} characters"
        )),
    }
}

/// Checks a prefix for generated names.
pub fn check_prefix(prefix: &str) -> Result<(), String> {
    let length_max = NAME_MAX - SUFFIX_LENGTH;
    match prefix.len() <= length_max && is_name(&format!("{prefix}x")) {
        true => Ok(()),
        false => Err(format!(
            "a prefix has letters, digits, '-' and '.', begins with a letter or a digit, has no '..', \
             and at most {length_max} characters"
        )),
    }
}

fn is_name(name: &str) -> bool {
    is_wrapped(name, b"-.") && !name.contains("..")
}

/// Checks the key of a label: a name, or a DNS name, '/' and a name.
pub fn check_label_key(key: &str) -> Result<(), String> {
    let (prefix, name) = match key.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, key),
    };
    let prefix_fits = prefix.is_none_or(|prefix| {
        prefix.len() <= NAME_MAX && is_name(prefix) && !prefix.bytes().any(|byte| byte.is_ascii_uppercase())
    });
    match prefix_fits && name.len() <= LABEL_NAME_MAX && is_wrapped(name, b"-._") {
        true => Ok(()),
        false => Err(format!(
            "a key has letters, digits, '-', '_' and '.', begins and ends with a letter or a digit, has at most \
             {LABEL_NAME_MAX} characters, and may follow a lower-case DNS name and '/', for example example.com/tier"
        )),
    }
}

/// Checks the value of a label.
pub fn check_label_value(value: &str) -> Result<(), String> {
    match value.is_empty() || (value.len() <= LABEL_NAME_MAX && is_wrapped(value, b"-._")) {
        true => Ok(()),
        false => Err(format!(
            "a label's value is empty, or has letters, digits, '-', '_' and '.', begins and ends with a letter or a \
             digit, and has at most {LABEL_NAME_MAX} characters"
        )),
    }
}

/// Letters and digits at both ends, between them also the characters in `inner`.
fn is_wrapped(text: &str, inner: &[u8]) -> bool {
    let bytes = text.as_bytes();
    bytes.first().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.last().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || inner.contains(byte))
}

/// Gives an object without a name the default of the design documents: an EServer its `eServerName`, a
/// ServiceExpose its `eServiceName`. Works on the JSON form, because a client must know the name before it
/// can request the object. Changes nothing else, and leaves malformed input alone: decoding reports its
/// errors.
pub fn default_name(kind: Kind, object: &mut Value) {
    let source = match kind {
        Kind::EServer => "eServerName",
        Kind::ServiceExpose => "eServiceName",
        _ => return,
    };
    let Some(fields) = object.as_object_mut() else { return };
    let Some(name) = fields.get(source).and_then(Value::as_str).filter(|name| !name.is_empty()) else {
        return;
    };
    let name = Value::from(name);
    let metadata = fields.entry("metadata").or_insert(Value::Null);
    if metadata.is_null() {
        *metadata = Value::Object(Default::default());
    }
    let Some(metadata) = metadata.as_object_mut() else { return };
    let is_missing = |field: Option<&Value>| field.is_none_or(|value| value.is_null() || value == "");
    if is_missing(metadata.get("name")) && is_missing(metadata.get("generateName")) {
        metadata.insert("name".into(), name);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_are_those_of_the_documents_and_fit_into_a_path() {
        for name in ["TokyoChibaSite1", "a", "0", "a.b-c", "A--b", &"x".repeat(253)] {
            assert_eq!(check(name), Ok(()), "{name}");
        }
        for name in
            ["", "-a", "a-", ".a", "a.", "a..b", "a/b", "a%2f", "a b", "a_b", "ä", "a\n", &"x".repeat(254)]
        {
            assert!(check(name).is_err(), "{name}");
        }
    }

    #[test]
    fn a_prefix_may_end_with_a_dash_and_leaves_room_for_the_suffix() {
        for prefix in ["a-", "vp.", "A", &"x".repeat(248)] {
            assert_eq!(check_prefix(prefix), Ok(()), "{prefix}");
        }
        for prefix in ["-", "a..", "a_", "a/", &"x".repeat(249)] {
            assert!(check_prefix(prefix).is_err(), "{prefix}");
        }
    }

    #[test]
    fn label_keys_and_values_follow_kubernetes() {
        for key in ["a", "A_b.c-d", "example.com/tier", &"k".repeat(63)] {
            assert_eq!(check_label_key(key), Ok(()), "{key}");
        }
        for key in ["", "/a", "a/", "a/b/c", "Example.com/a", "-a", "a b", &"k".repeat(64)] {
            assert!(check_label_key(key).is_err(), "{key}");
        }
        for value in ["", "a", "A_b.c-d"] {
            assert_eq!(check_label_value(value), Ok(()), "{value}");
        }
        for value in ["-", "a b", "a/b", &"v".repeat(64)] {
            assert!(check_label_value(value).is_err(), "{value}");
        }
    }

    #[test]
    fn a_missing_name_comes_from_the_field_the_documents_mean() {
        check_default(Kind::EServer, json!({"eServerName": "S"}), Some("S"));
        check_default(Kind::EServer, json!({"eServerName": "S", "metadata": null}), Some("S"));
        check_default(Kind::EServer, json!({"eServerName": "S", "metadata": {"name": null}}), Some("S"));
        check_default(Kind::EServer, json!({"eServerName": "S", "metadata": {"name": "N"}}), Some("N"));
        check_default(Kind::EServer, json!({"eServerName": "S", "metadata": {"generateName": "n-"}}), None);
        check_default(Kind::ServiceExpose, json!({"eServiceName": "W"}), Some("W"));
        check_default(Kind::ServiceExpose, json!({"eServiceName": 7}), None);
        check_default(Kind::ServiceExpose, json!({"eServiceName": "W", "metadata": []}), None);
        check_default(Kind::VirtualPresence, json!({"eServiceName": "W"}), None);
        check_default(Kind::EServer, json!([]), None);
    }

    #[track_caller]
    fn check_default(kind: Kind, mut object: Value, expected: Option<&str>) {
        default_name(kind, &mut object);
        assert_eq!(object.pointer("/metadata/name").and_then(Value::as_str), expected);
    }
}
