//! A local client's connection: HTTP/1.1 or HTTP/2, as it begins to speak, with bounds on what it can make us hold.

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

/// How long a head may take from its first byte.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a connection may wait for its next request.
const KEEP_ALIVE: Duration = Duration::from_secs(120);
/// The same for a connection over the limit.
const REFUSED_KEEP_ALIVE: Duration = Duration::from_secs(2);
/// A client over HTTP/2 that vanished without a word is noticed after this and a little.
const PING_PERIOD: Duration = Duration::from_secs(30);

/// Serves one client until its connection ends.
pub async fn serve(proxy: Arc<Proxy>, socket: TcpStream, client: SocketAddr, door: ClientEntry) {
    let Some(_place) = proxy.http.place(proxy.options.connections_max) else {
        proxy.context.figures.refused(PolicyRefusal::Full { what: "connections" }.word());
        return reset(socket);
    };
    if let Err(error) = prepare(&socket) {
        return tracing::debug!(%client, %error, "a client's connection cannot be used");
    }
    let connection = HttpConnection::new(ConnectionOrigin::Client(ConnectionCount::default()));
    // Before it is counted: a netmap that arrives meanwhile finds the connection registered.
    let _following = proxy.context.live.register(&connection);
    let told = match &door {
        ClientEntry::Presence(service) => {
            let arrived = connection.arrive(&proxy, service, client.ip());
            match arrived.map_err(|refusal| (refusal, proxy.http.refused_place())) {
                Ok(()) => None,
                Err((_, Some(place))) => Some(place),
                Err((refusal, None)) => return refuse(&proxy, service, socket, client, &refusal),
            }
        }
        ClientEntry::Entry => None,
    };
    // One over the limit has a moment to ask, so that it can be told in its own words.
    let keep_alive = if told.is_some() { REFUSED_KEEP_ALIVE } else { KEEP_ALIVE };
    let front = ClientSocket::new(socket, connection.clone(), HEAD_TIMEOUT);
    let bearing = ExchangeSide::Outbound { client, door };
    let exchange = Arc::new(Exchange { proxy: proxy.clone(), connection: connection.clone(), bearing });
    let service = service_fn(move |request| exchange.clone().handle(request));
    let mut builder = auto::Builder::new(TokioExecutor::new());
    // The time of a head is kept by `ClientSocket`: here it would end connections that wait.
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
            tracing::debug!(%client, %error, "a client's connection ended badly");
        }
    };
    connection.hold(&proxy, keep_alive, serving).await;
}

/// Too many are being told already: this one gets what a connection without words gets.
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
