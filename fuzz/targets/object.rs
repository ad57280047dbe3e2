//! A client's object: decode, default, validate, store, and back to the client.
//!
//! Invariants: defaults are filled once; the stored form parses as the same object; the spliced client form
//! is the value form; messages stay short however large the input is.
#![no_main]

use causeway_api::selector::SelectableFields;
use causeway_api::{ApiVersion, Object, Status, Time, table, wire};
use causeway_fuzz::{assert_short, json};
use libfuzzer_sys::{fuzz_mutator, fuzz_target};
use serde_json::Value;

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    json::mutate(data, size, max_size, seed)
});

fuzz_target!(|data: &[u8]| {
    let Ok(mut value) = serde_json::from_slice::<Value>(data) else { return };
    let kind = json::kind_of(&value);
    causeway_api::name::default_name(kind, &mut value);
    let mut named_again = value.clone();
    causeway_api::name::default_name(kind, &mut named_again);
    assert_eq!(value, named_again, "a default name is given once");

    match Object::decode(kind, value) {
        Ok(decoded) => {
            assert!(decoded.unknown.len() <= 100);
            decoded.unknown.iter().for_each(|path| assert_short(path, 1024));
            check(decoded.object);
        }
        Err(errors) => {
            assert!(!errors.is_empty());
            let status = Status::invalid(ApiVersion::Group, kind, "x", &errors);
            assert_short(&status.message, 64 * 1024);
        }
    }
});

fn check(mut object: Object) {
    object.default_fields();
    let defaulted = object.clone();
    object.default_fields();
    assert_eq!(object, defaulted, "defaults are filled once");

    let errors = object.validate(None);
    assert!(errors.len() <= 65, "{} errors", errors.len());
    assert_short(
        &Status::invalid(ApiVersion::Core, object.kind(), object.name(), &errors).message,
        64 * 1024,
    );
    if errors.is_empty() {
        assert_eq!(object.validate(Some(&object)), [], "an object may be replaced by itself");
    }
    store(&object);
    let cells = table::cells(&object, Time::from_second(1_800_000_000), None);
    assert_eq!(cells.len(), table::columns(object.kind()).len());
}

fn store(object: &Object) {
    // Read from clients, and never stored: the store knows the revision.
    let mut expected = object.clone();
    expected.metadata_mut().resource_version.clear();
    expected.metadata_mut().self_link.clear();

    let kind = object.kind();
    let stored = object.encode();
    let read = Object::from_stored(kind, &stored).expect("what was encoded can be read");
    assert_eq!(read, expected, "the stored form is the object");
    assert_eq!(read.encode(), stored, "encoding is stable");
    assert!(object.same_fields(&read));
    assert_eq!(SelectableFields::from_stored(&stored).expect("the stored form has selectable fields"), SelectableFields::of(object));

    for version in [ApiVersion::Core, ApiVersion::Group] {
        let client = wire::client_value(kind, version, u64::MAX, &stored).expect("the spliced form is JSON");
        assert_eq!(client, object.to_value(version, u64::MAX), "splicing gives what serializing gives");
        let decoded = Object::decode(kind, client).expect("what we send we also take");
        assert_eq!(decoded.unknown, [""; 0], "we send no field that we do not know");
        let mut again = decoded.object;
        again.metadata_mut().resource_version.clear();
        assert_eq!(again, expected, "a client that sends back what it got changes nothing");
    }
}
