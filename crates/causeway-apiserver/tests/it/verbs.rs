//! Each verb once, on both roots, and its effects.

use serde_json::json;

use crate::lab::{GROUP, Lab, gateway, revision, site};

#[tokio::test]
async fn an_object_lives_from_create_to_delete_under_both_roots() {
    let lab = Lab::new().await;
    for (root, version) in [("/api/v1", "v1"), (GROUP, "causeway.io/v1")] {
        let sites = format!("{root}/esites");
        let created = lab.ask("POST", &sites, site("Tokyo", "factory")).await.expect(201);
        assert_eq!(created["apiVersion"], version);
        assert_eq!(created["metadata"]["generation"], 1);
        assert_eq!(created["metadata"]["uid"].as_str().unwrap().len(), 36);
        assert!(created["metadata"]["creationTimestamp"].as_str().unwrap().ends_with('Z'));
        let one = format!("{sites}/Tokyo");
        let found = lab.ask("GET", &one, ()).await.expect(200);
        assert_eq!(found["metadata"]["resourceVersion"], created["metadata"]["resourceVersion"]);
        assert_eq!(lab.ask("POST", &sites, site("Tokyo", "x")).await.expect(409)["reason"], "AlreadyExists");

        let mut changed = found.clone();
        changed["subnets"] = json!(["10.0.0.0/8"]);
        let updated = lab.ask("PUT", &one, changed).await.expect(200);
        assert_eq!(updated["metadata"]["generation"], 2);
        assert!(revision(&updated) > revision(&found));

        let list = lab.ask("GET", &sites, ()).await.expect(200);
        assert_eq!((list["kind"].as_str(), list["items"].as_array().unwrap().len()), (Some("ESiteList"), 1));
        let deleted = lab.ask("DELETE", &one, ()).await.expect(200);
        assert_eq!(
            (&deleted["status"], &deleted["details"]["uid"]),
            (&json!("Success"), &created["metadata"]["uid"])
        );
        assert_eq!(lab.ask("GET", &one, ()).await.expect(404)["reason"], "NotFound");
        assert_eq!(lab.ask("DELETE", &one, ()).await.expect(404)["reason"], "NotFound");
    }
}

#[tokio::test]
async fn the_generation_rises_only_with_the_objects_own_fields() {
    let lab = Lab::new().await;
    let one = format!("{GROUP}/esites/a");
    lab.site("a", "factory").await;
    let merge = [("content-type", "application/merge-patch+json")];
    let patch = async |path: &str, patch: serde_json::Value| {
        lab.ask_with("PATCH", path, patch, &merge).await.expect(200)
    };
    let labelled = patch(&one, json!({"metadata": {"labels": {"tier": "office"}}})).await;
    assert_eq!(labelled["metadata"]["generation"], 1);
    let condition = json!({"type": "Ready", "status": "True", "reason": "Fine", "lastTransitionTime": "2026-11-15T19:00:00Z"});
    let judged = patch(&format!("{one}/status"), json!({"status": {"conditions": [condition]}})).await;
    assert_eq!(
        (&judged["metadata"]["generation"], &judged["status"]["conditions"][0]["type"]),
        (&json!(1), &json!("Ready"))
    );
    let grown = patch(&one, json!({"subnets": ["10.0.0.0/8"], "status": {"conditions": []}})).await;
    assert_eq!(grown["metadata"]["generation"], 2);
    assert_eq!(grown["status"]["conditions"][0]["type"], "Ready", "the status is not the main resource's");
    let sneaky =
        patch(&format!("{one}/status"), json!({"subnets": [], "metadata": {"labels": {"x": "y"}}})).await;
    assert_eq!(sneaky["subnets"], json!(["10.0.0.0/8"]));
    assert_eq!(sneaky["metadata"]["labels"], json!({"tier": "office"}));
    assert_eq!(revision(&sneaky), revision(&grown), "a write that changes nothing makes no revision");
}

#[tokio::test]
async fn a_generated_name_is_new_each_time() {
    let lab = Lab::new().await;
    let body = json!({"kind": "ESite", "metadata": {"generateName": "site-"}});
    let sites = format!("{GROUP}/esites");
    let first = lab.ask("POST", &sites, body.clone()).await.expect(201);
    let second = lab.ask("POST", &sites, body).await.expect(201);
    let name = |object: &serde_json::Value| object["metadata"]["name"].as_str().unwrap().to_owned();
    assert!(name(&first).starts_with("site-") && name(&first).len() == 10);
    assert_ne!(name(&first), name(&second));
}

#[tokio::test]
async fn a_collection_is_deleted_by_selector() {
    let lab = Lab::new().await;
    for (name, tier) in [("a", "x"), ("b", "y"), ("c", "x")] {
        lab.site(name, tier).await;
    }
    let sites = format!("{GROUP}/esites");
    let deleted = lab.ask("DELETE", &format!("{sites}?labelSelector=tier%3Dx"), ()).await.expect(200);
    assert_eq!(deleted["items"].as_array().unwrap().len(), 2);
    let left = lab.ask("GET", &sites, ()).await.expect(200);
    assert_eq!(left["items"][0]["metadata"]["name"], "b");
    assert_eq!(left["items"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn finalizers_keep_an_object_until_the_last_is_gone() {
    let lab = Lab::new().await;
    let (sites, one) = (format!("{GROUP}/esites"), format!("{GROUP}/esites/a"));
    let mut body = site("a", "x");
    body["metadata"]["finalizers"] = json!(["example.com/one", "example.com/two"]);
    lab.ask("POST", &sites, body).await.expect(201);
    let going = lab.ask("DELETE", &one, ()).await.expect(200);
    assert_eq!(going["kind"], "ESite");
    assert!(going["metadata"]["deletionTimestamp"].is_string());
    assert_eq!(going["metadata"]["generation"], 2);
    let again = lab.ask("DELETE", &one, ()).await.expect(200);
    assert_eq!(again["metadata"]["resourceVersion"], going["metadata"]["resourceVersion"]);
    let merge = [("content-type", "application/merge-patch+json")];
    let more = json!({"metadata": {"finalizers": ["example.com/one", "example.com/three"]}});
    assert_eq!(lab.ask_with("PATCH", &one, more, &merge).await.expect(422)["reason"], "Invalid");
    let fewer = json!({"metadata": {"finalizers": ["example.com/two"]}});
    lab.ask_with("PATCH", &one, fewer, &merge).await.expect(200);
    lab.ask("GET", &one, ()).await.expect(200);
    lab.ask_with("PATCH", &one, json!({"metadata": {"finalizers": null}}), &merge).await.expect(200);
    lab.ask("GET", &one, ()).await.expect(404);
}

#[tokio::test]
async fn a_deletion_can_be_bound_to_what_was_seen() {
    let lab = Lab::new().await;
    let created = lab.site("a", "x").await;
    let one = format!("{GROUP}/esites/a");
    let delete = async |preconditions: serde_json::Value| {
        let body = json!({"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background", "preconditions": preconditions});
        lab.ask("DELETE", &one, body).await.code
    };
    assert_eq!(delete(json!({"uid": "someone else"})).await, 409);
    assert_eq!(delete(json!({"resourceVersion": "1000000"})).await, 409);
    assert_eq!(delete(json!({"resourceVersion": "soon"})).await, 400);
    assert_eq!(lab.ask("DELETE", &one, json!({"kind": "ESite"})).await.code, 400);
    assert_eq!(lab.ask("DELETE", &one, json!({"dryRun": ["All"]})).await.code, 200);
    assert_eq!(lab.ask("GET", &one, ()).await.code, 200);
    assert_eq!(delete(json!({"uid": created["metadata"]["uid"], "resourceVersion": created["metadata"]["resourceVersion"]})).await, 200);
}

#[tokio::test]
async fn a_presence_holds_its_address_alone_and_gives_it_back() {
    let lab = Lab::new().await;
    let presences = "/api/v1/virtualpresences";
    lab.ask("POST", "/api/v1/egateways", gateway("gw", "tokyo", "192.168.0.0/24")).await.expect(201);
    let presence = |name: &str, ip: &str| json!({"kind": "VirtualPresence", "apiVersion": "v1", "metadata": {"name": name}, "virtualIp": ip, "eServiceName": "web"});
    let first = lab.ask("POST", presences, presence("a", "192.168.0.10")).await.expect(201);
    assert_eq!(first["eSiteName"], "tokyo", "the site follows from the address");
    let taken = lab.ask("POST", presences, presence("b", "192.168.0.10")).await.expect(422);
    assert_eq!(taken["details"]["causes"][0]["field"], "virtualIp");
    assert!(taken["message"].as_str().unwrap().contains("\"a\""), "{taken}");
    let dry = lab.ask("POST", &format!("{presences}?dryRun=All"), presence("b", "192.168.0.10")).await;
    assert_eq!(dry.code, 422);
    let outside = lab.ask("POST", presences, presence("b", "10.0.0.1")).await.expect(422);
    assert_eq!(outside["details"]["causes"][0]["field"], "virtualIp");

    let merge = [("content-type", "application/merge-patch+json")];
    let at_a = format!("{presences}/a");
    lab.ask_with("PATCH", &at_a, json!({"virtualIp": "192.168.0.11"}), &merge).await.expect(200);
    lab.ask("POST", presences, presence("b", "192.168.0.10")).await.expect(201);
    lab.ask_with("PATCH", &at_a, json!({"virtualIp": "192.168.0.10"}), &merge).await.expect(422);
    lab.ask("DELETE", &format!("{presences}/b"), ()).await.expect(200);
    lab.ask_with("PATCH", &at_a, json!({"virtualIp": "192.168.0.10"}), &merge).await.expect(200);
    let reserved = lab.store.list("addresses/", Default::default()).await.unwrap();
    assert_eq!(
        reserved.records.iter().map(|r| &*r.key).collect::<Vec<_>>(),
        ["addresses/tokyo/192.168.0.10"]
    );
    // A label on a presence outside a changed range is not refused because of the range.
    lab.ask_with("PATCH", "/api/v1/egateways/gw", json!({"virtualPresenceIPcidr": "10.0.0.0/24"}), &merge)
        .await
        .expect(200);
    lab.ask_with("PATCH", &at_a, json!({"metadata": {"labels": {"x": "y"}}}), &merge).await.expect(200);
}
