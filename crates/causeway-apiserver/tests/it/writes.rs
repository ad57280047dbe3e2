//! Concurrent writers: conflicts, preconditions, dry runs, validation of fields, patches, server-side apply.

use serde_json::{Value, json};

use crate::lab::{GROUP, Lab, revision, site};

const MERGE: &[(&str, &str)] = &[("content-type", "application/merge-patch+json")];
const APPLY: &[(&str, &str)] = &[("content-type", "application/apply-patch+yaml")];

#[tokio::test]
async fn of_two_writers_of_one_revision_exactly_one_gets_409() {
    let lab = Lab::new().await;
    let read = lab.site("a", "x").await;
    let one = format!("{GROUP}/esites/a");
    for round in 0..20 {
        let read = lab.ask("GET", &one, ()).await.expect(200);
        let write = async |subnet: String| {
            let mut body = read.clone();
            body["subnets"] = json!([subnet]);
            lab.ask("PUT", &one, body).await
        };
        let (left, right) =
            tokio::join!(write(format!("10.{round}.0.0/16")), write(format!("10.{round}.1.0/24")));
        let mut codes = [left.code, right.code];
        codes.sort_unstable();
        assert_eq!(codes, [200, 409]);
        let refused = if left.code == 409 { left } else { right };
        assert_eq!(
            refused.json["message"],
            "Operation cannot be fulfilled on esites.causeway.io \"a\": the object has been modified; please apply your changes to the latest version and try again"
        );
        assert_eq!(refused.json["reason"], "Conflict");
    }
    let mut stale = read.clone();
    stale["metadata"]["labels"]["tier"] = json!("y");
    lab.ask("PUT", &one, stale.clone()).await.expect(409);
    stale["metadata"].as_object_mut().unwrap().remove("resourceVersion");
    lab.ask("PUT", &one, stale.clone()).await.expect(422);
    stale["metadata"]["resourceVersion"] =
        lab.ask("GET", &one, ()).await.expect(200)["metadata"]["resourceVersion"].clone();
    stale["metadata"]["uid"] = json!("another life");
    lab.ask("PUT", &one, stale).await.expect(409);
}

#[tokio::test]
async fn patches_without_a_revision_all_succeed() {
    let lab = Lab::new().await;
    lab.site("a", "x").await;
    let one = format!("{GROUP}/esites/a");
    let patches = (0..16).map(|n| {
        let (lab, one) = (&lab, &one);
        async move {
            let patch = json!({"metadata": {"labels": {format!("l{n}"): "x"}}});
            lab.ask_with("PATCH", one, patch, MERGE).await.expect(200);
        }
    });
    futures_util::future::join_all(patches).await;
    let found = lab.ask("GET", &one, ()).await.expect(200);
    assert_eq!(found["metadata"]["labels"].as_object().unwrap().len(), 17);
    let bound = json!({"metadata": {"resourceVersion": "1", "labels": {"z": "z"}}});
    lab.ask_with("PATCH", &one, bound, MERGE).await.expect(409);
}

#[tokio::test]
async fn every_dialect_of_patch_works_and_none_renames() {
    let lab = Lab::new().await;
    lab.site("a", "x").await;
    let one = format!("{GROUP}/esites/a");
    let patch = async |kind: &str, body: Value| {
        let content_type = format!("application/{kind}");
        lab.ask_with("PATCH", &one, body, &[("content-type", &content_type)]).await
    };
    let json_patch = "json-patch+json";
    let tier = |answer: Value| answer["metadata"]["labels"]["tier"].as_str().unwrap().to_owned();
    let replaced = json!([{"op": "replace", "path": "/metadata/labels/tier", "value": "json"}]);
    assert_eq!(tier(patch(json_patch, replaced).await.expect(200)), "json");
    let tested = json!([{"op": "test", "path": "/metadata/labels/tier", "value": "other"}]);
    patch(json_patch, tested).await.expect(422);
    assert_eq!(
        tier(patch("merge-patch+json", json!({"metadata": {"labels": {"tier": "merge"}}})).await.expect(200)),
        "merge"
    );
    let strategic = json!({"metadata": {"labels": {"tier": "strategic"}, "finalizers": ["example.com/a"]}});
    assert_eq!(tier(patch("strategic-merge-patch+json", strategic).await.expect(200)), "strategic");
    patch("merge-patch+json", json!({"metadata": {"name": "b"}})).await.expect(400);
    patch("merge-patch+json", json!({"kind": "EGateway"})).await.expect(400);
    patch("merge-patch+json", json!({"subnets": "10.0.0.0/8"})).await.expect(422);
    patch("xml", json!({})).await.expect(415);
    let missing = lab.ask_with("PATCH", &format!("{GROUP}/esites/nobody"), json!({}), MERGE).await;
    missing.expect(404);
}

#[tokio::test]
async fn a_dry_run_says_everything_and_does_nothing() {
    let lab = Lab::new().await;
    let before = lab.store.revision().await.unwrap();
    let sites = format!("{GROUP}/esites");
    let dry = lab.ask("POST", &format!("{sites}?dryRun=All"), site("a", "x")).await.expect(201);
    assert_eq!(dry["metadata"].get("resourceVersion"), None);
    assert!(dry["metadata"]["uid"].is_string());
    assert_eq!(lab.store.revision().await.unwrap(), before);
    let created = lab.site("a", "x").await;
    let after = lab.store.revision().await.unwrap();
    lab.ask("POST", &format!("{sites}?dryRun=All"), site("a", "x")).await.expect(409);
    let one = format!("{sites}/a");
    let patched = lab
        .ask_with("PATCH", &format!("{one}?dryRun=All"), json!({"subnets": ["10.0.0.0/8"]}), MERGE)
        .await
        .expect(200);
    assert_eq!((&patched["subnets"], revision(&patched)), (&json!(["10.0.0.0/8"]), revision(&created)));
    lab.ask_with("PATCH", &format!("{one}?dryRun=All"), json!({"subnets": ["x"]}), MERGE).await.expect(422);
    lab.ask("DELETE", &format!("{one}?dryRun=All"), ()).await.expect(200);
    lab.ask("DELETE", &format!("{sites}?dryRun=All"), ()).await.expect(200);
    assert_eq!(lab.store.revision().await.unwrap(), after);
}

#[tokio::test]
async fn unknown_and_repeated_fields_are_ignored_warned_about_or_refused() {
    let lab = Lab::new().await;
    let body = r#"{"kind":"ESite","metadata":{"name":"NAME","colour":"red"},"subnets":["10.0.0.0/8"],"subnets":["10.1.0.0/16"]}"#;
    let post = async |name: &str, validation: &str| {
        let path = format!("{GROUP}/esites?{validation}");
        lab.ask("POST", &path, &*body.replace("NAME", name)).await
    };
    let warnings = |answer: &crate::lab::Answer| {
        let all = answer.headers.get_all("warning").iter();
        all.map(|value| value.to_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let expected = [r#"299 - "unknown field \"metadata.colour\"""#, r#"299 - "duplicate field \"subnets\"""#];
    let usual = post("a", "").await;
    assert_eq!(warnings(&usual), expected);
    assert_eq!(usual.expect(201)["subnets"], json!(["10.1.0.0/16"]));
    assert_eq!(warnings(&post("b", "fieldValidation=Warn").await), expected);
    let ignored = post("c", "fieldValidation=Ignore").await;
    assert_eq!((ignored.code, warnings(&ignored).len()), (201, 0));
    let strict = post("d", "fieldValidation=Strict").await.expect(400);
    assert_eq!(
        strict["message"],
        r#"ESite in version "v1" cannot be handled as a ESite: strict decoding error: unknown field "metadata.colour", duplicate field "subnets""#
    );
    lab.ask("GET", &format!("{GROUP}/esites/d"), ()).await.expect(404);
    let patched = lab
        .ask_with(
            "PATCH",
            &format!("{GROUP}/esites/a?fieldValidation=Strict"),
            json!({"colour": "red"}),
            MERGE,
        )
        .await;
    assert_eq!(patched.code, 400);
}

#[tokio::test]
async fn apply_creates_conflicts_forces_and_lets_go() {
    let lab = Lab::new().await;
    let apply = async |name: &str, query: &str, body: &str| {
        lab.ask_with("PATCH", &format!("{GROUP}/eservices/{name}?{query}"), body, APPLY).await
    };
    let first = "kind: EService\napiVersion: causeway.io/v1\nmetadata:\n  name: web\n  labels: {a: one}\nip: 10.0.0.1\nport: 80\nprotocol: TCP\neSiteName: tokyo\n";
    let created = apply("web", "fieldManager=one", first).await.expect(201);
    assert_eq!(created["metadata"]["managedFields"][0]["manager"], "one");
    assert_eq!(created["metadata"]["managedFields"][0]["operation"], "Apply");
    let again = apply("web", "fieldManager=one", first).await.expect(200);
    assert_eq!(revision(&again), revision(&created), "the same apply makes no revision");

    let other = r#"{"kind":"EService","apiVersion":"causeway.io/v1","metadata":{"name":"web"},"port":8080}"#;
    let conflict = apply("web", "fieldManager=two", other).await.expect(409);
    assert_eq!(conflict["reason"], "Conflict");
    assert_eq!(conflict["details"]["causes"][0]["reason"], "FieldManagerConflict");
    assert_eq!(conflict["details"]["causes"][0]["field"], ".port");
    assert!(conflict["message"].as_str().unwrap().contains("\"one\""), "{conflict}");
    let forced = apply("web", "fieldManager=two&force=true", other).await.expect(200);
    assert_eq!((&forced["port"], &forced["metadata"]["labels"]["a"]), (&json!(8080), &json!("one")));
    // A field that a manager no longer applies, and that has no other owner, is removed.
    let less = first.replace("  labels: {a: one}\n", "").replace("port: 80\n", "port: 8080\n");
    let lighter = apply("web", "fieldManager=one", &less).await.expect(200);
    assert_eq!(lighter["metadata"].get("labels"), None);

    apply("web", "", first).await.expect(422);
    apply(
        "web",
        "fieldManager=one",
        "kind: EService\napiVersion: v1\nmetadata: {managedFields: [{manager: me}]}",
    )
    .await
    .expect(400);
    apply("web", "fieldManager=one", "kind: [").await.expect(400);
    apply("other", "fieldManager=one", first).await.expect(400);
    apply("nobody/status", "fieldManager=one", "kind: EService\napiVersion: v1").await.expect(404);
    let status = "kind: EService\napiVersion: causeway.io/v1\nstatus: {observedGeneration: 3}\n";
    let judged = apply("web/status", "fieldManager=judge", status).await.expect(200);
    assert_eq!((&judged["status"]["observedGeneration"], &judged["port"]), (&json!(3), &json!(8080)));
    let unknown = "kind: EService\napiVersion: v1\nmetadata: {name: web}\ncolour: red\n";
    let unknown = apply("web", "fieldManager=three", unknown).await;
    assert_eq!(unknown.header("warning"), r#"299 - "unknown field \"colour\"""#);
    unknown.expect(200);
}

#[tokio::test]
async fn an_update_says_who_wrote_what() {
    let lab = Lab::new().await;
    let sites = format!("{GROUP}/esites");
    let agent = [("user-agent", "kubectl/v1.32.0 (linux/amd64)")];
    let created = lab.ask_with("POST", &sites, site("a", "x"), &agent).await.expect(201);
    let entry = &created["metadata"]["managedFields"][0];
    assert_eq!((&entry["manager"], &entry["operation"]), (&json!("kubectl"), &json!("Update")));
    let named = lab
        .ask_with("PATCH", &format!("{sites}/a?fieldManager=me"), json!({"subnets": ["10.0.0.0/8"]}), MERGE)
        .await
        .expect(200);
    let managers: Vec<_> =
        named["metadata"]["managedFields"].as_array().unwrap().iter().map(|e| e["manager"].clone()).collect();
    assert!(managers.contains(&json!("me")), "{managers:?}");
}

#[tokio::test]
async fn yaml_goes_in_and_out() {
    let lab = Lab::new().await;
    let yaml = [("content-type", "application/yaml"), ("accept", "application/yaml")];
    let body = "kind: ESite\nmetadata:\n  name: a\nsubnets:\n- 10.0.0.0/8\n";
    let created = lab.ask_with("POST", "/api/v1/esites", body, &yaml).await;
    assert_eq!((created.code, created.header("content-type")), (201, "application/yaml"));
    let text = String::from_utf8(created.body.to_vec()).unwrap();
    assert!(text.contains("kind: ESite") && text.contains("10.0.0.0/8"), "{text}");
}
