//! Passes requests of a site to the API server under the caller's own identity, upgrades included.
//!
//! A stream carries HTTP/1.1. A bearer token goes on as it is and the API server verifies it; a node is named by the edge
//! in a header and believed only for nodes of the edge's own site. Upgraded connections are copied unread.

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
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

use super::Upstream;
use super::cluster::{ClusterError, UpstreamIdentity};

/// Names the node that a caller proved to be. Set by the edge, never forwarded.
pub const NODE_HEADER: HeaderName = HeaderName::from_static("x-causeway-node");
/// The path under which the cloud answers questions of the edge itself.
pub const SITE_PATH: &str = "/.causeway/site";
pub const TOKEN_REVIEW_PATH: &str = "/.causeway/tokenreview";

// kube-apiserver refuses larger bodies.
const BODY_BYTES_MAX: usize = 16 << 20;
// Fields of a connection (RFC 9110, section 7.6.1), and those that name a caller to an API server behind a proxy.
const DROPPED: [&str; 9] = [
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "te",
    "trailer",
    "transfer-encoding",
    "host",
    "x-causeway-node",
];

pub type PassedBody = UnsyncBoxBody<Bytes, Box<dyn std::error::Error + Send + Sync>>;

/// Serves the requests on one stream until it ends.
pub async fn serve<S>(upstream: Arc<Upstream>, site: String, stream: S) -> Result<(), hyper::Error>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let service = service_fn(move |request| {
        let (upstream, site) = (upstream.clone(), site.clone());
        async move { Ok::<_, Infallible>(answer(&upstream, &site, request).await) }
    });
    hyper::server::conn::http1::Builder::new()
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades()
        .await
}

async fn answer(upstream: &Upstream, site: &str, request: Request<Incoming>) -> Response<PassedBody> {
    let answered = match request.uri().path() {
        SITE_PATH => upstream.site_facts(site).await.map(|facts| json(StatusCode::OK, facts.to_string())),
        TOKEN_REVIEW_PATH => review_token(upstream, request).await,
        _ => pass(upstream, site, request).await,
    };
    answered.unwrap_or_else(|status| refusal(&status))
}

async fn pass(
    upstream: &Upstream,
    site: &str,
    request: Request<Incoming>,
) -> Result<Response<PassedBody>, Status> {
    let identity = identity(upstream, site, request.headers()).await?;
    let upgrade = request.headers().get(header::UPGRADE).cloned();
    let (mut head, body) = request.into_parts();
    let client = upgrade.as_ref().and_then(|_| head.extensions.remove::<hyper::upgrade::OnUpgrade>());
    let body = Limited::new(body, BODY_BYTES_MAX).collect().await;
    let body = body.map_err(|_| Status::too_large(BODY_BYTES_MAX))?.to_bytes();
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
        tokio::spawn(tunnel(client, server));
        return Ok(response.map(|_| Full::default().map_err(|never| match never {}).boxed_unsync()));
    }
    let is_upgrade = response.status() == StatusCode::SWITCHING_PROTOCOLS;
    for name in DROPPED.iter().filter(|_| !is_upgrade) {
        response.headers_mut().remove(*name);
    }
    Ok(response.map(|body| body.map_err(Into::into).boxed_unsync()))
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
    let body = Limited::new(request.into_body(), 64 << 10).collect().await;
    let token = body.map_err(|_| Status::too_large(64 << 10))?.to_bytes();
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

    #[test]
    fn a_node_cannot_change_its_identity_and_a_token_may_impersonate_by_its_own_rights() {
        let all = || {
            let names = [
                "authorization",
                "impersonate-user",
                "x-remote-user",
                "x-causeway-node",
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
