//! Serves a plain HTTP request for a node, as programs send it to a proxy: `GET http://node-1:9100/metrics`.
//!
//! Each request uses a connection as a CONNECT would have opened it, under the same policies and with the
//! same record. The node receives the request of a client without a proxy; the headers for the proxy are
//! removed. Protocol upgrades are not supported here.

use http::header::{self, HeaderValue};
use http::uri::Scheme;
use http::{Request, Response, Uri, Version};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;

use super::listener::ConnectContext;
use super::node::NodeConnection;
use crate::proxy::http::headers;

/// The buffer between the HTTP client and the connection to the node.
const BUFFER_BYTES: usize = 64 << 10;

/// Returns the target of such a request, as a CONNECT would name it. None: the request is not in proxy form.
pub fn authority(uri: &Uri) -> Option<String> {
    let authority = uri.authority().filter(|_| uri.scheme() == Some(&Scheme::HTTP))?;
    // Credentials in the target would be sent to a node that has not asked for them.
    let is_plain = !authority.as_str().contains('@');
    is_plain.then(|| format!("{}:{}", authority.host(), authority.port_u16().unwrap_or(80)))
}

/// Sends the request to the node.
pub async fn exchange(
    context: &ConnectContext,
    opened: NodeConnection,
    request: Request<Incoming>,
) -> hyper::Result<Response<Incoming>> {
    let (near, far) = tokio::io::duplex(BUFFER_BYTES);
    let proxy = context.proxy.clone();
    context.tasks.spawn(Box::pin(async move { opened.carry(&proxy, far).await }));
    let (mut sender, connection) = http1::handshake(TokioIo::new(near)).await?;
    context.tasks.spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "HTTP request to a node failed");
        }
    });
    let mut response = sender.send_request(for_node(request)).await?;
    headers::strip(response.headers_mut());
    Ok(response)
}

/// RFC 9112, 3.2: the node gets the path, and the Host header is set from the target, whatever the client
/// sent.
fn for_node<B>(mut request: Request<B>) -> Request<B> {
    let uri = request.uri();
    let host = uri.authority().and_then(|authority| HeaderValue::from_str(authority.as_str()).ok());
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    *request.uri_mut() = path.parse().unwrap_or_default();
    *request.version_mut() = Version::HTTP_11;
    let headers = request.headers_mut();
    headers::strip(headers);
    headers.remove(header::PROXY_AUTHORIZATION);
    if let Some(host) = host {
        headers.insert(header::HOST, host);
    }
    headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    request
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_that_of_a_proxy_in_plain_http() {
        for (uri, expected) in [
            ("http://node-1:9100/metrics", Some("node-1:9100")),
            ("http://node-1/", Some("node-1:80")),
            ("http://[fd00::1]:9100", Some("[fd00::1]:9100")),
            ("https://node-1:10250/", None),
            ("http://me:secret@node-1:9100/", None),
            ("/metrics", None),
            ("node-1:9100", None),
        ] {
            assert_eq!(authority(&uri.parse().unwrap()).as_deref(), expected, "{uri}");
        }
    }

    #[test]
    fn the_node_is_asked_as_if_there_were_no_proxy() {
        let request = Request::get("http://node-1:9100/metrics?a=b")
            .header("host", "elsewhere")
            .header("proxy-authorization", "Basic secret")
            .header("proxy-connection", "keep-alive")
            .header("connection", "x-own")
            .header("x-own", "1")
            .header("accept", "text/plain");
        let request = for_node(request.body(()).unwrap());
        assert_eq!(request.uri().to_string(), "/metrics?a=b");
        let mut headers: Vec<String> = request
            .headers()
            .iter()
            .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()))
            .collect();
        headers.sort();
        assert_eq!(headers, ["accept: text/plain", "connection: close", "host: node-1:9100"]);
        assert_eq!(for_node(Request::get("http://node-1").body(()).unwrap()).uri().path(), "/");
    }
}
