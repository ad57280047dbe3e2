//! Applies a patch to an object: JSON patches here, merge patches in `causeway_api::patch`.
//!
//! Pure. A JSON patch can make a small object huge or deep, so each step is checked before it is applied.
//! `admit` checks whether the result is a valid object.

use causeway_api::{Status, patch as merge};
use json_patch::PatchOperation;
use json_patch::jsonptr::Pointer;
use serde_json::Value;

use crate::errors::unprocessable;
use crate::request::media::PatchFormat;

// Kubernetes' limit on the operations of one patch.
const OPERATIONS_MAX: usize = 10_000;
// Deeper than any object; `decode` refuses at half of it. Limits the recursion over values.
const DEPTH_MAX: usize = 256;
// Kubernetes limits what `copy` may add to an object by the size of a request.
const COPIED_BYTES_MAX: usize = 3 << 20;

/// Applies `patch`, in one of the formats, to `object`.
pub fn patched(format: PatchFormat, object: Value, patch: Value) -> Result<Value, Status> {
    match format {
        PatchFormat::Json => json(object, patch),
        PatchFormat::Merge => merge::merge(&object, &patch).map_err(Status::bad_request),
        PatchFormat::StrategicMerge => merge::strategic(&object, &patch).map_err(Status::bad_request),
        PatchFormat::Apply => Err(Status::internal("server-side apply is no patch of this kind")),
    }
}

fn json(mut object: Value, patch: Value) -> Result<Value, Status> {
    let operations: Vec<PatchOperation> = serde_json::from_value(patch)
        .map_err(|error| Status::bad_request(format!("the body is no JSON patch: {error}")))?;
    if operations.len() > OPERATIONS_MAX {
        let count = operations.len();
        let mut status = Status::too_large(OPERATIONS_MAX);
        status.message =
            format!("The allowed maximum operations in a JSON patch is {OPERATIONS_MAX}, got {count}");
        return Err(status);
    }
    let mut copied_bytes = 0;
    for (index, operation) in operations.iter().enumerate() {
        let grown = growth(&object, operation);
        copied_bytes += grown.copied_bytes;
        if grown.depth > DEPTH_MAX || copied_bytes > COPIED_BYTES_MAX {
            return Err(unprocessable(format!("operation {index} would make the object too large")));
        }
        json_patch::patch_unsafe(&mut object, std::slice::from_ref(operation)).map_err(|error| {
            let path: String = operation.path().as_str().chars().take(200).collect();
            unprocessable(format!("operation {index} at {path:?} failed: {}", error.kind))
        })?;
    }
    Ok(object)
}

struct Growth {
    depth: usize,
    copied_bytes: usize,
}

/// Computes how an operation would change the depth and the size of the object, before it is applied.
fn growth(object: &Value, operation: &PatchOperation) -> Growth {
    let moved = |from: &Pointer| from.resolve(object).ok();
    let (value, copied_bytes) = match operation {
        PatchOperation::Add(add) => (Some(&add.value), 0),
        PatchOperation::Replace(replace) => (Some(&replace.value), 0),
        PatchOperation::Move(step) => (moved(&step.from), 0),
        PatchOperation::Copy(step) => {
            let value = moved(&step.from);
            (value, value.map_or(0, size_bytes))
        }
        PatchOperation::Remove(_) | PatchOperation::Test(_) => (None, 0),
    };
    Growth { depth: operation.path().count() + value.map_or(0, depth), copied_bytes }
}

fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Object(fields) => 1 + fields.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

fn size_bytes(value: &Value) -> usize {
    match value {
        Value::Array(items) => 2 + items.iter().map(|item| 1 + size_bytes(item)).sum::<usize>(),
        Value::Object(fields) => {
            2 + fields.iter().map(|(key, item)| 4 + key.len() + size_bytes(item)).sum::<usize>()
        }
        Value::String(text) => 2 + text.len(),
        _ => 8,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(format: PatchFormat, object: Value, patch: Value, expected: Result<Value, u16>) {
        let found = patched(format, object, patch.clone()).map_err(|status| status.code);
        assert_eq!(found, expected, "{patch:.200}");
    }

    #[test]
    fn a_json_patch_does_its_operations_in_order_or_nothing() {
        let object = json!({"a": 1, "l": [1, 2]});
        let check = |patch, expected| check(PatchFormat::Json, object.clone(), patch, expected);
        check(
            json!([{"op":"test","path":"/a","value":1},{"op":"replace","path":"/a","value":2},{"op":"add","path":"/l/-","value":3}]),
            Ok(json!({"a": 2, "l": [1, 2, 3]})),
        );
        check(json!([{"op":"test","path":"/a","value":2}]), Err(422));
        check(json!([{"op":"remove","path":"/b"}]), Err(422));
        check(json!([{"op":"add","path":"/l/9","value":1}]), Err(422));
        check(json!([{"op":"move","from":"/a","path":"/a/b"}]), Err(422));
        check(json!([{"op":"fly","path":"/a"}]), Err(400));
        check(json!([{"op":"add","path":"a","value":1}]), Err(400));
        check(json!({"a": 1}), Err(400));
        check(json!([]), Ok(object.clone()));
    }

    #[test]
    fn a_json_patch_cannot_make_a_giant() {
        let object = json!({"a": "x".repeat(1000)});
        let double: Vec<Value> =
            (0..60).map(|n| json!({"op":"copy","from":"","path":format!("/b{n}")})).collect();
        check(PatchFormat::Json, object.clone(), Value::Array(double), Err(422));
        let many = json!({"op":"test","path":"/b","value":1});
        check(PatchFormat::Json, object.clone(), Value::Array(vec![many; OPERATIONS_MAX + 1]), Err(413));
        let deep: Vec<Value> = (0..1_000)
            .map(|n| json!({"op":"add","path":format!("/a{}", "/a".repeat(n)),"value":{}}))
            .collect();
        check(PatchFormat::Json, object, Value::Array(deep), Err(422));
    }

    #[test]
    fn a_merge_patch_replaces_lists_and_null_removes() {
        let object = json!({"a": {"b": 1, "c": 2}, "l": [1, 2]});
        check(
            PatchFormat::Merge,
            object.clone(),
            json!({"a": {"b": null, "d": 3}, "l": [3]}),
            Ok(json!({"a": {"c": 2, "d": 3}, "l": [3]})),
        );
        check(PatchFormat::Merge, object, json!([1]), Err(400));
    }
}
