//! Rules of Kubernetes' API that its clients rely on, beyond the verbs: impersonation, HEAD, pretty JSON, refused options.

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use tokio::net::TcpStream;

use crate::lab::{Content, GROUP, Lab, PATIENCE, gateway, site};

const REVIEW: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
const ACCESS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
const RULES: &str = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews";

#[tokio::test]
async fn an_admin_acts_with_the_rights_of_whom_it_acts_as() {
    let lab = Lab::new().await;
    lab.site("a", "x").await;
    let one = &format!("{GROUP}/esites/a");
    let nobody = ("impersonate-user", "nobody");
    let viewers = ("impersonate-group", "causeway:viewer");
    let masters = ("impersonate-group", "system:masters");
    let check =
        async |token: &str, method: &str, path: &str, headers: &[(&str, &str)], code: u16, says: &str| {
            let found = lab.ask_as(token, method, path, (), headers).await;
            let text = String::from_utf8_lossy(&found.body).into_owned();
            assert!(
                found.code == code && text.contains(says),
                "{token} {method} {path} {headers:?}: {} {text}",
                found.code
            );
        };
    let admin = "admin:ann";
    check(admin, "DELETE", one, &[nobody], 403, "User \\\"nobody\\\" cannot delete resource").await;
    check(admin, "DELETE", one, &[nobody, masters], 403, "nobody").await;
    check(admin, "DELETE", one, &[nobody, viewers], 403, "a viewer only reads").await;
    check(admin, "GET", one, &[nobody], 403, "cannot get").await;
    check(admin, "GET", one, &[nobody, viewers], 200, "ESite").await;
    check(admin, "HEAD", one, &[nobody], 403, "").await;
    check(admin, "GET", &format!("{GROUP}/esites?watch=1"), &[nobody], 403, "cannot watch").await;
    check(admin, "GET", "/causeway/v1/tokens", &[nobody], 403, "nobody").await;
    check(admin, "GET", "/causeway/v1/status", &[nobody, viewers], 200, "\"user\":\"nobody\"").await;
    check(admin, "POST", "/causeway/v1/revoke", &[nobody, viewers], 403, "").await;
    check(admin, "GET", "/apis", &[nobody], 200, "causeway.io").await;
    check(admin, "GET", "/apis", &[("impersonate-user", "system:anonymous")], 403, "").await;
    check(admin, "GET", "/healthz", &[nobody], 200, "ok").await;
    let words = "users \\\"nobody\\\" is forbidden: User \\\"viewer:bob\\\" cannot impersonate resource \\\"users\\\" in API group \\\"\\\" at the cluster scope";
    for path in [one.as_str(), "/causeway/v1/status", "/apis", "/version", "/healthz"] {
        check("viewer:bob", "GET", path, &[nobody, viewers], 403, words).await;
    }
    check("gateway:a:gw1", "GET", one, &[nobody], 403, "cannot impersonate").await;
    check("", "GET", one, &[nobody], 401, "").await;
    check("", "GET", "/healthz", &[nobody], 403, "cannot impersonate").await;
    for header in [masters, ("impersonate-uid", "7"), ("impersonate-extra-scopes", "x")] {
        check(admin, "DELETE", one, &[header], 400, "without impersonating a user").await;
    }
    check(admin, "DELETE", one, &[nobody, ("impersonate-else", "x")], 400, "not known").await;
    check(admin, "DELETE", one, &[nobody, ("impersonate-group", "causeway:admin")], 200, "Success").await;
}

#[tokio::test]
async fn who_am_i_and_may_i_tell_the_truth_about_impersonation() {
    let lab = Lab::new().await;
    let headers = [
        ("impersonate-user", "eve"),
        ("impersonate-group", "causeway:viewer"),
        ("impersonate-group", "night"),
        ("impersonate-uid", "42"),
        ("impersonate-extra-scopes", "a"),
    ];
    let me = lab.ask_as("admin:ann", "POST", REVIEW, json!({}), &headers).await.expect(201);
    assert_eq!(
        me["status"]["userInfo"],
        json!({
            "username": "eve", "uid": "42", "groups": ["causeway:viewer", "night", "system:authenticated"],
            "extra": {"scopes": ["a"]},
        })
    );
    let can = async |verb: &str, headers: &[(&str, &str)]| {
        let body = json!({"spec": {"resourceAttributes": {"verb": verb, "group": "causeway.io", "resource": "esites"}}});
        lab.ask_as("admin:ann", "POST", ACCESS, body, headers).await.expect(201)["status"]["allowed"] == true
    };
    assert!(can("delete", &[]).await);
    assert!(can("list", &headers).await && !can("delete", &headers).await);
    assert!(!can("list", &headers[..1]).await);
    let rules = lab.ask_as("admin:ann", "POST", RULES, json!({"spec": {}}), &headers[..1]).await.expect(201);
    assert_eq!(rules["status"]["resourceRules"], json!([]));
}

#[tokio::test]
async fn a_watch_of_an_impersonated_user_ends_with_the_credential_behind_it() {
    let lab = Lab::new().await;
    lab.site("a", "x").await;
    let headers = [("impersonate-user", "eve"), ("impersonate-group", "causeway:viewer")];
    let mut watch = lab.watch_as("admin:ann", &format!("{GROUP}/esites?watch=1"), &headers).await;
    assert_eq!(watch.take(1).await, ["ADDED a"]);
    lab.people.revoke("admin:ann");
    assert!(watch.next().await.is_none(), "the watch ends");
}

/// One request over HTTP/2: the code, the announced length, and the body.
async fn over_http2(lab: &Lab, method: &str, path: &str) -> (u16, Option<u64>, Bytes) {
    let socket = TcpStream::connect(lab.addr).await.unwrap();
    let io = TokioIo::new(socket);
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await.unwrap();
    tokio::spawn(connection);
    let request = Request::builder()
        .method(method)
        .uri(format!("http://localhost{path}"))
        .header("authorization", "Bearer admin:ann")
        .body(Full::new(Bytes::new()))
        .unwrap();
    let asked = async {
        let response = sender.send_request(request).await.unwrap();
        let length =
            response.headers().get("content-length").map(|value| value.to_str().unwrap().parse().unwrap());
        let code = response.status().as_u16();
        let body = response.into_body().collect().await.expect("a whole answer").to_bytes();
        (code, length, body)
    };
    tokio::time::timeout(PATIENCE, asked).await.expect("an answer comes")
}

#[tokio::test]
async fn head_is_get_without_its_body() {
    let lab = Lab::new().await;
    lab.site("a", "x").await;
    let sites = format!("{GROUP}/esites");
    let paths = [
        &format!("{sites}/a"),
        &format!("{sites}/a/status"),
        sites.as_str(),
        "/api/v1/esites?limit=1",
        "/api",
        "/apis",
        "/apis/causeway.io/v1",
        "/openapi/v2",
        "/openapi/v3",
        "/version",
        "/readyz",
        "/healthz",
        "/causeway/v1/status",
        &format!("{sites}/nobody"),
        "/nowhere",
        "/causeway/v1/missing",
    ];
    for path in paths {
        let (code, _, body) = over_http2(&lab, "GET", path).await;
        let (head_code, length, head_body) = over_http2(&lab, "HEAD", path).await;
        assert_eq!((head_code, length), (code, Some(body.len() as u64)), "{path}");
        // The action answers with a constant time: equal requests have equal responses here.
        assert!(head_body.is_empty(), "{path}: {head_body:?}");
        let over_http1 = lab.ask("HEAD", path, ()).await;
        assert_eq!((over_http1.code, over_http1.body.len()), (code, 0), "{path}");
        assert_eq!(over_http1.header("content-length"), body.len().to_string(), "{path}");
    }
    assert_eq!(over_http2(&lab, "HEAD", &format!("{sites}?watch=1")).await.0, 405);
    assert_eq!(over_http2(&lab, "HEAD", &format!("{sites}/a?watch=true")).await.0, 405);
}

#[tokio::test]
async fn json_is_indented_when_the_client_asks_for_it() {
    let lab = Lab::new().await;
    lab.site("a", "x").await;
    let check = async |path: &str, headers: &[(&str, &str)], pretty: bool| {
        let found = lab.ask_with("GET", path, (), headers).await;
        let text = std::str::from_utf8(&found.body).unwrap();
        assert_eq!(text.contains("\n  \""), pretty, "{path} {headers:?}: {text:.200}");
        assert!(found.json.is_object(), "{path}");
    };
    let one = format!("{GROUP}/esites/a");
    check(&one, &[], false).await;
    check(&format!("{one}?pretty=true"), &[], true).await;
    check(&format!("{one}?pretty=1"), &[], true).await;
    check(&format!("{one}?pretty=false"), &[("accept", "application/json;pretty=1")], false).await;
    check(&one, &[("accept", "application/json;pretty=1")], true).await;
    check(&format!("{GROUP}/esites?pretty=true"), &[], true).await;
    check(&format!("{GROUP}/esites/none?pretty=true"), &[], true).await;
    check("/apis?pretty=true", &[], true).await;
    let mut watch = lab.watch(&format!("{GROUP}/esites?watch=1&pretty=true")).await;
    assert_eq!(watch.take(1).await, ["ADDED a"], "a watch keeps one event per line");
}

#[tokio::test]
async fn the_old_version_of_tables_is_written_too() {
    let lab = Lab::new().await;
    lab.site("a", "x").await;
    for version in ["v1", "v1beta1"] {
        let expected = format!("meta.k8s.io/{version}");
        for (view, kind) in [("Table", "Table"), ("PartialObjectMetadataList", "PartialObjectMetadataList")] {
            let accept = format!("application/json;as={view};v={version};g=meta.k8s.io");
            let found =
                lab.ask_with("GET", &format!("{GROUP}/esites"), (), &[("accept", &accept)]).await.expect(200);
            assert_eq!((&found["kind"], &found["apiVersion"]), (&json!(kind), &json!(expected)), "{accept}");
            let row = if kind == "Table" { &found["rows"][0]["object"] } else { &found["items"][0] };
            assert_eq!(row["apiVersion"], expected.as_str(), "{accept}");
        }
    }
    let accept = [("accept", "application/json;as=Table;v=v2;g=meta.k8s.io")];
    lab.ask_with("GET", &format!("{GROUP}/esites"), (), &accept).await.expect(406);
}

struct Row {
    method: &'static str,
    path: &'static str,
    content_type: &'static str,
    body: Value,
    code: u16,
    reason: &'static str,
    message: &'static str,
}

/// Refusals with Kubernetes' wording.
fn refusals() -> Vec<Row> {
    let row = |method, path, body: Value, code, reason, message| {
        let content_type =
            if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
        Row { method, path, content_type, body, code, reason, message }
    };
    let apply = |path, body: Value, code, reason, message| Row {
        content_type: "application/apply-patch+yaml",
        ..row("PATCH", path, body, code, reason, message)
    };
    let named = |more: Value| {
        let mut object = json!({"metadata": {"name": "b"}});
        object["metadata"].as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        object
    };
    let owner = |name: &str| json!({"apiVersion": "v1", "kind": "ESite", "name": name, "uid": name, "controller": true});
    let none = Value::Null;
    vec![
        row(
            "POST",
            "esites?dryRun=",
            named(json!({})),
            422,
            "Invalid",
            "CreateOptions.meta.k8s.io \"\" is invalid: dryRun: Unsupported value: []string{\"\"}: supported values: \"All\"",
        ),
        row(
            "PUT",
            "esites/a?dryRun=x",
            named(json!({})),
            422,
            "Invalid",
            "UpdateOptions.meta.k8s.io \"\" is invalid: dryRun: Unsupported value: []string{\"x\"}: supported values: \"All\"",
        ),
        row(
            "PATCH",
            "esites/a?dryRun=All&dryRun=x",
            json!({}),
            422,
            "Invalid",
            "PatchOptions.meta.k8s.io \"\" is invalid: dryRun: Unsupported value: []string{\"All\", \"x\"}: supported values: \"All\"",
        ),
        row(
            "DELETE",
            "esites/a?dryRun=",
            none.clone(),
            422,
            "Invalid",
            "DeleteOptions.meta.k8s.io \"\" is invalid: dryRun: Unsupported value: []string{\"\"}: supported values: \"All\"",
        ),
        row(
            "POST",
            "esites?fieldValidation=x",
            named(json!({})),
            422,
            "Invalid",
            "CreateOptions.meta.k8s.io \"\" is invalid: fieldValidation: Unsupported value: \"x\"",
        ),
        row(
            "PATCH",
            "esites/a?force=true",
            json!({}),
            422,
            "Invalid",
            "PatchOptions.meta.k8s.io \"\" is invalid: force: Forbidden: may not be specified for non-apply patch",
        ),
        row(
            "GET",
            "esites?resourceVersionMatch=Exact",
            none.clone(),
            422,
            "Invalid",
            "ListOptions.meta.k8s.io \"\" is invalid: resourceVersionMatch: Forbidden",
        ),
        row(
            "DELETE",
            "esites/a",
            json!({"propagationPolicy": "x"}),
            422,
            "Invalid",
            "DeleteOptions.meta.k8s.io \"\" is invalid: propagationPolicy: Unsupported value: \"x\": supported values: \"Foreground\", \"Background\", \"Orphan\", \"nil\"",
        ),
        row(
            "DELETE",
            "esites/a",
            json!({"propagationPolicy": "Background", "orphanDependents": true}),
            422,
            "Invalid",
            "DeleteOptions.meta.k8s.io \"\" is invalid: propagationPolicy: Invalid value: \"Background\": orphanDependents and deletionPropagation cannot be both set",
        ),
        row(
            "DELETE",
            "esites/a?propagationPolicy=Orphan&orphanDependents=false",
            none.clone(),
            422,
            "Invalid",
            "cannot be both set",
        ),
        row(
            "GET",
            "esites?timeoutSeconds=abc",
            none.clone(),
            400,
            "BadRequest",
            "strconv.ParseInt: parsing \"abc\": invalid syntax",
        ),
        row(
            "GET",
            "esites?watch=1&timeoutSeconds=abc",
            none.clone(),
            400,
            "BadRequest",
            "strconv.ParseInt: parsing \"abc\": invalid syntax",
        ),
        row(
            "GET",
            "esites?labelSelector=a%3Ex",
            none.clone(),
            400,
            "BadRequest",
            "for 'Gt', 'Lt' operators, the value must be an integer",
        ),
        row(
            "PUT",
            "esites/a",
            json!({"metadata": {"name": "a"}}),
            422,
            "Invalid",
            "ESite.causeway.io \"a\" is invalid: metadata.resourceVersion: Invalid value: 0x0: must be specified for an update",
        ),
        row(
            "PUT",
            "esites/a",
            json!({"metadata": {"name": "a", "resourceVersion": "0"}}),
            422,
            "Invalid",
            "must be specified for an update",
        ),
        row(
            "PUT",
            "esites/a/status",
            json!({"metadata": {"name": "a"}}),
            422,
            "Invalid",
            "must be specified for an update",
        ),
        row(
            "POST",
            "esites",
            named(json!({"ownerReferences": [owner("x"), owner("y")]})),
            422,
            "Invalid",
            "Only one reference can have Controller set to true. Found \"true\" in references for ESite/x and ESite/y",
        ),
        row(
            "POST",
            "esites",
            named(json!({"managedFields": [{"operation": "Steal", "manager": "m"}]})),
            422,
            "Invalid",
            "metadata.managedFields[0].operation: Invalid value: \"Steal\": must be `Apply` or `Update`",
        ),
        row(
            "POST",
            "eservices",
            json!({"metadata": {"name": "s"}, "eSiteName": "a", "port": 80, "endpoints": [{"ip": "10.0.0.1", "port": 0}]}),
            422,
            "Invalid",
            "endpoints[0].port: Invalid value: 0: should be greater than or equal to 1",
        ),
        apply(
            "esites/b?fieldManager=m",
            json!({"metadata": {"name": "b"}, "kind": "ESite"}),
            400,
            "BadRequest",
            "Incorrect version specified in apply patch. Specified patch version: , expected: causeway.io/v1",
        ),
        apply(
            "esites/b?fieldManager=m",
            json!({"metadata": {"name": "b"}, "apiVersion": "causeway.io/v1"}),
            400,
            "BadRequest",
            "kind must be set",
        ),
        apply(
            "esites/b?fieldManager=m",
            json!({"kind": "ESite", "apiVersion": "v1", "metadata": {"name": "b", "resourceVersion": "7"}}),
            409,
            "Conflict",
            "the object has been modified",
        ),
    ]
}

#[tokio::test]
async fn refusals_are_those_of_kubernetes_and_change_nothing() {
    let lab = Lab::new().await;
    lab.site("a", "x").await;
    let before = lab.store.revision().await.unwrap();
    let mut wrong = Vec::new();
    for row in refusals() {
        let body = if row.body.is_null() { Content::from(()) } else { Content::from(row.body) };
        let headers = [("content-type", row.content_type)];
        let found = lab.ask_with(row.method, &format!("{GROUP}/{}", row.path), body, &headers).await;
        let message = found.json["message"].as_str().unwrap_or_default();
        if found.code != row.code || found.json["reason"] != row.reason || !message.contains(row.message) {
            wrong.push(format!("{} {}: {} {message}", row.method, row.path, found.code));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
    assert_eq!(lab.store.revision().await.unwrap(), before);
}

#[tokio::test]
async fn labels_are_compared_as_numbers() {
    let lab = Lab::new().await;
    for (name, tier) in [("a", "3"), ("b", "10"), ("c", "high")] {
        lab.site(name, tier).await;
    }
    let found = lab.ask("GET", &format!("{GROUP}/esites?labelSelector=tier%3E5"), ()).await.expect(200);
    let names: Vec<&str> = found["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| item["metadata"]["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["b"]);
}

#[tokio::test]
async fn all_mistakes_of_an_object_are_told_at_once() {
    let lab = Lab::new().await;
    let service = json!({
        "metadata": {"name": "s"}, "port": "http", "protocol": "SCTP", "ip": "10.0.0.256",
        "endpoints": [{"ip": 7}, {"ip": "10.0.0.1", "port": 0}],
    });
    let refused = lab.ask("POST", &format!("{GROUP}/eservices"), service).await.expect(422);
    let mut fields: Vec<&str> = refused["details"]["causes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|cause| cause["field"].as_str().unwrap())
        .collect();
    fields.sort_unstable();
    assert_eq!(fields, ["eSiteName", "endpoints[0].ip", "endpoints[1].port", "ip", "port", "protocol"]);

    let mut expose = json!({"kind": "ServiceExpose", "apiVersion": "v1", "metadata": {"name": "x", "lables": {}}, "eServiceName": "s", "ePolicies": [], "spec": {}});
    let strict = "serviceexposes?fieldValidation=Strict";
    let refused = lab.ask("POST", &format!("{GROUP}/{strict}"), expose.clone()).await.expect(400);
    assert_eq!(
        refused["message"],
        "ServiceExpose in version \"v1\" cannot be handled as a ServiceExpose: strict decoding error: unknown field \"ePolicies\", did you mean \"ePolicys\"?, unknown field \"metadata.lables\", did you mean \"labels\"?, unknown field \"spec\""
    );
    let apply = [("content-type", "application/apply-patch+yaml")];
    let path = format!("{GROUP}/serviceexposes/x?fieldManager=m&fieldValidation=Strict");
    let refused = lab.ask_with("PATCH", &path, expose.clone(), &apply).await.expect(400);
    assert!(refused["message"].as_str().unwrap().contains("did you mean \"ePolicys\"?"), "{refused}");
    let warned = lab.ask("POST", &format!("{GROUP}/serviceexposes"), expose.clone()).await;
    assert_eq!(warned.code, 201);
    assert!(
        warned.header("warning").contains("unknown field \\\"ePolicies\\\", did you mean"),
        "{}",
        warned.header("warning")
    );
    expose["metadata"]["name"] = json!("y");
    let ignored = lab.ask("POST", &format!("{GROUP}/serviceexposes?fieldValidation=Ignore"), expose).await;
    assert_eq!((ignored.code, ignored.header("warning")), (201, ""));
}

#[tokio::test]
async fn what_somebody_would_miss_is_not_deleted_by_mistake() {
    let lab = Lab::new().await;
    for name in ["cloud", "oslo", "bergen"] {
        lab.site(name, "x").await;
    }
    for (name, at) in [("cloud", "cloud"), ("gw-oslo", "oslo"), ("gw-bergen", "bergen")] {
        lab.ask("POST", &format!("{GROUP}/egateways"), gateway(name, at, "198.18.0.0/16")).await.expect(201);
    }
    let merge = [("content-type", "application/merge-patch+json")];
    let connected = |status: &str| {
        json!({"status": {"conditions": [{
            "type": "Connected", "status": status, "reason": "X", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
        }]}})
    };
    for (name, status) in [("gw-oslo", "True"), ("gw-bergen", "False")] {
        let path = format!("{GROUP}/egateways/{name}/status");
        lab.ask_with("PATCH", &path, connected(status), &merge).await.expect(200);
    }
    let before = lab.store.revision().await.unwrap();
    let refused = async |path: &str| {
        let found = lab.ask("DELETE", &format!("{GROUP}/{path}"), ()).await;
        let message = found.json["message"].as_str().unwrap_or_default().to_owned();
        assert_eq!((found.code, &found.json["reason"]), (403, &json!("Forbidden")), "{path}: {message}");
        assert!(
            message.contains("causeway.io/allow-delete") && message.contains("causeway delete --force"),
            "{message}"
        );
        message
    };
    for query in ["", "?dryRun=All"] {
        assert!(
            refused(&format!("esites/cloud{query}"))
                .await
                .starts_with("esites.causeway.io \"cloud\" is forbidden: ")
        );
        refused(&format!("egateways/cloud{query}")).await;
        assert!(refused(&format!("esites/oslo{query}")).await.contains("gw-oslo"));
        refused(&format!("egateways/gw-oslo{query}")).await;
        refused(&format!("esites{query}")).await;
        refused(&format!("egateways{query}")).await;
    }
    assert_eq!(lab.store.revision().await.unwrap(), before, "a collection goes whole or not at all");
    lab.ask("DELETE", &format!("{GROUP}/esites/bergen"), ()).await.expect(200);
    lab.ask("DELETE", &format!("{GROUP}/egateways/gw-bergen"), ()).await.expect(200);
    let allow = json!({"metadata": {"annotations": {"causeway.io/allow-delete": "true"}}});
    for path in ["esites/oslo", "egateways/gw-oslo", "esites/cloud", "egateways/cloud"] {
        lab.ask_with("PATCH", &format!("{GROUP}/{path}"), allow.clone(), &merge).await.expect(200);
        lab.ask("DELETE", &format!("{GROUP}/{path}"), ()).await.expect(200);
    }
    // Nothing is protected any more.
    lab.ask("POST", &format!("{GROUP}/esites"), site("new", "x")).await.expect(201);
    lab.ask("DELETE", &format!("{GROUP}/esites"), ()).await.expect(200);
}
