//! The operator's door on loopback: `/metrics`, `/healthz`, `/readyz`, `/debug`.
//!
//! Plain HTTP without credentials, so it belongs on a loopback address. Reads only.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::metrics::Metrics;
use crate::readiness::Readiness;

/// A scraper, a probe and a few curious people; the next one waits in the accept queue.
const CONNECTIONS_MAX: usize = 64;
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// After an accept error (out of files) it takes a moment until one is free.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Makes one part of the `/debug` answer. It must not contain secrets.
pub type Dump = Box<dyn Fn() -> Value + Send + Sync>;

/// The admin server, bound and not yet running.
pub struct AdminServer {
    listener: TcpListener,
    doors: Arc<Doors>,
}

/// What the admin server shows.
pub struct Doors {
    pub metrics: Metrics,
    pub readiness: Readiness,
    pub dumps: Vec<(&'static str, Dump)>,
}

impl AdminServer {
    pub async fn bind(address: SocketAddr, doors: Doors) -> std::io::Result<AdminServer> {
        let listener = TcpListener::bind(address).await?;
        if !address.ip().is_loopback() {
            tracing::warn!(%address, "the admin port asks for no credentials and is not on loopback");
        }
        Ok(AdminServer { listener, doors: Arc::new(doors) })
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
            let stream = match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(%error, "the admin port cannot accept");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let (doors, stop) = (self.doors.clone(), stop.clone());
            connections.spawn(async move {
                serve(stream, doors, stop).await;
                drop(slot);
            });
        }
        connections.close();
        connections.wait().await;
    }
}

async fn serve(stream: tokio::net::TcpStream, doors: Arc<Doors>, stop: CancellationToken) {
    let service = service_fn(move |request| {
        let response = answer(&doors, &request);
        async move { Ok::<_, Infallible>(response) }
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

fn answer(doors: &Doors, request: &Request<Incoming>) -> Response<Full<Bytes>> {
    if request.method() != Method::GET && request.method() != Method::HEAD {
        return text(StatusCode::METHOD_NOT_ALLOWED, "only GET is served here\n".to_owned());
    }
    let verbose =
        request.uri().query().is_some_and(|query| query.split('&').any(|key| key.starts_with("verbose")));
    match request.uri().path() {
        "/healthz" | "/livez" => text(StatusCode::OK, "ok".to_owned()),
        "/readyz" => {
            let report = doors.readiness.report();
            let status = if report.is_ready() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
            text(status, report.text("readyz", verbose))
        }
        "/metrics" => {
            let form = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            respond(StatusCode::OK, form, doors.metrics.encode())
        }
        "/debug" => {
            let parts: serde_json::Map<_, _> =
                doors.dumps.iter().map(|(name, dump)| ((*name).to_owned(), dump())).collect();
            respond(StatusCode::OK, "application/json", format!("{:#}\n", Value::Object(parts)))
        }
        _ => text(StatusCode::NOT_FOUND, "try /metrics, /healthz, /readyz?verbose or /debug\n".to_owned()),
    }
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
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn every_door_opens() {
        let readiness = Readiness::new();
        let store = readiness.register("store");
        let doors = Doors {
            metrics: Metrics::new("0"),
            readiness: readiness.clone(),
            dumps: vec![("config", Box::new(|| serde_json::json!({"api": "0.0.0.0:7443"})))],
        };
        let server = AdminServer::bind("127.0.0.1:0".parse().unwrap(), doors).await.unwrap();
        let address = server.address().unwrap();
        let stop = CancellationToken::new();
        let running = tokio::spawn(server.run(stop.clone()));

        assert!(ask(address, "/readyz").await.contains("503"));
        store.ready();
        for (path, expected) in [
            ("/healthz", "200 OK"),
            ("/readyz?verbose", "[+]store ok"),
            ("/metrics", "# EOF"),
            ("/debug", "\"api\": \"0.0.0.0:7443\""),
            ("/other", "404 Not Found"),
        ] {
            let answer = ask(address, path).await;
            assert!(answer.contains(expected), "{path}: {answer}");
        }
        stop.cancel();
        running.await.unwrap();
    }
}
