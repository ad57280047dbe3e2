//! Decides for each request: from the copy, from the kept documents, or to the cloud.

use std::collections::BTreeSet;
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
use tokio_util::task::AbortOnDropHandle;

use super::caller_limits::{CallerLimits, LimitedCaller};
use super::connections::OpenConnection;
use super::documents::{self, DOCUMENT_BYTES_MAX, KeptDocument};
use super::pass::{PassError, Passthrough};
use super::read::{self, LocalRead, PageToken, ReadRefusal};
use super::respond::{self, ApiBody};
use super::watch_rights::WatchRights;
use super::written::WrittenRevisions;
use super::{offline, offline_objects};
use crate::copy::collection::Collection;
use crate::copy::source::ObjectRenderer;
use crate::copy::{CopyDatabase, CopyError};
use crate::identity::LocalCaller;
use crate::identity::authenticate::CallerAuthenticator;
use crate::identity::authorize::Authorizer;
use crate::kube_object;
use crate::pending::identity::CallerTokens;
use crate::pending::log::PendingLog;
use crate::pending::replay::ReplayReport;
use crate::protobuf::{self, BodyEncoding};
use crate::request_counts::{self, CountedRequest, RequestCounts};
use crate::resource::{ResourceName, SubscriptionScope};
use crate::subscriptions::{Subscriptions, full_status};
use crate::traffic::LinkTraffic;
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
    pub traffic: LinkTraffic,
    pub requests: RequestCounts,
    pub limits: CallerLimits,
    /// Resources that any caller may write without the cloud.
    pub offline_writes: Vec<ResourceName>,
    pub tokens: Arc<CallerTokens>,
    pub stop: CancellationToken,
}

/// The time that a watch waits for the first copy of a new subscription.
const FIRST_COPY: Duration = Duration::from_secs(10);
/// The time that a read waits for a copy that is being brought up to date.
const CATCH_UP: Duration = Duration::from_secs(1);
/// The time that a caller's read waits for its own write.
const OWN_WRITE: Duration = Duration::from_secs(1);
/// Answers one request. `certified` is the user of the client's certificate, which the handshake has verified.
pub async fn handle(
    context: Arc<RequestContext>,
    (certified, open): (Option<LocalCaller>, &OpenConnection),
    request: Request<Incoming>,
) -> Response<ApiBody> {
    let context = &*context;
    if matches!(request.uri().path(), "/healthz" | "/livez" | "/readyz") {
        return respond::whole(StatusCode::OK, HeaderValue::from_static("text/plain"), "ok");
    }
    let is_certified = certified.is_some() && !request.headers().contains_key(header::AUTHORIZATION);
    let caller = match context.authenticator.caller(certified, request.headers()).await {
        Ok(caller) => caller,
        Err(status) => {
            if is_certified && status.code == 401 {
                // The client connects again, with the certificate that it has now.
                open.close_soon();
            }
            return respond::refusal(&status);
        }
    };
    if !open.prove(&caller.user.username) {
        let full = "this caller has too many connections to the API at the edge";
        return respond::refusal(&Status::too_many_requests(full, 5));
    }
    if impersonates(request.headers()) {
        return impersonated(context, &caller, request).await;
    }
    let path = request.uri().path().to_owned();
    let segments: Vec<String> =
        path.split('/').filter(|segment| !segment.is_empty()).map(|segment| decode(segment, false)).collect();
    let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
    if segments.first() == Some(&".causeway") {
        // Paths between edge and cloud, which are no part of the Kubernetes API.
        return respond::refusal(&Status::forbidden(
            &caller.user.username,
            "use this path",
            "it is internal to Causeway",
        ));
    }
    let is_get = request.method() == Method::GET;
    let parsed = ResourcePath::parse(&segments);
    context.requests.count(labels(&caller, &request, parsed.as_ref()));
    if let Some(resource) = &parsed
        && is_plain(&segments)
        && let Some(node) = caller.node_name()
        && let Some(kind) = offline::classify(node, request.method(), resource, request.uri().query())
    {
        return offline::write(context, &caller, (node, kind), request, resource).await;
    }
    if !context.offline_writes.is_empty() {
        context.tokens.note(&caller);
        if let Some(resource) = &parsed
            && is_plain(&segments)
            && offline_objects::is_listed(
                &context.offline_writes,
                request.method(),
                resource,
                request.uri().query(),
            )
        {
            return offline_objects::write(context, &caller, request, resource).await;
        }
    }
    match parsed {
        Some(resource) if is_get && resource.subresource.is_none() && is_plain(&segments) => {
            read(context, &caller, request, &resource).await
        }
        None if is_get => match wanted_document(&segments, &request) {
            Some(wanted) => documents::answer(context, &caller, &wanted, request).await,
            None => pass(context, &caller, request).await,
        },
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

fn wanted_document(segments: &[&str], request: &Request<Incoming>) -> Option<KeptDocument> {
    let accept = request.headers().get(header::ACCEPT).map(HeaderValue::to_str);
    KeptDocument::of(segments, request.uri().query(), accept.transpose().ok()?)
}

/// Returns true if a request asks for the rights of another user. The rights of the caller say nothing about it.
fn impersonates(headers: &HeaderMap) -> bool {
    headers.keys().any(|name| name.as_str().starts_with("impersonate-"))
}

/// Answers a request in the name of another user: the API server decides whether the caller may act as that user. Nothing is answered from
/// the copy, and nothing is learnt about the caller's own rights.
async fn impersonated(
    context: &RequestContext,
    caller: &LocalCaller,
    request: Request<Incoming>,
) -> Response<ApiBody> {
    match caller.node_name() {
        // The cloud impersonates the node already.
        Some(_) => respond::refusal(&Status::forbidden(
            &caller.user.username,
            "impersonate another user",
            "a node acts under its own name at a site",
        )),
        None => pass(context, caller, request).await,
    }
}

/// The labels of a request in metrics. Discovery and unknown paths have no resource.
fn labels(
    caller: &LocalCaller,
    request: &Request<Incoming>,
    path: Option<&ResourcePath<'_>>,
) -> CountedRequest {
    let is_watch = QueryParameters::parse(request.uri().query()).flag("watch").unwrap_or(false);
    let resource = path.map_or_else(String::new, |path| {
        ResourceName::new(path.group, path.version, path.plural).to_string()
    });
    let has_name = path.is_none_or(|path| path.name.is_some());
    let verb = request_counts::verb(request.method(), is_watch, has_name);
    CountedRequest { caller: caller.user.username.clone(), verb, resource }
}

/// Returns true if no segment can be read in two ways. Such a path is left to the API server.
fn is_plain(segments: &[&str]) -> bool {
    segments.iter().all(|segment| !segment.contains(['/', '\\', '\0']) && !matches!(*segment, "." | ".."))
}

pub(super) async fn pass(
    context: &RequestContext,
    caller: &LocalCaller,
    request: Request<Incoming>,
) -> Response<ApiBody> {
    match context.pass.forward(request, (caller, &context.limits)).await {
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
    // A caller without the right begins nothing: subscriptions are bounded, and nodes need them.
    if collection.is_none() && is_watch && context.authorizer.check(caller, &question).await.is_ok() {
        collection = match begin_watched(context, caller, &wanted).await {
            Ok(begun) => begun,
            Err(status) => return respond::refusal(&status),
        };
    }
    let Some(collection) = collection else {
        let is_whole = is_unambiguous(request.uri().query()) && wanted.label_selector.is_empty();
        let response = pass(context, caller, request).await;
        // Without the right to read, the answer would be 403, also about an object that is not there.
        if response.status().is_success() || response.status() == StatusCode::NOT_FOUND {
            match is_whole {
                true => context.authorizer.record_allowed(caller, &question).await,
                // The API server is asked, so that the caller can read the copy without the cloud too.
                false => {
                    let (authorizer, caller) = (context.authorizer.clone(), caller.clone());
                    tokio::spawn(async move {
                        let _ = authorizer.check(&caller, &question).await;
                    });
                }
            }
            // The client has its answer, whether the edge has room for a copy or not.
            let _ = begin(context, caller, &wanted).await;
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
        // A copy that the budget of the day does not keep current is answered as it is.
        if context.pass.is_connected() && !context.traffic.is_spent() {
            // After a cut or a restart the copy is compared within a round trip or two.
            collection.wait_live(CATCH_UP).await;
        }
    }
    if let Some(revision) = context.written.wanted(caller.key(), &wanted.resource, Instant::now()) {
        collection.wait_revision(revision, OWN_WRITE).await;
    }
    match from_copy(context, (caller, question), &collection, (&request, path, &query, view)).await {
        Ok(response) => response,
        Err(ReadRefusal::NotHere(_)) if context.pass.is_connected() => pass(context, caller, request).await,
        Err(ReadRefusal::NotHere(status) | ReadRefusal::Refused(status)) => respond::refusal(&status),
    }
}

/// Returns true if the API server cannot read another request than the edge does: each parameter stands once, escapes are whole, and no `;`
/// separates parameters, as it did in Go before 1.17. The answer to another query, or to a label selector, which a question does not have, may
/// be the answer to less than the edge would remember.
fn is_unambiguous(query: Option<&str>) -> bool {
    let query = query.unwrap_or_default();
    let mut names = BTreeSet::new();
    let is_escape = |part: &str| {
        part.as_bytes().first_chunk::<2>().is_some_and(|pair| pair.iter().all(u8::is_ascii_hexdigit))
    };
    !query.contains(';')
        && query.split('%').skip(1).all(is_escape)
        && query
            .split('&')
            .filter(|pair| !pair.is_empty())
            .all(|pair| names.insert(decode(pair.split('=').next().unwrap_or_default(), true)))
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

/// Begins a subscription. `Ok(None)`: the caller can begin none, so the request passes. The error is for a client that needs one.
async fn begin(
    context: &RequestContext,
    caller: &LocalCaller,
    wanted: &SubscriptionScope,
) -> Result<Option<Arc<Collection>>, Status> {
    let Some(credential) = caller.credential.clone() else { return Ok(None) };
    // The cloud refuses it: such requests pass to the API server.
    if !wanted.is_allowed(context.authenticator.facts.load().pins()) {
        return Ok(None);
    }
    let owner = (caller.user.username.as_str(), false);
    let begun = match context.subscriptions.ensure(wanted, credential, owner).await {
        Ok(begun) => begun,
        Err(full @ CopyError::Full(_)) => return Err(full_status(&full)),
        Err(error) => {
            tracing::warn!(error = causeway_api::error_chain(&error), scope = %wanted, "cannot hold a resource");
            None
        }
    };
    Ok(begun.inspect(|collection| collection.touch()))
}

/// Begins a subscription and waits for its first copy, so that a watch of it outlives the link.
async fn begin_watched(
    context: &RequestContext,
    caller: &LocalCaller,
    wanted: &SubscriptionScope,
) -> Result<Option<Arc<Collection>>, Status> {
    let Some(collection) = begin(context, caller, wanted).await? else { return Ok(None) };
    if !context.pass.is_connected() {
        return Ok(None);
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
    Ok(collection.is_complete().then_some(collection))
}

async fn from_copy(
    context: &RequestContext,
    (caller, question): (&LocalCaller, AccessQuestion),
    collection: &Arc<Collection>,
    (request, path, query, view): (&Request<Incoming>, &ResourcePath<'_>, &QueryParameters, ObjectView),
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
        limits: &context.limits,
        caller: LimitedCaller::of(caller),
    };
    match parsed.verb {
        ObjectVerb::Get { name, options, .. } => local.get(&name, options).await,
        ObjectVerb::List(options) => local.list(options).await,
        ObjectVerb::Watch(options) => {
            let end = context.subscriptions.watch_end(collection);
            let end =
                end.ok_or_else(|| Status::unavailable("the site does not hold the resource any more", 1))?;
            // The right of this watch ends it alone, not every watch of the copy.
            let end = end.child_token();
            let rights = WatchRights {
                authenticator: context.authenticator.clone(),
                authorizer: context.authorizer.clone(),
                caller: caller.clone(),
                question,
            };
            let stop = end.clone();
            let rights = tokio::spawn(async move {
                rights.ended().await;
                stop.cancel();
            });
            local.watch(options, &end, AbortOnDropHandle::new(rights)).await
        }
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
    fn only_a_query_that_is_read_in_one_way_makes_a_grant() {
        let check = |query: &str, expected: bool| {
            assert_eq!(is_unambiguous(Some(query)), expected, "{query}");
        };
        assert!(is_unambiguous(None));
        check("", true);
        check("limit=500&fieldSelector=spec.nodeName%3Dn1&&resourceVersion=0", true);
        check("fieldSelector=metadata.name%3Da&fieldSelector=", false);
        check("fieldSelector=&%66ieldSelector=metadata.name%3Da", false);
        check("watch=0&watch=1", false);
        check("limit=1;fieldSelector=metadata.name%3Da", false);
        check("fieldSelector=%zz", false);
        check("fieldSelector=a%3", false);
        check("fieldSelector=%", false);
    }

    #[test]
    fn paths_with_tricks_are_told_apart() {
        assert!(!is_plain(&["api", "v1", "pods", ".."]) && !is_plain(&["api", "v1", "a/b"]));
    }
}
