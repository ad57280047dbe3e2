//! Decides whether an object that the cluster has is the one that a pending write creates.
//!
//! The answer to a create may be lost with the link; the write is sent again and meets its own object (409). The UID is not known at the site,
//! so the fields decide: an object that has every written field is the wanted state, and the write is done. Any other object stays as it
//! is, and the write is dropped and reported.

use serde_json::Value;

// Set by the API server, whatever a client writes.
const SERVER_FIELDS: [&str; 6] =
    ["uid", "resourceVersion", "creationTimestamp", "generation", "managedFields", "selfLink"];

/// Returns true if `existing` has every field of `written`. Fields that the API server adds by default do not matter.
pub fn has_written_fields(existing: &Value, written: &Value) -> bool {
    let (Value::Object(have), Value::Object(want)) = (existing, written) else { return false };
    // An object that is being deleted is not the wanted state.
    if !existing["metadata"]["deletionTimestamp"].is_null() {
        return false;
    }
    want.iter().all(|(name, value)| match (name.as_str(), value) {
        // The status of a new object is not taken from the request.
        ("status", _) => true,
        ("metadata", Value::Object(metadata)) => metadata
            .iter()
            .filter(|(field, _)| !SERVER_FIELDS.contains(&field.as_str()))
            .all(|(field, value)| includes(&existing["metadata"][field], value)),
        _ => includes(have.get(name).unwrap_or(&Value::Null), value),
    })
}

/// Lists must have the same length and order; their elements may have more fields.
fn includes(have: &Value, want: &Value) -> bool {
    match (have, want) {
        // Absent, null and empty are one in the API.
        (Value::Null, want) => is_empty(want),
        (Value::Object(have), Value::Object(want)) => {
            want.iter().all(|(name, value)| includes(have.get(name).unwrap_or(&Value::Null), value))
        }
        (Value::Array(have), Value::Array(want)) => {
            have.len() == want.len() && have.iter().zip(want).all(|(have, want)| includes(have, want))
        }
        (_, Value::Null) => false,
        (have, want) => have == want,
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(fields) => fields.values().all(is_empty),
        Value::Array(items) => items.is_empty(),
        Value::String(text) => text.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_object_with_every_written_field_is_the_one_that_was_written() {
        let existing = json!({"kind": "ConfigMap", "apiVersion": "v1", "data": {"a": "b", "c": "d"}, "list": [{"x": 1, "protocol": "TCP"}],
            "metadata": {"name": "n", "namespace": "shop", "uid": "u", "resourceVersion": "7", "labels": {"tier": "edge"}}});
        let check = |written: Value, expected: bool| {
            assert_eq!(has_written_fields(&existing, &written), expected, "{written}");
        };
        check(json!({"kind": "ConfigMap", "metadata": {"name": "n"}, "data": {"a": "b"}}), true);
        check(json!({"metadata": {"name": "n", "creationTimestamp": null, "uid": "other"}}), true);
        check(json!({"metadata": {"name": "n", "annotations": {}}, "status": {"x": 1}}), true);
        check(json!({"metadata": {"name": "n"}, "list": [{"x": 1}]}), true);
        check(json!({"metadata": {"name": "n"}, "data": {"a": "other"}}), false);
        check(json!({"metadata": {"name": "n"}, "data": {"new": "b"}}), false);
        check(json!({"metadata": {"name": "n", "labels": {"tier": "cloud"}}}), false);
        check(json!({"metadata": {"name": "n"}, "list": [{"x": 1}, {"x": 2}]}), false);
        check(json!({"metadata": {"name": "n"}, "immutable": false}), false);
        check(json!([]), false);
        let mut leaving = existing.clone();
        leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        assert!(!has_written_fields(&leaving, &json!({"metadata": {"name": "n"}})));
    }
}
