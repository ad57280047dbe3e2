//! The stored form and the client's form are the same object.

use serde_json::json;

use super::*;

#[test]
fn a_spliced_object_is_the_object_with_its_kind_version_and_revision() {
    let decoded = Object::decode(
        Kind::EServer,
        json!({
            "kind": "EServer", "apiVersion": "v1", "metadata": {"name": "s", "labels": {"a": "b"}, "resourceVersion": "1"},
            "ip": "10.0.0.1", "eSiteName": "x",
        }),
    )
    .unwrap();
    let stored = decoded.object.encode();
    assert!(stored.starts_with(br#"{"metadata":{"name":"s""#));
    for (version, text) in [(ApiVersion::Core, "v1"), (ApiVersion::Group, "causeway.io/v1")] {
        let mut out = b"[".to_vec();
        splice(&mut out, Kind::EServer, version, 42, &stored);
        let client: Value = serde_json::from_slice(&out[1..]).unwrap();
        assert_eq!(
            client,
            json!({
                "kind": "EServer", "apiVersion": text,
                "metadata": {"name": "s", "labels": {"a": "b"}, "resourceVersion": "42"},
                "ip": "10.0.0.1", "eSiteName": "x",
            })
        );
        assert_eq!(client, decoded.object.to_value(version, 42));
        assert_eq!(client, client_value(Kind::EServer, version, 42, &stored).unwrap());
    }
}

#[test]
fn the_stored_form_of_every_empty_kind_can_be_spliced() {
    for kind in Kind::ALL {
        let object = Object::empty(kind);
        let client = client_value(kind, ApiVersion::Group, u64::MAX, &object.encode()).unwrap();
        assert_eq!(client["metadata"]["resourceVersion"], u64::MAX.to_string());
        assert_eq!(client["kind"], kind.name());
        let mut again = Object::decode(kind, client).unwrap();
        again.object.metadata_mut().resource_version.clear();
        assert_eq!((again.object, again.unknown), (object, Vec::new()));
    }
}

#[test]
fn numbers_are_written_in_full() {
    for number in [0, 9, 10, 99, 100, u64::MAX] {
        let mut out = Vec::new();
        push_decimal(&mut out, number);
        assert_eq!(String::from_utf8(out).unwrap(), number.to_string());
    }
}
