//! Answers discovery, OpenAPI and version from documents that are kept whole for the time without the cloud.
//!
//! `KeptDocument` decides which document a request names: a canonical path and one of few forms, however the client writes them. The API server is
//! asked for exactly that, so a caller can neither fill the table with spellings of one document nor keep one under the name of another.

use causeway_api::Status;
use http::header::{self, HeaderValue};
use http::{Request, Response, StatusCode, Uri};
use hyper::body::Incoming;

use super::caller_limits::LimitedCaller;
use super::handle::{RequestContext, pass};
use super::pass::PassError;
use super::respond::{self, ApiBody};
use crate::copy::collection::unix_now;
use crate::copy::tables;
use crate::identity::LocalCaller;

/// The age up to which a kept document is given while the cloud is there.
const DOCUMENT_SECONDS: i64 = 60;
/// OpenAPI documents have a few MiB.
pub const DOCUMENT_BYTES_MAX: usize = 32 << 20;
// The memory of an answer whose length the API server does not tell: its OpenAPI document of all groups.
const DOCUMENT_BYTES_TYPICAL: usize = 4 << 20;
// Hashes of OpenAPI documents are SHA-512 in hexadecimal digits.
const HASH_BYTES_MAX: usize = 128;

const JSON: &str = "application/json";
const AGGREGATED_V2: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=apigroupdiscoverylist";
const AGGREGATED_V2BETA1: &str = "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=apigroupdiscoverylist";
const OPENAPI_V2: &str = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";
const OPENAPI_V3: &str = "application/com.github.proto-openapi.spec.v3@v1.0+protobuf";

// The Accept headers under which the API server is asked. A list ends with the form of older servers.
const ASK_AGGREGATED_V2: &str =
    "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json";
const ASK_AGGREGATED_V2BETA1: &str =
    "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json";
const ASK_AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,\
     application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json";

/// One document, as it is kept and asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeptDocument {
    path: String,
    accept: &'static str,
    /// The version of an OpenAPI document that a client knows of. The API server answers 200 for the right one only.
    hash: Option<String>,
}

impl KeptDocument {
    /// Returns the document that a request names; `None` when it names none that is kept.
    pub fn of(segments: &[&str], query: Option<&str>, accept: Option<&str>) -> Option<KeptDocument> {
        let is_plain = |segment: &&str| {
            !matches!(*segment, "." | "..")
                && segment
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_'))
        };
        if !is_document(segments) || !segments.iter().all(is_plain) {
            return None;
        }
        let mut hash = None;
        for pair in query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=').unwrap_or((pair, "")) {
                ("timeout", _) => {}
                ("hash", value) => {
                    let is_hash = value.len() <= HASH_BYTES_MAX
                        && value.bytes().all(|byte| byte.is_ascii_alphanumeric());
                    hash = Some(is_hash.then(|| value.to_owned())?);
                }
                _ => return None,
            }
        }
        let accept = form(segments, accept.unwrap_or_default())?;
        Some(KeptDocument { path: format!("/{}", segments.join("/")), accept, hash })
    }

    fn key(&self) -> String {
        format!("{}\n{}", self.path, self.accept)
    }

    fn uri(&self) -> Option<Uri> {
        let query = self.hash.as_ref().map_or_else(String::new, |hash| format!("?hash={hash}"));
        format!("{}{query}", self.path).parse().ok()
    }

    /// Returns true if a document that was fetched at this time is given while the cloud is there. A client that names a version knows
    /// more than the edge.
    fn is_fresh(&self, fetched: i64, now: i64) -> bool {
        self.hash.is_none() && (0..DOCUMENT_SECONDS).contains(&(now - fetched))
    }
}

/// Discovery, OpenAPI and version: the same for every caller.
fn is_document(segments: &[&str]) -> bool {
    matches!(
        segments,
        ["api"] | ["apis"] | ["version"] | ["api", _] | ["apis", _] | ["apis", _, _] | ["openapi", ..]
    )
}

/// The form of a document for this Accept header: the first one that exists at this path. `None`: the client takes none of them.
fn form(segments: &[&str], accept: &str) -> Option<&'static str> {
    let ranges: Vec<String> = accept
        .split(',')
        .map(|range| {
            let parts = range.split(';').map(|part| part.trim().to_ascii_lowercase());
            parts.filter(|part| !part.is_empty() && !part.starts_with("q=")).collect::<Vec<_>>().join(";")
        })
        .filter(|range| !range.is_empty())
        .collect();
    if ranges.is_empty() {
        return Some(JSON);
    }
    ranges.iter().find_map(|range| match (range.as_str(), segments) {
        (AGGREGATED_V2, ["api" | "apis"]) => match ranges.iter().any(|range| range == AGGREGATED_V2BETA1) {
            true => Some(ASK_AGGREGATED),
            false => Some(ASK_AGGREGATED_V2),
        },
        (AGGREGATED_V2BETA1, ["api" | "apis"]) => Some(ASK_AGGREGATED_V2BETA1),
        (OPENAPI_V2, ["openapi", "v2"]) => Some(OPENAPI_V2),
        (OPENAPI_V3, ["openapi", "v3", _, ..]) => Some(OPENAPI_V3),
        (JSON | "application/*" | "*/*", _) => Some(JSON),
        _ => None,
    })
}

/// A document from the API server, kept whole for the time without it.
pub async fn answer(
    context: &RequestContext,
    caller: &LocalCaller,
    wanted: &KeptDocument,
    mut request: Request<Incoming>,
) -> Response<ApiBody> {
    let fetched = fetched(context, wanted.key()).await;
    if let Some(fetched) = fetched
        && wanted.is_fresh(fetched, unix_now())
    {
        return kept(context, caller, wanted).await;
    }
    let Some(uri) = wanted.uri() else { return pass(context, caller, request).await };
    *request.uri_mut() = uri;
    // The kept form is the plain one; a client's own cache and compression do not matter on loopback.
    for name in [header::ACCEPT_ENCODING, header::IF_NONE_MATCH, header::IF_MODIFIED_SINCE] {
        request.headers_mut().remove(name);
    }
    request.headers_mut().insert(header::ACCEPT, HeaderValue::from_static(wanted.accept));
    match context.pass.forward(request, (caller, &context.limits)).await {
        Ok(response) if response.status() == StatusCode::OK => keep(context, caller, wanted, response).await,
        Ok(response) if response.status().is_server_error() && fetched.is_some() => {
            kept(context, caller, wanted).await
        }
        Ok(response) => response,
        Err(_) if fetched.is_some() => kept(context, caller, wanted).await,
        Err(PassError(status)) => respond::refusal(&status),
    }
}

/// The time at which a document was fetched.
async fn fetched(context: &RequestContext, key: String) -> Option<i64> {
    let head = context.database.read(move |connection| tables::document_head(connection, &key));
    head.await.ok().flatten().map(|(fetched, _)| fetched)
}

/// Answers from the copy.
async fn kept(context: &RequestContext, caller: &LocalCaller, wanted: &KeptDocument) -> Response<ApiBody> {
    let (key, find) = (wanted.key(), wanted.key());
    let gone = || respond::refusal(&Status::unavailable("the document is not kept at the edge any more", 1));
    let head = context.database.read(move |connection| tables::document_head(connection, &key)).await;
    let Some((_, bytes)) = head.ok().flatten() else { return gone() };
    let memory = match context.limits.take(&LimitedCaller::of(caller), bytes).await {
        Ok(memory) => memory,
        Err(reached) => return respond::refusal(&reached.status(false)),
    };
    let found = context.database.read(move |connection| tables::document(connection, &find)).await;
    let Some((content, _, body)) = found.ok().flatten() else { return gone() };
    let content = HeaderValue::try_from(content).unwrap_or_else(|_| HeaderValue::from_static(JSON));
    respond::counted(respond::whole(StatusCode::OK, content, ""), body, memory)
}

async fn keep(
    context: &RequestContext,
    caller: &LocalCaller,
    wanted: &KeptDocument,
    response: Response<ApiBody>,
) -> Response<ApiBody> {
    let length = response.headers().get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    let length = length.and_then(|text| text.parse().ok()).unwrap_or(DOCUMENT_BYTES_TYPICAL);
    let taken = context.limits.take(&LimitedCaller::of(caller), length.min(DOCUMENT_BYTES_MAX)).await;
    let memory = match taken {
        Ok(memory) => memory,
        Err(reached) => return respond::refusal(&reached.status(false)),
    };
    let (mut head, body) = response.into_parts();
    let body = match respond::collect(body, DOCUMENT_BYTES_MAX).await {
        Ok(body) => body,
        Err(status) => return respond::refusal(&status),
    };
    let content = head.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let content = content.unwrap_or(JSON).to_owned();
    let (key, stored) = (wanted.key(), body.clone());
    let kept = context
        .database
        .write(move |connection| tables::keep_document(connection, &key, &content, unix_now(), &stored));
    if let Err(error) = kept.await {
        tracing::warn!(error = causeway_api::error_chain(&error), "cannot keep a document of the API server");
    }
    head.headers.remove(header::CONTENT_LENGTH);
    respond::counted(Response::from_parts(head, respond::json(StatusCode::OK, "").into_body()), body, memory)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(path: &str, query: &str, accept: &str) -> Option<String> {
        let segments: Vec<&str> = path.split('/').filter(|segment| !segment.is_empty()).collect();
        Some(KeptDocument::of(&segments, Some(query), Some(accept))?.key())
    }

    #[test]
    fn documents_and_tricks_are_told_apart() {
        assert!(key("/apis/apps/v1", "", "").is_some() && key("/openapi/v3/api/v1", "", "").is_some());
        assert!(key("/apis/apps/v1/deployments", "", "").is_none() && key("/metrics", "", "").is_none());
        assert!(key("/openapi/../metrics", "", "").is_none() && key("/apis", "x=1", "").is_none());
        let segments = ["apis", "apps/v1"];
        assert_eq!(KeptDocument::of(&segments, None, None), None, "a path that can be read in two ways");
        assert!(key("/apis", "", "text/html").is_none() && key("/openapi/v2", "hash=a%20b", "").is_none());
    }

    #[test]
    fn a_document_has_one_name_however_a_client_writes_it() {
        let plain = key("/apis", "", "application/json");
        assert!(plain.is_some());
        for number in 0..1_000 {
            let accept = format!("application/json;q=0.{number}");
            assert_eq!(key("//apis/", &format!("timeout={number}s&hash=A{number}"), &accept), plain);
        }
        for accept in
            ["", "*/*", "application/json, */*", "application/vnd.kubernetes.protobuf,application/json"]
        {
            assert_eq!(key("/apis", "", accept), plain, "{accept}");
        }
        let aggregated = |versions: &[&str]| {
            let ranges = versions.iter().map(|version| {
                format!("application/json;g=apidiscovery.k8s.io;v={version};as=APIGroupDiscoveryList")
            });
            ranges.chain(["application/json".to_owned()]).collect::<Vec<_>>().join(",")
        };
        let found = key("/apis", "", &aggregated(&["v2", "v2beta1"]));
        assert_eq!(found, Some(format!("/apis\n{ASK_AGGREGATED}")));
        assert_ne!(key("/apis", "", &aggregated(&["v2beta1"])), found);
        assert_ne!(key("/apis", "", &aggregated(&["v2"])), found);
        assert_eq!(
            key("/apis/apps", "", &aggregated(&["v2"])),
            key("/apis/apps", "", ""),
            "one form elsewhere"
        );
        assert_eq!(key("/openapi/v2", "", OPENAPI_V2), Some(format!("/openapi/v2\n{OPENAPI_V2}")));
    }

    #[test]
    fn a_client_that_names_a_version_is_answered_by_the_api_server() {
        let of = |query: &str| KeptDocument::of(&["openapi", "v3", "api", "v1"], Some(query), None).unwrap();
        assert!(of("").is_fresh(100, 159) && !of("").is_fresh(100, 160) && !of("").is_fresh(100, 90));
        assert!(!of("hash=AB12").is_fresh(100, 101));
        assert_eq!(of("hash=AB12&timeout=3s").uri().unwrap(), "/openapi/v3/api/v1?hash=AB12");
    }
}
