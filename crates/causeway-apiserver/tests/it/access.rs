//! Authorization of each role, over the wire.

use std::sync::atomic::Ordering::SeqCst;

use serde_json::json;

use crate::lab::{GROUP, Lab, gateway, site};

#[tokio::test]
async fn roles_get_what_they_may_and_a_status_that_says_why_not() {
    let lab = Lab::new().await;
    lab.site("a", "x").await;
    for name in ["gw1", "gw2"] {
        lab.ask("POST", "/api/v1/egateways", gateway(name, "a", "198.18.0.0/16")).await.expect(201);
    }
    let check = async |token: &str, method: &str, path: &str, code: u16| {
        let body = match method {
            "POST" => site("new", "x").into(),
            "PATCH" => {
                json!({"metadata": {"annotations": {"a": "b"}}, "status": {"observedGeneration": 1}}).into()
            }
            _ => crate::lab::Content::from(()),
        };
        let merge = [("content-type", "application/merge-patch+json")];
        let headers = if method == "PATCH" { &merge[..] } else { &[] };
        let found = lab.ask_as(token, method, path, body, headers).await;
        assert_eq!(found.code, code, "{token} {method} {path}: {}", found.json);
        if code >= 400 {
            assert_eq!(found.json["kind"], "Status");
        }
    };
    let sites = format!("{GROUP}/esites");
    check("", "GET", &sites, 401).await;
    check("", "GET", "/api", 401).await;
    check("", "GET", "/nowhere", 401).await;
    check("stranger", "GET", &sites, 401).await;
    check("stranger", "GET", "/version", 401).await;
    check("away", "GET", &sites, 503).await;
    check("viewer:bob", "GET", &sites, 200).await;
    check("viewer:bob", "GET", "/apis", 200).await;
    check("viewer:bob", "POST", &sites, 403).await;
    check("viewer:bob", "DELETE", &format!("{sites}/a"), 403).await;
    check("viewer:bob", "GET", "/causeway/v1/status", 200).await;
    check("viewer:bob", "GET", "/causeway/v1/tokens", 403).await;
    let own = "gateway:a:gw1";
    check(own, "GET", &format!("{GROUP}/egateways/gw1"), 200).await;
    check(own, "GET", &format!("{GROUP}/egateways/gw1/status"), 200).await;
    // The cloud computes the conditions of a gateway; the gateway itself cannot overwrite them.
    check(own, "PATCH", &format!("{GROUP}/egateways/gw1/status"), 403).await;
    check(own, "PUT", &format!("{GROUP}/egateways/gw1/status"), 403).await;
    check(own, "PATCH", &format!("{GROUP}/egateways/gw1"), 403).await;
    check(own, "GET", &format!("{GROUP}/egateways/gw2"), 403).await;
    check(own, "PATCH", &format!("{GROUP}/egateways/gw2/status"), 403).await;
    check(own, "GET", &format!("{GROUP}/egateways"), 403).await;
    check(own, "GET", &sites, 403).await;
    let refused = lab.ask_as("viewer:bob", "DELETE", &format!("{sites}/a"), (), &[]).await.expect(403);
    assert_eq!(
        refused["message"],
        "esites.causeway.io \"a\" is forbidden: User \"viewer:bob\" cannot delete resource \"esites\" in API group \"causeway.io\" at the cluster scope: a viewer only reads"
    );
}

#[tokio::test]
async fn actions_are_passed_on() {
    let lab = Lab::new().await;
    let said = lab.ask("POST", "/causeway/v1/ca/rotate?x=1", json!({"step": "start"})).await.expect(200);
    assert_eq!(
        said,
        json!({"user": "admin:ann", "method": "POST", "path": "ca/rotate", "query": "x=1", "bytes": 16})
    );
    assert_eq!(lab.ask("GET", "/causeway/v1/missing", ()).await.expect(404)["reason"], "NotFound");
}

#[tokio::test]
async fn long_responses_of_actions_end_with_their_credential_or_their_session() {
    let lab = Lab::new().await;
    let line = Some(json!({"line": 1}));
    let follow = "/causeway/v1/audit?follow=true";
    let (mut followed, mut backup) = (
        lab.watch_as("admin:bob", follow, &[]).await,
        lab.watch_as("admin:bob", "/causeway/v1/backup", &[]).await,
    );
    let mut other = lab.watch_as("admin:eve", follow, &[]).await;
    for response in [&mut followed, &mut backup, &mut other] {
        assert_eq!(response.next().await, line);
    }
    lab.people.revoke("admin:bob");
    assert!(followed.ends_whole().await, "a response without an end just ends");
    assert!(!backup.ends_whole().await, "half a backup must not look like a whole one");
    // As the impersonated user, too: the credential is the one of the caller.
    let mut as_other = lab
        .watch_as("admin:eve", follow, &[("impersonate-user", "x"), ("impersonate-group", "causeway:admin")])
        .await;
    assert_eq!(as_other.next().await, line);
    lab.people.revoke("admin:eve");
    assert!(other.ends_whole().await && as_other.ends_whole().await);
    lab.shut_down().await;
}

#[tokio::test]
async fn long_responses_of_actions_count_as_watches() {
    let lab =
        Lab::with(causeway_apiserver::ApiLimits { watches_per_identity_max: 1, ..Default::default() }).await;
    let mut first = lab.watch("/causeway/v1/audit?follow=true").await;
    assert_eq!(first.next().await, Some(json!({"line": 1})));
    assert_eq!(lab.ask("GET", "/causeway/v1/audit?follow=true", ()).await.code, 429);
    assert_eq!(lab.ask("GET", &format!("{GROUP}/esites?watch=true"), ()).await.code, 429);
    lab.shut_down().await;
}

#[tokio::test]
async fn wrong_tokens_from_one_address_are_slowed_down_and_right_ones_are_not() {
    let limits = causeway_apiserver::ApiLimits { failures_per_minute_max: 5, ..Default::default() };
    let lab = Lab::with(limits).await;
    let path = format!("{GROUP}/esites");
    for _ in 0..5 {
        lab.ask_as("guess", "GET", &path, (), &[]).await.expect(401);
    }
    let slowed = lab.ask_as("guess", "GET", &path, (), &[]).await;
    assert_eq!(slowed.code, 429);
    assert!(slowed.header("retry-after").parse::<u32>().unwrap() >= 1);
    // Wrong tokens are not looked up in the store any more, and the right one behind the same address still
    // works.
    let looked_up = lab.people.lookups.load(SeqCst);
    for _ in 0..20 {
        assert_eq!(lab.ask_as("guess", "GET", &path, (), &[]).await.code, 429);
    }
    lab.ask("GET", &path, ()).await.expect(200);
    assert_eq!(lab.people.lookups.load(SeqCst), looked_up);
    assert_eq!(lab.people.lookups_in_memory.load(SeqCst), 21);
    assert_eq!(lab.ask_as("", "GET", "/readyz", (), &[]).await.code, 200);
}
