//! Passes requests of a site to the API server under the caller's own identity, upgrades included.
//!
//! A stream carries HTTP/1.1. A bearer token goes on as it is and the API server verifies it; a node is named by the edge
//! in a header and believed only for nodes of the edge's own site. Upgraded connections are copied unread.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use causeway_api::Status;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use kube::client::Body;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::OwnedSemaphorePermit;

use super::Upstream;
use super::cluster::{ClusterError, UpstreamIdentity};
use super::site_streams::{SiteMemory, SiteStream};

/// Names the node that a caller proved to be. Set by the edge, never forwarded.
pub const NODE_HEADER: HeaderName = HeaderName::from_static("x-causeway-node");
/// The path under which the cloud answers questions of the edge itself.
pub const SITE_PATH: &str = "/.causeway/site";
pub const TOKEN_REVIEW_PATH: &str = "/.causeway/tokenreview";

// kube-apiserver refuses larger bodies.
const BODY_BYTES_MAX: usize = 16 << 20;
// A body that needs longer holds memory which other requests of the site may wait for.
const BODY_TIME_MAX: Duration = Duration::from_secs(60);
// The head of a request; tokens of Kubernetes have about a thousand bytes.
const HEAD_BYTES_MAX: usize = 64 << 10;
const TOKEN_BYTES_MAX: usize = 16 << 10;
// Fields of a connection (RFC 9110, section 7.6.1), those that name a caller to an API server behind a proxy, and the context of a trace: an API
// server with tracing records each request whose parent is sampled, whatever its ratio.
const DROPPED: [&str; 12] = [
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "te",
    "trailer",
    "transfer-encoding",
    "host",
    "x-causeway-node",
    "traceparent",
    "tracestate",
    "baggage",
];

pub type PassedBody = UnsyncBoxBody<Bytes, Box<dyn std::error::Error + Send + Sync>>;

/// Serves the requests on one stream until it ends. `counted` is its place among the streams of the site.
pub async fn serve<S>(
    upstream: Arc<Upstream>,
    site: String,
    counted: Arc<SiteStream>,
    stream: S,
) -> Result<(), hyper::Error>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let service = service_fn(move |request| {
        let (upstream, site, counted) = (upstream.clone(), site.clone(), counted.clone());
        async move { Ok::<_, Infallible>(answer(&upstream, &site, &counted, request).await) }
    });
    hyper::server::conn::http1::Builder::new()
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades()
        .await
}

async fn answer(
    upstream: &Arc<Upstream>,
    site: &str,
    counted: &Arc<SiteStream>,
    request: Request<Incoming>,
) -> Response<PassedBody> {
    let answered = match request.uri().path() {
        SITE_PATH => upstream.site_facts(site).await.map(|facts| json(StatusCode::OK, facts.to_string())),
        TOKEN_REVIEW_PATH => review_token(upstream, request).await,
        _ => pass(upstream, site, counted, request).await,
    };
    answered.unwrap_or_else(|status| refusal(&status))
}

async fn pass(
    upstream: &Arc<Upstream>,
    site: &str,
    counted: &Arc<SiteStream>,
    request: Request<Incoming>,
) -> Result<Response<PassedBody>, Status> {
    let identity = identity(upstream, site, request.headers()).await?;
    if matches!(identity, UpstreamIdentity::Token(_)) && !counted.count_token() {
        let full = "the site has too many requests with tokens under way to the API server";
        return Err(Status::too_many_requests(full, 1));
    }
    let upgrade = request.headers().get(header::UPGRADE).cloned();
    let (mut head, body) = request.into_parts();
    let client = upgrade.as_ref().and_then(|_| head.extensions.remove::<hyper::upgrade::OnUpgrade>());
    let (body, _held) = read_body(counted.memory(), body).await?;
    clean(&mut head.headers, matches!(identity, UpstreamIdentity::Node(_)));
    if let Some(upgrade) = upgrade {
        head.headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
        head.headers.insert(header::UPGRADE, upgrade);
    }
    let mut passed = Request::new(Body::from(body));
    *passed.method_mut() = head.method;
    *passed.uri_mut() = head.uri;
    *passed.headers_mut() = head.headers;
    let sent = upstream.cluster.send(&identity, passed).await;
    let mut response = sent.map_err(|error: ClusterError| error.status())?;
    if response.status() == StatusCode::SWITCHING_PROTOCOLS
        && let Some(client) = client
    {
        let server = hyper::upgrade::on(&mut response);
        // The tunnel outlives the stream's HTTP, and keeps its place.
        let counted = counted.clone();
        let left = left(upstream, site, &identity);
        tokio::spawn(async move {
            tokio::select! {
                () = tunnel(client, server) => {}
                () = left => {}
            }
            drop(counted);
        });
        return Ok(response.map(|_| Full::default().map_err(|never| match never {}).boxed_unsync()));
    }
    let is_upgrade = response.status() == StatusCode::SWITCHING_PROTOCOLS;
    for name in DROPPED.iter().filter(|_| !is_upgrade) {
        response.headers_mut().remove(*name);
    }
    let left = Box::pin(left(upstream, site, &identity));
    Ok(response
        .map(|body| LeavingBody { body: body.map_err(Into::into).boxed_unsync(), left }.boxed_unsync()))
}

// A watch or a session in a container may last for hours.
const RECHECK: Duration = Duration::from_secs(60);

/// Resolves when the node under whose name a request was sent has left the site. A token is checked by the API server.
fn left(
    upstream: &Arc<Upstream>,
    site: &str,
    identity: &UpstreamIdentity,
) -> impl Future<Output = ()> + Send + 'static {
    let node = match identity {
        UpstreamIdentity::Node(node) => Some(node.clone()),
        UpstreamIdentity::Own | UpstreamIdentity::Token(_) => None,
    };
    let (sites, site) = (upstream.sites.clone(), site.to_owned());
    async move {
        let Some(node) = node else { return std::future::pending().await };
        loop {
            tokio::time::sleep(RECHECK).await;
            if !sites.has_node(&site, &node).await {
                return;
            }
        }
    }
}

/// A response that breaks off when its caller loses its identity.
struct LeavingBody<F> {
    body: PassedBody,
    left: Pin<Box<F>>,
}

impl<F: Future<Output = ()>> http_body::Body for LeavingBody<F> {
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, Self::Error>>> {
        if self.left.as_mut().poll(context).is_ready() {
            return Poll::Ready(Some(Err("the node has left the site".into())));
        }
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.body.size_hint()
    }
}

/// Reads a whole body. It counts against the memory of the site while it is held: the API server checks the caller only
/// when it has the request.
async fn read_body<B>(memory: &SiteMemory, mut body: B) -> Result<(Bytes, Vec<OwnedSemaphorePermit>), Status>
where
    B: http_body::Body<Data = Bytes> + Unpin,
{
    let reading = async {
        let (mut whole, mut held) = (BytesMut::new(), Vec::new());
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|_| Status::bad_request("the body of the request broke off"))?;
            let Ok(data) = frame.into_data() else { continue };
            if whole.len() + data.len() > BODY_BYTES_MAX {
                return Err(Status::too_large(BODY_BYTES_MAX));
            }
            held.extend(memory.take(data.len()).await);
            whole.extend_from_slice(&data);
        }
        Ok((whole.freeze(), held))
    };
    let read = tokio::time::timeout(BODY_TIME_MAX, reading).await;
    read.unwrap_or_else(|_| Err(Status::request_timeout("the body did not arrive in time")))
}

/// Copies both directions of an upgraded connection until both have ended.
pub async fn tunnel(near: hyper::upgrade::OnUpgrade, far: hyper::upgrade::OnUpgrade) {
    let (Ok(near), Ok(far)) = tokio::join!(near, far) else { return };
    let _ = tokio::io::copy_bidirectional(&mut TokioIo::new(near), &mut TokioIo::new(far)).await;
}

async fn identity(upstream: &Upstream, site: &str, headers: &HeaderMap) -> Result<UpstreamIdentity, Status> {
    let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    if let Some(token) = text(header::AUTHORIZATION).and_then(|value| value.strip_prefix("Bearer ")) {
        return Ok(UpstreamIdentity::Token(token.trim().to_owned()));
    }
    match text(NODE_HEADER) {
        Some(node) => upstream.node_identity(site, node).await,
        None => Err(Status::unauthorized("the request carries no credential that can be passed on")),
    }
}

/// Removes fields that belong to the connection to the edge, and, for a node, those that would change its identity.
fn clean(headers: &mut HeaderMap, is_node: bool) {
    DROPPED.iter().for_each(|name| drop(headers.remove(*name)));
    headers.remove(header::UPGRADE);
    let is_identity = |name: &HeaderName| {
        let name = name.as_str();
        name.starts_with("x-remote-")
            || is_node && (name.starts_with("impersonate-") || name == "authorization")
    };
    let dropped: Vec<HeaderName> = headers.keys().filter(|name| is_identity(name)).cloned().collect();
    dropped.iter().for_each(|name| drop(headers.remove(name)));
}

async fn review_token(
    upstream: &Upstream,
    request: Request<Incoming>,
) -> Result<Response<PassedBody>, Status> {
    let body = Limited::new(request.into_body(), TOKEN_BYTES_MAX).collect().await;
    let token = body.map_err(|_| Status::too_large(TOKEN_BYTES_MAX))?.to_bytes();
    let token = std::str::from_utf8(&token).map_err(Status::bad_request)?;
    let user = upstream.review_token(token).await?;
    Ok(json(StatusCode::OK, user.to_string()))
}

fn json(code: StatusCode, body: String) -> Response<PassedBody> {
    let mut response = Response::new(Full::from(body).map_err(|never| match never {}).boxed_unsync());
    *response.status_mut() = code;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

fn refusal(status: &Status) -> Response<PassedBody> {
    let code = StatusCode::from_u16(status.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    json(code, String::from_utf8_lossy(&status.to_json()).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_response_to_a_node_breaks_off_when_the_node_leaves_the_site() {
        let (upstream, facts) = Upstream::for_tests().await;
        let node = UpstreamIdentity::Node("n1".into());
        let silent = http_body_util::StreamBody::new(futures_util::stream::pending());
        let left = Box::pin(left(&upstream, "oslo", &node));
        let mut body = LeavingBody { body: BodyExt::boxed_unsync(silent), left };
        let waiting = Duration::from_secs(3600);
        assert!(tokio::time::timeout(waiting, body.frame()).await.is_err(), "the node is there");
        facts.revoke();
        let broken = tokio::time::timeout(RECHECK * 2, body.frame()).await.expect("it ends");
        assert!(broken.is_some_and(|frame| frame.is_err()));
    }

    /// The code of the answer to a request of a gateway of site `oslo`. The cluster of the test cannot be reached: 503 came as far as that.
    async fn answered(upstream: &Arc<Upstream>, line: &str, headers: &str) -> String {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let (mut near, far) = tokio::io::duplex(64 << 10);
        let serving =
            tokio::spawn(upstream.clone().serve("oslo".into(), crate::upstream::REQUEST_TARGET, far));
        let text = format!("{line} HTTP/1.1\r\nHost: kubernetes\r\nConnection: close\r\n{headers}\r\n");
        near.write_all(text.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        near.read_to_end(&mut answer).await.unwrap();
        serving.await.expect("no request ends the task of a stream");
        String::from_utf8_lossy(&answer).split(' ').nth(1).unwrap_or_default().to_owned()
    }

    #[tokio::test]
    async fn a_compromised_edge_speaks_for_its_own_site_and_reaches_the_api_server_only() {
        let (upstream, _) = Upstream::for_tests().await;
        for (headers, expected) in [
            ("", "401"),
            ("X-Causeway-Node: n1\r\n", "503"),
            ("X-Causeway-Node: n2\r\n", "403"),
            ("X-Causeway-Node: n2\r\nX-Causeway-Node: n1\r\n", "403"),
            ("X-Causeway-Node: n1/../n2\r\n", "403"),
            ("X-Causeway-Node: \r\n", "403"),
            ("Authorization: Basic YTpi\r\nX-Causeway-Node: n2\r\n", "403"),
            ("Impersonate-User: system:node:n2\r\n", "401"),
            ("X-Remote-User: admin\r\n", "401"),
        ] {
            assert_eq!(answered(&upstream, "GET /api/v1/nodes", headers).await, expected, "{headers:?}");
        }
        // The authority of the request is not the one that is dialled, and no form of a target is a panic.
        for line in [
            "OPTIONS *",
            "GET http://203.0.113.1/api",
            "CONNECT 203.0.113.1:443",
            "GET //203.0.113.1/api",
            "GET /api/v1/../../x",
        ] {
            let code = answered(&upstream, line, "Authorization: Bearer x\r\n").await;
            assert!(matches!(code.as_str(), "400" | "503"), "{line}: {code}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn bodies_of_a_site_share_one_memory() {
        let memory = SiteMemory::new(64);
        let body = |bytes: usize| Full::new(Bytes::from(vec![7; bytes]));
        let (first, held) = read_body(&memory, body(60 << 10)).await.unwrap();
        assert_eq!(first.len(), 60 << 10);
        let refused = read_body(&memory, body(5 << 10)).await.unwrap_err();
        assert_eq!(refused.code, 408, "there is no room while the first is held");
        assert!(read_body(&memory, body(4 << 10)).await.is_ok());
        drop(held);
        assert!(read_body(&memory, body(64 << 10)).await.is_ok());
        let refused = read_body(&SiteMemory::new(1 << 20), body(BODY_BYTES_MAX + 1)).await.unwrap_err();
        assert_eq!(refused.code, 413);
    }

    #[test]
    fn a_node_cannot_change_its_identity_and_a_token_may_impersonate_by_its_own_rights() {
        let all = || {
            let names = [
                "authorization",
                "impersonate-user",
                "x-remote-user",
                "x-causeway-node",
                "traceparent",
                "tracestate",
                "baggage",
                "accept",
                "upgrade",
            ];
            names
                .into_iter()
                .map(|name| (HeaderName::from_static(name), HeaderValue::from_static("x")))
                .collect::<HeaderMap>()
        };
        let left = |is_node| {
            let mut headers = all();
            clean(&mut headers, is_node);
            let mut names: Vec<String> = headers.keys().map(|name| name.as_str().to_owned()).collect();
            names.sort();
            names
        };
        assert_eq!(left(true), ["accept"]);
        assert_eq!(left(false), ["accept", "authorization", "impersonate-user"]);
    }
}
