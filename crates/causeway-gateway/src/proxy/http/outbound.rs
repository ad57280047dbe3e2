//! Serves the connection of a local client over HTTP/1.1 or HTTP/2, whichever it speaks, with bounds on the
//! memory it can use.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use causeway_netmap::{ServiceName, ServiceProtocol};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::net::TcpStream;

use super::client_socket::ClientSocket;
use super::connection::{ConnectionOrigin, HttpConnection};
use super::counting::ConnectionCount;
use super::exchange::{ClientEntry, Exchange, ExchangeSide};
use super::pool;
use crate::connection_record::{ConnectionRecord, CrossingDirection, protocol_word};
use crate::live::AccessRequest;
use crate::policy::PolicyRefusal;
use crate::proxy::Proxy;
use crate::proxy::copy::reset;
use crate::proxy::sockets::prepare;

/// Time in which a head must arrive, from its first byte.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Idle time between two requests.
const KEEP_ALIVE: Duration = Duration::from_secs(120);
/// The same for a connection over the limit.
const REFUSED_KEEP_ALIVE: Duration = Duration::from_secs(2);
/// Interval of HTTP/2 pings: a client that vanished is detected a little later.
const PING_PERIOD: Duration = Duration::from_secs(30);

/// Serves one client until its connection ends.
pub async fn serve(proxy: Arc<Proxy>, socket: TcpStream, client: SocketAddr, listener: ClientEntry) {
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
    let keep_alive = if refused.is_some() { REFUSED_KEEP_ALIVE } else { KEEP_ALIVE };
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
