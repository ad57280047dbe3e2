//! Accepted input, and the errors for refused input.

use serde_json::json;

use super::*;
use crate::EService;

#[test]
fn wrong_types_are_refused_with_the_path_of_the_field() {
    use Kind::{EPolicy, EService, ESite};
    check(
        EService,
        json!({"port": "8080"}),
        "port: Invalid type: expected an integer, found string \"8080\"",
    );
    check(
        EService,
        json!({"port": 80.5}),
        "port: Invalid type: expected an integer, found floating point `80.5`",
    );
    check(EService, json!({"ip": 7}), "ip: Invalid type: expected a string, found integer `7`");
    check(
        EService,
        json!({"endpoints": [{"port": 1}, {"port": "x"}]}),
        "endpoints[1].port: Invalid type: expected an integer, found string \"x\"",
    );
    check(EService, json!({"endpoints": {}}), "endpoints: Invalid type: expected a list, found map");
    check(
        EService,
        json!({"endpoints": [7]}),
        "endpoints[0]: Invalid type: expected an object, found integer `7`",
    );
    check(
        EService,
        json!({"metadata": "x"}),
        "metadata: Invalid type: expected an object, found string \"x\"",
    );
    check(
        EService,
        json!({"metadata": {"labels": {"a": 1}}}),
        "metadata.labels.a: Invalid type: expected a string, found integer `1`",
    );
    check(
        EService,
        json!({"protocol": "tcp"}),
        "protocol: Unsupported value: \"tcp\": supported values: \"TCP\", \"UDP\", \"HTTP\", \"HTTPS\", \"GRPC\", \"KAFKA\", \"IP\"",
    );
    check(
        EService,
        json!({"proxyProtocol": "v2"}),
        "proxyProtocol: Invalid type: expected true or false, found string \"v2\"",
    );
    check(
        EPolicy,
        json!({"limits": {"connections": 1e30}}),
        "limits.connections: Invalid type: expected an integer, found floating point `1e+30`",
    );
    check(EPolicy, json!({"limits": [1]}), "limits: Invalid type: expected an object, found a list");
    check(
        EService,
        json!({"endpoints": [["10.0.0.1", 80]]}),
        "endpoints[0]: Invalid type: expected an object, found a list",
    );
    check(EService, json!({"metadata": ["x"]}), "metadata: Invalid type: expected an object, found a list");
    check(ESite, json!({"subnets": [null]}), "subnets[0]: Invalid type: expected a string, found null");
    check(
        ESite,
        json!({"status": {"conditions": [{"type": "A"}]}}),
        "status.conditions[0]: Invalid type: missing field `status`",
    );
    check(ESite, json!([]), ": Invalid type: expected an object, found a list");
    check(ESite, json!("x"), ": Invalid type: expected an object, found a string");
}

#[track_caller]
fn check(kind: Kind, value: Value, expected: &str) {
    let errors = Object::decode(kind, value).unwrap_err();
    assert_eq!(errors.iter().map(ToString::to_string).collect::<Vec<_>>(), [expected]);
}

#[test]
fn one_mistake_hides_no_other() {
    let check = |explain: bool, value: Value, expected: &[&str]| {
        let read = if explain { Object::decode_or_explain } else { Object::decode };
        let errors = read(Kind::EService, value).unwrap_err();
        let paths: Vec<&str> = errors.iter().map(|error| error.path.as_str()).collect();
        assert_eq!(paths, expected);
    };
    let value = json!({
        "metadata": {"name": "a b", "labels": {"x.y/z": 1}, "annotations": []},
        "port": "http", "protocol": "SCTP", "endpoints": [{"ip": "10.0.0.1", "port": "x"}, {"ip": 7, "port": 0}],
        "domainName": "a b", "proxyProtocol": "yes",
    });
    let wrong = [
        "endpoints[0].port",
        "endpoints[1].ip",
        "metadata.annotations",
        "metadata.labels.x.y/z",
        "port",
        "protocol",
        "proxyProtocol",
    ];
    check(false, value.clone(), &wrong);
    let mut all = wrong.to_vec();
    all.extend(["metadata.name", "domainName", "eSiteName", "endpoints[1].port"]);
    check(true, value, &all);
    // A field that is missing because it was unreadable is not reported as missing.
    check(true, json!({"eSiteName": "a", "port": "x", "endpoints": 7}), &["endpoints", "port"]);
    let many: Vec<Value> = (0..1000).map(|_| json!({"ip": 7})).collect();
    check(
        false,
        json!({"endpoints": many}),
        &(0..16)
            .map(|n| format!("endpoints[{n}].ip"))
            .collect::<Vec<_>>()
            .iter()
            .map(String::as_str)
            .collect::<Vec<_>>(),
    );
}

#[test]
fn an_unknown_field_leads_to_the_nearest_known_one() {
    let check = |kind: Kind, unknown: &str, expected: Option<&str>| {
        assert_eq!(nearest_field(kind, unknown).as_deref(), expected, "{unknown}");
    };
    check(Kind::ServiceExpose, "ePolicies", Some("ePolicys"));
    check(Kind::ServiceExpose, "eServicename", Some("eServiceName"));
    check(Kind::ServiceExpose, "esites", Some("eSites"));
    check(Kind::ServiceExpose, "spec", None);
    check(Kind::EService, "endpoints[3].prot", Some("port"));
    check(Kind::EService, "healthCheck.intervallSeconds", Some("intervalSeconds"));
    check(Kind::EService, "metadata.lables", Some("labels"));
    check(Kind::EService, "nowhere.at.all", None);
    check(Kind::EService, &"x".repeat(10_000), None);
    check(Kind::EService, "", None);
}

#[test]
fn unknown_fields_are_left_out_and_reported_with_their_paths() {
    let value = json!({
        "kind": "EService", "apiVersion": "v1",
        "metadata": {"name": "a", "colour": "red", "labels": {"any": "key"}, "managedFields": [{"fieldsV1": {"f:x": {}}, "y": 1}]},
        "spec": {"deep": {"deeper": 1}}, "ip": "10.0.0.1",
        "endpoints": [{"ip": "10.0.0.2"}, {"IP": "10.0.0.3"}],
        "status": {"conditions": [], "phase": "x"},
    });
    let decoded = Object::decode(Kind::EService, value).unwrap();
    assert_eq!(
        decoded.unknown,
        ["endpoints[1].IP", "metadata.colour", "metadata.managedFields[0].y", "spec", "status.phase"]
    );
    let Object::EService(EService { ip, .. }) = decoded.object else { panic!() };
    assert_eq!(ip, "10.0.0.1");
}

#[test]
fn null_means_absent() {
    let value = json!({
        "metadata": {"name": "a", "creationTimestamp": null, "labels": null}, "endpoints": null, "healthCheck": {"path": null},
        "status": null,
    });
    let decoded = Object::decode(Kind::EService, value).unwrap();
    let Object::EService(service) = decoded.object else { panic!() };
    assert_eq!(service.health_check, Some(crate::kinds::HealthCheck::default()));
    assert_eq!(service.metadata, crate::ObjectMeta::named("a"));
}

#[test]
fn depth_is_refused_before_anything_recurses() {
    let mut value = json!({"metadata": {"name": "a"}});
    for _ in 0..1_000_000 {
        // The macro would clone, and a clone recurses.
        value = Value::Object(Map::from_iter([("spec".to_string(), value)]));
    }
    let errors = Object::decode(Kind::ESite, value).unwrap_err();
    assert!(errors[0].message.contains("nested deeper than 128 levels"), "{}", errors[0]);
}

#[test]
fn the_list_of_unknown_fields_is_bounded() {
    let fields: Map<String, Value> =
        (0..10_000).map(|n| (format!("{}{n}", "x".repeat(500)), json!(1))).collect();
    let decoded = Object::decode(Kind::ESite, Value::Object(fields)).unwrap();
    assert_eq!(decoded.unknown.len(), UNKNOWN_MAX);
    assert!(decoded.unknown.iter().all(|path| path.len() <= 256));
}
