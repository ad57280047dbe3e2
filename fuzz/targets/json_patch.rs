//! JSON patches: an object and a patch.
//!
//! Invariants: the bounded implementation gives the result of the library; the result is bounded in depth and
//! size, however often the patch copies.
#![no_main]

use causeway_apiserver::registry::patch::patched;
use causeway_apiserver::request::media::PatchFormat;
use causeway_fuzz::{assert_short, json};
use libfuzzer_sys::{fuzz_mutator, fuzz_target};
use serde_json::Value;

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    json::mutate(data, size, max_size, seed)
});

fuzz_target!(|data: &[u8]| {
    let Some(documents) = json::documents(data) else { return };
    let [object, patch] = &documents[..] else { return };
    match patched(PatchFormat::Json, object.clone(), patch.clone()) {
        Ok(after) => {
            let mut expected = object.clone();
            let operations: json_patch::Patch =
                serde_json::from_value(patch.clone()).expect("what was applied is a patch");
            json_patch::patch(&mut expected, &operations).expect("what was applied can be applied");
            assert_eq!(after, expected);
            assert!(depth(&after) <= 512);
            assert!(after.to_string().len() <= 7 * (data.len() + (3 << 20)));
        }
        Err(status) => {
            assert!((400..500).contains(&status.code));
            assert_short(&status.message, 4096);
        }
    }
});

fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Object(fields) => 1 + fields.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}
