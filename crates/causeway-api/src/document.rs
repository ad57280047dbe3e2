//! The document of an object: its typed form, with the zero values that a client wrote.
//!
//! The typed form cannot distinguish `relay: false` from an absent `relay`. Clients can, and compare the
//! applied object with the one they read: a field that was written must be read back. So the document is
//! stored, and rules are checked on the typed form. Metadata follows Kubernetes, which drops empty fields
//! there. Pure.

use bytes::Bytes;
use serde_json::{Map, Value};

use crate::field::FieldError;
use crate::object::Object;
use crate::wire::STORED_PREFIX;
use crate::{Kind, schema};

impl Object {
    /// Returns the document to store: this object, and the zero values of `written` that it leaves out.
    /// `written` is the client's document as `decode` kept it; for an object of our own making, the document
    /// that it replaces, or null.
    pub fn document(&self, written: &Value) -> Value {
        let mut document =
            serde_json::to_value(self).expect("objects have only string keys and finite numbers");
        if let (Value::Object(fields), Value::Object(written)) = (&mut document, written) {
            for (name, value) in written.iter().filter(|(name, _)| *name != "metadata") {
                keep_zero(fields, name, value);
            }
        }
        document
    }
}

/// Encodes the stored form of a document: metadata first, as `wire::splice` needs it, and the status last, as
/// is usual.
pub fn encode(document: &Value) -> Bytes {
    let mut out = Vec::new();
    let write = |out: &mut Vec<u8>, value: &Value| {
        serde_json::to_writer(out, value).expect("a value is written into memory");
    };
    out.extend_from_slice(br#"{"metadata":"#);
    write(&mut out, document.get("metadata").unwrap_or(&Value::Null));
    let none = Map::new();
    let fields = document.as_object().unwrap_or(&none);
    let own = fields.iter().filter(|(name, _)| !["metadata", "status"].contains(&name.as_str()));
    let status = fields.iter().filter(|(name, _)| *name == "status");
    for (name, value) in own.chain(status) {
        out.push(b',');
        write(&mut out, &Value::String(name.clone()));
        out.push(b':');
        write(&mut out, value);
    }
    out.push(b'}');
    debug_assert!(out.starts_with(STORED_PREFIX.as_bytes()));
    out.into()
}

/// Tells whether the kind's own fields are the same in both documents. If not, `generation` rises.
pub fn same_fields(left: &Value, right: &Value) -> bool {
    let none = Map::new();
    let own = |document: &'_ Value| -> Vec<(String, Value)> {
        let fields = document.as_object().unwrap_or(&none).iter();
        let own = fields.filter(|(name, _)| !["metadata", "status"].contains(&name.as_str()));
        own.map(|(name, value)| (name.clone(), value.clone())).collect()
    };
    own(left) == own(right)
}

fn keep_zero(fields: &mut Map<String, Value>, name: &str, written: &Value) {
    match fields.get_mut(name) {
        Some(held) => keep_zeros(held, written),
        None if is_zero(written) => drop(fields.insert(name.to_owned(), written.clone())),
        // Written with a value, and absent now: changed or dropped on purpose.
        None => {}
    }
}

fn keep_zeros(held: &mut Value, written: &Value) {
    match (held, written) {
        (Value::Object(fields), Value::Object(written)) => {
            written.iter().for_each(|(name, value)| keep_zero(fields, name, value));
        }
        (Value::Array(items), Value::Array(written)) if items.len() == written.len() => {
            items.iter_mut().zip(written).for_each(|(item, written)| keep_zeros(item, written));
        }
        _ => {}
    }
}

fn is_zero(value: &Value) -> bool {
    match value {
        Value::Bool(value) => !value,
        Value::Number(number) => number.as_i64() == Some(0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.values().all(is_zero),
        Value::Null => false,
    }
}

/// Returns written zeros that are below the schema's minimum. The typed form treats them as absent, so its
/// rules do not see them.
pub fn refused_zeros(kind: Kind, written: &Value) -> Vec<FieldError> {
    let mut refused = Vec::new();
    find_zeros(schema::of(kind), written, &mut String::new(), &mut refused);
    refused
}

// As many as `field::FieldErrors` keeps.
const REFUSED_MAX: usize = 64;

fn find_zeros(schema: &Value, value: &Value, path: &mut String, refused: &mut Vec<FieldError>) {
    let length = path.len();
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let Some(schema) = schema.get("properties").and_then(|all| all.get(name)) else { continue };
                if !path.is_empty() {
                    path.push('.');
                }
                path.push_str(name);
                find_zeros(schema, value, path, refused);
                path.truncate(length);
            }
        }
        Value::Array(items) => {
            let Some(schema) = schema.get("items") else { return };
            for (index, value) in items.iter().enumerate() {
                path.push_str(&format!("[{index}]"));
                find_zeros(schema, value, path, refused);
                path.truncate(length);
            }
        }
        Value::Number(number) if number.as_i64() == Some(0) && refused.len() < REFUSED_MAX => {
            if let Some(minimum) = schema.get("minimum").and_then(Value::as_i64).filter(|least| *least > 0) {
                let why = format!("should be greater than or equal to {minimum}");
                refused.push(FieldError::invalid(path.as_str(), 0, why));
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Compares the stored form of a document that a client wrote.
    fn check(kind: Kind, written: Value, expected: Value) {
        let decoded = Object::decode(kind, written.clone()).unwrap();
        let mut document = decoded.object.document(&decoded.document);
        let read = Object::from_stored(kind, &encode(&document)).unwrap();
        assert_eq!(read, decoded.object, "{written}");
        document.as_object_mut().unwrap().remove("metadata");
        assert_eq!(document, expected, "{written}");
    }

    #[test]
    fn zero_values_are_kept_where_they_were_written() {
        let gateway = Kind::EGateway;
        check(gateway, json!({}), json!({}));
        check(
            gateway,
            json!({"relay": false, "priority": 0, "ip": ""}),
            json!({"relay": false, "priority": 0, "ip": ""}),
        );
        check(gateway, json!({"relay": true, "eSiteName": "a"}), json!({"relay": true, "eSiteName": "a"}));
        check(gateway, json!({"relay": null, "colour": ""}), json!({}));
        check(Kind::ESite, json!({"subnets": []}), json!({"subnets": []}));
        check(Kind::ESite, json!({"metadata": {"name": "a", "labels": {}, "finalizers": []}}), json!({}));
        check(Kind::ESite, json!({"status": {"conditions": []}}), json!({"status": {"conditions": []}}));
        check(
            Kind::EPolicy,
            json!({"limits": {}, "http": [{"methods": [], "paths": ["/a"]}, {}]}),
            json!({"limits": {}, "http": [{"methods": [], "paths": ["/a"]}, {}]}),
        );
        check(
            Kind::EService,
            json!({"endpoints": [], "proxyProtocol": false, "healthCheck": {"path": ""}}),
            json!({
                "endpoints": [], "proxyProtocol": false, "protocol": "TCP",
                "healthCheck": {"path": "", "type": "TCP", "intervalSeconds": 10},
            }),
        );
    }

    #[test]
    fn what_the_object_says_is_stronger_than_what_was_written() {
        let mut object = Object::decode(Kind::EGateway, json!({"relay": false})).unwrap().object;
        object.default_fields();
        let written = json!({"relay": false, "virtualPresenceIPcidr": "", "priority": 7});
        let document = object.document(&written);
        assert_eq!(document["virtualPresenceIPcidr"], crate::kinds::PRESENCE_CIDR_DEFAULT);
        assert_eq!(document["relay"], false);
        assert_eq!(document.get("priority"), None, "the object had it taken away");
    }

    #[test]
    fn a_zero_below_the_minimum_is_refused_where_it_was_written() {
        let refused = |value: Value| {
            let refused = refused_zeros(Kind::EService, &value);
            refused.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(
            refused(json!({"endpoints": [{"ip": "10.0.0.1"}, {"ip": "10.0.0.2", "port": 0}]})),
            ["endpoints[1].port: Invalid value: 0: should be greater than or equal to 1"]
        );
        assert_eq!(refused(json!({"port": 0})).len(), 1);
        assert_eq!(refused(json!({"port": 1, "endpoints": []})), [""; 0]);
    }
}
