//! Each action of an administrator leaves a record: user, credential, action, changed fields and response.

use causeway_apiserver::AdminRecord;
use serde_json::{Value, json};

use crate::lab::{Content, GROUP, Lab, gateway, site};

/// A record in one line: user verb kind/name changed code.
fn line(record: &AdminRecord) -> String {
    let AdminRecord { user, verb, kind, name, changed, dry_run, code, reason, subresource, .. } = record;
    let subresource = subresource.map(|word| format!("/{word}")).unwrap_or_default();
    let dry_run = if *dry_run { " dry" } else { "" };
    let reason = reason.as_deref().unwrap_or_default();
    let code = code.unwrap_or_default();
    format!("{user} {verb} {kind}/{name}{subresource} [{}]{dry_run} {code} {reason}", changed.join(" "))
        .trim()
        .to_owned()
}

#[tokio::test]
async fn every_write_is_recorded_with_its_actor_and_reads_are_not() {
    let lab = Lab::new().await;
    let merge = [("content-type", "application/merge-patch+json")];
    let sites = format!("{GROUP}/esites");
    let check = async |token: &str, method: &str, path: &str, body: Value, expected: &[&str]| {
        let body = if body.is_null() { Content::from(()) } else { Content::from(body) };
        let headers = if method == "PATCH" { &merge[..] } else { &[] };
        lab.ask_as(token, method, path, body, headers).await;
        let found: Vec<String> = lab.acts.take().iter().map(line).collect();
        assert_eq!(found, expected, "{token} {method} {path}");
    };
    let created = "admin:ann create ESite/a [metadata.labels.tier metadata.name] 201";
    check("admin:ann", "POST", &sites, site("a", "x"), &[created]).await;
    check("admin:ann", "POST", &sites, site("a", "x"), &["admin:ann create ESite/ [] 409 AlreadyExists"])
        .await;
    check("admin:ann", "GET", &format!("{sites}/a"), Value::Null, &[]).await;
    let patch = json!({"subnets": ["10.0.0.0/24"], "metadata": {"annotations": {"key": "a secret"}}});
    let changed = "admin:ann patch ESite/a [metadata.annotations.key subnets] 200";
    check("admin:ann", "PATCH", &format!("{sites}/a"), patch.clone(), &[changed]).await;
    check("admin:ann", "PATCH", &format!("{sites}/a"), patch, &["admin:ann patch ESite/a [] 200"]).await;
    let dry = "admin:ann patch ESite/a [metadata.labels.b] dry 200";
    let labels = json!({"metadata": {"labels": {"b": "c"}}});
    check("admin:ann", "PATCH", &format!("{sites}/a?dryRun=All"), labels, &[dry]).await;
    let forbidden = "viewer:bob delete ESite/a [] 403 Forbidden";
    check("viewer:bob", "DELETE", &format!("{sites}/a"), Value::Null, &[forbidden]).await;
    // Refused credentials are recorded where they are checked.
    check("stranger", "DELETE", &format!("{sites}/a"), Value::Null, &[]).await;
    lab.ask("POST", "/api/v1/egateways", gateway("gw1", "a", "198.18.0.0/16")).await.expect(201);
    lab.acts.take();
    let status = json!({"status": {"observedGeneration": 1}});
    let forbidden = "gateway:a:gw1 patch EGateway/gw1/status [] 403 Forbidden";
    check("gateway:a:gw1", "PATCH", &format!("{GROUP}/egateways/gw1/status"), status.clone(), &[forbidden])
        .await;
    let forbidden = "gateway:a:gw1 patch EGateway/gw1 [] 403 Forbidden";
    check("gateway:a:gw1", "PATCH", &format!("{GROUP}/egateways/gw1"), status, &[forbidden]).await;
    lab.site("b", "x").await;
    lab.acts.take();
    let both = ["admin:ann deletecollection ESite/a [] 200", "admin:ann deletecollection ESite/b [] 200"];
    check("admin:ann", "DELETE", &format!("{sites}?labelSelector=tier%3Dx"), Value::Null, &both).await;
    // Actions that the cloud does not describe are recorded by their path.
    check(
        "admin:ann",
        "POST",
        "/causeway/v1/some/deed",
        json!({}),
        &["admin:ann post Action/some/deed [] 200"],
    )
    .await;
    check(
        "viewer:bob",
        "POST",
        "/causeway/v1/deed",
        json!({}),
        &["viewer:bob post Action/deed [] 403 Forbidden"],
    )
    .await;
    check("admin:ann", "GET", "/causeway/v1/status", Value::Null, &[]).await;
}

#[tokio::test]
async fn a_refusal_before_the_options_or_the_rights_are_judged_is_recorded() {
    let lab = Lab::new().await;
    let sites = format!("{GROUP}/esites");
    let check = async |token: &str, method: &str, path: &str, headers: &[(&str, &str)], expected: &[&str]| {
        lab.ask_as(token, method, path, json!({}), headers).await;
        let found: Vec<String> = lab.acts.take().iter().map(line).collect();
        assert_eq!(found, expected, "{token} {method} {path}");
    };
    let bob = [("impersonate-user", "bob")];
    let refused = "viewer:bob post Action/revoke [] 403 Forbidden";
    check("viewer:bob", "POST", "/causeway/v1/revoke", &bob, &[refused]).await;
    check("viewer:bob", "GET", "/causeway/v1/status", &bob, &[]).await;
    let empty = [("impersonate-user", ""), ("impersonate-user", "bob")];
    let refused = "admin:ann post Action/revoke [] 400 BadRequest";
    check("admin:ann", "POST", "/causeway/v1/revoke", &empty, &[refused]).await;
    let refused = "viewer:bob delete ESite/a [] 403 Forbidden";
    check("viewer:bob", "DELETE", &format!("{sites}/a"), &bob, &[refused]).await;

    let bad = "dryRun=Some";
    let created = "admin:ann create ESite/ [] 422 Invalid";
    check("admin:ann", "POST", &format!("{sites}?fieldManager=%01"), &[], &[created]).await;
    lab.ask("POST", &format!("{sites}?{bad}"), site("x", "y")).await;
    let records = lab.acts.take();
    assert_eq!((records.len(), records[0].verb.as_str()), (1, "create"), "{records:?}");
    lab.ask("DELETE", &format!("{sites}/x?{bad}"), ()).await;
    let records = lab.acts.take();
    assert_eq!((records[0].verb.as_str(), records[0].name.as_str()), ("delete", "x"), "{records:?}");
    assert!(records[0].is_refused() && !records[0].dry_run, "{records:?}");
    let media = [("content-type", "text/plain")];
    let patched = "admin:ann patch ESite/x [] 415 UnsupportedMediaType";
    check("admin:ann", "PATCH", &format!("{sites}/x"), &media, &[patched]).await;
    // Neither a read nor an event is an administrative act, and a path without a kind names nothing.
    check("admin:ann", "GET", &format!("{sites}?limit=x"), &[], &[]).await;
    check("admin:ann", "POST", "/api/v1/namespaces/default/events?dryRun=Some", &[], &[]).await;
    check("admin:ann", "POST", "/api/v1/unknown", &[], &[]).await;
}

#[tokio::test]
async fn an_action_is_not_executed_as_a_dry_run() {
    let lab = Lab::new().await;
    let refused = lab.ask("POST", "/causeway/v1/some/deed?dryRun=All", json!({})).await.expect(400);
    assert!(refused["message"].as_str().unwrap().contains("dryRun"), "{refused}");
    let records = lab.acts.take();
    assert_eq!(line(&records[0]), "admin:ann post Action/some/deed [] dry 400 BadRequest");
    lab.ask("GET", "/causeway/v1/status?dryRun=All", ()).await.expect(200);
}

#[tokio::test]
async fn objects_that_an_action_writes_are_recorded_under_its_caller() {
    let lab = Lab::new().await;
    let headers = [("impersonate-user", "bob"), ("impersonate-group", "causeway:admin")];
    lab.ask_as("admin:ann", "POST", "/causeway/v1/writes", json!({}), &headers).await.expect(200);
    let records = lab.acts.take();
    assert_eq!(line(&records[0]), "admin:ann create ESite/made [metadata.name] 201");
    assert_eq!(records[0].impersonated_user.as_deref(), Some("bob"));
    assert_eq!(records[0].credential, records[1].credential);
    assert_eq!(records[0].client.as_deref(), Some("127.0.0.1"));
    assert_eq!(line(&records[1]), "admin:ann post Action/writes [] 200");
}

#[tokio::test]
async fn who_acts_as_another_is_recorded_with_both_names() {
    let lab = Lab::new().await;
    let headers = [("impersonate-user", "bob"), ("impersonate-group", "causeway:admin")];
    lab.ask_as("admin:ann", "POST", &format!("{GROUP}/esites"), site("a", "x"), &headers).await;
    let nobody = [("impersonate-user", "nobody")];
    lab.ask_as("admin:ann", "DELETE", &format!("{GROUP}/esites/a"), (), &nobody).await.expect(403);
    for record in lab.acts.take() {
        assert_eq!(record.user, "admin:ann", "{record:?}");
        let expected = if record.verb == "create" { "bob" } else { "nobody" };
        assert_eq!(record.impersonated_user.as_deref(), Some(expected), "{record:?}");
    }
}

#[tokio::test]
async fn a_record_names_the_credential_and_the_address_and_no_value() {
    let lab = Lab::new().await;
    let mut object = site("a", "x");
    object["metadata"]["annotations"] = json!({"key": "a secret"});
    lab.ask("POST", &format!("{GROUP}/esites"), object).await.expect(201);
    let records = lab.acts.take();
    let credential = records[0].credential.clone().unwrap();
    assert_eq!((credential.id.as_str(), records[0].client.as_deref()), ("admin:ann", Some("127.0.0.1")));
    let text = serde_json::to_string(&records[0]).unwrap();
    assert!(!text.contains("secret"), "{text}");
}
