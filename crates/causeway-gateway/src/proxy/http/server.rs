//! The HTTP servers of a gateway: for the connection of a local client, and for a stream of another gateway.
//!
//! A client speaks HTTP/1.1 or HTTP/2, with bounds on the memory it can use. A stream carries requests over
//! HTTP/2, or one request over HTTP/1.1; it was judged as a whole, and each request is judged again. Both
//! pass their requests to an `Exchange`. `HttpConnections` holds the pools and counts that both use.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use causeway_channel::link::Stream;
use causeway_netmap::{NetmapView, ServiceName, ServiceProtocol};
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::net::TcpStream;

use super::backend::BackendPools;
use super::channel::{ChannelIo, ChannelPools, StreamEndNote};
use super::client_socket::ClientSocket;
use super::connection::{ConnectionCount, ConnectionOrigin, HttpConnection};
use super::exchange::{ClientEntry, Exchange, ExchangeSide};
use super::pool;
use crate::connection_record::{ConnectionRecord, CrossingDirection, protocol_word};
use crate::dial::prepare;
use crate::live::AccessRequest;
use crate::policy::PolicyRefusal;
use crate::proxy::Proxy;
use crate::proxy::copy::reset;

/// The HTTP connections of one gateway: pools, and counts of client connections.
#[derive(Default)]
pub struct HttpConnections {
    pub(super) channels: ChannelPools,
    pub(super) backends: BackendPools,
    /// Client connections, idle or not.
    connections: Arc<AtomicUsize>,
    /// Client connections over a limit that wait for their response.
    refused: Arc<AtomicUsize>,
}

/// Connections over a limit that get a response at the same time; further ones are reset.
const REFUSED_MAX: usize = 256;

/// Counts one client connection until it is dropped.
struct ConnectionPermit(Arc<AtomicUsize>);

impl ConnectionPermit {
    fn take(taken: &Arc<AtomicUsize>, max: usize) -> Option<ConnectionPermit> {
        let permit = ConnectionPermit(taken.clone());
        (permit.0.fetch_add(1, Ordering::Relaxed) < max).then_some(permit)
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl HttpConnections {
    /// Interval of `tidy`.
    pub const TIDY_PERIOD: Duration = Duration::from_secs(15);

    fn permit(&self, max: usize) -> Option<ConnectionPermit> {
        ConnectionPermit::take(&self.connections, max)
    }

    fn refused_permit(&self) -> Option<ConnectionPermit> {
        ConnectionPermit::take(&self.refused, REFUSED_MAX)
    }

    /// Closes idle streams to other sites, and busy ones with their last request.
    pub fn retire(&self) {
        self.channels.retire();
    }

    /// Closes idle connections, and those of services that no longer exist.
    pub fn tidy(&self, view: &NetmapView) {
        self.channels.tidy();
        self.backends.tidy(|service| view.services.contains_key(service));
    }
}

/// Time in which a head must arrive, from its first byte.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Idle time between two requests.
const CLIENT_KEEP_ALIVE: Duration = Duration::from_secs(120);
/// The same for a connection over the limit.
const REFUSED_KEEP_ALIVE: Duration = Duration::from_secs(2);
/// Interval of HTTP/2 pings: a client that vanished is detected a little later.
const PING_PERIOD: Duration = Duration::from_secs(30);

/// Serves one client until its connection ends.
pub async fn serve_client(proxy: Arc<Proxy>, socket: TcpStream, client: SocketAddr, listener: ClientEntry) {
    let Some(_permit) = proxy.http.permit(proxy.options.connections_max) else {
        proxy.context.metrics.refused(PolicyRefusal::Full { what: "connections" }.word());
        return reset(socket);
    };
    if let Err(error) = prepare(&socket) {
        return tracing::debug!(%client, %error, "cannot set the options of a client socket");
    }
    let connection = HttpConnection::new(ConnectionOrigin::Client(ConnectionCount::default()));
    // Before it is counted: a netmap that arrives meanwhile finds the connection registered.
    let _following = proxy.context.live.register(&connection);
    let refused = match &listener {
        ClientEntry::Presence(service) => {
            let arrived = connection.arrive(&proxy, service, client.ip());
            match arrived.map_err(|refusal| (refusal, proxy.http.refused_permit())) {
                Ok(()) => None,
                Err((_, Some(permit))) => Some(permit),
                Err((refusal, None)) => return refuse(&proxy, service, socket, client, &refusal),
            }
        }
        ClientEntry::Entry => None,
    };
    // A connection over the limit has a moment to send a request, so that it gets a response instead of a
    // reset.
    let keep_alive = if refused.is_some() { REFUSED_KEEP_ALIVE } else { CLIENT_KEEP_ALIVE };
    let front = ClientSocket::new(socket, connection.clone(), HEAD_TIMEOUT);
    let side = ExchangeSide::Outbound { client, listener };
    let exchange = Arc::new(Exchange { proxy: proxy.clone(), connection: connection.clone(), side });
    let service = service_fn(move |request| exchange.clone().handle(request));
    let mut builder = auto::Builder::new(TokioExecutor::new());
    // The time of a head is limited by `ClientSocket`: the server's own limit would end idle connections.
    builder.http1().header_read_timeout(None).max_buf_size(pool::HEADERS_BYTES_MAX as usize);
    builder
        .http2()
        .enable_connect_protocol()
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_PERIOD)
        .max_concurrent_streams(pool::STREAMS_MAX as u32)
        .initial_stream_window_size(pool::STREAM_WINDOW_BYTES)
        .initial_connection_window_size(pool::CONNECTION_WINDOW_BYTES)
        .max_send_buf_size(pool::SEND_BUFFER_BYTES)
        .max_header_list_size(pool::HEADERS_BYTES_MAX);
    let serving = async {
        let mut serving = pin!(builder.serve_connection_with_upgrades(TokioIo::new(front), service));
        let served = tokio::select! {
            served = serving.as_mut() => served,
            () = proxy.context.stopping.cancelled() => {
                serving.as_mut().graceful_shutdown();
                serving.await
            }
        };
        if let Err(error) = served {
            tracing::debug!(%client, %error, "HTTP connection of a client failed");
        }
    };
    connection.hold(&proxy, keep_alive, serving).await;
}

/// Resets a connection: too many over the limit are already waiting for their response.
fn refuse(
    proxy: &Arc<Proxy>,
    service: &ServiceName,
    socket: TcpStream,
    client: SocketAddr,
    refusal: &PolicyRefusal,
) {
    reset(socket);
    let claim = AccessRequest::Use { service: service.clone(), client: client.ip(), request: None };
    let word = protocol_word(ServiceProtocol::Http);
    ConnectionRecord::begin(&proxy.context, CrossingDirection::Outbound, word, claim, Some(client))
        .refuse(refusal);
}

/// Idle time of a stream. The other gateway closes it earlier; this bounds one that does not.
const STREAM_KEEP_ALIVE: Duration = Duration::from_secs(300);

/// Serves the requests of one stream, whose access is allowed at this moment.
pub async fn serve_stream(
    proxy: Arc<Proxy>,
    claim: AccessRequest,
    client: Option<SocketAddr>,
    multiplexed: bool,
    stream: Stream,
) {
    let note = Arc::new(StreamEndNote::default());
    let connection = HttpConnection::new(ConnectionOrigin::Gateway(note.clone()));
    let io = TokioIo::new(ChannelIo::new(stream, note, Some(connection.clone())));
    let side = ExchangeSide::Inbound { claim, client };
    let exchange = Arc::new(Exchange { proxy: proxy.clone(), connection: connection.clone(), side });
    let service = service_fn(move |request| exchange.clone().handle(request));
    let serving = async {
        let served = match multiplexed {
            true => {
                let mut serving = pin!(stream_builder().serve_connection(io, service));
                tokio::select! {
                    served = serving.as_mut() => served,
                    () = end_of_new_requests(&proxy) => {
                        serving.as_mut().graceful_shutdown();
                        serving.await
                    }
                }
            }
            false => {
                let mut builder = http1::Builder::new();
                builder.keep_alive(false).header_read_timeout(None);
                builder.serve_connection(io, service).with_upgrades().await
            }
        };
        if let Err(error) = served {
            tracing::debug!(%error, "stream with HTTP requests of another gateway failed");
        }
    };
    connection.hold(&proxy, STREAM_KEEP_ALIVE, serving).await;
}

/// Resolves when a stream should carry no further requests: the process stops, or the gateway begins to drain. A stream
/// that arrives during a drain was opened before the cloud knew of it, and is served as any other.
async fn end_of_new_requests(proxy: &Proxy) {
    let drains = |view: &Arc<NetmapView>| view.gateway.as_ref().is_some_and(|gateway| gateway.drain);
    let mut netmaps = proxy.context.netmaps();
    let drain_begins = async {
        // An error means that no netmap follows any more.
        if netmaps.wait_for(|view| !drains(view)).await.is_err() || netmaps.wait_for(drains).await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        () = proxy.context.stopping.cancelled() => {}
        () = drain_begins => {}
    }
}

fn stream_builder() -> http2::Builder<TokioExecutor> {
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(pool::STREAMS_MAX as u32)
        .initial_stream_window_size(pool::STREAM_WINDOW_BYTES)
        .initial_connection_window_size(pool::CONNECTION_WINDOW_BYTES)
        .max_frame_size(pool::FRAME_BYTES_MAX)
        .max_send_buf_size(pool::SEND_BUFFER_BYTES)
        .max_header_list_size(pool::HEADERS_BYTES_MAX);
    builder
}
