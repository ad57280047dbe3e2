//! Callers without the right, and calls under /causeway/v1 that make no sense.

use causeway_api::management::paths;
use rustls::pki_types::PrivateKeyDer;
use serde_json::{Value, json};
use testlab::https::{Credentials, Request};

use super::{Row, Who, create, cut_off, get, named, refused};
use crate::{GROUP, path};

pub(super) fn rows() -> Vec<Row> {
    [strangers(), viewers(), gateways(), actions()].into_iter().flatten().collect()
}

fn strangers() -> Vec<Row> {
    let row = |says, ask: Request| refused(says, ask, 401, "Unauthorized", "").by(Who::Nobody);
    let esites = format!("{GROUP}/esites");
    vec![
        row("nobody lists", get(&esites)),
        row("nobody creates", create("esites", &named("x", json!({})))),
        row("nobody backs up", get(paths::BACKUP)),
        row("nobody makes a token", action("tokens", json!({"role": "admin"}))),
        row("nobody learns which paths exist", get("/no/such/path")),
        row(
            "a user and a password are no credential",
            get(&esites).header("authorization", "Basic YWRtaW46YWRtaW4="),
        ),
        row("an empty token is no credential", get(&esites).header("authorization", "Bearer ")),
        row(
            "a header of garbage is no credential",
            get(&esites).header("authorization", &"x".repeat(10_000)),
        ),
        refused("a guessed token opens nothing", get(&esites), 401, "Unauthorized", "").by(Who::Guesser),
        cut_off("a certificate of another CA opens nothing", get(&esites), "UnknownCA").by(Who::Foreign),
    ]
}

fn viewers() -> Vec<Row> {
    let row = |says, ask: Request, words| refused(says, ask, 403, "Forbidden", words).by(Who::Viewer);
    let patch = Request::new("PATCH", &path("esites", "oslo"));
    vec![
        row("a viewer does not create", create("esites", &named("x", json!({}))), "cannot create"),
        row(
            "a viewer does not update",
            Request::new("PUT", &path("esites", "oslo")).json(&named("oslo", json!({}))),
            "cannot update",
        ),
        row("a viewer does not patch", patch.body("application/merge-patch+json", "{}"), "cannot patch"),
        row("a viewer does not delete", Request::new("DELETE", &path("esites", "oslo")), "cannot delete"),
        row(
            "a viewer does not delete all",
            Request::new("DELETE", &format!("{GROUP}/esites")),
            "cannot deletecollection",
        ),
        row(
            "a viewer's dry run is a write too",
            Request::new("POST", &format!("{GROUP}/esites?dryRun=All")).json(&named("x", json!({}))),
            "cannot create",
        ),
        row("a viewer sees no tokens", get(paths::TOKENS), ""),
        row("a viewer takes no backup", get(paths::BACKUP), ""),
        row("a viewer changes no CA", action("ca/rotate", json!({"step": "start"})), ""),
    ]
}

fn gateways() -> Vec<Row> {
    let row = |says, ask: Request| refused(says, ask, 403, "Forbidden", "").by(Who::Gateway);
    vec![
        row("a gateway does not read another", get(&path("egateways", "bergen"))),
        row("a gateway does not list", get(&format!("{GROUP}/egateways"))),
        row("a gateway does not watch all", get(&format!("{GROUP}/egateways?watch=1"))),
        row("a gateway reads no service", get(&path("eservices", "web"))),
        row(
            "a gateway does not move itself",
            Request::new("PUT", &path("egateways", "oslo"))
                .json(&named("oslo", json!({"eSiteName": "bergen"}))),
        ),
        row(
            "a gateway does not write another's status",
            Request::new("PUT", &format!("{}/status", path("egateways", "bergen")))
                .json(&named("bergen", json!({}))),
        ),
        row("a gateway does not delete itself", Request::new("DELETE", &path("egateways", "oslo"))),
        row("a gateway makes no token", action("tokens", json!({"site": "oslo"}))),
        row("a gateway puts nobody out", action("revoke", json!({"gateway": "bergen"}))),
    ]
}

fn action(path: &str, body: Value) -> Request {
    Request::new("POST", &format!("{}{path}", paths::PREFIX)).json(&body)
}

fn actions() -> Vec<Row> {
    let bad =
        |says, path: &str, body: Value, words| refused(says, action(path, body), 400, "BadRequest", words);
    let wrong =
        |says, path: &str, body: Value, words| refused(says, action(path, body), 422, "Invalid", words);
    let garbage = Request::new("POST", paths::TOKENS).body("application/json", "{\"site\":");
    vec![
        refused("half a request is no request", garbage, 400, "BadRequest", "the body"),
        bad("a token is for something", "tokens", json!({}), "site"),
        bad("a token is for one thing", "tokens", json!({"site": "a", "role": "admin"}), "not both"),
        bad("a token's role exists", "tokens", json!({"role": "emperor"}), "emperor"),
        bad("a token is not for the cloud itself", "tokens", json!({"site": "cloud"}), "this cloud itself"),
        bad("a token's uses are not negative", "tokens", json!({"site": "new", "uses": -1}), ""),
        bad("a token's fields are known", "tokens", json!({"sight": "new"}), "sight"),
        wrong("a token's site has a name", "tokens", json!({"site": "a/b"}), ""),
        wrong("a token's gateway has a name", "tokens", json!({"site": "new", "gateway": "../x"}), ""),
        wrong("a token lives for some time", "tokens", json!({"site": "new", "ttlSeconds": 0}), "ttl"),
        wrong(
            "a token does not live for ever",
            "tokens",
            json!({"site": "new", "ttlSeconds": u64::MAX}),
            "ttl",
        ),
        wrong("a token is good for something", "tokens", json!({"site": "new", "uses": 0}), "uses"),
        refused(
            "a token's gateway stands at its site",
            action("tokens", json!({"site": "new", "gateway": "oslo"})),
            409,
            "Conflict",
            "oslo",
        ),
        wrong(
            "an unknown gateway is not put out",
            "revoke",
            json!({"gateway": "nobody"}),
            "\"nobody\" was never enrolled",
        ),
        bad("whom to put out must be said", "revoke", json!({}), "gateway"),
        refused(
            "an unknown token is not deleted",
            Request::new("DELETE", "/causeway/v1/tokens/00000000000000000000000000000000"),
            404,
            "NotFound",
            "token",
        ),
        refused(
            "the name of a token leads to no other record",
            Request::new("DELETE", "/causeway/v1/tokens/..%2f..%2fidentity"),
            404,
            "NotFound",
            "",
        ),
        bad("a change of CA has two steps", "ca/rotate", json!({"step": "sideways"}), "sideways"),
        refused(
            "a change of CA begins before it ends",
            action("ca/rotate", json!({"step": "finish"})),
            409,
            "Conflict",
            "start one with `causeway ca rotate`",
        ),
        refused(
            "a review is an object",
            Request::new("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews").json(&json!([])),
            400,
            "BadRequest",
            "",
        ),
    ]
}

/// A certificate that says "admin" and comes from a CA of our own making.
pub(super) fn foreign_credentials() -> Credentials {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut parameters = rcgen::CertificateParams::new(Vec::new()).unwrap();
    parameters.distinguished_name.push(rcgen::DnType::CommonName, "admin");
    parameters.distinguished_name.push(rcgen::DnType::OrganizationName, "causeway:admin");
    let certificate = parameters.self_signed(&key).unwrap();
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    Credentials { chain: vec![certificate.der().clone()], key }
}
