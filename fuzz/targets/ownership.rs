//! Server-side apply and updates on objects with arbitrary managedFields.
//!
//! Input: three documents, the request (manager, force, subresource, apiVersion), the live object, the sent
//! one. Invariants: an applied object can be applied again without a conflict or a change; the same for an
//! update; written entries can be parsed.
#![no_main]

use causeway_api::ownership::{
    ServerSideApplyError, FieldSet, Subresource, FieldWriter, apply, check_manager, manager_name, keep_old_if_same, update,
};
use causeway_api::{ApiVersion, Object, Time};
use causeway_fuzz::json;
use libfuzzer_sys::{fuzz_mutator, fuzz_target};
use serde_json::Value;

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    json::mutate(data, size, max_size, seed)
});

fuzz_target!(|data: &[u8]| {
    let Some(documents) = json::documents(data) else { return };
    let [request, live, sent] = &documents[..] else { return };
    let text = |name: &str| request.get(name).and_then(Value::as_str);
    let manager = manager_name(text("manager"), text("userAgent"));
    if check_manager(&manager).is_err() {
        return;
    }
    let writer = FieldWriter {
        manager: &manager,
        api_version: text("apiVersion").and_then(ApiVersion::parse).unwrap_or(ApiVersion::Group),
        subresource: if text("subresource") == Some("status") {
            Subresource::Status
        } else {
            Subresource::Main
        },
        now: Time::from_second(1_800_000_000),
    };
    let force = request.get("force") == Some(&Value::Bool(true));

    // As a client may send them: their form is unknown, so only the absence of a panic is checked.
    let _ = apply(&writer, Some(live), sent, force).map_err(|error| error.status());
    let _ = apply(&writer, None, sent, force);
    let _ = update(&writer, Some(live), &mut sent.clone());
    let _ = update(&writer, None, &mut sent.clone());

    // As the registry passes them: decoded, defaulted and validated.
    if sent.get("kind").is_none_or(|kind| kind.is_string()) && admitted(sent).is_some() {
        check_apply(&writer, None, sent, force);
        check_update(&writer, None, sent);
        if let Some(live) = admitted(live) {
            check_apply(&writer, Some(&live), sent, force);
            check_update(&writer, Some(&live), sent);
        }
    }
});

/// The form in which the registry keeps an object, if it would keep it.
fn admitted(document: &Value) -> Option<Value> {
    let kind = json::kind_of(document);
    let mut object = Object::decode(kind, document.clone()).ok()?.object;
    object.default_fields();
    object.validate(None).is_empty().then(|| object.to_value(ApiVersion::Group, 7))
}

fn check_apply(writer: &FieldWriter<'_>, live: Option<&Value>, sent: &Value, force: bool) {
    let after = match apply(writer, live, sent, force) {
        Ok(after) => after,
        Err(error) => {
            if let ServerSideApplyError::Conflicts(conflicts) = &error {
                assert!(!force, "force overcomes conflicts");
                assert!(!conflicts.is_empty());
            }
            let _ = error.status();
            return;
        }
    };
    check_entries(&after);
    let Some(stored) = admitted(&after) else { return };
    let later = FieldWriter { now: Time::from_second(1_900_000_000), ..*writer };
    match apply(&later, Some(&stored), sent, false) {
        Ok(again) => {
            let mut again = admitted(&again).expect("what was stored once can be stored again");
            assert!(keep_old_if_same(&stored, &mut again), "applied twice, changed twice:\n{stored}\n{again}");
        }
        Err(error) => panic!("applied once and refused the second time: {error}\n{stored}"),
    }
}

fn check_update(writer: &FieldWriter<'_>, live: Option<&Value>, sent: &Value) {
    let Some(mut after) = admitted(sent) else { return };
    if update(writer, live, &mut after).is_err() {
        return;
    }
    check_entries(&after);
    let Some(stored) = admitted(&after) else { return };
    let later = FieldWriter { now: Time::from_second(1_900_000_000), ..*writer };
    let mut again = stored.clone();
    update(&later, Some(&stored), &mut again).expect("what was written can be written again");
    let mut again = admitted(&again).expect("what was stored once can be stored again");
    assert!(keep_old_if_same(&stored, &mut again), "written twice, changed twice:\n{stored}\n{again}");
}

fn check_entries(object: &Value) {
    let entries = object.pointer("/metadata/managedFields").and_then(Value::as_array);
    for entry in entries.into_iter().flatten() {
        if let Some(fields) = entry.get("fieldsV1") {
            FieldSet::parse(fields).expect("a written value can be read");
        }
    }
}
