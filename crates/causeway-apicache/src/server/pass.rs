//! Passes requests to the cloud, each on a stream of its own, under the caller's credential.
//!
//! While the cloud is away the answer is 503 with `retryAfterSeconds`, within 3 s, also when the link dies under the
//! request. Upgraded connections are copied unread.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use causeway_api::Status;
use causeway_api::request::query::QueryParameters;
use http::header::{self, HeaderMap, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;

use super::caller_limits::{CallerLimits, LimitedCaller, PassedKind, PassedRequest};
use super::respond::{ApiBody, BoxError};
use crate::connector::CloudConnector;
use crate::identity::LocalCaller;
use crate::subscriptions::SubscriptionCredential;
use crate::upstream::REQUEST_TARGET;
use crate::upstream::passthrough::{NODE_HEADER, tunnel};

/// A handle; clones share the connector.
#[derive(Clone)]
pub struct Passthrough(pub Arc<dyn CloudConnector>);

/// No answer from the cloud: the 503 for the client.
pub struct PassError(pub Status);

// After this time without an answer the link is checked; a request on a live link may take longer.
const ANSWER_WAIT: Duration = Duration::from_secs(2);
const LINK_CHECK_INTERVAL: Duration = Duration::from_millis(250);
// Answers of reviews are short.
const ANSWER_BYTES_MAX: usize = 4 << 20;
const RETRY_SECONDS: u32 = 5;

fn away(why: impl std::fmt::Display) -> PassError {
    PassError(Status::unavailable(
        format!("the API server cannot be reached from this site: {why}"),
        RETRY_SECONDS,
    ))
}

impl Passthrough {
    pub fn is_connected(&self) -> bool {
        self.0.is_connected()
    }

    /// Sends a small request of the edge itself and reads the whole answer. One that is too long is empty.
    pub async fn ask(
        &self,
        method: Method,
        path: &str,
        caller: Option<&LocalCaller>,
        body: Bytes,
    ) -> Result<(StatusCode, Bytes), PassError> {
        self.send(method, path, None, caller, body).await
    }

    /// The same with a body of another type than JSON.
    pub async fn send(
        &self,
        method: Method,
        path: &str,
        content_type: Option<&str>,
        caller: Option<&LocalCaller>,
        body: Bytes,
    ) -> Result<(StatusCode, Bytes), PassError> {
        let mut request = Request::new(full(body));
        *request.method_mut() = method;
        *request.uri_mut() = path.parse().map_err(away)?;
        let content_type = HeaderValue::try_from(content_type.unwrap_or("application/json")).map_err(away)?;
        request.headers_mut().insert(header::CONTENT_TYPE, content_type);
        request.headers_mut().insert(header::ACCEPT, HeaderValue::from_static("application/json"));
        if let Some(caller) = caller {
            identify(request.headers_mut(), caller)?;
        }
        let response = self.exchange(request).await?;
        let code = response.status();
        match Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await {
            Ok(body) => Ok((code, body.to_bytes())),
            // The code tells the outcome. The same request would have the same answer again.
            Err(error) if error.is::<LengthLimitError>() => Ok((code, Bytes::new())),
            Err(error) => Err(away(error)),
        }
    }

    /// Passes a client's request, and an upgrade that follows. It counts for its caller until its answer has ended.
    pub async fn forward<B>(
        &self,
        request: Request<B>,
        (caller, limits): (&LocalCaller, &CallerLimits),
    ) -> Result<Response<ApiBody>, PassError>
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let place = limits
            .begin_passed(&LimitedCaller::of(caller), PassedKind::Any)
            .map_err(|_| PassError(too_many(request.uri().query())))?;
        self.forward_counted(request, caller, place).await
    }

    /// Passes a write that the site answers when the API server is away. A caller with too many of them gets 429, which is no such answer.
    pub async fn forward_write(
        &self,
        request: Request<ApiBody>,
        (caller, limits): (&LocalCaller, &CallerLimits),
    ) -> Result<Response<ApiBody>, PassError> {
        let place = limits
            .begin_passed(&LimitedCaller::of(caller), PassedKind::SiteWrite)
            .map_err(|_| PassError(Status::too_many_requests(TOO_MANY, 1)))?;
        self.forward_counted(request, caller, place).await
    }

    async fn forward_counted<B>(
        &self,
        request: Request<B>,
        caller: &LocalCaller,
        passed_request: PassedRequest,
    ) -> Result<Response<ApiBody>, PassError>
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let (mut head, body) = request.into_parts();
        let client = head.extensions.remove::<hyper::upgrade::OnUpgrade>();
        let upgrade = head.headers.get(header::UPGRADE).cloned();
        let mut passed = Request::new(body.map_err(Into::into).boxed_unsync());
        *passed.method_mut() = head.method;
        let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
        *passed.uri_mut() = path.parse().map_err(away)?;
        *passed.headers_mut() = head.headers;
        let headers = passed.headers_mut();
        headers.remove(header::CONNECTION);
        headers.remove(header::TRANSFER_ENCODING);
        if let Some(upgrade) = upgrade {
            headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
            headers.insert(header::UPGRADE, upgrade);
        }
        identify(headers, caller)?;
        let mut response = self.exchange(passed).await?;
        if response.status() == StatusCode::SWITCHING_PROTOCOLS
            && let Some(client) = client
        {
            let cloud = hyper::upgrade::on(&mut response);
            tokio::spawn(async move {
                tunnel(client, cloud).await;
                drop(passed_request);
            });
            return Ok(response.map(|_| full(Bytes::new())));
        }
        for name in [header::CONNECTION, header::TRANSFER_ENCODING] {
            response.headers_mut().remove(name);
        }
        Ok(response.map(|body| {
            // The body owns the place until it is dropped.
            let counted = body.map_err(boxed).map_frame(move |frame| {
                let _ = &passed_request;
                frame
            });
            counted.boxed_unsync()
        }))
    }

    async fn exchange(&self, mut request: Request<ApiBody>) -> Result<Response<Incoming>, PassError> {
        request.headers_mut().insert(header::HOST, HeaderValue::from_static("kubernetes"));
        let stream = self.0.open(REQUEST_TARGET).await.map_err(away)?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(away)?;
        tokio::spawn(connection.with_upgrades());
        let answering = sender.send_request(request);
        tokio::pin!(answering);
        let mut look =
            tokio::time::interval_at(tokio::time::Instant::now() + ANSWER_WAIT, LINK_CHECK_INTERVAL);
        loop {
            tokio::select! {
                response = &mut answering => return response.map_err(away),
                _ = look.tick() => {
                    if !self.0.is_connected() {
                        return Err(away("the link was lost"));
                    }
                    self.0.suspect();
                }
            }
        }
    }
}

/// The refusal of a caller that has too many requests at the API server. An informer takes 429 for a state that begins late, so a watch gets 503.
fn too_many(query: Option<&str>) -> Status {
    match QueryParameters::parse(query).flag("watch") {
        Some(true) => Status::unavailable(TOO_MANY, 1),
        _ => Status::too_many_requests(TOO_MANY, 1),
    }
}

const TOO_MANY: &str = "this caller has too many requests under way to the API server";

fn boxed(error: hyper::Error) -> BoxError {
    Box::new(error)
}

pub fn full(body: Bytes) -> ApiBody {
    Full::new(body).map_err(|never| -> BoxError { match never {} }).boxed_unsync()
}

/// Sets the credential under which the cloud acts, and removes every other.
fn identify(headers: &mut HeaderMap, caller: &LocalCaller) -> Result<(), PassError> {
    headers.remove(header::AUTHORIZATION);
    headers.remove(NODE_HEADER);
    let text = |text: String| HeaderValue::try_from(text).map_err(away);
    match &caller.credential {
        Some(SubscriptionCredential::Token(token)) => {
            headers.insert(header::AUTHORIZATION, text(format!("Bearer {token}"))?);
        }
        Some(SubscriptionCredential::Node(node)) => {
            headers.insert(NODE_HEADER, text(node.clone())?);
        }
        Some(SubscriptionCredential::Pin) | None => {
            let why = "client certificates other than those of nodes cannot act at the cloud; use a token";
            return Err(PassError(Status::forbidden(
                &caller.user.username,
                "use the API server from this site",
                why,
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connector::TestCloud;

    #[tokio::test]
    async fn a_caller_has_its_place_until_the_answer_has_ended() {
        let cloud = TestCloud::new(|_, _| Box::pin(std::future::ready((200, "{}".to_owned()))));
        let (pass, limits) = (Passthrough(Arc::new(cloud)), CallerLimits::default());
        let (greedy, other) = (LocalCaller::node("n1"), {
            let user = crate::identity::UserInfo { username: "till".into(), ..Default::default() };
            LocalCaller::from_token(user, "t")
        });
        let forward = async |caller: &LocalCaller, uri: &str| {
            let request = Request::get(uri).body(full(Bytes::new())).unwrap();
            pass.forward(request, (caller, &limits)).await.map_err(|PassError(status)| status.code)
        };
        let mut held = Vec::new();
        let refused = loop {
            match forward(&greedy, "/api/v1/pods").await {
                Ok(response) if held.len() < 1_000 => held.push(response),
                Ok(_) => panic!("there is no bound"),
                Err(code) => break code,
            }
        };
        assert_eq!((held.len(), refused), (192, 429));
        assert_eq!(forward(&greedy, "/api/v1/pods?watch=1").await.err(), Some(503));
        assert!(forward(&other, "/api/v1/pods").await.is_ok());
        // A write that the site may answer has places of its own, and a query cannot make a refusal look as if the API server were away.
        let mut written = Vec::new();
        let refused = loop {
            let request = Request::put("/api/v1/namespaces/shop/configmaps/a?watch=1")
                .body(full(Bytes::new()))
                .unwrap();
            match pass.forward_write(request, (&greedy, &limits)).await {
                Ok(response) if written.len() < 1_000 => written.push(response),
                Ok(_) => panic!("there is no bound"),
                Err(PassError(status)) => break status.code,
            }
        };
        assert_eq!((written.len(), refused), (32, 429));
        let body = held.pop().unwrap().into_body().collect().await.unwrap().to_bytes();
        assert_eq!(body, "{}");
        assert!(forward(&greedy, "/api/v1/pods").await.is_ok(), "an answer has ended");
    }
}
