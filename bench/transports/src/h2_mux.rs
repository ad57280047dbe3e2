//! All streams on one TLS connection, multiplexed by HTTP/2.
//!
//! A stream is a POST whose response starts at once, so that both directions flow as they like.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use anyhow::Result;
use bytes::{Buf, Bytes};
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use h2::client::{ResponseFuture, SendRequest};
use h2::{RecvStream, SendStream};
use http::{Method, Request, Response};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::identity::Identity;
use crate::link::{Link, Serve, Stream, Tuning};
use crate::tls::{Connector, Listener};

/// A frame is the unit in which streams take turns. Larger ones cost less and make other streams wait longer.
const FRAME_BYTES_MAX: u32 = 64 << 10;
const SEND_BUFFER_BYTES: usize = 1 << 20;
const STREAMS_MAX: u32 = 4096;

pub async fn serve(listen: SocketAddr, identity: &Identity, tuning: Tuning, serve: Serve) -> Result<()> {
    let listener = Listener::bind(listen, identity, "h2", &tuning)?;
    let mut builder = h2::server::Builder::new();
    builder
        .initial_window_size(tuning.stream_window_bytes)
        .initial_connection_window_size(tuning.connection_window_bytes)
        .max_frame_size(FRAME_BYTES_MAX)
        .max_send_buffer_size(SEND_BUFFER_BYTES)
        .max_concurrent_streams(STREAMS_MAX);
    loop {
        let handshake = listener.accept().await?;
        let builder = builder.clone();
        tokio::spawn(async move {
            let Ok(tls) = handshake.await else { return };
            let Ok(mut connection) = builder.handshake::<_, Bytes>(tls).await else { return };
            while let Some(Ok((request, mut respond))) = connection.accept().await {
                let Ok(send) = respond.send_response(Response::new(()), false) else { continue };
                let recv = Receiver { state: State::Body(request.into_body()), left: Bytes::new() };
                tokio::spawn(serve(Stream { send: Box::new(Sender { send }), recv: Box::new(recv) }));
            }
        });
    }
}

pub async fn connect(
    peer: SocketAddr,
    identity: &Identity,
    tuning: Tuning,
    count: usize,
) -> Result<Vec<Arc<dyn Link>>> {
    let connector = Connector::new(peer, identity, "h2", tuning.clone())?;
    let mut builder = h2::client::Builder::new();
    builder
        .initial_window_size(tuning.stream_window_bytes)
        .initial_connection_window_size(tuning.connection_window_bytes)
        .max_frame_size(FRAME_BYTES_MAX)
        .max_send_buffer_size(SEND_BUFFER_BYTES)
        .initial_max_send_streams(STREAMS_MAX as usize)
        .enable_push(false);
    let dial = |_| async {
        let (requests, connection) = builder.handshake(connector.connect().await?).await?;
        tokio::spawn(connection);
        anyhow::Ok(Arc::new(Mux { requests }) as Arc<dyn Link>)
    };
    stream::iter(0..count).map(dial).buffer_unordered(16).try_collect().await
}

struct Mux {
    requests: SendRequest<Bytes>,
}

impl Link for Mux {
    fn open(&self) -> BoxFuture<'_, Result<Stream>> {
        Box::pin(async {
            let mut requests = self.requests.clone().ready().await?;
            let request = Request::builder().method(Method::POST).uri("https://peer.invalid/").body(())?;
            let (response, send) = requests.send_request(request, false)?;
            let recv = Receiver { state: State::Waiting(response), left: Bytes::new() };
            Ok(Stream { send: Box::new(Sender { send }), recv: Box::new(recv) })
        })
    }
}

struct Sender {
    send: SendStream<Bytes>,
}

impl AsyncWrite for Sender {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.send.reserve_capacity(bytes.len());
        let capacity = match ready!(self.send.poll_capacity(cx)) {
            Some(capacity) => capacity.map_err(io::Error::other)?,
            None => return Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        };
        let size = capacity.min(bytes.len());
        self.send.send_data(Bytes::copy_from_slice(&bytes[..size]), false).map_err(io::Error::other)?;
        Poll::Ready(Ok(size))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.send.reserve_capacity(0);
        Poll::Ready(self.send.send_data(Bytes::new(), true).map_err(io::Error::other))
    }
}

enum State {
    Waiting(ResponseFuture),
    Body(RecvStream),
}

struct Receiver {
    state: State,
    left: Bytes,
}

impl AsyncRead for Receiver {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let State::Waiting(response) = &mut self.state {
            let response = ready!(response.poll_unpin(cx)).map_err(io::Error::other)?;
            self.state = State::Body(response.into_body());
        }
        let Receiver { state: State::Body(body), left } = &mut *self else { return Poll::Pending };
        while left.is_empty() {
            match ready!(body.poll_data(cx)) {
                Some(data) => *left = data.map_err(io::Error::other)?,
                None => return Poll::Ready(Ok(())),
            }
        }
        let take = left.len().min(out.remaining());
        out.put_slice(&left[..take]);
        left.advance(take);
        // The window opens as the reader takes, not as bytes arrive: that is the flow control that is tested.
        body.flow_control().release_capacity(take).map_err(io::Error::other)?;
        Poll::Ready(Ok(()))
    }
}
