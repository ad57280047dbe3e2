//! The guarantees of ownership, one row per sentence.

use serde_json::{Value, json};

use super::*;
use crate::{Kind, Object};

const GROUP: &str = ApiVersion::Group.as_str();
const CORE: &str = ApiVersion::Core.as_str();
const FIRST: &str = "2026-01-01T00:00:00Z";
const LATER: &str = "2026-01-02T00:00:00Z";

fn writer(manager: &str) -> FieldWriter<'_> {
    FieldWriter {
        manager,
        api_version: ApiVersion::Group,
        subresource: Subresource::Main,
        now: FIRST.parse().unwrap(),
    }
}

fn status_writer(manager: &str) -> FieldWriter<'_> {
    FieldWriter { subresource: Subresource::Status, ..writer(manager) }
}

fn later<'a>(writer: FieldWriter<'a>) -> FieldWriter<'a> {
    FieldWriter { now: LATER.parse().unwrap(), ..writer }
}

fn service(fields: Value) -> Value {
    let mut object = json!({"apiVersion": GROUP, "kind": "EService", "metadata": {"name": "camera"}});
    for (name, value) in fields.as_object().unwrap() {
        match (name.as_str(), value) {
            ("metadata", Value::Object(more)) => {
                object["metadata"].as_object_mut().unwrap().extend(more.clone());
            }
            _ => object[name] = value.clone(),
        }
    }
    object
}

fn updated(writer: FieldWriter<'_>, old: Option<&Value>, mut new: Value) -> Value {
    update(&writer, old, &mut new).unwrap();
    new
}

/// `old` with some fields changed, written back by a client that kept the managedFields it had read.
fn edited(writer: FieldWriter<'_>, old: &Value, fields: Value) -> Value {
    updated(writer, Some(old), crate::patch::merge(old, &fields).unwrap())
}

fn applied(writer: FieldWriter<'_>, live: Option<&Value>, fields: Value) -> Value {
    apply(&writer, live, &service(fields), false).unwrap()
}

fn refused(writer: FieldWriter<'_>, live: &Value, fields: Value) -> String {
    apply(&writer, Some(live), &service(fields), false).unwrap_err().to_string()
}

/// The owners and their fields, as `manager/operation[/subresource]: paths`.
fn owners(object: &Value) -> Vec<String> {
    let entries = object["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
    entries
        .iter()
        .map(|entry| {
            let text = |name: &str| entry[name].as_str().unwrap_or_default().to_owned();
            let paths = FieldSet::parse(&entry["fieldsV1"]).unwrap().paths();
            let paths: Vec<String> = paths.iter().map(ToString::to_string).collect();
            let subresource = if entry.get("subresource").is_some() { "/status" } else { "" };
            format!("{}/{}{subresource}: {}", text("manager"), text("operation"), paths.join(" "))
        })
        .collect()
}

fn times(object: &Value) -> Vec<&str> {
    let entries = object["metadata"]["managedFields"].as_array().unwrap();
    entries.iter().map(|entry| entry["time"].as_str().unwrap()).collect()
}

/// The object without its managedFields.
fn body(object: &Value) -> Value {
    scope::body_of(object)
}

#[test]
fn a_creator_owns_what_it_sent_and_nothing_that_the_server_fills() {
    let new = updated(
        writer("curl"),
        None,
        service(json!({
            "metadata": {"uid": "1", "resourceVersion": "4", "generation": 1, "creationTimestamp": FIRST,
                "labels": {"app": "x"}, "finalizers": ["a/b"]},
            "port": 80, "endpoints": [{"ip": "1.2.3.4", "port": 1}], "status": {"ready": true},
        })),
    );
    assert_eq!(
        owners(&new),
        ["curl/Update: .endpoints .metadata.finalizers .metadata.finalizers[=\"a/b\"] \
          .metadata.labels .metadata.labels.app .port"]
    );
    assert_eq!(new.get("status"), None, "a create sets no status");
    let entry = &new["metadata"]["managedFields"][0];
    assert_eq!(entry["apiVersion"], GROUP);
    assert_eq!(entry["fieldsType"], "FieldsV1");
    assert_eq!(entry["time"], FIRST);
    assert_eq!(entry["fieldsV1"]["f:metadata"]["f:labels"], json!({".": {}, "f:app": {}}));
}

#[test]
fn whoever_changes_a_field_owns_it_alone() {
    let old = updated(writer("a"), None, service(json!({"port": 80, "protocol": "TCP"})));
    let new = edited(later(writer("b")), &old, json!({"port": 81}));
    assert_eq!(owners(&new), ["a/Update: .protocol", "b/Update: .port"]);
    assert_eq!(times(&new), [FIRST, LATER]);

    let new = edited(later(writer("b")), &old, json!({"port": 81, "protocol": "UDP"}));
    assert_eq!(owners(&new), ["b/Update: .port .protocol"], "an empty entry vanishes");

    let new = edited(later(writer("b")), &old, json!({"port": null}));
    assert_eq!(owners(&new), ["a/Update: .protocol"], "a removed field is nobody's");
    assert_eq!(times(&new), [FIRST], "and losing it is no act of a");

    let new = edited(later(writer("a")), &old, json!({"port": null}));
    assert_eq!(times(&new), [LATER], "but removing it is");
}

#[test]
fn a_write_that_changes_nothing_leaves_the_entries_alone() {
    let old = updated(writer("a"), None, service(json!({"port": 80})));
    assert_eq!(edited(later(writer("b")), &old, json!({"port": 80})), old);
    assert_eq!(edited(later(writer("a")), &old, json!({"port": 80})), old);
}

#[test]
fn entries_are_kept_apart_by_version_and_subresource_and_merged_otherwise() {
    let core = FieldWriter { api_version: ApiVersion::Core, ..writer("a") };
    let object = updated(writer("a"), None, service(json!({"port": 80})));
    let object = edited(writer("a"), &object, json!({"protocol": "TCP"}));
    let object = edited(core, &object, json!({"ip": "1.2.3.4"}));
    let object = edited(status_writer("a"), &object, json!({"status": {"ready": true}}));
    assert_eq!(
        owners(&object),
        ["a/Update: .port .protocol", "a/Update/status: .status .status.ready", "a/Update: .ip",]
    );
    let object = edited(core, &object, json!({"port": 81}));
    assert_eq!(object["metadata"]["managedFields"][2]["apiVersion"], CORE);
    assert_eq!(owners(&object)[2], "a/Update: .ip .port", "both versions name the same fields");
}

#[test]
fn a_client_may_edit_or_reset_the_entries_but_not_strip_them_by_accident() {
    let old = updated(writer("a"), None, service(json!({"port": 80})));
    let send = |entries: Value| {
        let mut new = service(json!({"port": 80}));
        if !entries.is_null() {
            new["metadata"]["managedFields"] = entries;
        }
        updated(later(writer("b")), Some(&old), new)
    };
    assert_eq!(send(json!(null)), old, "not sent");
    assert_eq!(send(json!("nonsense")), old, "not readable");
    assert_eq!(send(json!([{"operation": "Steal", "fieldsV1": {}}])), old, "not sensible");
    assert_eq!(owners(&send(json!([]))), [""; 0], "reset");
    assert_eq!(owners(&send(json!([{}]))), [""; 0], "reset");
    let entry =
        json!({"manager": "c", "operation": "Apply", "apiVersion": GROUP, "fieldsV1": {"f:port": {}}});
    assert_eq!(owners(&send(json!([entry]))), ["c/Apply: .port"], "edited");

    let reset = send(json!([]));
    let after = edited(writer("b"), &reset, json!({"port": 81}));
    assert_eq!(owners(&after), [""; 0], "nothing is tracked until somebody applies");
    let message = refused(writer("c"), &after, json!({"port": 82}));
    assert_eq!(
        message,
        "Apply failed with 1 conflict: conflict with \"before-first-apply\" using causeway.io/v1: .port"
    );
}

#[test]
fn an_object_that_had_no_fields_is_tracked_from_its_first() {
    let bare = updated(writer("a"), None, service(json!({})));
    assert_eq!(owners(&bare), [""; 0]);
    let object = edited(writer("b"), &bare, json!({"port": 81}));
    assert_eq!(owners(&object), ["b/Update: .port"]);
}

#[test]
fn a_status_write_touches_nothing_else_and_a_main_write_no_status() {
    let old = updated(writer("a"), None, service(json!({"port": 80})));
    let mut sent = body(&old);
    sent["status"] = json!({"conditions": [{"type": "Ready", "status": "True"}]});
    sent["port"] = json!(1);
    sent["metadata"]["managedFields"] = json!([{}]);

    let object = updated(status_writer("gw"), Some(&old), sent.clone());
    assert_eq!(object["port"], 80);
    assert_eq!(
        owners(&object),
        [
            "a/Update: .port",
            "gw/Update/status: .status .status.conditions .status.conditions[type=\"Ready\"] \
             .status.conditions[type=\"Ready\"].status .status.conditions[type=\"Ready\"].type",
        ]
    );
    let object = edited(writer("b"), &object, json!({"status": null, "port": 2}));
    assert_eq!(object["status"], sent["status"]);

    let applied = apply(&status_writer("gw2"), Some(&object), &service(json!({"port": 3})), false).unwrap();
    assert_eq!(applied, object, "an apply to the status ignores the rest");
    let applied = apply(&writer("x"), Some(&object), &service(json!({"status": {"a": 1}})), false).unwrap();
    assert_eq!(applied, object, "and the other way round");
}

#[test]
fn no_more_than_ten_updaters_are_kept_apart() {
    let mut object = updated(writer("first"), None, service(json!({"port": 80})));
    for day in 2..=14 {
        let (name, time) = (format!("m{day}"), format!("2026-01-{day:02}T00:00:00Z"));
        let writer = FieldWriter { now: time.parse().unwrap(), ..writer(&name) };
        object = edited(writer, &object, json!({"metadata": {"labels": {(name.as_str()): "x"}}}));
    }
    let owners = owners(&object);
    assert_eq!(owners.len(), 10);
    assert!(owners[0].starts_with("ancient-changes/Update: .metadata.labels"), "{}", owners[0]);
    assert!(owners[0].ends_with(".port"), "{}", owners[0]);
    assert_eq!(owners[9], "m14/Update: .metadata.labels.m14");
    assert_eq!(times(&object)[0], "2026-01-05T00:00:00Z", "the time of the youngest that joined");
}

#[test]
fn applying_creates_merges_and_takes_back() {
    let object = applied(
        writer("a"),
        None,
        json!({"port": 80, "metadata": {"labels": {"x": "1", "y": "2"}}, "eSites": ["s1", "s2"]}),
    );
    assert_eq!(
        owners(&object),
        ["a/Apply: .eSites[=\"s1\"] .eSites[=\"s2\"] .metadata.labels.x .metadata.labels.y .port"]
    );
    let object = applied(writer("b"), Some(&object), json!({"protocol": "TCP", "eSites": ["s2", "s3"]}));
    assert_eq!(object["eSites"], json!(["s1", "s2", "s3"]));

    let object = applied(later(writer("a")), Some(&object), json!({"metadata": {"labels": {"y": "2"}}}));
    assert_eq!(
        body(&object),
        service(json!({"metadata": {"labels": {"y": "2"}}, "protocol": "TCP", "eSites": ["s2", "s3"]}))
    );
    assert_eq!(
        owners(&object),
        ["b/Apply: .eSites[=\"s2\"] .eSites[=\"s3\"] .protocol", "a/Apply: .metadata.labels.y"]
    );
    let object = applied(later(writer("a")), Some(&object), json!({}));
    assert_eq!(body(&object), service(json!({"protocol": "TCP", "eSites": ["s2", "s3"]})));
}

#[test]
fn applying_the_same_again_changes_nothing_not_even_the_time() {
    let config = json!({"port": 80, "metadata": {"labels": {"x": "1"}}, "endpoints": [{"ip": "1.1.1.1"}]});
    let object = applied(writer("a"), None, config.clone());
    assert_eq!(applied(later(writer("a")), Some(&object), config.clone()), object);

    let core = FieldWriter { api_version: ApiVersion::Core, ..later(writer("a")) };
    let mut document = service(config);
    document["apiVersion"] = json!(CORE);
    assert_eq!(apply(&core, Some(&object), &document, false).unwrap(), object, "nor through the other path");
    document["port"] = json!(81);
    let object = apply(&core, Some(&object), &document, false).unwrap();
    assert_eq!(owners(&object).len(), 1, "one applier, whatever the path");
    assert_eq!(object["metadata"]["managedFields"][0]["apiVersion"], CORE);
}

#[test]
fn conflicts_are_told_in_the_words_of_kubernetes() {
    let object = updated(writer("kubectl"), None, service(json!({"port": 80, "protocol": "TCP"})));
    let one = "Apply failed with 1 conflict: conflict with \"kubectl\" using causeway.io/v1: .port";
    assert_eq!(refused(writer("a"), &object, json!({"port": 81, "protocol": "TCP"})), one);

    let object = applied(writer("b"), Some(&object), json!({"port": 80}));
    assert_eq!(
        refused(writer("a"), &object, json!({"port": 81, "protocol": "UDP"})),
        "Apply failed with 3 conflicts: conflicts with \"b\":\n- .port\n\
         conflicts with \"kubectl\" using causeway.io/v1:\n- .port\n- .protocol"
    );
    let error = apply(&writer("a"), Some(&object), &service(json!({"protocol": "UDP"})), false).unwrap_err();
    let status = error.status();
    assert_eq!((status.code, status.reason.as_str()), (409, "Conflict"));
    assert_eq!(
        serde_json::to_value(&status).unwrap()["details"]["causes"],
        json!([{
            "reason": "FieldManagerConflict",
            "message": "conflict with \"kubectl\" using causeway.io/v1",
            "field": ".protocol",
        }])
    );

    let object = edited(
        status_writer("gw"),
        &object,
        json!({"status": {"conditions": [{"type": "R", "status": "T"}]}}),
    );
    let document = service(json!({"status": {"conditions": [{"type": "R", "status": "F"}]}}));
    assert_eq!(
        apply(&status_writer("a"), Some(&object), &document, false).unwrap_err().to_string(),
        "Apply failed with 1 conflict: conflict with \"gw\" with subresource \"status\" using causeway.io/v1: \
         .status.conditions[type=\"R\"].status"
    );
}

#[test]
fn a_conflict_crosses_the_two_versions_and_the_two_operations() {
    let core = FieldWriter { api_version: ApiVersion::Core, ..writer("kubectl") };
    let object = updated(core, None, service(json!({"port": 80})));
    let message = "Apply failed with 1 conflict: conflict with \"kubectl\" using v1: .port";
    assert_eq!(refused(writer("kubectl"), &object, json!({"port": 81})), message);
    assert_eq!(refused(writer("other"), &object, json!({"port": 81})), message);
}

#[test]
fn force_takes_a_field_and_equal_values_share_it() {
    let object = applied(writer("a"), None, json!({"port": 80, "protocol": "TCP"}));
    let object = applied(writer("b"), Some(&object), json!({"port": 80}));
    assert_eq!(owners(&object), ["a/Apply: .port .protocol", "b/Apply: .port"]);
    let freed = applied(writer("a"), Some(&object), json!({"protocol": "TCP"}));
    assert_eq!(freed["port"], 80, "b still owns it");
    assert_eq!(owners(&freed), ["a/Apply: .protocol", "b/Apply: .port"]);
    let gone = applied(writer("b"), Some(&freed), json!({}));
    assert_eq!(gone.get("port"), None);

    let forced = apply(&later(writer("b")), Some(&object), &service(json!({"port": 81})), true).unwrap();
    assert_eq!(owners(&forced), ["a/Apply: .protocol", "b/Apply: .port"]);
    assert_eq!(forced["port"], 81);
    assert_eq!(times(&forced), [FIRST, LATER]);
}

#[test]
fn an_updater_takes_a_field_from_an_applier_who_meets_it_again_as_a_conflict() {
    let object = applied(writer("a"), None, json!({"port": 80, "protocol": "TCP"}));
    let object = edited(writer("b"), &object, json!({"port": 81}));
    assert_eq!(owners(&object), ["a/Apply: .protocol", "b/Update: .port"]);
    assert_eq!(
        refused(writer("a"), &object, json!({"port": 80, "protocol": "TCP"})),
        "Apply failed with 1 conflict: conflict with \"b\" using causeway.io/v1: .port"
    );
    let object = applied(writer("a"), Some(&object), json!({"protocol": "TCP"}));
    assert_eq!(object["port"], 81, "what b set stays when a gives it up");
}

#[test]
fn a_map_goes_with_its_last_owned_field_and_stays_with_any() {
    let object = applied(writer("a"), None, json!({"healthCheck": {"type": "http"}}));
    let defaulted = crate::patch::merge(&object, &json!({"healthCheck": {"intervalSeconds": 10}})).unwrap();
    let gone = applied(writer("a"), Some(&defaulted), json!({}));
    assert_eq!(body(&gone), service(json!({})), "what was defaulted into it goes too");

    let shared = edited(writer("b"), &object, json!({"healthCheck": {"path": "/"}}));
    let kept = applied(writer("a"), Some(&shared), json!({}));
    assert_eq!(body(&kept), service(json!({"healthCheck": {"path": "/"}})));
    assert_eq!(owners(&kept), ["b/Update: .healthCheck.path"]);
}

#[test]
fn an_item_of_a_keyed_list_is_merged_and_removed_as_one() {
    let conditions = |items: Value| json!({"status": {"conditions": items}});
    let object = applied(writer("a"), None, json!({"port": 1}));
    let object =
        applied(status_writer("x"), Some(&object), conditions(json!([{"type": "A", "status": "True"}])));
    let object =
        applied(status_writer("y"), Some(&object), conditions(json!([{"type": "B", "status": "True"}])));
    let object =
        applied(status_writer("x"), Some(&object), conditions(json!([{"type": "A", "status": "False"}])));
    assert_eq!(
        object["status"]["conditions"],
        json!([{"type": "A", "status": "False"}, {"type": "B", "status": "True"}])
    );
    let touched = edited(
        status_writer("z"),
        &object,
        conditions(json!([{"type": "A", "status": "Unknown"}, {"type": "B", "status": "True"}])),
    );
    for object in [object, touched] {
        let object = applied(status_writer("x"), Some(&object), json!({}));
        assert_eq!(object["status"]["conditions"], json!([{"type": "B", "status": "True"}]));
        assert_eq!(
            owners(&object),
            [
                "a/Apply: .port",
                "y/Apply/status: .status.conditions[type=\"B\"] .status.conditions[type=\"B\"].status \
                 .status.conditions[type=\"B\"].type",
            ],
            "what others changed in the item is gone with it"
        );
    }
}

#[test]
fn an_atomic_list_has_one_value() {
    let object = applied(writer("a"), None, json!({"subnets": ["10.0.0.0/8"]}));
    let message = "Apply failed with 1 conflict: conflict with \"a\": .subnets";
    assert_eq!(refused(writer("b"), &object, json!({"subnets": ["10.0.0.0/8", "10.1.0.0/16"]})), message);
    let object = applied(writer("a"), Some(&object), json!({"subnets": ["10.1.0.0/16"]}));
    assert_eq!(object["subnets"], json!(["10.1.0.0/16"]));
}

#[test]
fn documents_that_cannot_be_applied_are_refused() {
    let check = |document: Value, message: &str| {
        assert_eq!(apply(&writer("a"), None, &document, true).unwrap_err().to_string(), message);
    };
    check(json!([]), "an applied configuration must be an object");
    check(service(json!({"metadata": {"managedFields": []}})), "metadata.managedFields must be nil");
    check(
        json!({"apiVersion": "v1"}),
        "Incorrect version specified in apply patch. Specified patch version: v1, expected: causeway.io/v1",
    );
    check(service(json!({"eSites": ["a", "a"]})), ".eSites: the item [=\"a\"] has no unique key");
    check(service(json!({"eSites": [{}]})), ".eSites: the item [={}] has no unique key");
    let references = json!({"metadata": {"ownerReferences": [{"name": "x"}]}});
    check(service(references), ".metadata.ownerReferences: the item [uid=null] has no unique key");
    let labels: serde_json::Map<String, Value> =
        (0..ELEMENTS_MAX).map(|i| (i.to_string(), json!("x"))).collect();
    check(
        service(json!({"metadata": {"labels": labels}})),
        "metadata.managedFields: more than 20000 fields to keep track of",
    );
}

#[test]
fn what_the_server_fills_and_null_are_no_opinions() {
    let object = applied(
        writer("a"),
        None,
        json!({"metadata": {"uid": "mine", "resourceVersion": "7", "creationTimestamp": null}, "port": null, "ip": "1.1.1.1"}),
    );
    assert_eq!(body(&object), service(json!({"ip": "1.1.1.1"})));
    assert_eq!(owners(&object), ["a/Apply: .ip"]);
}

#[test]
fn client_side_apply_gives_way_to_server_side_apply() {
    let last = json!({"apiVersion": GROUP, "kind": "EService", "metadata": {"name": "camera"}, "port": 80, "ip": "1.1.1.1"});
    let annotation = "kubectl.kubernetes.io/last-applied-configuration";
    let object = updated(
        writer("kubectl-client-side-apply"),
        None,
        service(
            json!({"port": 80, "ip": "1.1.1.1", "metadata": {"annotations": {annotation: last.to_string()}}}),
        ),
    );
    let same = applied(writer("kubectl"), Some(&object), json!({"port": 80, "ip": "1.1.1.1"}));
    assert_eq!(owners(&same)[0], "kubectl/Apply: .ip .port", "equal values are shared");

    let moved = applied(writer("kubectl"), Some(&object), json!({"port": 81, "ip": "1.1.1.1"}));
    assert_eq!(moved["port"], 81, "what client-side apply said may change");
    let kept: Value =
        serde_json::from_str(moved["metadata"]["annotations"][annotation].as_str().unwrap()).unwrap();
    assert_eq!(kept, service(json!({"port": 81, "ip": "1.1.1.1"})), "and the annotation follows");

    let other = "Apply failed with 1 conflict: conflict with \"kubectl-client-side-apply\" using causeway.io/v1: .port";
    assert_eq!(refused(writer("ci"), &object, json!({"port": 81})), other, "for kubectl only");

    let edited = edited(writer("edit"), &object, json!({"port": 90}));
    assert_eq!(
        refused(writer("kubectl"), &edited, json!({"port": 81})),
        "Apply failed with 1 conflict: conflict with \"edit\" using causeway.io/v1: .port",
        "what somebody changed since is a conflict"
    );
}

#[test]
fn settling_forgets_times_but_nothing_else() {
    let old = updated(writer("a"), None, service(json!({"port": 80})));
    let mut new = updated(later(writer("a")), None, service(json!({"port": 80})));
    assert!(keep_old_if_same(&old, &mut new));
    assert_eq!(new, old);
    for other in [
        updated(writer("b"), None, service(json!({"port": 80}))),
        updated(writer("a"), None, service(json!({"port": 81}))),
        updated(writer("a"), None, service(json!({"port": 80, "metadata": {"uid": "x"}}))),
        service(json!({"port": 80})),
    ] {
        let mut new = other.clone();
        assert!(!keep_old_if_same(&old, &mut new));
        assert_eq!(new, other);
    }
}

#[test]
fn a_manager_has_a_name() {
    assert_eq!(manager_name(Some("me"), Some("kubectl/v1")), "me");
    assert_eq!(manager_name(Some(""), Some("kubectl/v1.30 (linux)")), "kubectl");
    assert_eq!(manager_name(None, None), "unknown");
    assert_eq!(manager_name(None, Some(&"é".repeat(100))).len(), 128);
    assert!(check_manager("me").is_ok());
    assert!(check_manager(&"x".repeat(129)).is_err());
    assert!(check_manager("a\nb").is_err());
}

/// As the registry does it: decode, default, encode, and compare what would be stored.
fn stored(kind: Kind, value: Value) -> Value {
    let mut object = Object::decode(kind, value).unwrap().object;
    object.default_fields();
    serde_json::from_slice(&object.encode()).unwrap()
}

#[test]
fn the_second_apply_makes_no_revision_whatever_decoding_left_out_or_filled_in() {
    let check = |kind: Kind, fields: Value| {
        let document = service(fields);
        let first = stored(kind, apply(&writer("a"), None, &document, false).unwrap());
        assert!(!owners(&first).is_empty(), "{kind:?}: ownership is stored");
        let mut second = stored(kind, apply(&later(writer("a")), Some(&first), &document, false).unwrap());
        assert!(keep_old_if_same(&first, &mut second), "{kind:?}: {first:#} {second:#}");
        assert_eq!(second, first, "{kind:?}");
    };
    let meta = json!({"labels": {}, "annotations": {"a": ""}, "finalizers": []});
    check(Kind::EService, json!({"metadata": meta, "port": 80, "protocol": "HTTP", "endpoints": []}));
    check(Kind::EPolicy, json!({"allowedSites": ["b", "a"], "allowedServers": [], "limits": {}, "http": []}));
    check(Kind::ESite, json!({"subnets": ["10.0.0.0/8"], "metadata": {"labels": {"x": ""}}}));
    check(Kind::ECommunity, json!({"members": ["b", "a"]}));
    check(Kind::EGateway, json!({"eSiteName": "s", "priority": 0, "relay": false}));
}
