//! The documents are consistent, and contain what kubectl looks for.

use prost::Message;
use serde_json::{Value, json};

use super::*;
use crate::{ApiVersion, Kind};

#[test]
fn every_reference_leads_somewhere() {
    check_references(&v2(), "#/definitions/", "/definitions");
    for version in ApiVersion::ALL {
        check_references(&v3(version), "#/components/schemas/", "/components/schemas");
    }
    for group in ["authentication.k8s.io", "authorization.k8s.io"] {
        let document = v3_reviews(group).unwrap();
        let schemas = &document["components"]["schemas"];
        let text = document.to_string();
        for reference in text.split("\"$ref\":\"#/components/schemas/").skip(1) {
            let name = reference.split('"').next().unwrap();
            assert!(schemas.get(name).is_some(), "{group}: {name}");
        }
    }
}

#[test]
fn the_review_kinds_are_described_in_every_document() {
    for review in crate::discovery::REVIEWS {
        let gvk = json!({"group": review.group, "version": "v1", "kind": review.kind});
        let path = format!("/apis/{}/v1/{}", review.group, review.plural);
        for document in [v2(), v3_reviews(review.group).unwrap()] {
            assert_eq!(document["paths"][&path]["post"]["x-kubernetes-group-version-kind"], gvk, "{path}");
            let schemas = document.get("definitions").unwrap_or(&document["components"]["schemas"]);
            let described = schemas.as_object().unwrap().values().any(|schema| {
                schema["x-kubernetes-group-version-kind"] == json!([gvk])
                    && schema["properties"]["status"].is_object()
            });
            assert!(described, "{path}");
        }
    }
    assert_eq!(v3_reviews("apps"), None);
}

fn check_references(document: &Value, prefix: &str, place: &str) {
    let schemas = document.pointer(place).unwrap();
    let text = document.to_string();
    let mut count = 0;
    for reference in text.split("\"$ref\":\"").skip(1) {
        let reference = reference.split('"').next().unwrap();
        let name = reference.strip_prefix(prefix).unwrap_or_else(|| panic!("{reference}"));
        assert!(schemas.get(name).is_some(), "{reference}");
        count += 1;
    }
    // The document of events.k8s.io/v1 has few operations.
    assert!(count > 80, "{count}");
}

#[test]
fn kubectl_finds_dry_run_and_field_validation_for_every_kind_and_version() {
    // As kubectl's QueryParamVerifier does: the patch operation with exactly this group, version and kind.
    for version in [ApiVersion::Core, ApiVersion::Group] {
        for kind in Kind::ALL {
            let gvk = json!({"group": version.group(), "version": "v1", "kind": kind.name()});
            for document in [v2(), v3(version)] {
                let paths = document["paths"].as_object().unwrap();
                let patches = paths.values().map(|item| &item["patch"]);
                let found: Vec<&Value> =
                    patches.filter(|patch| patch["x-kubernetes-group-version-kind"] == gvk).collect();
                assert_eq!(found.len(), 2, "{kind}: the object and its status");
                for patch in found {
                    let names: Vec<&str> = patch["parameters"].as_array().unwrap().iter().map(name).collect();
                    for name in ["dryRun", "fieldManager", "fieldValidation", "force"] {
                        assert!(names.contains(&name), "{kind} {name}");
                    }
                }
            }
        }
    }
}

fn name(parameter: &Value) -> &str {
    parameter["name"].as_str().unwrap()
}

#[test]
fn an_object_is_found_under_both_its_versions() {
    let document = v2();
    for kind in Kind::ALL {
        let definition = &document["definitions"][format!("io.causeway.v1.{kind}")];
        assert_eq!(
            definition["x-kubernetes-group-version-kind"],
            json!([
                {"group": "", "version": "v1", "kind": kind.name()},
                {"group": "causeway.io", "version": "v1", "kind": kind.name()},
            ])
        );
        for property in ["apiVersion", "kind", "metadata", "status"] {
            assert!(!definition["properties"][property]["description"].is_null(), "{kind}.{property}");
        }
    }
}

#[test]
fn the_protobuf_form_says_the_same() {
    let document = gnostic::Document::decode(v2_protobuf().as_slice()).unwrap();
    let json = v2();
    assert_eq!(document.swagger, "2.0");
    let definitions = document.definitions.unwrap().entries;
    assert_eq!(definitions.len(), json["definitions"].as_object().unwrap().len());
    assert_eq!(document.paths.unwrap().path.len(), json["paths"].as_object().unwrap().len());

    let service = definitions.iter().find(|named| named.name == "io.causeway.v1.EService").unwrap();
    let service = service.value.as_ref().unwrap();
    let property = |name: &str| {
        let properties = &service.properties.as_ref().unwrap().entries;
        properties.iter().find(|named| named.name == name).unwrap().value.clone().unwrap()
    };
    assert_eq!(property("port").types.unwrap().value, ["integer"]);
    assert_eq!((property("port").format, property("port").maximum), ("int32".into(), 65535.0));
    assert_eq!(property("protocol").enumeration.len(), 7);
    assert_eq!(property("protocol").default.unwrap().yaml, "\"TCP\"\n");
    assert_eq!(
        property("metadata").reference,
        "#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
    );
    assert_eq!(
        property("endpoints").items.unwrap().schema[0].reference,
        "#/definitions/io.causeway.v1.Endpoint"
    );
    let extension = service.vendor_extension.iter().find(|named| named.name.ends_with("kind")).unwrap();
    let kinds: Value = serde_json::from_str(&extension.value.clone().unwrap().yaml).unwrap();
    assert_eq!(kinds, json["definitions"]["io.causeway.v1.EService"]["x-kubernetes-group-version-kind"]);
}

#[test]
fn the_index_names_all_documents_by_their_hash() {
    let index = v3_index();
    let reviews = ["apis/authentication.k8s.io/v1", "apis/authorization.k8s.io/v1"];
    let objects = ["api/v1", "apis/causeway.io/v1", "apis/events.k8s.io/v1"];
    for path in objects.into_iter().chain(reviews) {
        let url = index["paths"][path]["serverRelativeURL"].as_str().unwrap();
        assert!(url.starts_with(&format!("/openapi/v3/{path}?hash=")), "{url}");
    }
    assert_eq!(index, v3_index(), "the same documents have the same hashes");
}

#[test]
fn operation_ids_are_unique() {
    let document = v2();
    let mut seen = std::collections::HashSet::new();
    for item in document["paths"].as_object().unwrap().values() {
        for operation in item.as_object().unwrap().values().filter_map(|value| value["operationId"].as_str())
        {
            assert!(seen.insert(operation.to_string()), "{operation}");
        }
    }
    // Eight kinds under two versions; events under two; namespaces and services, which are only read; three reviews.
    assert_eq!(seen.len(), 2 * 8 * (3 + 4 + 3) + 2 * (3 + 4 + 1) + 2 + 3 + 3);
}
