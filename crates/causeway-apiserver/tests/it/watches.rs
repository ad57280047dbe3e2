//! Watches: their start, their events, their end.

use causeway_store::Revision;
use serde_json::json;

use crate::lab::{GROUP, Lab, revision, site};

const MERGE: &[(&str, &str)] = &[("content-type", "application/merge-patch+json")];

fn watch_path(query: &str) -> String {
    format!("{GROUP}/esites?watch=true&{query}")
}

#[tokio::test]
async fn a_watch_tells_every_change_in_order() {
    let lab = Lab::new().await;
    let before = revision(&lab.site("before", "x").await);
    let mut all = lab.watch(&watch_path("")).await;
    let mut later = lab.watch(&watch_path(&format!("resourceVersion={before}"))).await;
    lab.site("a", "x").await;
    lab.ask_with("PATCH", &format!("{GROUP}/esites/a"), json!({"subnets": ["10.0.0.0/8"]}), MERGE)
        .await
        .expect(200);
    lab.ask("DELETE", &format!("{GROUP}/esites/a"), ()).await.expect(200);
    let told = ["ADDED a", "MODIFIED a", "DELETED a"];
    assert_eq!(all.take(1).await, ["ADDED before"]);
    assert_eq!(all.take(3).await, told);
    let mut last = before;
    for expected in told {
        let event = later.next().await.unwrap();
        let object = &event["object"];
        assert_eq!(
            format!("{} {}", event["type"].as_str().unwrap(), object["metadata"]["name"].as_str().unwrap()),
            expected
        );
        assert!(revision(object) > last, "revisions rise");
        last = revision(object);
    }
}

#[tokio::test]
async fn a_resumed_watch_misses_nothing_and_repeats_nothing_across_a_restart() {
    let mut lab = Lab::new().await;
    let mut seen = Vec::new();
    let mut last = revision(&lab.site("start", "x").await);
    for round in 0..4 {
        let mut watch = lab.watch(&watch_path(&format!("resourceVersion={last}"))).await;
        for n in 0..5 {
            lab.site(&format!("r{round}-{n}"), "x").await;
        }
        // Reads some events, leaves the rest to the next watch.
        for _ in 0..3 {
            let event = watch.next().await.unwrap();
            last = revision(&event["object"]);
            seen.push(event["object"]["metadata"]["name"].as_str().unwrap().to_owned());
        }
        drop(watch);
        if round % 2 == 1 {
            lab = lab.restart().await;
        }
    }
    let mut watch = lab.watch(&watch_path(&format!("resourceVersion={last}"))).await;
    while seen.len() < 20 {
        let event = watch.next().await.unwrap();
        seen.push(event["object"]["metadata"]["name"].as_str().unwrap().to_owned());
    }
    let expected: Vec<_> = (0..4).flat_map(|round| (0..5).map(move |n| format!("r{round}-{n}"))).collect();
    assert_eq!(seen, expected);
}

#[tokio::test]
async fn a_watch_from_before_the_history_is_told_410() {
    let lab = Lab::new().await;
    let old = revision(&lab.site("a", "x").await);
    lab.site("b", "x").await;
    lab.site("c", "x").await;
    lab.store.compact(Revision(lab.store.revision().await.unwrap().0)).await.unwrap();
    for from in [old, 999_999] {
        let mut watch = lab.watch(&watch_path(&format!("resourceVersion={from}"))).await;
        let event = watch.next().await.unwrap();
        assert_eq!((&event["type"], &event["object"]["code"]), (&json!("ERROR"), &json!(410)), "{from}");
        assert_eq!(event["object"]["reason"], "Expired");
        assert!(watch.next().await.is_none());
    }
    // The recovery: list, and watch from there.
    let list = lab.ask("GET", &format!("{GROUP}/esites"), ()).await.expect(200);
    let mut watch = lab.watch(&watch_path(&format!("resourceVersion={}", revision(&list)))).await;
    lab.site("d", "x").await;
    assert_eq!(watch.take(1).await, ["ADDED d"]);
}

#[tokio::test]
async fn a_selection_is_entered_and_left() {
    let lab = Lab::new().await;
    lab.site("in", "factory").await;
    lab.site("out", "office").await;
    let mut watch = lab.watch(&watch_path("labelSelector=tier%3Dfactory")).await;
    assert_eq!(watch.take(1).await, ["ADDED in"]);
    let label = async |name: &str, tier: &str| {
        let patch = json!({"metadata": {"labels": {"tier": tier}}});
        lab.ask_with("PATCH", &format!("{GROUP}/esites/{name}"), patch, MERGE).await.expect(200);
    };
    label("out", "factory").await;
    label("in", "office").await;
    label("in", "shop").await;
    label("out", "factory").await;
    lab.ask("DELETE", &format!("{GROUP}/esites/in"), ()).await.expect(200);
    lab.ask("DELETE", &format!("{GROUP}/esites/out"), ()).await.expect(200);
    assert_eq!(watch.take(3).await, ["ADDED out", "DELETED in", "DELETED out"]);
    let mut one = lab.watch(&format!("{GROUP}/esites/b?watch=1&resourceVersion=0")).await;
    lab.site("a", "x").await;
    lab.site("b", "x").await;
    assert_eq!(one.take(1).await, ["ADDED b"]);
}

#[tokio::test]
async fn initial_events_end_with_a_bookmark_and_time_ends_the_watch() {
    let lab = Lab::new().await;
    lab.site("a", "x").await;
    let query =
        "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&timeoutSeconds=1";
    let mut watch = lab.watch(&watch_path(query)).await;
    assert_eq!(watch.take(1).await, ["ADDED a"]);
    let mark = watch.next().await.unwrap();
    assert_eq!(mark["type"], "BOOKMARK");
    assert_eq!(mark["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
    assert_eq!(mark["object"]["kind"], "ESite");
    let last = watch.next().await.unwrap();
    assert_eq!(last["type"], "BOOKMARK", "a last bookmark before the end");
    assert!(watch.next().await.is_none());
    // Without bookmarks only objects are sent.
    let mut quiet = lab.watch(&watch_path("timeoutSeconds=1")).await;
    assert_eq!(quiet.take(1).await, ["ADDED a"]);
    assert!(quiet.next().await.is_none());
    let mut now = lab.watch(&watch_path("sendInitialEvents=false&resourceVersionMatch=NotOlderThan")).await;
    lab.site("b", "x").await;
    assert_eq!(now.take(1).await, ["ADDED b"]);
}

#[tokio::test]
async fn watchers_share_what_they_are_told_and_both_roots_hear_it() {
    let lab = Lab::new().await;
    let mut watchers = Vec::new();
    for n in 0..50 {
        let root = if n % 2 == 0 { GROUP } else { "/api/v1" };
        watchers.push(lab.watch(&format!("{root}/esites?watch=1")).await);
    }
    lab.site("a", "x").await;
    for (n, watch) in watchers.iter_mut().enumerate() {
        let event = watch.next().await.unwrap();
        let version = if n % 2 == 0 { "causeway.io/v1" } else { "v1" };
        assert_eq!(event["object"]["apiVersion"], version);
    }
    assert!(lab.metrics.encode().contains("causeway_api_watchers 50"), "{}", lab.metrics.encode());
    drop(watchers);
}

#[tokio::test]
async fn a_slow_watcher_is_cut_off_and_the_others_are_not() {
    let lab = Lab::new().await;
    let slow = lab.watch(&watch_path("")).await;
    let mut quick = lab.watch(&watch_path("")).await;
    let note = "n".repeat(200_000);
    // More than the ring and every buffer on the way to the slow watcher can hold.
    let count = 150;
    for n in 0..count {
        let body = json!({"metadata": {"name": "a", "annotations": {"note": note, "n": n.to_string()}}});
        let (method, path) = if n == 0 { ("POST", "esites") } else { ("PATCH", "esites/a") };
        let content_type = if n == 0 { "application/json" } else { "application/merge-patch+json" };
        let headers = [("content-type", content_type)];
        assert!(lab.ask_with(method, &format!("{GROUP}/{path}"), body, &headers).await.code < 300);
        let event = quick.next().await.unwrap();
        assert_eq!(event["object"]["metadata"]["annotations"]["n"], n.to_string());
    }
    let mut slow = slow;
    let mut seen = 0;
    while slow.next().await.is_some() {
        seen += 1;
    }
    assert!(seen < count, "the slow one saw {seen} and was cut off");
    assert!(lab.metrics.encode().contains("causeway_api_watchers_cut_off_total 1"));
}

#[tokio::test]
async fn watches_end_when_the_server_stops_or_the_credential_is_revoked() {
    let lab = Lab::new().await;
    let mut revoked = lab.watch_as("viewer:bob", &watch_path(""), &[]).await;
    let mut other = lab.watch_as("viewer:eve", &watch_path(""), &[]).await;
    lab.people.revoke("viewer:bob");
    assert!(revoked.next().await.is_none());
    lab.site("a", "x").await;
    assert_eq!(other.take(1).await, ["ADDED a"]);
    lab.ask_as("viewer:bob", "GET", &format!("{GROUP}/esites"), (), &[]).await.expect(401);
    lab.stop.cancel();
    assert!(other.next().await.is_none());
    lab.shut_down().await;
}

#[tokio::test]
async fn a_reservation_is_no_event_of_its_presence() {
    let lab = Lab::new().await;
    lab.ask("POST", "/api/v1/egateways", crate::lab::gateway("gw", "tokyo", "192.168.0.0/24"))
        .await
        .expect(201);
    let mut watch = lab.watch("/api/v1/virtualpresences?watch=1").await;
    let body = json!({"metadata": {"name": "vp"}, "virtualIp": "192.168.0.7", "eServiceName": "web"});
    lab.ask("POST", "/api/v1/virtualpresences", body).await.expect(201);
    lab.ask("POST", "/api/v1/esites", site("x", "y")).await.expect(201);
    lab.ask("DELETE", "/api/v1/virtualpresences/vp", ()).await.expect(200);
    assert_eq!(watch.take(2).await, ["ADDED vp", "DELETED vp"]);
}
