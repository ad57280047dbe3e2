//! Sends requests to the gateway of another site: many over one stream as HTTP/2, or one on a stream of its
//! own as HTTP/1.1.
//!
//! The other gateway judges by the header of a stream, so every subject has its own streams. `ChannelIo` is the
//! stream under an HTTP connection: it keeps the reset code of the stream in both directions, because HTTP/2
//! does not keep the cause of a failed connection and has no place for the codes of the channel.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use causeway_channel::link::{ResetCode, Stream};
use causeway_daemon::sync::MutexExt;
use causeway_netmap::{ServiceName, SiteName};
use http::{Request, Response};
use hyper::body::Incoming;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::body::RequestBody;
use super::connection::HttpConnection;
use super::error_response::ProxyError;
use super::pool::{Http1Connection, Http2Pool, OpenedConnection, PoolLease};
use crate::peers::{CrossingHeader, StreamContent};
use crate::policy::{PolicyRefusal, Principal};
use crate::proxy::Proxy;

/// Idle time of a stream. An idle stream costs both ends some KiB; a new one costs no round trip.
const IDLE: Duration = Duration::from_secs(120);

/// The destination and the subject of a stream.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct ChannelRoute {
    pub service: ServiceName,
    pub site: SiteName,
    pub who: Principal,
}

/// Pools of streams to all other sites.
#[derive(Default)]
pub struct ChannelPools {
    pools: Mutex<HashMap<ChannelRoute, Arc<Http2Pool>>>,
}

impl ChannelPools {
    /// Sends a request over a shared stream.
    pub async fn send(
        &self,
        proxy: &Proxy,
        route: &ChannelRoute,
        client: SocketAddr,
        request: Request<RequestBody>,
    ) -> Result<(Response<Incoming>, PoolLease), ProxyError> {
        let pool = {
            let mut pools = self.pools.lock_ignoring_poison();
            match pools.get(route) {
                Some(pool) => pool.clone(),
                None => pools.entry(route.clone()).or_default().clone(),
            }
        };
        pool.send(request, || open(proxy, route, StreamContent::Requests, client)).await
    }

    /// Retires every stream. Idle ones close at once, busy ones with their last request.
    pub fn retire(&self) {
        let pools = std::mem::take(&mut *self.pools.lock_ignoring_poison());
        pools.values().for_each(|pool| pool.retire());
    }

    /// Closes idle streams.
    pub fn tidy(&self) {
        let mut pools = self.pools.lock_ignoring_poison();
        pools.retain(|_, pool| !pool.tidy(IDLE) || Arc::strong_count(pool) > 1);
    }
}

/// Sends a request on a stream of its own.
pub async fn send_alone(
    proxy: &Proxy,
    route: &ChannelRoute,
    client: SocketAddr,
    request: Request<RequestBody>,
) -> Result<(Response<Incoming>, PoolLease), ProxyError> {
    let opened = open(proxy, route, StreamContent::Upgrade, client).await?;
    Http1Connection::connect(opened).await?.send(request).await
}

async fn open(
    proxy: &Proxy,
    route: &ChannelRoute,
    content: StreamContent,
    client: SocketAddr,
) -> Result<OpenedConnection, ProxyError> {
    let ChannelRoute { service, site, who } = route;
    let header = CrossingHeader::new(content, client).to_service(service, site, who);
    let slot = proxy.take_stream(site, client.ip()).map_err(|refusal| ProxyError::from(&refusal))?;
    let stream = proxy.context.open_stream(site, header).await.map_err(|error| {
        let text = error.to_string();
        ProxyError { text, ..ProxyError::from(&PolicyRefusal::from(error)) }
    })?;
    let note = Arc::new(StreamEndNote::default());
    Ok(OpenedConnection::Stream { io: ChannelIo::new(stream, note.clone(), None), note, slot })
}

/// The reset codes of a stream: received, and to be sent.
#[derive(Debug, Default)]
pub struct StreamEndNote {
    received_code: OnceLock<ResetCode>,
    code: OnceLock<ResetCode>,
}

impl StreamEndNote {
    /// Returns the code that the other gateway sent. `Abandoned` when the link ended.
    pub fn received_code(&self) -> Option<ResetCode> {
        self.received_code.get().copied()
    }

    /// Sets the code that is sent if the stream is dropped before its end. The first call counts.
    pub fn set_code(&self, code: ResetCode) {
        let _ = self.code.set(code);
    }

    fn note_error<T>(&self, polled: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if let Poll::Ready(Err(error)) = &polled {
            let _ = self.received_code.set(ResetCode::of(error).unwrap_or(ResetCode::Abandoned));
        }
        polled
    }
}

pub struct ChannelIo {
    stream: Stream,
    note: Arc<StreamEndNote>,
    connection: Option<Arc<HttpConnection>>,
}

impl ChannelIo {
    pub fn new(
        stream: Stream,
        note: Arc<StreamEndNote>,
        connection: Option<Arc<HttpConnection>>,
    ) -> ChannelIo {
        ChannelIo { stream, note, connection }
    }

    fn touch(&self) {
        if let Some(connection) = &self.connection {
            connection.touch();
        }
    }
}

impl Drop for ChannelIo {
    fn drop(&mut self) {
        if let Some(code) = self.note.code.get() {
            self.stream.send.reset(*code);
            self.stream.recv.stop(*code);
        }
    }
}

impl AsyncRead for ChannelIo {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_read(context, buffer);
        if polled.is_ready() {
            self.touch();
        }
        self.note.note_error(polled)
    }
}

/// Returns whether the peer reads no more. A gateway that has written its last response and drops the stream stops reading while
/// the end of that response is still on its way; HTTP/2 writes credit meanwhile, and must not fail before it has read the rest.
/// A peer that ended early is seen by reading.
fn is_abandoned<T>(polled: &Poll<io::Result<T>>) -> bool {
    matches!(polled, Poll::Ready(Err(error)) if ResetCode::of(error) == Some(ResetCode::Abandoned))
}

impl AsyncWrite for ChannelIo {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(context, data);
        if is_abandoned(&polled) {
            return Poll::Ready(Ok(data.len()));
        }
        if polled.is_ready() {
            self.touch();
        }
        self.note.note_error(polled)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_flush(context);
        if is_abandoned(&polled) {
            return Poll::Ready(Ok(()));
        }
        self.note.note_error(polled)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
