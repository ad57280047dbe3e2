//! Lists: pages of one snapshot, selectors, past and future revisions.

use causeway_store::Revision;
use serde_json::{Value, json};

use crate::lab::{Answer, GROUP, Lab, revision};

fn names(list: &Value) -> Vec<String> {
    let items = list["items"].as_array().unwrap().iter();
    items.map(|item| item["metadata"]["name"].as_str().unwrap().to_owned()).collect()
}

async fn list(lab: &Lab, query: &str) -> Answer {
    lab.ask("GET", &format!("{GROUP}/esites?{query}"), ()).await
}

#[tokio::test]
async fn pages_are_one_snapshot_while_others_write() {
    let lab = Lab::new().await;
    for n in 0..60 {
        lab.site(&format!("site-{n:03}"), "x").await;
    }
    let before = names(&list(&lab, "").await.expect(200));
    let (mut all, mut query, mut snapshot, mut left) = (Vec::new(), "limit=7".to_owned(), None, 60);
    for writes in 0.. {
        let page = list(&lab, &query).await.expect(200);
        let metadata = &page["metadata"];
        assert_eq!(metadata["resourceVersion"], *snapshot.get_or_insert(metadata["resourceVersion"].clone()));
        all.extend(names(&page));
        left -= 7;
        let Some(token) = metadata["continue"].as_str() else { break };
        assert_eq!(metadata["remainingItemCount"], left);
        query = format!("limit=7&continue={token}");
        // Objects after the page are deleted, changed, or created.
        lab.ask("DELETE", &format!("{GROUP}/esites/site-{:03}", 59 - writes), ()).await.expect(200);
        lab.site(&format!("site-{:03}-new", 30 + writes), "y").await;
        let patch = json!({"metadata": {"labels": {"tier": "changed"}}});
        let merge = [("content-type", "application/merge-patch+json")];
        let changed = format!("{GROUP}/esites/site-{:03}", 50 - writes);
        lab.ask_with("PATCH", &changed, patch, &merge).await.expect(200);
    }
    assert_eq!(all, before);
    assert_ne!(names(&list(&lab, "").await.expect(200)), before);
}

#[tokio::test]
async fn selectors_choose_by_label_and_by_field() {
    let lab = Lab::new().await;
    for (name, tier) in [("a", "factory"), ("b", "office"), ("c", "factory")] {
        lab.site(name, tier).await;
        let mut gateway = crate::lab::gateway(&format!("gw-{name}"), name, "198.18.0.0/16");
        gateway["metadata"]["labels"] = json!({"tier": tier});
        lab.ask("POST", "/api/v1/egateways", gateway).await.expect(201);
    }
    let check = async |path: &str, expected: &[&str]| {
        let found = lab.ask("GET", path, ()).await.expect(200);
        assert_eq!(names(&found), expected, "{path}");
    };
    let sites = format!("{GROUP}/esites");
    check(&format!("{sites}?labelSelector=tier%3Dfactory"), &["a", "c"]).await;
    check(&format!("{sites}?labelSelector=tier%21%3Dfactory"), &["b"]).await;
    check(&format!("{sites}?labelSelector=tier%20in%20%28office%2Cx%29"), &["b"]).await;
    check(&format!("{sites}?labelSelector=%21tier"), &[]).await;
    check(&format!("{sites}?fieldSelector=metadata.name%3Db"), &["b"]).await;
    check(&format!("{sites}?fieldSelector=metadata.name%3Db&labelSelector=tier%3Dfactory"), &[]).await;
    check(&format!("{sites}?fieldSelector=metadata.name%21%3Db"), &["a", "c"]).await;
    check("/api/v1/egateways?fieldSelector=eSiteName%3Dc", &["gw-c"]).await;
    let page = lab.ask("GET", &format!("{sites}?labelSelector=tier%3Dfactory&limit=1"), ()).await.expect(200);
    assert_eq!(names(&page), ["a"]);
    assert_eq!(page["metadata"].get("remainingItemCount"), None, "unknown with a selector");
    let token = page["metadata"]["continue"].as_str().unwrap();
    check(&format!("{sites}?labelSelector=tier%3Dfactory&limit=1&continue={token}"), &["c"]).await;
}

#[tokio::test]
async fn a_list_can_show_the_past_but_not_the_future() {
    let lab = Lab::new().await;
    let first = revision(&lab.site("a", "x").await);
    lab.site("b", "x").await;
    let check = async |query: &str, expected: &[&str]| {
        assert_eq!(names(&list(&lab, query).await.expect(200)), expected, "{query}");
    };
    check("", &["a", "b"]).await;
    check("resourceVersion=0", &["a", "b"]).await;
    check(&format!("resourceVersion={first}"), &["a", "b"]).await;
    check(&format!("resourceVersion={first}&resourceVersionMatch=NotOlderThan"), &["a", "b"]).await;
    check(&format!("resourceVersion={first}&resourceVersionMatch=Exact"), &["a"]).await;
    check(&format!("resourceVersion={first}&limit=10"), &["a"]).await;
    let old = list(&lab, &format!("resourceVersion={first}&resourceVersionMatch=Exact")).await.expect(200);
    assert_eq!(revision(&old), first);
    for query in ["resourceVersion=999999", "resourceVersion=999999&resourceVersionMatch=Exact"] {
        let future = list(&lab, query).await.expect(504);
        assert_eq!(future["details"]["causes"][0]["reason"], "ResourceVersionTooLarge");
    }
    let object = lab.ask("GET", &format!("{GROUP}/esites/a?resourceVersion=999999"), ()).await;
    assert_eq!(object.code, 504);
}

#[tokio::test]
async fn a_token_that_is_too_old_offers_a_way_on() {
    let lab = Lab::new().await;
    for name in ["a", "b", "c"] {
        lab.site(name, "x").await;
    }
    let page = list(&lab, "limit=1").await.expect(200);
    let token = page["metadata"]["continue"].as_str().unwrap().to_owned();
    lab.site("d", "x").await;
    lab.store.compact(Revision(lab.store.revision().await.unwrap().0)).await.unwrap();
    let expired = list(&lab, &format!("limit=1&continue={token}")).await.expect(410);
    assert_eq!(expired["reason"], "Expired");
    let fresh = expired["metadata"]["continue"].as_str().unwrap();
    assert_eq!(names(&list(&lab, &format!("continue={fresh}")).await.expect(200)), ["b", "c", "d"]);
    let exact = list(&lab, &format!("resourceVersion={}&resourceVersionMatch=Exact", revision(&page))).await;
    assert_eq!(exact.expect(410)["reason"], "Expired");
}

#[tokio::test]
async fn a_large_list_is_packed_when_the_client_takes_it() {
    let lab = Lab::new().await;
    let note = "n".repeat(60_000);
    for name in ["a", "b", "c"] {
        let body = json!({"metadata": {"name": name, "annotations": {"note": note}}});
        lab.ask("POST", &format!("{GROUP}/esites"), body).await.expect(201);
    }
    let plain = list(&lab, "").await;
    let packed = lab.ask_with("GET", &format!("{GROUP}/esites"), (), &[("accept-encoding", "gzip")]).await;
    assert_eq!(packed.header("content-encoding"), "gzip");
    assert!(packed.body.len() * 10 < plain.body.len());
    let mut unpacked = Vec::new();
    std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(&packed.body[..]), &mut unpacked).unwrap();
    assert_eq!(unpacked, plain.body);
}
