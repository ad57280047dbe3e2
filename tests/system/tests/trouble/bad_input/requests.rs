//! Requests that are wrong before their body is looked at: paths, verbs, media types, queries.

use causeway_api::management::paths;
use serde_json::json;
use testlab::https::Request;

use super::{Row, create, get, named, refused, warned, wrong};
use crate::{GROUP, path};

pub(super) fn rows() -> Vec<Row> {
    [paths(), verbs(), media(), selectors(), pages(), writes(), deletions()].into_iter().flatten().collect()
}

fn missing(says: &'static str, path: &str) -> Row {
    refused(says, get(path), 404, "NotFound", "")
}

fn paths() -> Vec<Row> {
    vec![
        missing("a resource that is not served is not there", &format!("{GROUP}/pods")),
        missing("a group that is not served is not there", "/apis/apps/v1/esites"),
        missing("a version that is not served is not there", "/apis/causeway.io/v2/esites"),
        missing(
            "a subresource that is not served is not there",
            &format!("{}/scale", path("esites", "oslo")),
        ),
        missing("nothing lies behind a subresource", &format!("{}/status/more", path("esites", "oslo"))),
        missing("a path that goes up leads nowhere", &format!("{GROUP}/esites/../../../../etc/passwd")),
        missing("an escaped slash is part of a name", &format!("{GROUP}/esites/..%2f..%2fidentity%2fca")),
        missing("an escaped path leads to no other collection", "/api/v1/esites%2f..%2fjointokens"),
        missing("an object that is not there is not there", &path("esites", "nowhere")),
        missing("a name that cannot be is not there", &path("esites", "%00")),
        missing("names in capitals are other names", &path("esites", "OSLO")),
        missing("broken escapes are only letters", &path("esites", "%zz%")),
        missing("an action that is unknown is not there", "/causeway/v1/shutdown"),
        missing("an action does not lead to objects", "/causeway/v1/../../api/v1/esites"),
        missing("the root holds nothing", "/"),
    ]
}

fn verbs() -> Vec<Row> {
    let row = |says, method: &str, path: &str| {
        refused(says, Request::new(method, path), 405, "MethodNotAllowed", "")
    };
    vec![
        row("a collection is not replaced", "PUT", &format!("{GROUP}/esites")),
        row("an object is not posted to", "POST", &path("esites", "oslo")),
        row("a status is not deleted", "DELETE", &format!("{}/status", path("esites", "oslo"))),
        row("discovery is not written", "POST", "/apis"),
        row("an invented verb is refused", "BREW", &path("esites", "oslo")),
        row("an action has its verb", "PUT", paths::TOKENS),
        row("a review is posted", "GET", "/apis/authentication.k8s.io/v1/selfsubjectreviews"),
    ]
}

fn media() -> Vec<Row> {
    let accept = |says, accept: &str| {
        let ask = get(&format!("{GROUP}/esites")).header("accept", accept);
        refused(says, ask, 406, "NotAcceptable", "application/json")
    };
    let sent = |says, method: &str, path: &str, kind: &str| {
        let ask = Request::new(method, path).body(kind, "{}");
        refused(says, ask, 415, "UnsupportedMediaType", "application/")
    };
    let esites = format!("{GROUP}/esites");
    let mut bare = Request::new("PATCH", &path("esites", "oslo"));
    bare.body = Some(b"{}".to_vec());
    vec![
        accept("protobuf alone is not spoken", "application/vnd.kubernetes.protobuf"),
        accept("a page for people is not written", "text/html"),
        accept("a table of another version is not written", "application/json;as=Table;v=v9;g=meta.k8s.io"),
        sent("plain text is no object", "POST", &esites, "text/plain"),
        sent("a form is no object", "POST", &esites, "application/x-www-form-urlencoded"),
        sent("protobuf is not read", "PUT", &path("esites", "oslo"), "application/vnd.kubernetes.protobuf"),
        sent("a patch says what kind it is", "PATCH", &path("esites", "oslo"), "application/json"),
        sent("garbage is no media type", "POST", &esites, "///"),
        refused("a patch without a type is refused", bare, 415, "UnsupportedMediaType", "application/"),
    ]
}

fn selectors() -> Vec<Row> {
    let row = |says, query: &str, words| {
        refused(says, get(&format!("{GROUP}/esites?{query}")), 400, "BadRequest", words)
    };
    vec![
        row("a selector has an operator that exists", "labelSelector=a%3D%3D%3Db", "selector"),
        row("a set is closed", "labelSelector=a%20in%20(b", "selector"),
        row("a label's key has rules in selectors too", "labelSelector=a%20b%3Dc", "selector"),
        row("fields are selected by when they refer", "fieldSelector=subnets%3Dx", "metadata.name"),
        row("a field selector has an operator", "fieldSelector=metadata.name", "no operator"),
        row(
            "a selector does not grow without end",
            &format!("fieldSelector={}", vec!["metadata.name!%3Dx"; 101].join(",")),
            "100 requirements",
        ),
        row("a watch looks at its selector first", "watch=1&labelSelector=%21%21", "selector"),
    ]
}

fn pages() -> Vec<Row> {
    let list = |query: &str| get(&format!("{GROUP}/esites?{query}"));
    let bad = |says, query: &str, words| refused(says, list(query), 400, "BadRequest", words);
    vec![
        bad("garbage is no continue token", "continue=garbage", "continue"),
        bad(
            "a continue token of another server is refused",
            "continue=eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6MSwic3RhcnQiOiJhIn0",
            "continue",
        ),
        bad("a limit is a number", "limit=many", "limit"),
        bad("a limit has an end", "limit=99999999999999999999", "limit"),
        bad("a timeout is a number", "watch=1&timeoutSeconds=soon", "timeoutSeconds"),
        bad("a revision is a number", "resourceVersion=yesterday", "resourceVersion"),
        bad("a revision is not negative", "watch=1&resourceVersion=-1", "resourceVersion"),
        wrong("a match needs a revision", list("resourceVersionMatch=Exact"), "resourceVersionMatch"),
        wrong(
            "a match is one of two",
            list("resourceVersion=1&resourceVersionMatch=Roughly"),
            "resourceVersionMatch",
        ),
        wrong("a list sends no initial events", list("sendInitialEvents=true"), "sendInitialEvents"),
        wrong("initial events want a match", list("watch=1&sendInitialEvents=true"), "resourceVersionMatch"),
        wrong("a table's rows hold one of three", list("includeObject=Everything"), "includeObject"),
        refused(
            "a revision of the future is not there yet",
            list("resourceVersion=999999999"),
            504,
            "Timeout",
            "Too large resource version",
        ),
    ]
}

fn writes() -> Vec<Row> {
    let object = named("x", json!({}));
    let post = |query: &str| Request::new("POST", &format!("{GROUP}/esites?{query}")).json(&object);
    let put = |name: &str, body: serde_json::Value| Request::new("PUT", &path("esites", name)).json(&body);
    let merge = |query: &str, body: serde_json::Value| {
        Request::new("PATCH", &format!("{}{query}", path("esites", "oslo")))
            .body("application/merge-patch+json", body.to_string())
    };
    let long = "m".repeat(200);
    vec![
        wrong("a dry run is of all", post("dryRun=Some"), "dryRun"),
        wrong("validation is one of three", post("fieldValidation=Sometimes"), "fieldValidation"),
        wrong("a manager's name ends at 128 bytes", post(&format!("fieldManager={long}")), "fieldManager"),
        wrong("a manager's name can be printed", post("fieldManager=a%0ab"), "fieldManager"),
        refused(
            "a body's kind is the path's",
            create("esites", &json!({"kind": "EService", "metadata": {"name": "x"}})),
            400,
            "BadRequest",
            "kind in the data (EService)",
        ),
        refused(
            "a body's version is the path's",
            create("esites", &json!({"apiVersion": "apps/v1", "metadata": {"name": "x"}})),
            400,
            "BadRequest",
            "apps/v1",
        ),
        refused(
            "a new object has no revision",
            create("esites", &json!({"metadata": {"name": "x", "resourceVersion": "5"}})),
            400,
            "BadRequest",
            "resourceVersion",
        ),
        refused(
            "a body's name is the path's",
            put("oslo", named("bergen", json!({}))),
            400,
            "BadRequest",
            "does not match the name on the URL",
        ),
        refused(
            "what is not there is not updated",
            put("nowhere", named("nowhere", json!({}))),
            404,
            "NotFound",
            "nowhere",
        ),
        refused(
            "an update of another uid is a conflict",
            put("oslo", json!({"metadata": {"name": "oslo", "uid": "someone-else"}})),
            409,
            "Conflict",
            "UID",
        ),
        refused(
            "a revision in a body is a number",
            put("oslo", json!({"metadata": {"name": "oslo", "resourceVersion": "new"}})),
            400,
            "BadRequest",
            "resourceVersion",
        ),
        wrong(
            "an update names the revision it replaces",
            put("oslo", named("oslo", json!({}))),
            "metadata.resourceVersion",
        ),
        wrong("a change is checked like a create", merge("", json!({"subnets": ["x"]})), "subnets[0]"),
        wrong("an empty dry run is none", merge("?dryRun=", json!({})), "dryRun"),
        warned(
            "a dry run warns as well",
            merge("?dryRun=All", json!({"color": 1})),
            200,
            r#"unknown field \"color\""#,
        ),
    ]
}

fn deletions() -> Vec<Row> {
    let delete = |query: &str, body: &str| {
        Request::new("DELETE", &format!("{}{query}", path("esites", "oslo"))).body("application/json", body)
    };
    vec![
        refused("garbage is no way to delete", delete("", "{garbage"), 400, "BadRequest", "the body"),
        refused("a list is no way to delete", delete("", "[]"), 400, "BadRequest", "DeleteOptions"),
        refused(
            "another kind is no way to delete",
            delete("", r#"{"kind":"ESite"}"#),
            400,
            "BadRequest",
            "DeleteOptions",
        ),
        wrong("propagation is one of three", delete("?propagationPolicy=Slowly", ""), "propagationPolicy"),
        wrong(
            "propagation in the body as well",
            delete("", r#"{"propagationPolicy":"Slowly"}"#),
            "propagationPolicy",
        ),
        wrong("a dry run in the body is of all", delete("", r#"{"dryRun":["Some"]}"#), "dryRun"),
        refused(
            "a deletion of another uid is a conflict",
            delete("", r#"{"preconditions":{"uid":"someone-else"}}"#),
            409,
            "Conflict",
            "UID",
        ),
        refused(
            "a deletion of another revision is a conflict",
            delete("", r#"{"preconditions":{"resourceVersion":"1"}}"#),
            409,
            "Conflict",
            "ResourceVersion",
        ),
        refused(
            "what is not there is not deleted",
            Request::new("DELETE", &path("esites", "nowhere")),
            404,
            "NotFound",
            "nowhere",
        ),
        refused(
            "a collection is deleted by a good selector",
            Request::new("DELETE", &format!("{GROUP}/esites?labelSelector=%21%21")),
            400,
            "BadRequest",
            "selector",
        ),
        wrong(
            "a collection is deleted with good options",
            Request::new("DELETE", &format!("{GROUP}/esites?propagationPolicy=Slowly")),
            "propagationPolicy",
        ),
    ]
}
