//! A local client's connection: HTTP/1.1 or HTTP/2, as it begins to speak, with bounds on what it can make us hold.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::net::TcpStream;

use super::connection::Connection;
use super::exchange::{Bearing, Door, Exchange};
use super::front::Front;
use super::pool;
use crate::gateway::Shared;
use crate::policy::Refusal;
use crate::proxy::inbound::prepare;
use crate::proxy::pump::reset;

/// How long a head may take from its first byte.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a connection may wait for its next request.
const KEEP_ALIVE: Duration = Duration::from_secs(120);
/// A client over HTTP/2 that vanished without a word is noticed after this and a little.
const PING_PERIOD: Duration = Duration::from_secs(30);

/// Serves one client until its connection ends.
pub async fn serve(shared: Arc<Shared>, socket: TcpStream, client: SocketAddr, door: Door) {
    let Some(_place) = shared.http.place(shared.options.connections_max) else {
        shared.figures.refused(Refusal::Full { what: "connections" }.word());
        return reset(socket);
    };
    if let Err(error) = prepare(&socket) {
        return tracing::debug!(%client, %error, "a client's connection cannot be used");
    }
    let connection = Connection::new(None);
    let front = Front::new(socket, connection.clone(), HEAD_TIMEOUT);
    let bearing = Bearing::Outbound { client, door };
    let exchange = Arc::new(Exchange { shared: shared.clone(), connection: connection.clone(), bearing });
    let service = service_fn(move |request| exchange.clone().handle(request));
    let mut builder = auto::Builder::new(TokioExecutor::new());
    // The time of a head is kept by `Front`: here it would end connections that wait.
    builder.http1().header_read_timeout(None).max_buf_size(pool::HEADERS_BYTES_MAX as usize);
    builder
        .http2()
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
            () = shared.stopping.cancelled() => {
                serving.as_mut().graceful_shutdown();
                serving.await
            }
        };
        if let Err(error) = served {
            tracing::debug!(%client, %error, "a client's connection ended badly");
        }
    };
    connection.hold(&shared, KEEP_ALIVE, serving).await;
}
