//! Merge patches and strategic merge patches: an object and a patch.
//!
//! Invariants: a merge patch has the result of RFC 7386, by a second implementation; patching twice changes
//! nothing more; the result is no larger than object and patch together.
#![no_main]

use causeway_api::patch;
use causeway_fuzz::{assert_short, json};
use libfuzzer_sys::{fuzz_mutator, fuzz_target};
use serde_json::{Map, Value};

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    json::mutate(data, size, max_size, seed)
});

fuzz_target!(|data: &[u8]| {
    let Some(documents) = json::documents(data) else { return };
    let [object, patch] = &documents[..] else { return };
    match patch::merge(object, patch) {
        Ok(patched) => {
            assert_eq!(patched, rfc_7386(object.clone(), patch));
            assert_eq!(patch::merge(&patched, patch).as_ref(), Ok(&patched), "merged twice, changed twice");
            check_size(object, patch, &patched);
        }
        Err(error) => assert_short(&error.to_string(), data.len() + 512),
    }
    match patch::strategic(object, patch) {
        Ok(patched) => {
            let twice = patch::strategic(&patched, patch).map(in_one_order);
            assert_eq!(twice, Ok(in_one_order(patched.clone())), "patched twice, changed twice");
            check_size(object, patch, &patched);
        }
        Err(error) => assert_short(&error.to_string(), data.len() + 512),
    }
});

/// Merged lists have no order: a patch that deletes an item and lists it again moves it to the end, which is
/// not a change.
fn in_one_order(mut object: Value) -> Value {
    for list in ["/metadata/finalizers", "/metadata/ownerReferences", "/status/conditions"] {
        if let Some(Value::Array(items)) = object.pointer_mut(list) {
            items.sort_by_cached_key(Value::to_string);
        }
    }
    object
}

/// The pseudo code of RFC 7386, section 2.
fn rfc_7386(target: Value, patch: &Value) -> Value {
    let Value::Object(patch) = patch else { return patch.clone() };
    let mut target = match target {
        Value::Object(fields) => fields,
        _ => Map::new(),
    };
    for (name, value) in patch {
        if value.is_null() {
            target.remove(name);
        } else {
            let below = target.remove(name).unwrap_or_default();
            target.insert(name.clone(), rfc_7386(below, value));
        }
    }
    Value::Object(target)
}

fn check_size(object: &Value, patch: &Value, patched: &Value) {
    let sizes = [object, patch, patched].map(|value| value.to_string().len());
    assert!(sizes[2] <= sizes[0] + sizes[1], "{} + {} became {}", sizes[0], sizes[1], sizes[2]);
}
