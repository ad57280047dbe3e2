//! One step of a field path: a field's name, an item of a list by key, value or index.
//!
//! Text as in Kubernetes' FieldsV1 (`f:port`, `k:{"type":"Ready"}`, `v:"x"`, `i:0`) comes in and goes out;
//! `Display` is the form people read in conflicts (`.port`, `[type="Ready"]`, `[="x"]`).
//! Keys and values are kept as canonical JSON text, so that elements can be ordered and compared cheaply.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::{Map, Value};

use super::field_set::FieldSetError;

/// The order of the variants is the order in which Kubernetes prints them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Element {
    Field(String),
    /// The key fields of an item of an associative list: a JSON object of scalars, its names sorted.
    Key(String),
    /// An item of a set: a JSON scalar.
    Value(String),
    Index(i64),
}

/// Longest text of one element, in bytes. Label keys have 317, names 253; a finalizer is a qualified name.
/// Generous, because annotation keys of foreign clients are only checked after ownership was read.
const ELEMENT_BYTES_MAX: usize = 4096;

impl Element {
    pub fn field(name: impl Into<String>) -> Element {
        Element::Field(name.into())
    }

    /// The element of `item` in a list whose items are told apart by `keys`. A missing key counts as null.
    pub fn key_of(item: &Value, keys: &[&str]) -> Element {
        let fields: BTreeMap<&str, &Value> =
            keys.iter().map(|key| (*key, item.get(*key).unwrap_or(&Value::Null))).collect();
        Element::Key(canonical(&fields))
    }

    pub fn value_of(item: &Value) -> Element {
        Element::Value(item.to_string())
    }

    pub fn parse(text: &str) -> Result<Element, FieldSetError> {
        let malformed = || FieldSetError::Malformed { element: text.chars().take(64).collect() };
        if text.len() > ELEMENT_BYTES_MAX {
            return Err(malformed());
        }
        let (tag, rest) = text.split_once(':').ok_or_else(malformed)?;
        match tag {
            "f" => Ok(Element::field(rest)),
            "i" => rest.parse().map(Element::Index).map_err(|_| malformed()),
            "v" => match serde_json::from_str::<Value>(rest) {
                Ok(value) if is_scalar(&value) => Ok(Element::value_of(&value)),
                _ => Err(malformed()),
            },
            "k" => match serde_json::from_str::<BTreeMap<String, Value>>(rest) {
                Ok(fields) if !fields.is_empty() && fields.values().all(is_scalar) => {
                    Ok(Element::Key(canonical(&fields)))
                }
                _ => Err(malformed()),
            },
            _ => Err(malformed()),
        }
    }

    pub fn print(&self) -> String {
        match self {
            Element::Field(name) => format!("f:{name}"),
            Element::Key(fields) => format!("k:{fields}"),
            Element::Value(value) => format!("v:{value}"),
            Element::Index(index) => format!("i:{index}"),
        }
    }
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Element::Field(name) => write!(f, ".{name}"),
            Element::Value(value) => write!(f, "[={value}]"),
            Element::Index(index) => write!(f, "[{index}]"),
            Element::Key(fields) => {
                let fields: Map<String, Value> = serde_json::from_str(fields).unwrap_or_default();
                let pairs: Vec<String> =
                    fields.iter().map(|(name, value)| format!("{name}={value}")).collect();
                write!(f, "[{}]", pairs.join(","))
            }
        }
    }
}

fn is_scalar(value: &Value) -> bool {
    !value.is_array() && !value.is_object()
}

/// JSON text with sorted names, in whatever order `serde_json::Map` keeps them.
fn canonical(fields: &impl serde::Serialize) -> String {
    serde_json::to_string(fields).expect("a map from strings to JSON values is always JSON")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, shown: Option<&str>) {
        let parsed = Element::parse(text);
        assert_eq!(parsed.as_ref().ok().map(ToString::to_string).as_deref(), shown, "{text}");
        if let Ok(element) = parsed {
            assert_eq!(Element::parse(&element.print()).as_ref(), Ok(&element), "{text}");
        }
    }

    #[test]
    fn elements_are_read_as_kubernetes_writes_them() {
        check("f:port", Some(".port"));
        check("f:", Some("."));
        check("f:app.kubernetes.io/name", Some(".app.kubernetes.io/name"));
        check("f:a:b", Some(".a:b"));
        check(r#"k:{"type":"Ready"}"#, Some(r#"[type="Ready"]"#));
        check(r#"k:{"b":1,"a":"x"}"#, Some(r#"[a="x",b=1]"#));
        check(r#"v:"x""#, Some(r#"[="x"]"#));
        check("v:3", Some("[=3]"));
        check("i:7", Some("[7]"));
    }

    #[test]
    fn what_is_no_element_is_refused() {
        for text in ["", "port", ".", "x:1", "i:", "i:x", "v:", "v:{}", "v:[1]", "k:", "k:{}", "k:[]"] {
            check(text, None);
        }
        check(r#"k:{"type":{"deep":1}}"#, None);
        check(&format!("f:{}", "x".repeat(5000)), None);
    }
}
