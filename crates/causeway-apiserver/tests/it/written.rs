//! Written fields are read back, including zero values, for every way of writing and reading.

use serde_json::{Value, json};

use crate::lab::{GROUP, Lab};

const MERGE: &[(&str, &str)] = &[("content-type", "application/merge-patch+json")];
const JSON_PATCH: &[(&str, &str)] = &[("content-type", "application/json-patch+json")];
const APPLY: &[(&str, &str)] = &[("content-type", "application/apply-patch+yaml")];

/// One object of every kind: its required fields, and every other field as the zero of its type.
fn objects() -> Vec<(&'static str, &'static str, Value, Value)> {
    vec![
        ("esites", "ESite", json!({}), json!({"subnets": []})),
        (
            "egateways",
            "EGateway",
            json!({"eSiteName": "a"}),
            json!({"ip": "", "priority": 0, "relay": false}),
        ),
        (
            "eservices",
            "EService",
            json!({"eSiteName": "a", "port": 80, "ip": "10.0.0.1", "protocol": "TCP"}),
            json!({
                "domainName": "", "endpoints": [], "proxyProtocol": false,
                "healthCheck": {"type": "TCP", "path": "", "intervalSeconds": 5},
                "backendTLS": {"mode": "Verify", "serverName": "", "caBundle": ""},
            }),
        ),
        (
            "eservers",
            "EServer",
            json!({"eSiteName": "a", "ip": "10.0.0.2"}),
            json!({"ports": [], "ePolicys": []}),
        ),
        (
            "epolicies",
            "EPolicy",
            json!({}),
            json!({
                "allowedServers": [], "allowedSites": [], "limits": {"connections": 0},
                "http": [{"methods": [], "paths": []}, {"methods": ["GET"], "paths": []}],
            }),
        ),
        (
            "serviceexposes",
            "ServiceExpose",
            json!({"eServiceName": "s"}),
            json!({"dnsName": "", "eSites": [], "ePolicys": []}),
        ),
        (
            "virtualpresences",
            "VirtualPresence",
            json!({"eServiceName": "s", "virtualIp": "198.18.0.9", "eSiteName": "nowhere"}),
            json!({}),
        ),
        ("ecommunities", "ECommunity", json!({}), json!({"members": []})),
    ]
}

fn document(kind: &str, name: &str, parts: &[&Value]) -> Value {
    let mut document = json!({"kind": kind, "apiVersion": "causeway.io/v1", "metadata": {"name": name}});
    for part in parts {
        document.as_object_mut().unwrap().extend(part.as_object().unwrap().clone());
    }
    document
}

/// The fields of `written` as they are read.
#[track_caller]
fn same(read: &Value, written: &Value, way: &str) {
    for (name, value) in written.as_object().unwrap().iter().filter(|(name, _)| *name != "metadata") {
        assert_eq!(&read[name], value, "{way}: {name} of {read}");
    }
}

fn revision(object: &Value) -> &Value {
    &object["metadata"]["resourceVersion"]
}

#[tokio::test]
async fn zero_values_stay_as_they_were_written() {
    let lab = Lab::new().await;
    for (plural, kind, needed, zeros) in objects() {
        let all = format!("{GROUP}/{plural}");
        let mut watch = lab.watch(&format!("{all}?watch=1")).await;
        let whole = document(kind, "created", &[&needed, &zeros]);
        let created = lab.ask("POST", &all, whole.clone()).await.expect(201);
        same(&created, &whole, "create");
        let one = format!("{all}/created");
        same(&lab.ask("GET", &one, ()).await.expect(200), &whole, "get");
        same(&lab.ask("GET", &all, ()).await.expect(200)["items"][0], &needed, "list");
        same(&watch.next().await.unwrap()["object"], &zeros, "watch");

        // A client may write back the object that it read, and nothing changes.
        let again = lab.ask("PUT", &one, created.clone()).await.expect(200);
        assert_eq!(again, created, "{kind}: the same again");
        // Omitted fields are removed; written again, they are back. The generation counts it, as in
        // Kubernetes.
        let mut bare = document(kind, "created", &[&needed]);
        bare["metadata"]["resourceVersion"] = revision(&again).clone();
        let updated = lab.ask("PUT", &one, bare).await.expect(200);
        for name in zeros.as_object().unwrap().keys() {
            assert_eq!(updated.get(name), None, "{kind}.{name}");
        }
        if zeros != json!({}) {
            assert_eq!(updated["metadata"]["generation"], 2, "{kind}");
        }
        let merged = lab.ask_with("PATCH", &one, zeros.clone(), MERGE).await.expect(200);
        same(&merged, &whole, "merge patch");
        let unchanged = lab.ask_with("PATCH", &one, zeros.clone(), MERGE).await.expect(200);
        assert_eq!(revision(&unchanged), revision(&merged), "{kind}: the same patch again");

        // A write of the status keeps them too.
        let status = json!({"status": {"observedGeneration": 0, "conditions": []}});
        let written =
            lab.ask_with("PATCH", &format!("{one}/status"), status.clone(), MERGE).await.expect(200);
        same(&written, &whole, "status patch");
        same(&written, &status, "status patch");
        assert_eq!(written["metadata"]["generation"], merged["metadata"]["generation"], "{kind}");
        let labelled = json!({"metadata": {"labels": {"a": "b"}}});
        same(&lab.ask_with("PATCH", &one, labelled, MERGE).await.expect(200), &whole, "metadata patch");
        let removals: Vec<Value> = zeros
            .as_object()
            .unwrap()
            .keys()
            .map(|name| json!({"op": "remove", "path": format!("/{name}")}))
            .collect();
        let removed = lab.ask_with("PATCH", &one, Value::Array(removals), JSON_PATCH).await.expect(200);
        for name in zeros.as_object().unwrap().keys() {
            assert_eq!(removed.get(name), None, "{kind}.{name}");
        }
    }
}

#[tokio::test]
async fn applying_the_same_again_changes_nothing() {
    let lab = Lab::new().await;
    for (plural, kind, needed, zeros) in objects() {
        let whole = document(kind, "applied", &[&needed, &zeros]);
        let path = format!("{GROUP}/{plural}/applied?fieldManager=me");
        let first = lab.ask_with("PATCH", &path, whole.clone(), APPLY).await.expect(201);
        same(&first, &whole, "apply");
        let owned = &first["metadata"]["managedFields"][0]["fieldsV1"];
        for name in zeros.as_object().unwrap().keys() {
            assert!(owned.get(format!("f:{name}")).is_some(), "{kind}.{name} of {owned}");
        }
        let second = lab.ask_with("PATCH", &path, whole.clone(), APPLY).await.expect(200);
        assert_eq!(second, first, "{kind}: nothing changes");
        // Another applier may own the same zero, and the field stays when one of them releases it.
        let other = format!("{GROUP}/{plural}/applied?fieldManager=other");
        lab.ask_with("PATCH", &other, whole.clone(), APPLY).await.expect(200);
        let less = document(kind, "applied", &[&needed]);
        same(&lab.ask_with("PATCH", &path, less.clone(), APPLY).await.expect(200), &whole, "one lets go");
        let both = lab.ask_with("PATCH", &other, less, APPLY).await.expect(200);
        for name in zeros.as_object().unwrap().keys() {
            assert_eq!(both.get(name), None, "{kind}.{name}: both let go");
        }
    }
}

#[tokio::test]
async fn a_deletion_that_waits_for_finalizers_keeps_what_was_written() {
    let lab = Lab::new().await;
    let mut site = document("ESite", "a", &[&json!({"subnets": []})]);
    site["metadata"]["finalizers"] = json!(["example.com/wait"]);
    lab.ask("POST", &format!("{GROUP}/esites"), site).await.expect(201);
    let marked = lab.ask("DELETE", &format!("{GROUP}/esites/a"), ()).await.expect(200);
    assert_eq!((&marked["subnets"], marked["metadata"]["deletionTimestamp"].is_string()), (&json!([]), true));
}
