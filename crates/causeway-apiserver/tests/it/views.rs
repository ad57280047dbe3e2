//! Tables, metadata alone, discovery, OpenAPI, probes and reviews.

use serde_json::{Value, json};

use crate::lab::{GROUP, Lab};

const TABLE: (&str, &str) = ("accept", "application/json;as=Table;v=v1;g=meta.k8s.io,application/json");

#[tokio::test]
async fn kubectl_gets_tables() {
    let lab = Lab::new().await;
    lab.ask("POST", "/api/v1/egateways", crate::lab::gateway("gw", "tokyo", "192.168.0.0/24"))
        .await
        .expect(201);
    let gateways = format!("{GROUP}/egateways");
    let table = lab.ask_with("GET", &gateways, (), &[TABLE]).await.expect(200);
    assert_eq!((&table["kind"], &table["apiVersion"]), (&json!("Table"), &json!("meta.k8s.io/v1")));
    let columns: Vec<_> =
        table["columnDefinitions"].as_array().unwrap().iter().map(|c| c["name"].as_str().unwrap()).collect();
    for column in ["Name", "Site", "Connected", "Transport", "RTT", "Age"] {
        assert!(columns.contains(&column), "{columns:?}");
    }
    assert_eq!(table["rows"][0]["cells"][0], "gw");
    assert_eq!(table["rows"][0]["object"]["kind"], "PartialObjectMetadata");
    let whole =
        lab.ask_with("GET", &format!("{gateways}?includeObject=Object"), (), &[TABLE]).await.expect(200);
    assert_eq!(whole["rows"][0]["object"]["eSiteName"], "tokyo");
    let bare =
        lab.ask_with("GET", &format!("{gateways}/gw?includeObject=None"), (), &[TABLE]).await.expect(200);
    assert_eq!((bare["rows"][0].get("object"), &bare["rows"][0]["cells"][1]), (None, &json!("tokyo")));

    let mut watch =
        lab.watch_as("admin:ann", &format!("{gateways}?watch=1&allowWatchBookmarks=true"), &[TABLE]).await;
    let first = watch.next().await.unwrap();
    assert_eq!(first["object"]["rows"][0]["cells"][0], "gw");
    assert!(!first["object"]["columnDefinitions"].as_array().unwrap().is_empty());
    lab.ask("DELETE", &format!("{gateways}/gw"), ()).await.expect(200);
    let second = watch.next().await.unwrap();
    assert_eq!((&second["type"], &second["object"]["columnDefinitions"]), (&json!("DELETED"), &json!([])));
    assert_eq!(second["object"]["rows"][0]["cells"][0], "gw");
}

#[tokio::test]
async fn metadata_comes_alone_when_asked_for() {
    let lab = Lab::new().await;
    lab.site("a", "x").await;
    let accept = [("accept", "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1")];
    let list = lab.ask_with("GET", &format!("{GROUP}/esites"), (), &accept).await.expect(200);
    assert_eq!(list["kind"], "PartialObjectMetadataList");
    assert_eq!(list["items"][0]["metadata"]["labels"]["tier"], "x");
    let accept = [("accept", "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1")];
    let one = lab.ask_with("GET", &format!("{GROUP}/esites/a"), (), &accept).await.expect(200);
    assert_eq!((&one["kind"], &one["metadata"]["name"]), (&json!("PartialObjectMetadata"), &json!("a")));
}

#[tokio::test]
async fn what_there_is_can_be_discovered() {
    let lab = Lab::new().await;
    let kind = async |path: &str| lab.ask("GET", path, ()).await.expect(200)["kind"].clone();
    assert_eq!(kind("/api").await, "APIVersions");
    assert_eq!(kind("/apis").await, "APIGroupList");
    assert_eq!(kind("/apis/causeway.io").await, "APIGroup");
    assert_eq!(kind("/api/v1").await, "APIResourceList");
    for group in ["causeway.io", "authentication.k8s.io", "authorization.k8s.io"] {
        assert_eq!(kind(&format!("/apis/{group}/v1")).await, "APIResourceList");
    }
    let accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json";
    let aggregated = lab.ask_with("GET", "/apis", (), &[("accept", accept)]).await;
    assert!(aggregated.header("content-type").contains("as=APIGroupDiscoveryList"));
    assert_eq!(aggregated.json["kind"], "APIGroupDiscoveryList");
    let known = [("accept", accept), ("if-none-match", aggregated.header("etag"))];
    assert_eq!(lab.ask_with("GET", "/apis", (), &known).await.code, 304);

    let swagger = lab.ask("GET", "/openapi/v2", ()).await.expect(200);
    assert_eq!(swagger["swagger"], "2.0");
    let protobuf = [("accept", "application/com.github.proto-openapi.spec.v2@v1.0+protobuf")];
    assert!(lab.ask_with("GET", "/openapi/v2", (), &protobuf).await.body.len() > 1_000);
    let index = lab.ask("GET", "/openapi/v3", ()).await.expect(200);
    let address = index["paths"]["apis/causeway.io/v1"]["serverRelativeURL"].as_str().unwrap();
    let document = lab.ask("GET", address, ()).await;
    assert!(document.header("cache-control").contains("immutable"));
    assert!(document.expect(200)["openapi"].as_str().unwrap().starts_with("3."));
    for missing in
        ["/openapi/v3/apis/apps/v1", "/apis/apps", "/apis/apps/v1", "/api/v1/namespaces/default", "/"]
    {
        let refused = lab.ask("GET", missing, ()).await.expect(404);
        assert_eq!(refused["kind"], "Status", "{missing}");
    }
}

#[tokio::test]
async fn probes_answer_without_a_credential() {
    let lab = Lab::new().await;
    let ask = async |path: &str| {
        let answer = lab.ask_as("", "GET", path, (), &[]).await;
        (answer.code, String::from_utf8(answer.body.to_vec()).unwrap())
    };
    assert_eq!(ask("/healthz").await, (200, "ok".into()));
    assert_eq!(ask("/livez").await, (200, "ok".into()));
    assert_eq!(ask("/readyz").await, (200, "ok".into()));
    let check = lab.readiness.register("store");
    assert_eq!(ask("/readyz").await, (503, "[-]store failed: starting\nreadyz check failed\n".into()));
    assert_eq!(ask("/livez").await.0, 200);
    check.ready();
    assert_eq!(ask("/readyz?verbose").await, (200, "[+]store ok\nreadyz check passed\n".into()));
    let version: Value = serde_json::from_str(&ask("/version").await.1).unwrap();
    assert_eq!(version["major"], "1");
}

#[tokio::test]
async fn who_am_i_and_may_i() {
    let lab = Lab::new().await;
    let review = async |token: &str, path: &str, body: Value| {
        lab.ask_as(token, "POST", path, body, &[]).await.expect(201)
    };
    let me = review("viewer:bob", "/apis/authentication.k8s.io/v1/selfsubjectreviews", json!({})).await;
    assert_eq!(me["status"]["userInfo"]["username"], "viewer:bob");
    let can = async |token: &str, verb: &str| {
        let body = json!({"spec": {"resourceAttributes": {"verb": verb, "group": "causeway.io", "resource": "esites"}}});
        review(token, "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body).await["status"]["allowed"].clone()
    };
    assert_eq!(can("viewer:bob", "list").await, true);
    assert_eq!(can("viewer:bob", "delete").await, false);
    assert_eq!(can("admin:ann", "delete").await, true);
    let rules = review(
        "viewer:bob",
        "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews",
        json!({"spec": {"namespace": "default"}}),
    )
    .await;
    assert_eq!(rules["status"]["resourceRules"][0]["verbs"], json!(["get", "list", "watch"]));
}
