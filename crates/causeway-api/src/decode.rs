//! From a client's JSON to an object.
//!
//! Wrong types are refused with the path of the field. Unknown fields are left out and their paths reported; whether that is a
//! warning or an error is the client's choice. Nested input can be as deep as it likes: what is too deep is taken apart without recursion.

use serde_json::{Map, Value};

use crate::field::{FieldError, FieldReason};
use crate::object::{Decoded, Object};
use crate::{Kind, schema};

// What serde_json allows when it parses text; values built by patches must not get deeper either.
const DEPTH_MAX: usize = 128;
// A client that sends more unknown fields than this has sent something else entirely.
const UNKNOWN_MAX: usize = 100;

impl Object {
    /// Reads an object of `kind`. `kind` and `apiVersion` inside are the caller's to compare; null means absent, as in Kubernetes.
    pub fn decode(kind: Kind, value: Value) -> Result<Decoded, Vec<FieldError>> {
        if !is_shallow(&value) {
            dismantle(value);
            return Err(vec![FieldError::invalid(
                "",
                "{…}",
                format!("nested deeper than {DEPTH_MAX} levels"),
            )]);
        }
        let Value::Object(mut fields) = value else {
            let what = format!("expected an object, found {}", type_name(&value));
            return Err(vec![FieldError::wrong_type("", what)]);
        };
        fields.remove("kind");
        fields.remove("apiVersion");
        drop_nulls(&mut fields);
        let value = Value::Object(fields);

        let mut findings = Findings::default();
        findings.walk(schema::of(kind), &value, &mut String::new());
        let Findings { unknown, list_for_object } = findings;
        if let Some(path) = list_for_object {
            return Err(vec![FieldError::wrong_type(path, "expected an object, found a list")]);
        }

        let mut track = serde_path_to_error::Track::new();
        let deserializer = serde_path_to_error::Deserializer::new(value, &mut track);
        match Object::deserialize(kind, deserializer) {
            Ok(object) => Ok(Decoded { object, unknown }),
            Err(error) => Err(vec![refusal(track.path().to_string(), &error)]),
        }
    }

    /// Reads the stored form, which `encode` wrote.
    pub fn from_stored(kind: Kind, stored: &[u8]) -> Result<Object, serde_json::Error> {
        Object::deserialize(kind, &mut serde_json::Deserializer::from_slice(stored))
    }
}

/// Says serde's words in ours: what was found, what is expected.
fn refusal(path: String, error: &serde_json::Error) -> FieldError {
    let path = if path == "." { String::new() } else { path };
    let text = error.to_string();
    if let Some(rest) = text.strip_prefix("unknown variant ") {
        let (found, supported) = rest.split_once(", expected ").unwrap_or((rest, ""));
        let supported = supported.trim_start_matches("one of ").replace('`', "\"");
        let shown = crate::field::show(&found.trim_matches('`').into());
        return FieldError {
            path,
            reason: FieldReason::NotSupported,
            message: format!("Unsupported value: {shown}: supported values: {supported}"),
        };
    }
    let (found, expected) = text.split_once(", expected ").unwrap_or((&text, ""));
    let found = found.trim_start_matches("invalid type: ").trim_start_matches("invalid value: ");
    let found: String = found.chars().take(120).collect();
    match expected {
        "" => FieldError::wrong_type(path, found),
        expected => FieldError::wrong_type(path, format!("expected {}, found {found}", plain(expected))),
    }
}

fn plain(expected: &str) -> &str {
    match expected {
        "i64" => "an integer",
        "a sequence" => "a list",
        "a map" => "an object",
        "a boolean" => "true or false",
        other if other.starts_with("struct ") => "an object",
        other => other,
    }
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// Is the value shallow enough to be walked by recursion? Finds out without recursion.
pub fn is_shallow(value: &Value) -> bool {
    let mut open = vec![(value, 1)];
    while let Some((value, depth)) = open.pop() {
        let children: &mut dyn Iterator<Item = &Value> = match value {
            Value::Array(items) => &mut items.iter(),
            Value::Object(fields) => &mut fields.values(),
            _ => continue,
        };
        if depth > DEPTH_MAX {
            return false;
        }
        open.extend(
            children.filter(|child| child.is_array() || child.is_object()).map(|child| (child, depth + 1)),
        );
    }
    true
}

/// Drops a value of any depth. Its own drop recurses and could overflow the stack.
pub fn dismantle(value: Value) {
    let mut open = vec![value];
    while let Some(value) = open.pop() {
        match value {
            Value::Array(items) => open.extend(items),
            Value::Object(fields) => open.extend(fields.into_iter().map(|(_, value)| value)),
            _ => {}
        }
    }
}

fn drop_nulls(fields: &mut Map<String, Value>) {
    fields.retain(|_, value| !value.is_null());
    for value in fields.values_mut() {
        drop_nulls_in(value);
    }
}

fn drop_nulls_in(value: &mut Value) {
    match value {
        Value::Object(fields) => drop_nulls(fields),
        Value::Array(items) => items.iter_mut().for_each(drop_nulls_in),
        _ => {}
    }
}

/// What the schema says about a value that serde would not say.
#[derive(Default)]
struct Findings {
    unknown: Vec<String>,
    /// Where a list stands for an object. Serde would take its items for the fields, in the order they are declared.
    list_for_object: Option<String>,
}

impl Findings {
    /// Walks value and schema side by side. Recursion is as deep as the schema, not as the value.
    fn walk(&mut self, schema: &Value, value: &Value, path: &mut String) {
        let length = path.len();
        let properties = schema.get("properties").and_then(Value::as_object);
        match (value, properties) {
            (Value::Object(fields), Some(properties)) => {
                for (key, value) in fields {
                    if !path.is_empty() {
                        path.push('.');
                    }
                    path.push_str(key);
                    match properties.get(key) {
                        Some(schema) => self.walk(schema, value, path),
                        None if self.unknown.len() < UNKNOWN_MAX => {
                            self.unknown.push(path.chars().take(256).collect());
                        }
                        None => {}
                    }
                    path.truncate(length);
                }
            }
            (Value::Array(_), Some(_)) => self.list_for_object = Some(path.clone()),
            (Value::Array(items), None) => {
                let Some(schema) = schema.get("items") else { return };
                for (index, value) in items.iter().enumerate() {
                    path.push_str(&format!("[{index}]"));
                    self.walk(schema, value, path);
                    path.truncate(length);
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
