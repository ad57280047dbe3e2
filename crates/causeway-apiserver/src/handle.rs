//! Handles one request: authenticates, parses, authorizes, executes and responds.
//!
//! Other modules make each decision; this module defines their order. Every input of a client that is refused
//! is answered with a `Status`.

mod act;
mod authenticate;
mod console;
mod objects;

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use causeway_api::{ApiVersion, Status};
use causeway_daemon::Readiness;
use futures_util::{Stream, StreamExt, stream};
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::{Body as _, Incoming};
use tokio_util::sync::CancellationToken;

use crate::authorize::{AccessDenied, RequestedAccess, authorize};
use crate::console::sessions::ConsoleSessions;
use crate::delegate::{AccessDelegate, DelegatedDecision};
use crate::limits::failures::AuthFailures;
use crate::limits::watches::{WatchLimits, WatchPermit};
use crate::limits::{ApiLimits, RequestPermit, RequestQueue};
use crate::metrics::{ApiMetrics, RequestLabels};
use crate::request::media::MediaRange;
use crate::request::query::QueryParameters;
use crate::request::{self, ApiRequest, HealthProbe, ObjectVerb, ReviewRequest};
use crate::respond::{self, Body};
use crate::watch::RenderContext;
use crate::{
    ActionBody, ActionRequest, Actions, AdminAudit, Authenticator, Identity, Registry, Role, documents,
    errors, impersonate, review,
};
use act::Act;

use authenticate::Authenticated;
pub use authenticate::RequestPeer;

/// The shared state of all requests; one per server.
pub struct Handler {
    pub registry: Arc<Registry>,
    pub authenticator: Arc<dyn Authenticator>,
    pub delegate: Option<Arc<dyn AccessDelegate>>,
    pub actions: Arc<dyn Actions>,
    pub admin_audit: Arc<dyn AdminAudit>,
    pub readiness: Readiness,
    pub metrics: ApiMetrics,
    pub limits: ApiLimits,
    pub requests: RequestQueue,
    pub bodies: RequestQueue,
    pub watches: WatchLimits,
    pub failures: AuthFailures,
    pub sessions: ConsoleSessions,
    pub shared: Arc<RenderContext>,
    /// Cancelled when the server stops; ends the watches.
    pub stop: CancellationToken,
}

/// A request that is being handled, without its body.
struct RequestContext<'a> {
    head: &'a http::request::Parts,
    accept: Vec<MediaRange>,
    /// The identity whose rights count.
    identity: Arc<Identity>,
    /// The identity of the accepted credential; differs from `identity` only with impersonation.
    caller: Arc<Identity>,
    /// The caller's name. Limits count by it, so that impersonating many users raises no limit.
    user: Arc<str>,
    /// Cancelled when the server stops or the console session of the caller ends. Ends watches and other streams.
    stop: CancellationToken,
}

impl Handler {
    pub async fn handle(&self, caller: &RequestPeer, request: Request<Incoming>) -> Response<Body> {
        let started = Instant::now();
        let (mut head, mut body) = request.into_parts();
        let ask = request::parse(&head.method, &head.uri, &head.headers);
        let wants_body = head.method != Method::HEAD;
        if !wants_body {
            // HEAD is handled as GET without a body in the response; the rights are the same.
            head.method = Method::GET;
        }
        let labels = labels(&ask);
        let (watching, probing) =
            (ask.as_ref().is_ok_and(ApiRequest::is_watch), matches!(ask, Ok(ApiRequest::Probe { .. })));
        let target = || request::write_target(&head.method, &head.uri);
        let mut act = Act::begin(&*self.admin_audit, &ask, target, caller.address);
        if let Ok(ApiRequest::Action { path, .. }) = &ask {
            act.is_action(&*self.actions, &head.method, path, &[]);
        }
        let answer = match self.answer(caller, &head, ask, &mut body, &mut act).await {
            Ok(response) => {
                act.answered(response.status().as_u16(), None);
                response
            }
            Err(status) => {
                act.answered(status.code, Some(&status.reason));
                discard(&mut body).await;
                respond::refusal(&status)
            }
        };
        let answer = match request::is_pretty(&head.uri, &head.headers) {
            true => respond::indent(answer),
            false => answer,
        };
        let answer = respond::compress(&head.headers, answer).await;
        let response = if wants_body { answer } else { respond::without_body(answer) };
        let code = response.status().as_u16();
        // Probes arrive every second and say nothing about the load.
        if !probing {
            let took = (!watching).then(|| started.elapsed());
            self.metrics.answered(&RequestLabels { code, ..labels }, took);
        }
        tracing::debug!(method = %head.method, path = head.uri.path(), code, micros = started.elapsed().as_micros(), "request");
        response
    }

    async fn answer(
        &self,
        caller: &RequestPeer,
        head: &http::request::Parts,
        ask: Result<ApiRequest, Status>,
        body: &mut Incoming,
        act: &mut Act<'_>,
    ) -> Result<Response<Body>, Status> {
        if let Ok(ApiRequest::Probe { probe, verbose }) = ask
            && !impersonate::is_asked(&head.headers)
        {
            return Ok(self.probe(probe, verbose));
        }
        if let Ok(ApiRequest::Console(what)) = &ask
            && self.delegate.is_none()
        {
            return self.console(caller, head, what, body).await;
        }
        let Authenticated { identity: caller, stop } = self.identify(caller, head).await?;
        act.identified(&caller, self.authenticator.credential_name(&caller));
        let user: Arc<str> = caller.user.as_str().into();
        if caller.is_anonymous() && !matches!(ask, Ok(ApiRequest::Version | ApiRequest::Probe { .. })) {
            return Err(Status::unauthorized(
                "Unauthorized: a client certificate or a bearer token is needed",
            ));
        }
        let identity = impersonate::effective(&caller, &head.headers).inspect_err(|refused| {
            self.metrics.rejected("forbidden");
            tracing::info!(target: "audit", user = caller.user, reason = refused.message, "impersonation refused");
            act.impersonation_refused();
        })?;
        if identity.impersonation.is_some() {
            act.impersonates(&identity.user);
        }
        let ask = ask?;
        self.allow(&identity, &ask, &head.method).await?;
        let context =
            RequestContext { head, accept: request::accept(&head.headers), identity, caller, user, stop };
        let ask = match ask {
            // A watch takes no permit: it may last for an hour.
            ApiRequest::Object(object) if matches!(object.verb, ObjectVerb::Watch(_)) => {
                return self.object(&context, object, Bytes::new(), act).await;
            }
            ask => ask,
        };
        // The body is read before a permit is taken: a client that sends half a body delays only itself. The
        // body counts against its limit while it is in memory, to the end of the request.
        let _held =
            if body.is_end_stream() { None } else { Some(self.acquire_slot(&self.bodies, &context).await?) };
        let body = self.read_body(head, body, self.limits.body_bytes_max).await?;
        let _permit = self.acquire_slot(&self.requests, &context).await?;
        match ask {
            ApiRequest::Object(object) => self.object(&context, object, body, act).await,
            ApiRequest::Discovery(what) => documents::discovery(what, &context.accept, &head.headers),
            ApiRequest::OpenApi(what) => documents::openapi(&what, &context.accept, &head.headers),
            ApiRequest::Version => Ok(respond::json(StatusCode::OK, documents::version().to_string())),
            ApiRequest::Review(what) => self.review(&context, what, &body),
            ApiRequest::Action { path, query } => self.action(&context, path, query, body, act).await,
            ApiRequest::Probe { probe, verbose } => Ok(self.probe(probe, verbose)),
            ApiRequest::Console(_) => Err(Status::no_such_path(head.uri.path())),
        }
    }

    async fn acquire_slot(
        &self,
        queue: &RequestQueue,
        context: &RequestContext<'_>,
    ) -> Result<RequestPermit, Status> {
        queue.acquire(&context.user).await.map_err(|_| {
            self.metrics.rejected("crowded");
            Status::too_many_requests("too many requests of this client are under way; try again later", 1)
        })
    }

    async fn allow(&self, identity: &Identity, ask: &ApiRequest, method: &Method) -> Result<(), Status> {
        let wish = ask.wish(method);
        let allowed = match (&self.delegate, ask) {
            (Some(delegate), ApiRequest::Object(object)) if identity.role == Role::Delegated => {
                match delegate.review(identity, object.resource.version, &wish).await {
                    DelegatedDecision::Allowed => Ok(()),
                    DelegatedDecision::Denied => Err(AccessDenied("the cluster does not allow it")),
                    DelegatedDecision::Unavailable(reason) => {
                        tracing::warn!(
                            reason,
                            "the cluster cannot be asked for a decision; the client gets 503"
                        );
                        return Err(Status::unavailable(
                            "the cluster cannot be asked for its decision right now",
                            1,
                        ));
                    }
                }
            }
            _ => authorize(identity, &wish),
        };
        allowed.map_err(|denied| {
            self.metrics.rejected("forbidden");
            let (action, name) = match &wish {
                RequestedAccess::Object { verb, kind, name, .. } => {
                    (format!("{} {}", verb.as_str(), kind.plural()), name.unwrap_or_default())
                }
                RequestedAccess::Action { method, path } => (format!("{method} {path}"), ""),
                RequestedAccess::Description | RequestedAccess::Probe | RequestedAccess::Foreign => (String::new(), ""),
            };
            let caller = &identity.caller().user;
            tracing::info!(target: "audit", caller, user = identity.user, action, name, reason = denied.0, "forbidden");
            let version = match ask {
                ApiRequest::Object(object) => object.resource.version,
                _ => ApiVersion::Group,
            };
            errors::forbidden(identity, version, &wish, denied)
        })
    }

    fn probe(&self, probe: HealthProbe, verbose: bool) -> Response<Body> {
        // A process that responds is alive. It is ready when all its parts are ready and it is not about to
        // stop.
        let report = self.readiness.report();
        let stopping = self.stop.is_cancelled();
        match probe {
            HealthProbe::Ready if stopping => {
                respond::text(StatusCode::SERVICE_UNAVAILABLE, "[-]shutdown failed: the server is stopping\n")
            }
            HealthProbe::Ready if !report.is_ready() => {
                respond::text(StatusCode::SERVICE_UNAVAILABLE, report.text(probe.name(), verbose))
            }
            HealthProbe::Ready => respond::text(StatusCode::OK, report.text(probe.name(), verbose)),
            HealthProbe::Health | HealthProbe::Live if verbose => {
                respond::text(StatusCode::OK, format!("[+]ping ok\n{} check passed\n", probe.name()))
            }
            HealthProbe::Health | HealthProbe::Live => respond::text(StatusCode::OK, "ok"),
        }
    }

    /// Reads the whole body, within its limits of size and time.
    async fn read_body(
        &self,
        head: &http::request::Parts,
        body: &mut Incoming,
        max: usize,
    ) -> Result<Bytes, Status> {
        let announced =
            head.headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
        if announced.is_some_and(|length: u64| length > max as u64) {
            return Err(Status::too_large(max));
        }
        let collected =
            tokio::time::timeout(self.limits.body_time_max, Limited::new(body, max).collect()).await;
        match collected {
            Ok(Ok(collected)) => Ok(collected.to_bytes()),
            Ok(Err(error)) if error.is::<LengthLimitError>() => Err(Status::too_large(max)),
            Ok(Err(error)) => Err(Status::bad_request(format!("the body could not be read: {error}"))),
            Err(_) => Err(Status::request_timeout("the body did not arrive in time")),
        }
    }

    fn review(
        &self,
        context: &RequestContext<'_>,
        what: ReviewRequest,
        bytes: &Bytes,
    ) -> Result<Response<Body>, Status> {
        let content_type =
            context.head.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let question = review::parse(what, content_type, bytes)?;
        let answer = review::answer(what, &context.identity, &question, self.registry.now())?;
        Ok(respond::json(StatusCode::CREATED, answer.to_string()))
    }

    async fn action(
        &self,
        context: &RequestContext<'_>,
        path: String,
        query: Option<String>,
        body: Bytes,
        act: &mut Act<'_>,
    ) -> Result<Response<Body>, Status> {
        let method = context.head.method.clone();
        if method != Method::GET {
            let (caller, user) = (&context.caller.user, &context.identity.user);
            tracing::info!(target: "audit", caller, user, %method, path, "action");
        }
        act.is_action(&*self.actions, &method, &path, &body);
        if asks_for_dry_run(&method, query.as_deref()) {
            act.is_dry_run(true);
            return Err(Status::bad_request(format!(
                "/causeway/v1/{path} does not support dryRun, so nothing was done: leave dryRun out to execute the action"
            )));
        }
        let audit = act.caller_audit(self.admin_audit.clone());
        let request = ActionRequest { method, path, query, body, audit };
        let done = self.actions.call(&context.identity, request).await.map_err(errors::from_action)?;
        act.has_made(done.made);
        let content_type = http::HeaderValue::from_static(done.content_type);
        let mut response = respond::whole(done.code, content_type, Bytes::new());
        *response.body_mut() = match done.body {
            ActionBody::Bytes(bytes) => Body::Whole(bytes),
            ActionBody::Stream(stream) => {
                let permit = self.enter_long_response(context, &CancellationToken::new())?;
                Body::Stream(Box::pin(cut_off(stream, permit)))
            }
            ActionBody::Endless(stream) => {
                let permit = self.enter_long_response(context, &context.stop)?;
                let ended = async move { permit.stopped().await };
                Body::Stream(Box::pin(stream.take_until(ended)))
            }
        };
        Ok(response)
    }

    /// Counts a response that may last. It ends with the caller's credential and with `stop`.
    fn enter_long_response(
        &self,
        context: &RequestContext<'_>,
        stop: &CancellationToken,
    ) -> Result<WatchPermit, Status> {
        self.watches.enter(&context.caller, &context.user, stop).ok_or_else(|| {
            self.metrics.rejected("watches");
            Status::too_many_requests("this client watches as much as it may; end a watch first", 1)
        })
    }
}

/// Passes a response on until its permit ends. The client sees an error then, not the end of a whole response.
fn cut_off(
    response: impl Stream<Item = io::Result<Bytes>> + Unpin,
    permit: WatchPermit,
) -> impl Stream<Item = io::Result<Bytes>> {
    let stopped = Box::pin(permit.stopped());
    stream::unfold(Some((response, stopped, permit)), |state| async move {
        let (mut response, mut stopped, permit) = state?;
        tokio::select! {
            biased;
            () = &mut stopped => {
                let error = io::Error::new(io::ErrorKind::PermissionDenied, "the credential of the client was revoked");
                Some((Err(error), None))
            }
            piece = response.next() => piece.map(|piece| (piece, Some((response, stopped, permit)))),
        }
    })
}

/// Returns true for an action that is requested as a dry run. Actions take effect at once, so it is refused.
fn asks_for_dry_run(method: &Method, query: Option<&str>) -> bool {
    !matches!(*method, Method::GET | Method::HEAD) && QueryParameters::parse(query).has("dryRun")
}

// Several times the size limit of a request; the server does not wait for a client that sends more.
const DISCARDED_BYTES_MAX: u64 = 16 << 20;
const DISCARD_TIME_MAX: Duration = Duration::from_secs(2);

/// Reads and discards the rest of a refused client's body. Closing the connection earlier would reset it, and
/// with HTTP/1.1 the response would be lost: the client would see a broken pipe instead of its 413.
async fn discard(body: &mut Incoming) {
    if body.size_hint().lower() > DISCARDED_BYTES_MAX {
        return;
    }
    let take = async {
        let mut left = DISCARDED_BYTES_MAX;
        while let Some(Ok(frame)) = body.frame().await {
            let bytes = frame.data_ref().map_or(0, |data| data.len() as u64);
            left = match left.checked_sub(bytes) {
                Some(left) => left,
                None => return,
            };
        }
    };
    let _ = tokio::time::timeout(DISCARD_TIME_MAX, take).await;
}

/// Returns the metric labels of a request. All unknown paths share one label, so that clients cannot make the
/// table grow.
fn labels(ask: &Result<ApiRequest, Status>) -> RequestLabels {
    let (verb, resource) = match ask {
        Ok(ApiRequest::Object(object)) => (object.verb.verb().as_str(), object.resource.kind.plural()),
        Ok(ApiRequest::Discovery(_)) => ("get", "discovery"),
        Ok(ApiRequest::OpenApi(_)) => ("get", "openapi"),
        Ok(ApiRequest::Review(_)) => ("create", "reviews"),
        Ok(ApiRequest::Action { .. }) => ("call", "actions"),
        Ok(ApiRequest::Probe { .. } | ApiRequest::Version) => ("get", "probes"),
        Ok(ApiRequest::Console(_)) => ("call", "console"),
        Err(_) => ("none", "none"),
    };
    RequestLabels { verb, resource, code: 0 }
}
