//! A backend that speaks HTTP/1.1 and HTTP/2 and acts by the path; and one that sends given bytes.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty, Full, StreamBody};
use hyper::body::{Body, Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::task::AbortOnDropHandle;

pub type Answer = Response<UnsyncBoxBody<Bytes, hyper::Error>>;

/// The observations of a backend.
#[derive(Default)]
pub struct Seen {
    pub connections: AtomicUsize,
    pub requests: AtomicUsize,
    /// Requests that were cancelled before their end.
    pub dropped: AtomicUsize,
}

pub struct Running {
    pub address: SocketAddr,
    pub seen: Arc<Seen>,
    _task: AbortOnDropHandle<()>,
}

/// The number of bytes of `/big`.
pub const BIG_BYTES: u64 = 100 << 20;

pub async fn start() -> Running {
    serving(|socket, seen| async move {
        let service = service_fn(move |request| {
            let seen = seen.clone();
            async move { Ok::<_, Infallible>(answer(request, seen).await) }
        });
        let io = TokioIo::new(socket);
        let _ = auto::Builder::new(TokioExecutor::new()).serve_connection_with_upgrades(io, service).await;
    })
    .await
}

/// Reads until an empty line, sends the given bytes, and closes.
pub async fn scripted(says: &'static [u8]) -> Running {
    serving(move |mut socket, seen| async move {
        let mut heard = Vec::new();
        while !heard.windows(4).any(|window| window == b"\r\n\r\n") {
            if socket.read_buf(&mut heard).await.unwrap_or(0) == 0 {
                return;
            }
        }
        seen.requests.fetch_add(1, Ordering::SeqCst);
        let _ = socket.write_all(says).await;
    })
    .await
}

async fn serving<F>(serve: impl Fn(TcpStream, Arc<Seen>) -> F + Send + 'static) -> Running
where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let seen = Arc::new(Seen::default());
    let task = tokio::spawn({
        let seen = seen.clone();
        async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((socket, _)) = listener.accept().await {
                seen.connections.fetch_add(1, Ordering::SeqCst);
                connections.spawn(serve(socket, seen.clone()));
            }
        }
    });
    Running { address, seen, _task: AbortOnDropHandle::new(task) }
}

struct Watch(Arc<Seen>);

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.dropped.fetch_add(1, Ordering::SeqCst);
    }
}

async fn answer(mut request: Request<Incoming>, seen: Arc<Seen>) -> Answer {
    seen.requests.fetch_add(1, Ordering::SeqCst);
    match request.uri().path() {
        // Returns the received head, line by line.
        "/head" => text(head(&request)),
        "/echo" => {
            let announced = request.headers().get("trailer").cloned();
            let mut response = Response::new(request.into_body().boxed_unsync());
            if let Some(announced) = announced {
                response.headers_mut().insert("trailer", announced);
            }
            response
        }
        "/count" => {
            let bytes = count(request.into_body()).await;
            text(bytes.to_string())
        }
        "/big" => Response::new(Zeros(BIG_BYTES).boxed_unsync()),
        "/status/204" => status(StatusCode::NO_CONTENT),
        "/status/304" => status(StatusCode::NOT_MODIFIED),
        "/trailers" => {
            let mut response = Response::new(trailing("x-sum", "42"));
            response.headers_mut().insert("trailer", HeaderValue::from_static("x-sum"));
            response
        }
        "/early" => {
            let mut response = text("no more".into());
            *response.status_mut() = StatusCode::PAYLOAD_TOO_LARGE;
            response
        }
        "/hang" => {
            let _watch = Watch(seen);
            std::future::pending().await
        }
        "/upgrade" => {
            let upgrade = hyper::upgrade::on(&mut request);
            tokio::spawn(async move {
                let mut io = TokioIo::new(upgrade.await.unwrap());
                let (mut read, mut write) = tokio::io::split(&mut io);
                let _ = tokio::io::copy(&mut read, &mut write).await;
                let _ = write.shutdown().await;
            });
            let mut response = status(StatusCode::SWITCHING_PROTOCOLS);
            let headers = response.headers_mut();
            headers.insert("connection", HeaderValue::from_static("upgrade"));
            headers.insert("upgrade", request.headers()["upgrade"].clone());
            response
        }
        // A gRPC service that echoes its messages.
        "/svc.Echo/Call" => {
            let (sender, receiver) = tokio::sync::mpsc::channel(1);
            tokio::spawn(async move {
                let mut body = request.into_body();
                while let Some(Ok(frame)) = body.frame().await {
                    if frame.is_data() && sender.send(Ok(frame)).await.is_err() {
                        return;
                    }
                }
                let mut trailers = HeaderMap::new();
                trailers.insert("grpc-status", HeaderValue::from_static("0"));
                let _ = sender.send(Ok(Frame::trailers(trailers))).await;
            });
            let frames = futures_util::stream::unfold(receiver, |mut receiver| async {
                receiver.recv().await.map(|frame| (frame, receiver))
            });
            let mut response = Response::new(StreamBody::new(frames).boxed_unsync());
            response.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
            response
        }
        _ => text(format!("{} {}", request.method(), request.uri().path())),
    }
}

/// A body of unknown length with one trailer: HTTP/1.1 has no trailers after a body of known length.
pub fn trailing(name: &'static str, value: &'static str) -> UnsyncBoxBody<Bytes, hyper::Error> {
    let mut trailers = HeaderMap::new();
    trailers.insert(name, HeaderValue::from_static(value));
    let frames = [Ok(Frame::data(Bytes::from_static(b"body"))), Ok(Frame::trailers(trailers))];
    StreamBody::new(futures_util::stream::iter(frames)).boxed_unsync()
}

fn head(request: &Request<Incoming>) -> String {
    let mut lines = vec![format!("{} {} {:?}", request.method(), request.uri(), request.version())];
    for (name, value) in request.headers() {
        lines.push(format!("{name}: {}", value.to_str().unwrap_or("?")));
    }
    lines.join("\n")
}

async fn count(mut body: Incoming) -> u64 {
    let mut bytes = 0;
    while let Some(Ok(frame)) = body.frame().await {
        bytes += frame.data_ref().map_or(0, Bytes::len) as u64;
    }
    bytes
}

fn text(text: String) -> Answer {
    Response::new(Full::new(Bytes::from(text)).map_err(|never| match never {}).boxed_unsync())
}

fn status(status: StatusCode) -> Answer {
    let mut response = Response::new(Empty::new().map_err(|never| match never {}).boxed_unsync());
    *response.status_mut() = status;
    response
}

/// A body of this many bytes, generated on demand.
pub struct Zeros(pub u64);

impl Body for Zeros {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        static PIECE: [u8; 64 << 10] = [0; 64 << 10];
        if self.0 == 0 {
            return Poll::Ready(None);
        }
        let bytes = self.0.min(PIECE.len() as u64);
        self.0 -= bytes;
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(&PIECE[..bytes as usize])))))
    }
}
