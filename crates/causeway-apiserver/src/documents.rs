//! Documents that never change while the program runs: discovery, OpenAPI, the version.
//!
//! Each is made on first use and kept as bytes. An entity tag lets clients check whether their copy is
//! current.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::OnceLock;

use bytes::Bytes;
use causeway_api::discovery::{self, AggregatedDiscovery};
use causeway_api::{ApiVersion, Status, openapi};
use http::header::{self, HeaderMap, HeaderValue};
use http::{Response, StatusCode};
use serde_json::{Value, json};

use crate::request::media::MediaRange;
use crate::request::{DiscoveryRequest, OpenApiRequest};
use crate::respond::{self, Body};

pub(crate) struct StaticDocument {
    bytes: Bytes,
    tag: HeaderValue,
}

impl StaticDocument {
    pub(crate) fn new(bytes: impl Into<Bytes>) -> StaticDocument {
        let bytes = bytes.into();
        let mut hasher = DefaultHasher::new();
        bytes.hash(&mut hasher);
        let tag = format!("\"{:016X}\"", hasher.finish());
        let tag = HeaderValue::from_str(&tag).expect("hexadecimal digits in quotes are a header value");
        StaticDocument { bytes, tag }
    }

    fn json(value: &Value) -> StaticDocument {
        StaticDocument::new(value.to_string())
    }

    /// Returns the document, or 304 when the client has it.
    pub(crate) fn answer(&self, request: &HeaderMap, content_type: HeaderValue) -> Response<Body> {
        let known = request.get_all(header::IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
        let own = self.tag.to_str().unwrap_or_default();
        let known =
            known.flat_map(|value| value.split(',')).any(|tag| tag.trim().trim_start_matches("W/") == own);
        let mut response = match known {
            true => respond::whole(StatusCode::NOT_MODIFIED, content_type, Bytes::new()),
            false => respond::whole(StatusCode::OK, content_type, self.bytes.clone()),
        };
        let headers = response.headers_mut();
        headers.insert(header::ETAG, self.tag.clone());
        headers.insert(header::VARY, HeaderValue::from_static("Accept"));
        response
    }
}

pub fn discovery(
    what: DiscoveryRequest,
    accept: &[MediaRange],
    request: &HeaderMap,
) -> Result<Response<Body>, Status> {
    let aggregated = accept.iter().find_map(aggregated_form);
    let (document, content_type) = match (what, aggregated) {
        (DiscoveryRequest::CoreVersions, Some(form)) => {
            (discovery::aggregated_core(form), aggregated_type(form))
        }
        (DiscoveryRequest::Groups, Some(form)) => (discovery::aggregated_groups(form), aggregated_type(form)),
        (DiscoveryRequest::CoreVersions, None) => (discovery::api_versions(""), respond::JSON),
        (DiscoveryRequest::Groups, None) => (discovery::group_list(), respond::JSON),
        (DiscoveryRequest::Group(group), _) => (found(discovery::group(group.name()))?, respond::JSON),
        (DiscoveryRequest::CoreResources, _) => (found(discovery::resource_list(""))?, respond::JSON),
        (DiscoveryRequest::Resources(group), _) => {
            (found(discovery::resource_list(group.name()))?, respond::JSON)
        }
    };
    Ok(StaticDocument::json(&document).answer(request, content_type))
}

fn found(document: Option<Value>) -> Result<Value, Status> {
    document.ok_or_else(|| Status::no_such_path("this group"))
}

/// Returns the aggregated form that a media range asks for. A range of lower rank that would be served in the
/// old form ends the search.
fn aggregated_form(range: &MediaRange) -> Option<AggregatedDiscovery> {
    let asked = range.param("g") == Some("apidiscovery.k8s.io")
        && range.param("as") == Some("APIGroupDiscoveryList")
        && range.media == "application/json";
    let forms = [AggregatedDiscovery::V2, AggregatedDiscovery::V2Beta1];
    forms.into_iter().find(|form| asked && range.param("v") == Some(form.version()))
}

fn aggregated_type(form: AggregatedDiscovery) -> HeaderValue {
    HeaderValue::from_static(match form {
        AggregatedDiscovery::V2 => "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
        AggregatedDiscovery::V2Beta1 => {
            "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList"
        }
    })
}

pub fn openapi(
    what: &OpenApiRequest,
    accept: &[MediaRange],
    request: &HeaderMap,
) -> Result<Response<Body>, Status> {
    match what {
        OpenApiRequest::V2 => v2(accept, request),
        OpenApiRequest::V3Index => Ok(v3_index().answer(request, respond::JSON)),
        // kubectl asks for protobuf here and falls back to v2 on any refusal.
        OpenApiRequest::V3 { .. } if !accept.iter().any(takes_json) => {
            Err(Status::not_acceptable(&["application/json"]))
        }
        OpenApiRequest::V3 { path, hash } => v3(path, hash.as_deref(), request),
    }
}

fn v2(accept: &[MediaRange], request: &HeaderMap) -> Result<Response<Body>, Status> {
    static JSON: OnceLock<StaticDocument> = OnceLock::new();
    static PROTOBUF: OnceLock<StaticDocument> = OnceLock::new();
    for range in accept {
        if openapi::V2_PROTOBUF_ACCEPT.contains(&range.media.as_str()) {
            let document = PROTOBUF.get_or_init(|| StaticDocument::new(openapi::v2_protobuf()));
            let content_type = HeaderValue::from_static(openapi::V2_PROTOBUF_CONTENT_TYPE);
            return Ok(document.answer(request, content_type));
        }
        if takes_json(range) {
            let document = JSON.get_or_init(|| StaticDocument::json(&openapi::v2()));
            return Ok(document.answer(request, respond::JSON));
        }
    }
    Err(Status::not_acceptable(&["application/json", openapi::V2_PROTOBUF_CONTENT_TYPE]))
}

fn takes_json(range: &MediaRange) -> bool {
    matches!(range.media.as_str(), "application/json" | "application/*" | "*/*")
}

fn v3_index() -> &'static StaticDocument {
    static INDEX: OnceLock<StaticDocument> = OnceLock::new();
    INDEX.get_or_init(|| StaticDocument::json(&openapi::v3_index()))
}

fn v3(path: &str, hash: Option<&str>, request: &HeaderMap) -> Result<Response<Body>, Status> {
    static CORE: OnceLock<StaticDocument> = OnceLock::new();
    static GROUP: OnceLock<StaticDocument> = OnceLock::new();
    static AUTHENTICATION: OnceLock<StaticDocument> = OnceLock::new();
    static AUTHORIZATION: OnceLock<StaticDocument> = OnceLock::new();
    static EVENTS: OnceLock<StaticDocument> = OnceLock::new();
    let document = |version| move || StaticDocument::json(&openapi::v3(version));
    let document = match path {
        "api/v1" => CORE.get_or_init(document(ApiVersion::Core)),
        "apis/causeway.io/v1" => GROUP.get_or_init(document(ApiVersion::Group)),
        "apis/authentication.k8s.io/v1" => AUTHENTICATION.get_or_init(|| reviews("authentication.k8s.io")),
        "apis/authorization.k8s.io/v1" => AUTHORIZATION.get_or_init(|| reviews("authorization.k8s.io")),
        "apis/events.k8s.io/v1" => EVENTS.get_or_init(document(ApiVersion::Events)),
        _ => return Err(Status::no_such_path(&format!("/openapi/v3/{path}"))),
    };
    let Some(hash) = hash else { return Ok(document.answer(request, respond::JSON)) };
    let current = current_v3_address(path);
    if current.as_deref().and_then(|address| address.split_once("hash=")).is_some_and(|(_, now)| now == hash)
    {
        let mut response = document.answer(request, respond::JSON);
        // The content under an address with a hash never changes.
        let forever = HeaderValue::from_static("public, immutable, max-age=31536000");
        response.headers_mut().insert(header::CACHE_CONTROL, forever);
        return Ok(response);
    }
    // An old hash is redirected to the current document.
    let location = current.and_then(|address| HeaderValue::from_str(&address).ok());
    let mut response = respond::whole(StatusCode::MOVED_PERMANENTLY, respond::JSON, Bytes::new());
    response.headers_mut().extend(location.map(|location| (header::LOCATION, location)));
    Ok(response)
}

fn reviews(group: &str) -> StaticDocument {
    StaticDocument::json(&openapi::v3_reviews(group).unwrap_or_default())
}

/// Returns the address of a document, with its hash, as the index lists it.
fn current_v3_address(path: &str) -> Option<String> {
    let index: Value = serde_json::from_slice(&v3_index().bytes).ok()?;
    Some(index.get("paths")?.get(path)?.get("serverRelativeURL")?.as_str()?.to_owned())
}

/// The content of `/version`. The numbers are those of the supported Kubernetes API; clients compare them,
/// not the name.
pub fn version() -> Value {
    let own = env!("CARGO_PKG_VERSION");
    json!({
        "major": "1",
        "minor": "32",
        "gitVersion": format!("v1.32.0+causeway.{own}"),
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "",
        "compiler": "rustc",
        "platform": format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::media::parse_accept;

    fn ask(what: OpenApiRequest, accept: &str, known: Option<&HeaderValue>) -> Response<Body> {
        let mut headers = HeaderMap::new();
        headers.extend(known.map(|tag| (header::IF_NONE_MATCH, tag.clone())));
        openapi(&what, &parse_accept(Some(accept)), &headers).unwrap()
    }

    #[test]
    fn a_client_that_has_the_document_is_not_sent_it_again() {
        let first = ask(OpenApiRequest::V2, "*/*", None);
        assert_eq!(first.status(), 200);
        let again = ask(OpenApiRequest::V2, "*/*", first.headers().get(header::ETAG));
        assert_eq!(again.status(), 304);
        let protobuf = ask(OpenApiRequest::V2, openapi::V2_PROTOBUF_ACCEPT[0], None);
        assert_eq!(protobuf.headers()[header::CONTENT_TYPE], openapi::V2_PROTOBUF_CONTENT_TYPE);
    }

    #[test]
    fn the_index_leads_to_documents_that_may_be_kept_for_ever() {
        let index: Value = serde_json::from_slice(&v3_index().bytes).unwrap();
        for (path, place) in index["paths"].as_object().unwrap() {
            let address = place["serverRelativeURL"].as_str().unwrap();
            let hash = address.split_once("hash=").unwrap().1.to_owned();
            let found =
                ask(OpenApiRequest::V3 { path: path.clone(), hash: Some(hash) }, "application/json", None);
            assert_eq!(found.status(), 200);
            assert!(found.headers()[header::CACHE_CONTROL].to_str().unwrap().contains("immutable"));
            let old = ask(OpenApiRequest::V3 { path: path.clone(), hash: Some("OLD".into()) }, "*/*", None);
            assert_eq!(
                (old.status().as_u16(), &old.headers()[header::LOCATION]),
                (301, &address.parse::<HeaderValue>().unwrap())
            );
        }
        let missing = OpenApiRequest::V3 { path: "apis/apps/v1".into(), hash: None };
        assert_eq!(
            openapi(&missing, &parse_accept(None), &HeaderMap::new()).err().map(|status| status.code),
            Some(404)
        );
    }

    #[test]
    fn discovery_comes_in_the_form_that_was_asked_for() {
        let ask = |accept: &str| {
            let found =
                discovery(DiscoveryRequest::Groups, &parse_accept(Some(accept)), &HeaderMap::new()).unwrap();
            let Body::Whole(bytes) = found.body() else { panic!() };
            serde_json::from_slice::<Value>(bytes).unwrap()["kind"].as_str().unwrap().to_owned()
        };
        let v2 = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
        assert_eq!(ask(&format!("{v2},application/json")), "APIGroupDiscoveryList");
        assert_eq!(ask("application/json"), "APIGroupList");
        assert_eq!(
            ask("application/json;g=apidiscovery.k8s.io;v=v3;as=APIGroupDiscoveryList,application/json"),
            "APIGroupList"
        );
    }
}
