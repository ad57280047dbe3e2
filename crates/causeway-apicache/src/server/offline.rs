//! Writes that a node of the site may make without the cloud, and the answers to them.
//!
//! While the API server can be reached, these requests pass to it like every other. Otherwise: registering a node that exists answers 409;
//! the status of the node and of its pods, and events, are taken into the log (`pending`); a renewal of the node's lease is acknowledged and
//! not sent later, because it tells that the node is alive now; a token that was issued before is given again. Everything else gets 503.

use std::time::Duration;

use bytes::Bytes;
use causeway_api::request::query::{QueryParameters, decode};
use causeway_api::request::resource::ResourcePath;
use causeway_api::status::StatusDetails;
use causeway_api::{Status, error_chain};
use http::header::{self, HeaderMap, HeaderValue};
use http::{Method, Request, Response, StatusCode, Uri};
use hyper::body::Incoming;
use serde_json::{Value, json};

use super::caller_limits::{AnswerMemory, CallerLimits, LimitedCaller};
use super::handle::RequestContext;
use super::offline_objects::merged;
use super::pass::{PassError, full};
use super::respond::{self, ApiBody};
use crate::copy::collection::unix_now;
use crate::copy::local::{LocalObject, unsent};
use crate::copy::{CopyError, tables};
use crate::identity::{LocalCaller, tokens};
use crate::kube_object::{self, KubeObject};
use crate::pending::log::{PendingKind, PendingWrite, WRITE_BYTES_MAX, has_room_for_status};
use crate::pending::{changed, mark};
use crate::protobuf::{self, BodyEncoding, BodyError};
use crate::resource::{ResourceName, SubscriptionScope};
use crate::strategic_patch;
use crate::upstream::access::AccessQuestion;

/// A write that a node may make without the cloud.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SiteWrite {
    Register,
    Status,
    Lease,
    Event,
    EventPatch,
    Token,
}

/// Returns true if a name stands in a path as it is. The log keeps the paths of objects: with other characters one could not be sent, and would
/// hold back the writes behind it.
pub(super) fn stands_in_path(name: &str) -> bool {
    let is_allowed =
        |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~' | b':');
    !name.is_empty() && !matches!(name, "." | "..") && name.bytes().all(is_allowed)
}

const LEASES: &str = "kube-node-lease";

/// Decides whether a request is such a write. `query`: a dry run is none.
pub fn classify(
    node: &str,
    method: &Method,
    path: &ResourcePath<'_>,
    query: Option<&str>,
) -> Option<SiteWrite> {
    // Go before 1.17 takes `;` for a separator, so such a query can be a dry run.
    if QueryParameters::parse(query).has("dryRun")
        || query.is_some_and(|query| query.contains(';'))
        || !path.name.is_none_or(stands_in_path)
        || !path.namespace.is_none_or(stands_in_path)
    {
        return None;
    }
    let is_own = path.name == Some(node);
    match (method.as_str(), path.group, path.version, path.plural, path.subresource) {
        ("POST", "", "v1", "nodes", None) if path.name.is_none() => Some(SiteWrite::Register),
        ("PATCH" | "PUT", "", "v1", "nodes", Some("status")) if is_own => Some(SiteWrite::Status),
        ("PATCH" | "PUT", "", "v1", "pods", Some("status")) => Some(SiteWrite::Status),
        ("PUT", "coordination.k8s.io", "v1", "leases", None) if is_own && path.namespace == Some(LEASES) => {
            Some(SiteWrite::Lease)
        }
        ("POST", "", "v1", "events", None) if path.namespace.is_some() && path.name.is_none() => {
            Some(SiteWrite::Event)
        }
        ("PATCH", "", "v1", "events", None) if path.namespace.is_some() && path.name.is_some() => {
            Some(SiteWrite::EventPatch)
        }
        ("POST", "", "v1", "serviceaccounts", Some("token")) => Some(SiteWrite::Token),
        _ => None,
    }
}

// The API server takes up to 3 MiB; a status with its object is far smaller.
const BODY_BYTES_MAX: usize = 3 << 20;
// The body, its parsed form, and the object that it makes with the one of the copy.
const BODY_MEMORY: usize = 4;
// A body that needs longer holds memory which other requests wait for.
const BODY_TIME_MAX: Duration = Duration::from_secs(60);

/// One such request.
struct SiteRequest<'a> {
    context: &'a RequestContext,
    caller: &'a LocalCaller,
    node: &'a str,
    method: Method,
    path: &'a ResourcePath<'a>,
    content_type: String,
    body: Bytes,
}

/// An answer, or the refusal that stands for it.
type Answered = Result<Response<ApiBody>, Status>;

// Renewals of leases and most other writes. They are bounded by the number of connections, and do not wait for the memory of long answers.
const SMALL_BODY_BYTES: usize = 64 << 10;

/// Reads the body of a write, which the log may have to keep. A long one counts as memory of its caller until the answer, and all have a deadline.
pub(super) async fn whole_body(
    (limits, caller): (&CallerLimits, &LocalCaller),
    headers: &HeaderMap,
    body: ApiBody,
) -> Result<(Bytes, Option<AnswerMemory>), Status> {
    let length = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    let bytes_max = length.and_then(|text| text.parse().ok()).unwrap_or(BODY_BYTES_MAX);
    if bytes_max > BODY_BYTES_MAX {
        return Err(Status::too_large(BODY_BYTES_MAX));
    }
    let mut memory = None;
    if bytes_max > SMALL_BODY_BYTES {
        let taken = limits.take(&LimitedCaller::of(caller), BODY_MEMORY * bytes_max).await;
        memory = Some(taken.map_err(|reached| reached.status(false))?);
    }
    let read = tokio::time::timeout(BODY_TIME_MAX, respond::collect(body, bytes_max)).await;
    let body = read.map_err(|_| Status::request_timeout("the body did not arrive in time"))?;
    let body = body.map_err(|_| Status::too_large(BODY_BYTES_MAX))?;
    if let Some(memory) = &mut memory {
        memory.shrink(BODY_MEMORY * body.len());
    }
    Ok((body, memory))
}

/// The body of a request of a client.
pub(super) fn incoming(body: Incoming) -> ApiBody {
    http_body_util::BodyExt::boxed_unsync(http_body_util::BodyExt::map_err(body, Into::into))
}

/// Answers a write: by the API server, or without it.
pub async fn write(
    context: &RequestContext,
    caller: &LocalCaller,
    (node, kind): (&str, SiteWrite),
    request: Request<Incoming>,
    path: &ResourcePath<'_>,
) -> Response<ApiBody> {
    let (head, body) = request.into_parts();
    let read = whole_body((&context.limits, caller), &head.headers, incoming(body)).await;
    let (body, _memory) = match read {
        Ok(read) => read,
        Err(refused) => return respond::refusal(&refused),
    };
    let content_type = head.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let content_type = content_type.unwrap_or_default().to_owned();
    let asked = SiteRequest { context, caller, node, method: head.method.clone(), path, content_type, body };
    // A write that waits in the log goes before a newer one of the same object.
    if !asked.is_waiting(kind) {
        let mut passed = Request::from_parts(head, full(asked.body.clone()));
        if let Some(uri) = without_timeout(passed.uri()) {
            *passed.uri_mut() = uri;
        }
        match context.pass.forward_write(passed, (caller, &context.limits)).await {
            Ok(response) if !is_away(response.status()) => return asked.passed(kind, response).await,
            Ok(_) => {}
            Err(PassError(status)) if status.code != 503 => return respond::refusal(&status),
            Err(_) => {}
        }
    }
    if !asked.is_of_site().await {
        let why = "the cloud has not let this node act from this site before, and cannot be asked now";
        return respond::refusal(&Status::forbidden(&caller.user.username, "write at this site", why));
    }
    asked.answer(kind).await.unwrap_or_else(|status| respond::refusal(&status))
}

/// The URI without the parameter `timeout`, which kubelets send with each renewal of a lease: with a short one a caller makes the API server
/// answer 504, as if it were away. `None`: it has none.
fn without_timeout(uri: &Uri) -> Option<Uri> {
    let query = uri.query()?;
    let is_timeout = |pair: &&str| decode(pair.split('=').next().unwrap_or_default(), true) == "timeout";
    if !query.split('&').any(|pair| is_timeout(&pair)) {
        return None;
    }
    let rest: Vec<&str> = query.split('&').filter(|pair| !is_timeout(pair)).collect();
    format!("{}?{}", uri.path(), rest.join("&")).parse().ok()
}

/// The cloud answers so when it cannot reach the API server, and a load balancer in front of one.
pub(super) fn is_away(code: StatusCode) -> bool {
    matches!(code.as_u16(), 502..=504)
}

pub(super) fn away() -> Status {
    Status::unavailable(
        "the API server cannot be reached from this site, and the site cannot answer this on its own",
        5,
    )
}

// CBOR in the forms in which client-go sends it (KEP-4222).
const CBOR_TYPES: [&str; 2] = ["application/cbor", "application/apply-patch+cbor"];

/// 415 for a body in CBOR: client-go then sends the same object as JSON.
pub(super) fn refuse_cbor(content_type: &str) -> Result<(), Status> {
    let media = content_type.split(';').next().unwrap_or_default().trim();
    match CBOR_TYPES.iter().any(|cbor| media.eq_ignore_ascii_case(cbor)) {
        true => Err(unknown_media(media)),
        false => Ok(()),
    }
}

fn unknown_media(media: &str) -> Status {
    Status::unsupported_media_type(media, &["application/json", protobuf::MEDIA_TYPE])
}

impl From<BodyError> for Status {
    fn from(error: BodyError) -> Status {
        match error {
            BodyError::MediaType(media) => unknown_media(&media),
            error => Status::bad_request(error_chain(&error)),
        }
    }
}

fn failed(error: CopyError) -> Status {
    Status::internal(error_chain(&error))
}

impl SiteRequest<'_> {
    fn resource(&self) -> ResourceName {
        ResourceName::new(self.path.group, self.path.version, self.path.plural)
    }

    fn key(&self, name: &str) -> String {
        match self.path.namespace {
            Some(namespace) => format!("{namespace}/{name}"),
            None => name.to_owned(),
        }
    }

    /// The path of an object, without a subresource.
    fn object_path(&self, name: &str) -> String {
        let (resource, namespace) = (self.resource(), self.path.namespace);
        let place = namespace.map_or(String::new(), |namespace| format!("/namespaces/{namespace}"));
        format!("{}{place}/{}/{name}", resource.version_path(), resource.plural)
    }

    /// Returns true if the cloud answered a read of the node's own Node under its name: the cloud believes nodes of the site only. Every kubelet
    /// begins with that read.
    async fn is_of_site(&self) -> bool {
        let own = SubscriptionScope::one(ResourceName::new("", "v1", "nodes"), "", self.node);
        for verb in ["list", "watch", "get"] {
            let question = AccessQuestion::about(verb, &own);
            if self.context.authorizer.was_allowed(self.caller, &question).await {
                return true;
            }
        }
        false
    }

    fn is_waiting(&self, kind: SiteWrite) -> bool {
        let log = &self.context.pending;
        let path = self.object_path(self.path.name.unwrap_or_default());
        match kind {
            SiteWrite::Status => log.find(PendingKind::Status, &path).is_some(),
            SiteWrite::EventPatch => {
                log.find(PendingKind::Event, &path).is_some()
                    || log.find(PendingKind::EventPatch, &path).is_some()
            }
            SiteWrite::Register | SiteWrite::Lease | SiteWrite::Event | SiteWrite::Token => false,
        }
    }

    /// Looks at the answer of the API server: a token is kept, and a written revision noted.
    async fn passed(&self, kind: SiteWrite, response: Response<ApiBody>) -> Response<ApiBody> {
        match kind {
            SiteWrite::Token => self.keep_token(response).await,
            _ => super::handle::note_write(self.context, self.caller, self.resource(), response).await,
        }
    }

    async fn answer(&self, kind: SiteWrite) -> Answered {
        refuse_cbor(&self.content_type)?;
        match kind {
            SiteWrite::Register => self.register().await,
            SiteWrite::Status => self.status().await,
            SiteWrite::Lease => self.lease().await,
            SiteWrite::Event => self.event().await,
            SiteWrite::EventPatch => self.event_patch().await,
            SiteWrite::Token => self.token().await,
        }
    }

    async fn register(&self) -> Answered {
        let metadata = protobuf::metadata(BodyEncoding::of(&self.content_type)?, &self.body)?;
        if metadata["name"] != self.node {
            return Err(Status::forbidden(
                &self.caller.user.username,
                "create another node",
                "a node creates itself only",
            ));
        }
        match self.context.subscriptions.copied(&self.resource(), self.node).await {
            Ok(Some(_)) => Err(already_exists(&self.resource(), self.node)),
            _ => Err(away()),
        }
    }

    async fn status(&self) -> Answered {
        let (resource, name) = (self.resource(), self.path.name.unwrap_or_default());
        let (key, path) = (self.key(name), self.object_path(name));
        let copied = match self.context.subscriptions.copied(&resource, &key).await {
            Ok(Some(copied)) => copied,
            Ok(None) => return Err(Status::resource_not_found("", &resource.plural, name)),
            Err(_) => return Err(away()),
        };
        let base: Value = serde_json::from_slice(&copied.body).map_err(Status::internal)?;
        if resource.plural == "pods" && base["spec"]["nodeName"] != self.node {
            let why = "the pod is not bound to this node";
            return Err(Status::forbidden(&self.caller.user.username, "change the status of the pod", why));
        }
        let change = StatusChange::read(&self.method, &self.content_type, &self.body)?;
        let waiting = self.context.pending.find(PendingKind::Status, &path);
        // An object that was replaced by another of the same name begins anew.
        let waiting = waiting.filter(|waiting| uid_of(&waiting.base) == copied.uid);
        let (base, current) = match &waiting {
            Some(waiting) => {
                (waiting.base.clone(), serde_json::from_slice(&waiting.body).map_err(Status::internal)?)
            }
            None => (copied.body.clone(), base),
        };
        let changed_object = change.apply(&current, &resource, name)?;
        let now = unix_now();
        let shown = match changed_object == current {
            true => waiting.map_or_else(|| current.clone(), |waiting| mark(current.clone(), waiting.at)),
            false => {
                let body = Bytes::from(changed_object.to_string());
                self.log(PendingKind::Status, (key.clone(), path), body, base, now).await?;
                let shown = mark(changed_object, now);
                self.show(&key, changed(&copied, &shown)).await?;
                shown
            }
        };
        self.object(StatusCode::OK, &copied, &shown).await
    }

    async fn lease(&self) -> Answered {
        let lease = protobuf::lease(BodyEncoding::of(&self.content_type)?, &self.body)?;
        let key = self.key(self.node);
        if let Ok(Some(copied)) = self.context.subscriptions.copied(&self.resource(), &key).await {
            let mut shown: Value = serde_json::from_slice(&copied.body).map_err(Status::internal)?;
            shown["spec"] = lease["spec"].clone();
            // Without the mark: a kubelet sends the whole lease with its next renewal.
            self.show(&key, changed(&copied, &shown)).await?;
        }
        let mut answer = json!({"kind": "Lease", "apiVersion": "coordination.k8s.io/v1"});
        answer["metadata"] = lease["metadata"].clone();
        answer["spec"] = lease["spec"].clone();
        Ok(respond::json(StatusCode::OK, answer.to_string()))
    }

    async fn event(&self) -> Answered {
        let mut event = protobuf::event(BodyEncoding::of(&self.content_type)?, &self.body)?;
        let name = event["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        if !stands_in_path(&name) || event["metadata"]["namespace"] != self.path.namespace.unwrap_or_default()
        {
            return Err(away());
        }
        let (key, path, now) = (self.key(&name), self.object_path(&name), unix_now());
        let log = &self.context.pending;
        let is_known = matches!(self.context.subscriptions.copied(&self.resource(), &key).await, Ok(Some(_)));
        if is_known || log.find(PendingKind::Event, &path).is_some() {
            return Err(already_exists(&self.resource(), &name));
        }
        self.log(PendingKind::Event, (key.clone(), path), self.body.clone(), Bytes::new(), now).await?;
        if let Some(event) = event.as_object_mut() {
            event.retain(|field, _| field != "kind" && field != "apiVersion");
        }
        self.show_event(&key, &event, now).await?;
        Ok(respond::json(StatusCode::CREATED, typed_event(mark(event, now)).to_string()))
    }

    async fn event_patch(&self) -> Answered {
        let name = self.path.name.unwrap_or_default();
        let (key, path, now) = (self.key(name), self.object_path(name), unix_now());
        let patch: Value = serde_json::from_slice(&self.body).map_err(Status::bad_request)?;
        self.log(PendingKind::EventPatch, (key.clone(), path.clone()), self.body.clone(), Bytes::new(), now)
            .await?;
        let waiting = self.context.pending.find(PendingKind::Event, &path).and_then(|waiting| {
            protobuf::event(BodyEncoding::of(&waiting.content_type).ok()?, &waiting.body).ok()
        });
        let known = match waiting {
            Some(waiting) => waiting,
            None => json!({"metadata": {"name": name, "namespace": self.path.namespace}}),
        };
        let event = strategic_patch::apply(known.clone(), &patch);
        if !known["reason"].is_null() {
            self.show_event(&key, &event, now).await?;
        }
        Ok(respond::json(StatusCode::OK, typed_event(mark(event, now)).to_string()))
    }

    async fn show_event(&self, key: &str, event: &Value, now: i64) -> Result<(), Status> {
        let body = Bytes::from(kube_object::kept_text(&mark(event.clone(), now)));
        self.show(key, LocalObject { stands_on: None, object: Some(unsent(key, body, Bytes::new())) }).await
    }

    async fn log(
        &self,
        kind: PendingKind,
        (key, path): (String, String),
        body: Bytes,
        base: Bytes,
        at: i64,
    ) -> Result<(), Status> {
        let write = PendingWrite {
            sequence: 0,
            kind,
            node: self.node.to_owned(),
            resource: self.resource(),
            key,
            path,
            content_type: self.content_type.clone(),
            body,
            base,
            at,
            caller: self.caller.key(),
            token: String::new(),
        };
        if write.body.len() > WRITE_BYTES_MAX {
            return Err(Status::too_large(WRITE_BYTES_MAX));
        }
        if kind == PendingKind::Status && !has_room_for_status(&self.context.pending.all(), &write) {
            let full = "the log has the bytes of this node that it may have";
            return Err(Status { message: format!("{}: {full}", away().message), ..away() });
        }
        let pushed_out = self.context.pending.append(write).await.map_err(failed)?;
        for out in pushed_out {
            self.context.replayed.drop_write(&out, "newer events took its place in the log");
            self.context
                .subscriptions
                .set_local(&out.resource, vec![(out.key, None)])
                .await
                .map_err(failed)?;
        }
        Ok(())
    }

    async fn show(&self, key: &str, local: LocalObject) -> Result<(), Status> {
        let changes = vec![(key.to_owned(), Some(local))];
        self.context.subscriptions.set_local(&self.resource(), changes).await.map_err(failed)
    }

    /// The answer with a changed object of the copy, in its own form.
    async fn object(&self, code: StatusCode, copied: &KubeObject, object: &Value) -> Answered {
        let collections = self.context.subscriptions.of_resource(&self.resource());
        let description =
            collections.iter().find_map(|collection| collection.description()).ok_or_else(away)?;
        let mut out = Vec::new();
        kube_object::append_object(
            &mut out,
            &description,
            copied.revision,
            kube_object::kept_text(object).as_bytes(),
        );
        Ok(respond::json(code, out))
    }

    /// The key under which an answer to this TokenRequest is kept; `None` for a token that is not bound to a pod.
    fn token_key(&self) -> Result<Option<(String, String)>, Status> {
        let request = protobuf::token_request(BodyEncoding::of(&self.content_type)?, &self.body)?;
        if request.bound_kind != "Pod" || request.bound_uid.is_empty() {
            return Ok(None);
        }
        let account = self.key(self.path.name.unwrap_or_default());
        let key = json!([self.node, account, request.audiences, request.bound_name, request.bound_uid]);
        Ok(Some((key.to_string(), request.bound_uid)))
    }

    async fn keep_token(&self, response: Response<ApiBody>) -> Response<ApiBody> {
        let Ok(Some((key, pod))) = self.token_key() else { return response };
        if !response.status().is_success() || response.headers().contains_key(header::CONTENT_ENCODING) {
            return response;
        }
        let content = response.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let content = content.unwrap_or_default().to_owned();
        let (head, body) = response.into_parts();
        let body = match respond::collect(body, BODY_BYTES_MAX).await {
            Ok(body) => body,
            Err(status) => return respond::refusal(&status),
        };
        let answer = BodyEncoding::of(&content).and_then(|encoding| protobuf::token_request(encoding, &body));
        let expires = answer.ok().and_then(|answer| tokens::expiry(&answer.token));
        if let Some(expires) = expires {
            let stored = body.clone();
            let kept = self.context.database.write(move |connection| {
                tables::keep_token(connection, &key, (&pod, expires), (&content, &stored), unix_now())
            });
            if let Err(error) = kept.await {
                tracing::warn!(
                    error = error_chain(&error),
                    "cannot keep a token for the time without the cloud"
                );
            }
        }
        Response::from_parts(head, full(body))
    }

    async fn token(&self) -> Answered {
        let (key, _) = self.token_key()?.ok_or_else(away)?;
        let kept =
            self.context.database.read(move |connection| tables::token(connection, &key, unix_now())).await;
        let (content, body) = kept.map_err(failed)?.ok_or_else(away)?;
        let content = HeaderValue::try_from(content).map_err(Status::internal)?;
        Ok(respond::whole(StatusCode::CREATED, content, body))
    }
}

fn typed_event(event: Value) -> Value {
    let mut typed = json!({"kind": "Event", "apiVersion": "v1"});
    if let (Some(typed), Value::Object(event)) = (typed.as_object_mut(), event) {
        typed.extend(event);
    }
    typed
}

fn uid_of(body: &[u8]) -> String {
    let object: Value = serde_json::from_slice(body).unwrap_or_default();
    object["metadata"]["uid"].as_str().unwrap_or_default().to_owned()
}

/// 409 as the API server answers it.
pub(super) fn already_exists(resource: &ResourceName, name: &str) -> Status {
    let not_found = Status::resource_not_found(&resource.group, &resource.plural, name);
    Status {
        message: not_found.message.replace("not found", "already exists"),
        reason: "AlreadyExists".into(),
        code: 409,
        ..not_found
    }
}

/// 409: a field of the metadata is another one than the writer thinks.
pub(super) fn conflict(resource: &ResourceName, name: &str, field: &str) -> Status {
    let details = StatusDetails {
        name: name.into(),
        group: resource.group.clone(),
        kind: resource.plural.clone(),
        ..StatusDetails::default()
    };
    let message = format!("the {field} of {} {name:?} is another one at this site", resource.plural);
    let refused = Status { code: 409, reason: "Conflict".into(), message, ..away() };
    Status { details: Some(details), ..refused }
}

/// A change of a status, in a form of which no field is lost.
enum StatusChange {
    Strategic(Value),
    Merge(Value),
    Replace(Value),
}

impl StatusChange {
    /// Reads the body. A status in protobuf is left to the API server: fields that the edge does not know have no JSON form, and the log sends a
    /// strategic merge patch. Patches have no protobuf form.
    fn read(method: &Method, content_type: &str, body: &[u8]) -> Result<StatusChange, Status> {
        let media = content_type.split(';').next().unwrap_or_default().trim();
        let make = match (method, media) {
            (&Method::PUT, "application/json") => StatusChange::Replace,
            (&Method::PATCH, "application/strategic-merge-patch+json") => StatusChange::Strategic,
            (&Method::PATCH, "application/merge-patch+json") => StatusChange::Merge,
            _ => {
                let mut refused = away();
                refused.message.push_str(
                    ": without it a status is taken as JSON with PUT, as strategic merge patch or as JSON merge patch, and not as ",
                );
                refused.message.push_str(if media.is_empty() { "a body without a type" } else { media });
                return Err(refused);
            }
        };
        let body: Value = serde_json::from_slice(body).map_err(Status::bad_request)?;
        match body.is_object() {
            true => Ok(make(body)),
            false => Err(Status::bad_request("the body is no object")),
        }
    }

    /// The object after the change: labels, annotations and status may change, nothing else.
    fn apply(&self, current: &Value, resource: &ResourceName, name: &str) -> Result<Value, Status> {
        let (StatusChange::Strategic(body) | StatusChange::Merge(body) | StatusChange::Replace(body)) = self;
        for field in ["uid", "resourceVersion"] {
            let wanted = &body["metadata"][field];
            // A PUT without a version is unconditional, as for the API server.
            let is_given = wanted.as_str().is_none_or(|text| !text.is_empty()) && !wanted.is_null();
            if is_given && *wanted != current["metadata"][field] {
                return Err(conflict(resource, name, field));
            }
        }
        let written = match self {
            StatusChange::Strategic(patch) => strategic_patch::apply(current.clone(), patch),
            StatusChange::Merge(patch) => merged(current.clone(), patch.clone()),
            StatusChange::Replace(object) if object["metadata"]["name"] != name => {
                let why = format!("the name of the object does not match the name on the URL ({name})");
                return Err(Status::bad_request(why));
            }
            StatusChange::Replace(object) => object.clone(),
        };
        Ok(with_status(current, &written))
    }
}

/// The current object with the labels, annotations and status of another one.
fn with_status(current: &Value, written: &Value) -> Value {
    let mut object = current.clone();
    match &written["status"] {
        Value::Null => object["status"] = json!({}),
        status => object["status"] = status.clone(),
    }
    for field in ["labels", "annotations"] {
        match &written["metadata"][field] {
            Value::Null => {
                if let Some(metadata) = object["metadata"].as_object_mut() {
                    metadata.remove(field);
                }
            }
            value => object["metadata"][field] = value.clone(),
        }
    }
    if let Some(annotations) = object.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) {
        annotations.remove(crate::pending::PENDING);
    }
    object
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_writes_about_itself_its_pods_and_events_only() {
        let check = |method: &str, path: &str, expected: Option<SiteWrite>| {
            let (path, query) =
                path.split_once('?').map_or((path, None), |(path, query)| (path, Some(query)));
            let segments: Vec<&str> = path.split('/').filter(|segment| !segment.is_empty()).collect();
            let parsed = ResourcePath::parse(&segments).unwrap();
            let method = Method::from_bytes(method.as_bytes()).unwrap();
            assert_eq!(classify("n1", &method, &parsed, query), expected, "{method} {path}");
        };
        check("POST", "/api/v1/nodes", Some(SiteWrite::Register));
        check("PATCH", "/api/v1/nodes/n1/status", Some(SiteWrite::Status));
        check("PUT", "/api/v1/nodes/n1/status", Some(SiteWrite::Status));
        check("PUT", "/api/v1/nodes/n2/status", None);
        check("PUT", "/api/v1/namespaces/shop/pods/a/status", Some(SiteWrite::Status));
        check("PUT", "/api/v1/namespaces/shop/pods/a", None);
        check("PATCH", "/api/v1/nodes/n2/status", None);
        check("PATCH", "/api/v1/nodes/n1", None);
        check("PATCH", "/api/v1/namespaces/shop/pods/a/status", Some(SiteWrite::Status));
        check("PATCH", "/api/v1/namespaces/shop/pods/a/status?dryRun=All", None);
        check("PATCH", "/api/v1/namespaces/shop/pods/a/status?%64ryRun=All", None);
        check("PATCH", "/api/v1/namespaces/shop/pods/a/status?x;dryRun=All", None);
        check("PATCH", "/api/v1/namespaces/shop/pods/a/status?timeout=10s", Some(SiteWrite::Status));
        check("DELETE", "/api/v1/namespaces/shop/pods/a", None);
        check(
            "PUT",
            "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n1",
            Some(SiteWrite::Lease),
        );
        check("PUT", "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n2", None);
        check("PUT", "/apis/coordination.k8s.io/v1/namespaces/shop/leases/n1", None);
        check("POST", "/api/v1/namespaces/shop/events", Some(SiteWrite::Event));
        check("PATCH", "/api/v1/namespaces/shop/events/e", Some(SiteWrite::EventPatch));
        // Segments are decoded when they come here.
        for name in ["e f", "e#f", "e%f", "ü"] {
            let path = ResourcePath::parse(&["api", "v1", "namespaces", "shop", "events", name]).unwrap();
            assert_eq!(classify("n1", &Method::PATCH, &path, None), None, "{name}");
            let path = ResourcePath::parse(&["api", "v1", "namespaces", name, "events"]).unwrap();
            assert_eq!(classify("n1", &Method::POST, &path, None), None, "{name}");
        }
        check("POST", "/api/v1/namespaces/shop/serviceaccounts/till/token", Some(SiteWrite::Token));
        check("POST", "/api/v1/namespaces/shop/secrets", None);
    }

    #[test]
    fn no_time_of_a_caller_makes_the_api_server_seem_away() {
        let check = |uri: &str, expected: Option<&str>| {
            let found = without_timeout(&uri.parse().unwrap());
            assert_eq!(found.map(|uri| uri.to_string()).as_deref(), expected, "{uri}");
        };
        check("/api/v1/nodes/n1/status", None);
        check("/api/v1/nodes/n1/status?fieldManager=timeout", None);
        check("/api/v1/nodes/n1/status?timeout=1ns", Some("/api/v1/nodes/n1/status?"));
        check("/a?x=%20&%74imeout=1ns&timeout=2&y", Some("/a?x=%20&y"));
    }

    #[test]
    fn a_patch_of_a_status_changes_no_spec_and_no_other_object() {
        let pods = ResourceName::new("", "v1", "pods");
        let current =
            json!({"metadata": {"name": "a", "uid": "u"}, "spec": {"x": 1}, "status": {"phase": "Running"}});
        let patch = json!({"metadata": {"uid": "u", "name": "b", "annotations": {"k": "v"}}, "spec": {"x": 2},
            "status": {"phase": "Failed"}});
        let expected = json!({"metadata": {"name": "a", "uid": "u", "annotations": {"k": "v"}}, "spec": {"x": 1},
            "status": {"phase": "Failed"}});
        let apply = |change: StatusChange| change.apply(&current, &pods, "a").map_err(|status| status.code);
        assert_eq!(apply(StatusChange::Strategic(patch.clone())), Ok(expected.clone()));
        assert_eq!(apply(StatusChange::Merge(patch.clone())), Ok(expected.clone()));
        assert_eq!(apply(StatusChange::Replace(patch.clone())), Err(400), "another name");
        let mut whole = patch;
        whole["metadata"]["name"] = "a".into();
        whole["metadata"]["resourceVersion"] = "".into();
        assert_eq!(apply(StatusChange::Replace(whole.clone())), Ok(expected));
        whole["metadata"]["resourceVersion"] = "7".into();
        assert_eq!(apply(StatusChange::Replace(whole)), Err(409), "another version");
        let other = json!({"metadata": {"uid": "w"}, "status": {}});
        assert_eq!(apply(StatusChange::Strategic(other)), Err(409));
        assert_eq!(already_exists(&pods, "a").message, "pods \"a\" already exists");
    }

    #[tokio::test(start_paused = true)]
    async fn the_bodies_of_a_caller_are_bounded_in_memory_and_time() {
        use http_body_util::BodyExt;
        let (limits, caller) = (CallerLimits::default(), LocalCaller::node("n1"));
        let read = async |length: Option<usize>, body: ApiBody| {
            let length = length.map(|length| (header::CONTENT_LENGTH, HeaderValue::from(length)));
            let read = whole_body((&limits, &caller), &HeaderMap::from_iter(length), body).await;
            read.map_err(|status| status.code)
        };
        let silent = || http_body_util::StreamBody::new(futures_util::stream::pending()).boxed_unsync();
        assert_eq!(read(Some(10), silent()).await.err(), Some(408));
        assert_eq!(read(Some(BODY_BYTES_MAX + 1), silent()).await.err(), Some(413));
        assert_eq!(read(Some(3), full(Bytes::from_static(b"four"))).await.err(), Some(413));
        let mut held = Vec::new();
        let refused = loop {
            match read(None, full(Bytes::from(vec![b'x'; BODY_BYTES_MAX]))).await {
                Ok(read) if held.len() < 100 => held.push(read),
                Ok(_) => panic!("there is no bound"),
                Err(code) => break code,
            }
        };
        assert_eq!((held.len(), refused), (10, 429), "they are held until their answers");
        held.clear();
        let (body, _) = read(None, full(Bytes::from_static(b"{}"))).await.unwrap();
        assert_eq!(body, "{}");
    }

    #[test]
    fn a_status_is_read_in_forms_that_lose_no_field() {
        let check = |method: &Method, media: &str, body: &[u8], expected: Result<(), (u16, &str)>| {
            let read = StatusChange::read(method, media, body).map(drop);
            match (read, expected) {
                (Ok(()), Ok(())) => {}
                (Err(status), Err((code, why))) => {
                    assert!(status.code == code && status.message.contains(why), "{media}: {status:?}");
                }
                (read, expected) => panic!("{method} {media}: {read:?}, {expected:?}"),
            }
        };
        check(&Method::PUT, "application/json", b"{}", Ok(()));
        check(&Method::PUT, "application/json; charset=utf-8", b"{}", Ok(()));
        check(&Method::PATCH, "application/strategic-merge-patch+json", b"{}", Ok(()));
        check(&Method::PATCH, "application/merge-patch+json", b"{}", Ok(()));
        let protobuf = "application/vnd.kubernetes.protobuf";
        check(&Method::PUT, protobuf, b"k8s\0", Err((503, "and not as application/vnd.kubernetes.protobuf")));
        check(&Method::PATCH, "application/json-patch+json", b"[]", Err((503, "json-patch")));
        check(&Method::PATCH, "application/apply-patch+yaml", b"a: b", Err((503, "apply-patch")));
        check(&Method::PUT, "", b"{}", Err((503, "without a type")));
        check(&Method::PUT, "application/json", b"[]", Err((400, "no object")));
        check(&Method::PUT, "application/json", b"{", Err((400, "")));
    }
}
