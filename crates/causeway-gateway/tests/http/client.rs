//! Clients: one that speaks HTTP/1.1 or HTTP/2 properly, and one that sends given bytes.

use std::net::SocketAddr;

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty, Full};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_util::task::AbortOnDropHandle;

use crate::lab::within;

pub type Sent = UnsyncBoxBody<Bytes, hyper::Error>;

pub enum Client {
    One(http1::SendRequest<Sent>, #[expect(dead_code)] AbortOnDropHandle<()>),
    Two(http2::SendRequest<Sent>, #[expect(dead_code)] AbortOnDropHandle<()>),
}

impl Client {
    pub async fn one(address: SocketAddr) -> Client {
        let io = TokioIo::new(TcpStream::connect(address).await.unwrap());
        let (sender, connection) = http1::handshake(io).await.unwrap();
        let driver = tokio::spawn(async move { drop(connection.with_upgrades().await) });
        Client::One(sender, AbortOnDropHandle::new(driver))
    }

    /// Connects over HTTP/1.1, from that address of this host.
    pub async fn one_from(source: &str, address: SocketAddr) -> Client {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind(format!("{source}:0").parse().unwrap()).unwrap();
        let io = TokioIo::new(socket.connect(address).await.unwrap());
        let (sender, connection) = http1::handshake(io).await.unwrap();
        let driver = tokio::spawn(async move { drop(connection.with_upgrades().await) });
        Client::One(sender, AbortOnDropHandle::new(driver))
    }

    pub async fn two(address: SocketAddr) -> Client {
        let io = TokioIo::new(TcpStream::connect(address).await.unwrap());
        let (sender, connection) = http2::handshake(TokioExecutor::new(), io).await.unwrap();
        let driver = tokio::spawn(async move { drop(connection.await) });
        Client::Two(sender, AbortOnDropHandle::new(driver))
    }

    pub async fn send(&mut self, request: http::request::Builder, body: Sent) -> Response<Incoming> {
        within(self.try_send(request, body)).await.unwrap()
    }

    pub async fn try_send(
        &mut self,
        request: http::request::Builder,
        body: Sent,
    ) -> hyper::Result<Response<Incoming>> {
        match self {
            Client::One(sender, _) => {
                sender.ready().await?;
                sender.send_request(request.header("host", "web.example").body(body).unwrap()).await
            }
            Client::Two(sender, _) => {
                let request = request.body(body).unwrap();
                let (mut parts, body) = request.into_parts();
                let path = parts.uri.path_and_query().unwrap().as_str();
                parts.uri = format!("http://web.example{path}").parse().unwrap();
                sender.send_request(Request::from_parts(parts, body)).await
            }
        }
    }

    /// Sends a request and returns status, headers, body and trailers.
    pub async fn ask(&mut self, request: http::request::Builder, body: Sent) -> Heard {
        let response = self.send(request, body).await;
        within(read_response(response)).await
    }
}

#[derive(Debug)]
pub struct Heard {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: String,
    pub trailers: Option<HeaderMap>,
}

pub async fn read_response(response: Response<Incoming>) -> Heard {
    let (parts, body) = response.into_parts();
    let collected = body.collect().await.unwrap();
    let trailers = collected.trailers().cloned();
    let body = String::from_utf8_lossy(&collected.to_bytes()).into_owned();
    Heard { status: parts.status, headers: parts.headers, body, trailers }
}

pub fn nothing() -> Sent {
    Empty::new().map_err(|never| match never {}).boxed_unsync()
}

pub fn text(text: impl Into<Bytes>) -> Sent {
    Full::new(text.into()).map_err(|never| match never {}).boxed_unsync()
}

/// Sends the bytes, and reads until the other end closes.
pub async fn raw(address: SocketAddr, says: &[u8]) -> String {
    let mut socket = TcpStream::connect(address).await.unwrap();
    socket.write_all(says).await.unwrap();
    let mut heard = Vec::new();
    // A reset after the response is an end as well.
    let _ = within(socket.read_to_end(&mut heard)).await;
    String::from_utf8_lossy(&heard).into_owned()
}
