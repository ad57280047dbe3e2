//! Decides for each request: from the copy, from the kept documents, or to the cloud.

use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use causeway_api::Status;
use causeway_api::request::media::{self, MediaEncoding, ObjectView};
use causeway_api::request::query::{QueryParameters, decode};
use causeway_api::request::resource::{ObjectVerb, RequestHead, ResourcePath};
use http::header::{self, HeaderMap, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::offline;
use super::pass::{PassError, Passthrough};
use super::read::{self, LocalRead, PageToken, ReadRefusal};
use super::respond::{self, ApiBody};
use super::written::WrittenRevisions;
use crate::copy::collection::{Collection, unix_now};
use crate::copy::source::ObjectRenderer;
use crate::copy::{CopyDatabase, tables};
use crate::identity::LocalCaller;
use crate::identity::authenticate::CallerAuthenticator;
use crate::identity::authorize::Authorizer;
use crate::kube_object;
use crate::pending::log::PendingLog;
use crate::pending::replay::ReplayReport;
use crate::protobuf::{self, BodyEncoding};
use crate::resource::{ResourceName, SubscriptionScope};
use crate::subscriptions::Subscriptions;
use crate::upstream::access::AccessQuestion;

/// Everything that requests use.
pub struct RequestContext {
    pub authenticator: Arc<CallerAuthenticator>,
    pub authorizer: Authorizer,
    pub subscriptions: Subscriptions,
    pub database: CopyDatabase,
    pub pass: Passthrough,
    pub written: WrittenRevisions,
    pub pending: PendingLog,
    pub replayed: Arc<ReplayReport>,
    pub readiness: Arc<ArcSwap<Value>>,
    pub stop: CancellationToken,
}

/// The time that a watch waits for the first copy of a new subscription.
const FIRST_COPY: Duration = Duration::from_secs(10);
/// The time that a read waits for a copy that is being brought up to date.
const CATCH_UP: Duration = Duration::from_secs(1);
/// The time that a caller's read waits for its own write.
const OWN_WRITE: Duration = Duration::from_secs(1);
/// The age up to which a kept document is given while the cloud is there.
const DOCUMENT_SECONDS: i64 = 60;
/// OpenAPI documents have a few MiB.
const DOCUMENT_BYTES_MAX: usize = 32 << 20;

/// Answers one request. `certified` is the user of the client's certificate, which the handshake has verified.
pub async fn handle(
    context: Arc<RequestContext>,
    certified: Option<LocalCaller>,
    request: Request<Incoming>,
) -> Response<ApiBody> {
    let context = &*context;
    if matches!(request.uri().path(), "/healthz" | "/livez" | "/readyz") {
        return respond::whole(StatusCode::OK, HeaderValue::from_static("text/plain"), "ok");
    }
    let caller = match context.authenticator.caller(certified, request.headers()).await {
        Ok(caller) => caller,
        Err(status) => return respond::refusal(&status),
    };
    let path = request.uri().path().to_owned();
    let segments: Vec<String> =
        path.split('/').filter(|segment| !segment.is_empty()).map(|segment| decode(segment, false)).collect();
    let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
    let is_get = request.method() == Method::GET;
    let parsed = ResourcePath::parse(&segments);
    if let Some(resource) = &parsed
        && is_plain(&segments)
        && let Some(node) = caller.node_name()
        && let Some(kind) = offline::classify(node, request.method(), resource, request.uri().query())
    {
        return offline::write(context, &caller, (node, kind), request, resource).await;
    }
    match parsed {
        Some(resource) if is_get && resource.subresource.is_none() && is_plain(&segments) => {
            read(context, &caller, request, &resource).await
        }
        None if is_get && is_document(&segments) => document(context, &caller, request).await,
        Some(resource)
            if is_write(request.method()) && resource.subresource.is_none_or(|name| name == "status") =>
        {
            let name = ResourceName::new(resource.group, resource.version, resource.plural);
            let response = pass(context, &caller, request).await;
            note_write(context, &caller, name, response).await
        }
        _ => pass(context, &caller, request).await,
    }
}

/// Returns true if no segment can be read in two ways. Such a path is left to the API server.
fn is_plain(segments: &[&str]) -> bool {
    segments.iter().all(|segment| !segment.contains(['/', '\\', '\0']) && !matches!(*segment, "." | ".."))
}

/// Discovery, OpenAPI and version: the same for every caller.
fn is_document(segments: &[&str]) -> bool {
    matches!(
        segments,
        ["api"] | ["apis"] | ["version"] | ["api", _] | ["apis", _] | ["apis", _, _] | ["openapi", ..]
    )
}

async fn pass(
    context: &RequestContext,
    caller: &LocalCaller,
    request: Request<Incoming>,
) -> Response<ApiBody> {
    match context.pass.forward(request, caller).await {
        Ok(response) => response,
        Err(PassError(status)) => respond::refusal(&status),
    }
}

fn is_write(method: &Method) -> bool {
    matches!(*method, Method::POST | Method::PUT | Method::PATCH)
}

/// Reads the revision of a written object from the answer, so that the caller's next read waits for it.
pub(super) async fn note_write(
    context: &RequestContext,
    caller: &LocalCaller,
    resource: ResourceName,
    response: Response<ApiBody>,
) -> Response<ApiBody> {
    let content = response.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let encoding = content.and_then(|content| BodyEncoding::of(content).ok());
    let is_encoded = response.headers().contains_key(header::CONTENT_ENCODING);
    let Some(encoding) = encoding.filter(|_| response.status().is_success() && !is_encoded) else {
        return response;
    };
    let (head, body) = response.into_parts();
    let body = match respond::collect(body, DOCUMENT_BYTES_MAX).await {
        Ok(body) => body,
        Err(status) => return respond::refusal(&status),
    };
    let metadata = protobuf::metadata(encoding, &body).unwrap_or_default();
    let revision =
        metadata["resourceVersion"].as_str().and_then(|text| kube_object::parse_revision(text).ok());
    if let Some(revision) = revision.filter(|revision| revision.0 > 0) {
        context.written.note(caller.key(), resource, revision, Instant::now());
    }
    Response::from_parts(head, super::pass::full(body))
}

/// A document from the API server, kept whole for the time without it.
async fn document(
    context: &RequestContext,
    caller: &LocalCaller,
    request: Request<Incoming>,
) -> Response<ApiBody> {
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
    let accept =
        request.headers().get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let key = format!("{path}\n{accept}");
    let find = key.clone();
    let kept =
        context.database.read(move |connection| tables::document(connection, &find)).await.ok().flatten();
    let give = |(content, _, body): (String, i64, bytes::Bytes)| {
        let content =
            HeaderValue::try_from(content).unwrap_or_else(|_| HeaderValue::from_static("application/json"));
        respond::whole(StatusCode::OK, content, body)
    };
    if let Some(kept) = kept.clone().filter(|(_, fetched, _)| unix_now() - fetched < DOCUMENT_SECONDS) {
        return give(kept);
    }
    let mut request = request;
    // The kept form is the plain one; a client's own cache and compression do not matter on loopback.
    for name in [header::ACCEPT_ENCODING, header::IF_NONE_MATCH, header::IF_MODIFIED_SINCE] {
        request.headers_mut().remove(name);
    }
    let passed = context.pass.forward(request, caller).await;
    match (passed, kept) {
        (Ok(response), kept) if response.status().is_server_error() && kept.is_some() => {
            kept.map_or_else(|| respond::refusal(&Status::unavailable("no answer", 1)), give)
        }
        (Ok(response), _) if response.status() == StatusCode::OK => {
            keep_document(context, key, response).await
        }
        (Ok(response), _) => response,
        (Err(_), Some(kept)) => give(kept),
        (Err(PassError(status)), None) => respond::refusal(&status),
    }
}

async fn keep_document(
    context: &RequestContext,
    key: String,
    response: Response<ApiBody>,
) -> Response<ApiBody> {
    let (head, body) = response.into_parts();
    let body = match respond::collect(body, DOCUMENT_BYTES_MAX).await {
        Ok(body) => body,
        Err(status) => return respond::refusal(&status),
    };
    let content = head.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let content = content.unwrap_or("application/json").to_owned();
    let (stored, stored_content) = (body.clone(), content.clone());
    let kept = context.database.write(move |connection| {
        tables::keep_document(connection, &key, &stored_content, unix_now(), &stored)
    });
    if let Err(error) = kept.await {
        tracing::warn!(error = causeway_api::error_chain(&error), "cannot keep a document of the API server");
    }
    let mut response = Response::from_parts(head, respond::json(StatusCode::OK, body).into_body());
    response.headers_mut().remove(header::CONTENT_LENGTH);
    response
}

async fn read(
    context: &RequestContext,
    caller: &LocalCaller,
    request: Request<Incoming>,
    path: &ResourcePath<'_>,
) -> Response<ApiBody> {
    if let Err(status) = read::check_parameters(request.uri().query()) {
        return respond::refusal(&status);
    }
    let query = QueryParameters::parse(request.uri().query());
    let Some(view) = view(request.headers()) else {
        return respond::refusal(&Status::not_acceptable(&["application/json"]));
    };
    let wanted = wanted_scope(path, &query);
    if !wanted.is_valid() || !PageToken::is_own(&query) {
        return pass(context, caller, request).await;
    }
    let is_watch = query.flag("watch").unwrap_or(false);
    let verb = if is_watch {
        "watch"
    } else if path.name.is_some() {
        "get"
    } else {
        "list"
    };
    let question = AccessQuestion::about(verb, &wanted);
    let mut collection = context.subscriptions.find(&wanted);
    if collection.is_none() && verb == "get" {
        // A kubelet asks for its pods by name, and holds them by node.
        let key = match (path.namespace, path.name) {
            (Some(namespace), Some(name)) => format!("{namespace}/{name}"),
            (_, name) => name.unwrap_or_default().to_owned(),
        };
        collection = context.subscriptions.holding(&wanted.resource, &key).await;
    }
    if collection.is_none() {
        collection = begin(context, caller, &wanted, is_watch).await;
    }
    let Some(collection) = collection else {
        let response = pass(context, caller, request).await;
        // Without the right to read, the answer would be 403, also about an object that is not there.
        if response.status().is_success() || response.status() == StatusCode::NOT_FOUND {
            context.authorizer.answered(caller, &question).await;
        }
        return response;
    };
    if let Err(status) = context.authorizer.check(caller, &question).await {
        return respond::refusal(&status);
    }
    collection.touch();
    if !collection.is_live() {
        // Also without the cloud: a watch that begins now goes on when the link returns.
        if let Some(credential) = caller.credential.clone() {
            context.subscriptions.offer(&collection.scope, credential);
        }
        if context.pass.is_connected() {
            // After a cut or a restart the copy is compared within a round trip or two.
            collection.wait_live(CATCH_UP).await;
        }
    }
    if let Some(revision) = context.written.wanted(caller.key(), &wanted.resource, Instant::now()) {
        collection.wait_revision(revision, OWN_WRITE).await;
    }
    match from_copy(context, &collection, &request, path, &query, view).await {
        Ok(response) => response,
        Err(ReadRefusal::Behind(_)) if context.pass.is_connected() => pass(context, caller, request).await,
        Err(ReadRefusal::Behind(status) | ReadRefusal::Refused(status)) => respond::refusal(&status),
    }
}

/// The form of the answer; `None` is 406. YAML is left to the API server.
fn view(headers: &HeaderMap) -> Option<ObjectView> {
    let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok());
    match media::choose(&media::parse_accept(accept))? {
        (view, MediaEncoding::Json) => Some(view),
        (_, MediaEncoding::Yaml) => None,
    }
}

fn wanted_scope(path: &ResourcePath<'_>, query: &QueryParameters) -> SubscriptionScope {
    let text = |name: &str| query.one(name).unwrap_or_default().to_owned();
    SubscriptionScope {
        resource: ResourceName::new(path.group, path.version, path.plural),
        namespace: path.namespace.unwrap_or_default().to_owned(),
        label_selector: text("labelSelector"),
        field_selector: path
            .name
            .map_or_else(|| text("fieldSelector"), |name| format!("metadata.name={name}")),
    }
}

/// Begins a subscription. A watch waits for its first copy, so that it outlives the link; other reads pass to the cloud.
async fn begin(
    context: &RequestContext,
    caller: &LocalCaller,
    wanted: &SubscriptionScope,
    is_watch: bool,
) -> Option<Arc<Collection>> {
    let credential = caller.credential.clone()?;
    let collection = context.subscriptions.ensure(wanted, credential).await.ok()??;
    collection.touch();
    if !is_watch || !context.pass.is_connected() {
        return None;
    }
    let mut revisions = collection.revisions();
    let complete = async {
        loop {
            if collection.is_complete() || context.subscriptions.refusal(wanted).is_some() {
                return;
            }
            let _ = tokio::time::timeout(Duration::from_millis(100), revisions.changed()).await;
        }
    };
    let _ = tokio::time::timeout(FIRST_COPY, complete).await;
    collection.is_complete().then_some(collection)
}

async fn from_copy(
    context: &RequestContext,
    collection: &Arc<Collection>,
    request: &Request<Incoming>,
    path: &ResourcePath<'_>,
    query: &QueryParameters,
    view: ObjectView,
) -> Result<Response<ApiBody>, ReadRefusal> {
    let description =
        collection.description().ok_or_else(|| Status::unavailable("the copy is not complete", 1))?;
    let head = RequestHead {
        method: request.method().as_str(),
        path: request.uri().path(),
        query,
        content_type: None,
    };
    let parsed = head.resource_request(description.definition(), path)?;
    let local = LocalRead {
        collection,
        renderer: ObjectRenderer(description),
        view,
        namespace: path.namespace.unwrap_or_default(),
        request: request.headers(),
    };
    match parsed.verb {
        ObjectVerb::Get { name, options, .. } => local.get(&name, options).await,
        ObjectVerb::List(options) => local.list(options).await,
        ObjectVerb::Watch(options) => local.watch(options, &context.stop).await,
        _ => Err(head.not_allowed().into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_names_the_smallest_scope_that_answers_it() {
        let check = |path: &str, query: &str, expected: &str| {
            let segments: Vec<&str> = path.split('/').filter(|segment| !segment.is_empty()).collect();
            let path = ResourcePath::parse(&segments).unwrap();
            let found = wanted_scope(&path, &QueryParameters::parse(Some(query)));
            assert_eq!(found.to_string(), expected);
        };
        check("/api/v1/pods", "fieldSelector=spec.nodeName%3Dn1", "v1/pods fields spec.nodeName=n1");
        check("/api/v1/namespaces/shop/secrets/a", "", "v1/secrets namespace shop fields metadata.name=a");
        check(
            "/apis/apps/v1/namespaces/shop/deployments",
            "labelSelector=a",
            "apps/v1/deployments namespace shop labels a",
        );
    }

    #[test]
    fn documents_and_tricks_are_told_apart() {
        assert!(is_document(&["apis", "apps", "v1"]) && is_document(&["openapi", "v3", "api", "v1"]));
        assert!(!is_document(&["apis", "apps", "v1", "deployments"]) && !is_document(&["metrics"]));
        assert!(!is_plain(&["api", "v1", "pods", ".."]) && !is_plain(&["api", "v1", "a/b"]));
    }
}
