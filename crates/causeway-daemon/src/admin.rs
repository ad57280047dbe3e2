//! The admin server for operators: `/metrics`, `/healthz`, `/readyz`, `/debug`.
//!
//! Plain HTTP without credentials, so it belongs on a loopback address. Reads only, except `PUT /debug/log`, which replaces
//! the log filter and is taken from loopback alone.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use causeway_api::accept::ACCEPT_PAUSE;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::log;
use crate::metrics::{Exposition, Metrics};
use crate::readiness::Readiness;

/// Enough for a scraper, a probe and a few people; further connections wait in the accept queue.
const CONNECTIONS_MAX: usize = 64;
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// The time that responses in progress have after the stop.
const ENDING: Duration = Duration::from_millis(250);

/// Longer than any log filter that is written by hand.
const FILTER_BYTES_MAX: usize = 4096;

/// Makes one part of the `/debug` answer. It must not contain secrets.
pub type DebugDump = Box<dyn Fn() -> Value + Send + Sync>;

/// The admin server, bound and not yet running.
pub struct AdminServer {
    listener: TcpListener,
    endpoints: Arc<AdminEndpoints>,
}

/// The contents of the admin server.
pub struct AdminEndpoints {
    pub metrics: Metrics,
    pub readiness: Readiness,
    pub dumps: Vec<(&'static str, DebugDump)>,
}

impl AdminServer {
    pub async fn bind(address: SocketAddr, endpoints: AdminEndpoints) -> std::io::Result<AdminServer> {
        AdminServer::on(TcpListener::bind(address).await?, endpoints)
    }

    /// As `bind`, with a listener that is bound already.
    pub fn on(listener: TcpListener, endpoints: AdminEndpoints) -> std::io::Result<AdminServer> {
        let address = listener.local_addr()?;
        if !address.ip().is_loopback() {
            tracing::warn!(%address, "the admin port asks for no credentials and is not on loopback");
        }
        Ok(AdminServer { listener, endpoints: Arc::new(endpoints) })
    }

    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until stopped; open answers are finished.
    pub async fn run(self, stop: CancellationToken) {
        let slots = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        let connections = TaskTracker::new();
        loop {
            let slot = tokio::select! {
                biased;
                () = stop.cancelled() => break,
                slot = slots.clone().acquire_owned() => slot,
            };
            let accepted = tokio::select! {
                biased;
                () = stop.cancelled() => break,
                accepted = self.listener.accept() => accepted,
            };
            let (stream, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "the admin port cannot accept a connection; retrying after a pause");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let (endpoints, stop) = (self.endpoints.clone(), stop.clone());
            connections.spawn(async move {
                serve(stream, peer, endpoints, stop).await;
                drop(slot);
            });
        }
        connections.close();
        // Idle connections end at once; a client that is slow to ask, or to listen, is not waited for.
        let _ = tokio::time::timeout(ENDING, connections.wait()).await;
    }
}

async fn serve(
    stream: tokio::net::TcpStream,
    peer: SocketAddr,
    endpoints: Arc<AdminEndpoints>,
    stop: CancellationToken,
) {
    let service = service_fn(move |request: Request<Incoming>| {
        let endpoints = endpoints.clone();
        async move {
            Ok::<_, Infallible>(match request.uri().path() {
                "/debug/log" => log_filter(peer.ip(), request).await,
                _ => answer(&endpoints, &request),
            })
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "an admin connection ended early");
    }
}

fn answer(endpoints: &AdminEndpoints, request: &Request<Incoming>) -> Response<Full<Bytes>> {
    if request.method() != Method::GET && request.method() != Method::HEAD {
        return text(StatusCode::METHOD_NOT_ALLOWED, "only GET is served here\n".to_owned());
    }
    let verbose =
        request.uri().query().is_some_and(|query| query.split('&').any(|key| key.starts_with("verbose")));
    match request.uri().path() {
        "/healthz" | "/livez" => text(StatusCode::OK, "ok".to_owned()),
        "/readyz" => {
            let report = endpoints.readiness.report();
            let status = if report.is_ready() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
            text(status, report.text("readyz", verbose))
        }
        "/metrics" => {
            // Several Accept lines mean the same as one with commas.
            let accept: Vec<&str> = request
                .headers()
                .get_all(header::ACCEPT)
                .iter()
                .filter_map(|value| value.to_str().ok())
                .collect();
            let form = Exposition::negotiate(Some(&accept.join(",")));
            respond(StatusCode::OK, form.content_type(), endpoints.metrics.encode_as(form))
        }
        "/debug" => {
            let parts: serde_json::Map<_, _> =
                endpoints.dumps.iter().map(|(name, dump)| ((*name).to_owned(), dump())).collect();
            respond(StatusCode::OK, "application/json", format!("{:#}\n", Value::Object(parts)))
        }
        _ => {
            let hint = "try /metrics, /healthz, /readyz?verbose, /debug or /debug/log\n";
            text(StatusCode::NOT_FOUND, hint.to_owned())
        }
    }
}

/// Shows the log filter, and replaces it when a client on this host says so.
async fn log_filter(peer: IpAddr, request: Request<Incoming>) -> Response<Full<Bytes>> {
    match *request.method() {
        Method::GET | Method::HEAD => {
            text(StatusCode::OK, format!("{}\n", log::filter().unwrap_or_else(|| "<not started>".to_owned())))
        }
        Method::PUT => {
            let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
            // A web page can send a request here; a browser names the page's origin then.
            let is_from_page = request.headers().contains_key(header::ORIGIN);
            if is_from_page || !may_write(peer, host) {
                let why = "the log filter is replaced from this host alone, by an address of loopback\n";
                return text(StatusCode::FORBIDDEN, why.to_owned());
            }
            let Ok(body) = Limited::new(request.into_body(), FILTER_BYTES_MAX).collect().await else {
                let why = format!("a log filter has {FILTER_BYTES_MAX} bytes at most\n");
                return text(StatusCode::PAYLOAD_TOO_LARGE, why);
            };
            let body = body.to_bytes();
            let Ok(filter) = std::str::from_utf8(&body).map(str::trim) else {
                return text(StatusCode::BAD_REQUEST, "a log filter is text\n".to_owned());
            };
            match log::set_filter(filter) {
                Ok(before) => {
                    tracing::info!(filter, before, "the log filter was replaced through the admin port");
                    text(StatusCode::OK, format!("{filter}\n"))
                }
                Err(error) => {
                    let hint = "write as in `info` or `info,causeway_gateway=debug`";
                    text(StatusCode::BAD_REQUEST, format!("{error}: {hint}\n"))
                }
            }
        }
        _ => text(StatusCode::METHOD_NOT_ALLOWED, "GET shows the log filter, PUT replaces it\n".to_owned()),
    }
}

/// From this host, and under a name that only this host has: a page in a browser that a foreign name led here (DNS
/// rebinding) sends that name.
fn may_write(peer: IpAddr, host: Option<&str>) -> bool {
    let is_own = |host: &str| {
        let name = host
            .rsplit_once(':')
            .filter(|(_, port)| port.parse::<u16>().is_ok())
            .map_or(host, |(name, _)| name);
        let address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        name.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback())
    };
    peer.to_canonical().is_loopback() && host.is_some_and(is_own)
}

fn text(status: StatusCode, body: String) -> Response<Full<Bytes>> {
    respond(status, "text/plain; charset=utf-8", body)
}

fn respond(status: StatusCode, form: &'static str, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(form));
    response
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    async fn ask(address: SocketAddr, path: &str) -> String {
        send(address, "GET", path, "host: x\r\n", "").await
    }

    async fn send(address: SocketAddr, method: &str, path: &str, head: &str, body: &str) -> String {
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let length = body.len();
        let head = if head.starts_with("host") { head.to_owned() } else { format!("host: x\r\n{head}") };
        let request = format!(
            "{method} {path} HTTP/1.1\r\n{head}content-length: {length}\r\nconnection: close\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn every_door_opens() {
        let readiness = Readiness::new();
        let store = readiness.register("store");
        let endpoints = AdminEndpoints {
            metrics: Metrics::new("0"),
            readiness: readiness.clone(),
            dumps: vec![("config", Box::new(|| serde_json::json!({"api": "0.0.0.0:7443"})))],
        };
        let server = AdminServer::bind("127.0.0.1:0".parse().unwrap(), endpoints).await.unwrap();
        let address = server.address().unwrap();
        let stop = CancellationToken::new();
        let running = tokio::spawn(server.run(stop.clone()));

        assert!(ask(address, "/readyz").await.contains("503"));
        store.ready();
        for (path, expected) in [
            ("/healthz", "200 OK"),
            ("/readyz?verbose", "[+]store ok"),
            ("/metrics", "text/plain; version=0.0.4"),
            ("/debug/log", "200 OK"),
            ("/debug", "\"api\": \"0.0.0.0:7443\""),
            ("/other", "404 Not Found"),
        ] {
            let answer = ask(address, path).await;
            assert!(answer.contains(expected), "{path}: {answer}");
        }
        let open_metrics = "accept: application/openmetrics-text;version=1.0.0,text/plain;q=0.5\r\n";
        let answer = send(address, "GET", "/metrics", open_metrics, "").await;
        assert!(answer.contains("application/openmetrics-text") && answer.contains("# EOF"), "{answer}");
        for (head, body, expected) in [
            ("host: evil.example\r\n", "debug", "403 Forbidden"),
            ("host: 127.0.0.1:1\r\n", "causeway=loud", "400 Bad Request"),
            ("host: localhost\r\n", &"x".repeat(FILTER_BYTES_MAX + 1), "413 Payload Too Large"),
        ] {
            let answer = send(address, "PUT", "/debug/log", head, body).await;
            assert!(answer.contains(expected), "{answer}");
        }
        assert!(send(address, "PUT", "/metrics", "host: localhost\r\n", "").await.contains("405"));
        stop.cancel();
        running.await.unwrap();
    }

    #[test]
    fn only_this_host_replaces_the_filter() {
        let check = |peer: &str, host: Option<&str>, expected: bool| {
            assert_eq!(may_write(peer.parse().unwrap(), host), expected, "{peer} {host:?}");
        };
        check("127.0.0.1", Some("127.0.0.1:7445"), true);
        check("::1", Some("[::1]:7445"), true);
        check("127.0.0.1", Some("localhost"), true);
        check("127.0.0.1", Some("evil.example:7445"), false);
        check("127.0.0.1", Some("127.0.0.1.evil.example"), false);
        check("127.0.0.1", None, false);
        check("10.0.0.1", Some("127.0.0.1:7445"), false);
    }
}
