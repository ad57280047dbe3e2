//! Requests and their expected parse results.

use causeway_store::Revision;

use causeway_api::Kind;

use super::options::{DeleteOptions, WatchStart};
use super::*;

fn parse_with(method: &str, uri: &str, content_type: Option<&str>) -> Result<ApiRequest, Status> {
    let mut headers = HeaderMap::new();
    if let Some(content_type) = content_type {
        headers.insert(header::CONTENT_TYPE, content_type.parse().unwrap());
    }
    parse(&method.parse().unwrap(), &uri.parse().unwrap(), &headers)
}

/// Compares the verb, kind, name and whether it is about the status; or the code of the refusal.
fn check(method: &str, uri: &str, expected: Result<(Verb, Kind, Option<&str>, bool), u16>) {
    let found = parse_with(method, uri, (method == "PATCH").then_some("application/merge-patch+json"));
    let found = found.as_ref().map(|ask| match ask {
        ApiRequest::Object(ask) => {
            let (verb, name, status) = ask.verb.access();
            (verb, ask.resource.kind, name, status)
        }
        other => panic!("{method} {uri}: {other:?}"),
    });
    assert_eq!(found.map_err(|status| status.code), expected, "{method} {uri}");
}

#[test]
fn paths_and_methods_name_a_verb_on_an_object() {
    use Kind::*;
    for root in ["/api/v1", "/apis/causeway.io/v1"] {
        let at = |rest: &str| format!("{root}/{rest}");
        check("GET", &at("esites"), Ok((Verb::List, ESite, None, false)));
        check("GET", &at("esites/"), Ok((Verb::List, ESite, None, false)));
        check("GET", &at("esites?watch=1"), Ok((Verb::Watch, ESite, None, false)));
        check("GET", &at("esites?watch=false"), Ok((Verb::List, ESite, None, false)));
        check("GET", &at("esites/Tokyo"), Ok((Verb::Get, ESite, Some("Tokyo"), false)));
        check("GET", &at("esites/To%6Byo"), Ok((Verb::Get, ESite, Some("Tokyo"), false)));
        check("GET", &at("esites/Tokyo?watch=true"), Ok((Verb::Watch, ESite, Some("Tokyo"), false)));
        check("GET", &at("esites/Tokyo/status"), Ok((Verb::Get, ESite, Some("Tokyo"), true)));
        check(
            "GET",
            &at("esites?fieldSelector=metadata.name%3Da"),
            Ok((Verb::List, ESite, Some("a"), false)),
        );
        check("POST", &at("egateways"), Ok((Verb::Create, EGateway, None, false)));
        check("PUT", &at("egateways/a"), Ok((Verb::Update, EGateway, Some("a"), false)));
        check("PUT", &at("egateways/a/status"), Ok((Verb::Update, EGateway, Some("a"), true)));
        check("PATCH", &at("egateways/a/status"), Ok((Verb::Patch, EGateway, Some("a"), true)));
        check("DELETE", &at("egateways/a"), Ok((Verb::Delete, EGateway, Some("a"), false)));
        check("DELETE", &at("egateways"), Ok((Verb::DeleteCollection, EGateway, None, false)));
        check("DELETE", &at("egateways/a/status"), Err(405));
        check("HEAD", &at("esites"), Ok((Verb::List, ESite, None, false)));
        check("HEAD", &at("esites/a"), Ok((Verb::Get, ESite, Some("a"), false)));
        check("HEAD", &at("esites?watch=1"), Err(405));
        check("POST", &at("egateways/a"), Err(405));
        check("PUT", &at("egateways"), Err(405));
        check("GET", &at("esites/a/scale"), Err(404));
        check("GET", &at("watch/esites"), Err(404));
        check("GET", &at("pods"), Err(404));
        check("GET", &at("namespaces/default/esites"), Err(404));
    }
    check("GET", "/apis/causeway.io/v1/namespaces/default", Err(404));
    check("GET", "/apis/causeway.io/v1/events", Err(404));
}

#[test]
fn the_kinds_of_kubernetes_have_their_own_scopes_and_verbs() {
    use Kind::*;
    check("GET", "/api/v1/namespaces", Ok((Verb::List, Namespace, None, false)));
    check("GET", "/api/v1/namespaces?watch=1", Ok((Verb::Watch, Namespace, None, false)));
    check("GET", "/api/v1/namespaces/default", Ok((Verb::Get, Namespace, Some("default"), false)));
    check("GET", "/api/v1/namespaces/default/status", Err(404));
    check("POST", "/api/v1/namespaces", Err(405));
    check("DELETE", "/api/v1/namespaces/default", Err(405));
    check("PATCH", "/api/v1/namespaces/default", Err(405));
    check("GET", "/api/v1/namespaces/kube-system/services", Ok((Verb::List, Service, None, false)));
    check("POST", "/api/v1/namespaces/default/services", Err(405));
    check("GET", "/api/v1/namespaces/default/pods", Err(404));
    for root in ["/api/v1", "/apis/events.k8s.io/v1"] {
        let at = |rest: &str| format!("{root}/{rest}");
        check("GET", &at("events"), Ok((Verb::List, Event, None, false)));
        check("GET", &at("events?watch=1"), Ok((Verb::Watch, Event, None, false)));
        check("POST", &at("events"), Err(405));
        check("GET", &at("events/a"), Err(404));
        check("GET", &at("namespaces/default/events"), Ok((Verb::List, Event, None, false)));
        check("GET", &at("namespaces/other/events"), Ok((Verb::List, Event, None, false)));
        check("POST", &at("namespaces/default/events"), Ok((Verb::Create, Event, None, false)));
        check("POST", &at("namespaces/other/events"), Err(404));
        check("GET", &at("namespaces/default/events/a"), Ok((Verb::Get, Event, Some("a"), false)));
        check("GET", &at("namespaces/other/events/a"), Err(404));
        check("PATCH", &at("namespaces/default/events/a"), Ok((Verb::Patch, Event, Some("a"), false)));
        check("DELETE", &at("namespaces/default/events/a"), Ok((Verb::Delete, Event, Some("a"), false)));
        check("DELETE", &at("namespaces/default/events"), Ok((Verb::DeleteCollection, Event, None, false)));
        check("GET", &at("namespaces/default/events/a/status"), Err(404));
    }
    for path in [
        "/",
        "/apis/apps/v1/deployments",
        "/api/v2/esites",
        "/apis/causeway.io/v2/esites",
        "/x",
        "/causeway/v1",
    ] {
        check("GET", path, Err(404));
    }
}

#[test]
fn options_are_checked_against_each_other() {
    use Kind::ESite;
    let list = |query: &str, expected: Result<(), u16>| {
        let expected = expected.map(|()| (Verb::List, ESite, None, false));
        check("GET", &format!("/api/v1/esites?{query}"), expected);
    };
    list("limit=10&continue=x", Ok(()));
    list("limit=-1", Ok(()));
    list("limit=ten", Err(400));
    list("timeoutSeconds=soon", Err(400));
    list("resourceVersion=abc", Err(400));
    list("resourceVersion=-1", Err(400));
    list("resourceVersion=5&resourceVersionMatch=Exact", Ok(()));
    list("resourceVersionMatch=Exact", Err(422));
    list("resourceVersion=0&resourceVersionMatch=Exact", Err(422));
    list("resourceVersion=5&resourceVersionMatch=Newest", Err(422));
    list("continue=x&resourceVersion=5", Err(400));
    list("continue=x&resourceVersion=0", Ok(()));
    list("continue=x&resourceVersionMatch=Exact&resourceVersion=1", Err(422));
    list("sendInitialEvents=true", Err(422));
    list("labelSelector=a%3D%3D%3Db", Err(400));
    list("fieldSelector=status.x%3Db", Err(400));
    list("includeObject=Everything", Err(422));
    let watch = |query: &str, expected: Result<WatchStart, u16>| {
        let found = parse_with("GET", &format!("/api/v1/esites?watch=1&{query}"), None);
        let found = found.map(|ask| match ask {
            ApiRequest::Object(ResourceRequest { verb: ObjectVerb::Watch(options), .. }) => options.from,
            other => panic!("{other:?}"),
        });
        assert_eq!(found.map_err(|status| status.code), expected, "{query}");
    };
    watch("", Ok(WatchStart::State { not_older_than: Revision(0), marked: false }));
    watch("resourceVersion=0", Ok(WatchStart::State { not_older_than: Revision(0), marked: false }));
    watch("resourceVersion=7", Ok(WatchStart::After(Revision(7))));
    watch("resourceVersionMatch=NotOlderThan&resourceVersion=7", Err(422));
    watch("sendInitialEvents=true", Err(422));
    watch(
        "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=7",
        Ok(WatchStart::State { not_older_than: Revision(7), marked: true }),
    );
    watch("sendInitialEvents=false&resourceVersionMatch=NotOlderThan", Ok(WatchStart::Now));
    watch("timeoutSeconds=soon", Err(400));
}

#[test]
fn writes_say_how_they_are_to_be_read() {
    let code = |method: &str, query: &str, content_type: Option<&str>| {
        parse_with(method, &format!("/api/v1/esites/a?{query}"), content_type)
            .map(|_| 0)
            .unwrap_or_else(|s| s.code)
    };
    assert_eq!(code("PUT", "", None), 0);
    assert_eq!(code("PUT", "", Some("application/yaml")), 0);
    assert_eq!(code("PUT", "", Some("text/plain")), 415);
    assert_eq!(code("PUT", "", Some("application/vnd.kubernetes.protobuf")), 415);
    assert_eq!(code("PUT", "dryRun=All", None), 0);
    assert_eq!(code("PUT", "dryRun=Some", None), 422);
    assert_eq!(code("PUT", "dryRun=", None), 422);
    assert_eq!(code("PUT", "fieldValidation=Strict", None), 0);
    assert_eq!(code("PUT", "fieldValidation=Maybe", None), 422);
    assert_eq!(code("PUT", &format!("fieldManager={}", "x".repeat(129)), None), 422);
    assert_eq!(code("PUT", "fieldManager=a%00b", None), 422);
    assert_eq!(code("PATCH", "", None), 415);
    assert_eq!(code("PATCH", "", Some("application/json")), 415);
    assert_eq!(code("PATCH", "force=true", Some("application/merge-patch+json")), 422);
    assert_eq!(code("PATCH", "", Some("application/apply-patch+yaml")), 422);
    assert_eq!(code("PATCH", "fieldManager=me&force=true", Some("application/apply-patch+yaml")), 0);
    assert_eq!(code("DELETE", "propagationPolicy=Background", None), 0);
    assert_eq!(code("DELETE", "propagationPolicy=Slowly", None), 422);
}

#[test]
fn what_is_no_object_is_understood_too() {
    let ask = |method: &str, uri: &str| parse_with(method, uri, None).map_err(|status| status.code);
    assert_eq!(ask("GET", "/api"), Ok(ApiRequest::Discovery(DiscoveryRequest::CoreVersions)));
    assert_eq!(
        ask("GET", "/apis/causeway.io/v1/"),
        Ok(ApiRequest::Discovery(DiscoveryRequest::Resources(ApiGroup::Causeway)))
    );
    assert_eq!(
        ask("GET", "/readyz?verbose"),
        Ok(ApiRequest::Probe { probe: HealthProbe::Ready, verbose: true })
    );
    assert_eq!(ask("POST", "/readyz"), Err(405));
    assert_eq!(
        ask("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"),
        Ok(ApiRequest::Review(ReviewRequest::SelfAccess))
    );
    assert_eq!(ask("GET", "/apis/authentication.k8s.io/v1/selfsubjectreviews"), Err(405));
    assert_eq!(
        ask("DELETE", "/causeway/v1/tokens/abc?x=1"),
        Ok(ApiRequest::Action { path: "tokens/abc".into(), query: Some("x=1".into()) })
    );
    assert_eq!(
        ask("GET", "/openapi/v3/apis/causeway.io/v1?hash=AB"),
        Ok(ApiRequest::OpenApi(OpenApiRequest::V3 {
            path: "apis/causeway.io/v1".into(),
            hash: Some("AB".into())
        }))
    );
}

#[test]
fn a_delete_whose_options_cannot_be_read_is_refused() {
    let check = |body: serde_json::Value, is_taken: bool| {
        let options = DeleteOptions::parse(&QueryParameters::parse(None)).unwrap();
        assert_eq!(options.with_body(&body).is_ok(), is_taken, "{body}");
    };
    check(serde_json::json!({"kind": "DeleteOptions", "dryRun": ["All"], "gracePeriodSeconds": 0}), true);
    check(serde_json::json!({"dryRun": null, "preconditions": {"uid": "a", "resourceVersion": "5"}}), true);
    check(serde_json::json!({"dryRun": "All"}), false);
    check(serde_json::json!({"dryRun": true}), false);
    check(serde_json::json!({"dryRun": {"0": "All"}}), false);
    check(serde_json::json!({"dryRun": [1]}), false);
    check(serde_json::json!({"preconditions": "x"}), false);
    check(serde_json::json!({"preconditions": ["a"]}), false);
    check(serde_json::json!({"preconditions": {"uid": 5}}), false);
    check(serde_json::json!({"preconditions": {"resourceVersion": 1}}), false);
    check(serde_json::json!({"propagationPolicy": 5}), false);
    check(serde_json::json!({"orphanDependents": "false"}), false);
    check(serde_json::json!({"gracePeriodSeconds": "x"}), false);
}
