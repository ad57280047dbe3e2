//! Serves a stream of another gateway that carries requests. The stream was judged as a whole; each request
//! is judged again.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use causeway_channel::link::Stream;
use causeway_netmap::NetmapView;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};

use super::channel::{ChannelIo, StreamEndNote};
use super::connection::{ConnectionOrigin, HttpConnection};
use super::exchange::{Exchange, ExchangeSide};
use super::pool;
use crate::live::AccessRequest;
use crate::proxy::Proxy;

/// Idle time of a stream. The other gateway closes it earlier; this bounds one that does not.
const KEEP_ALIVE: Duration = Duration::from_secs(300);

/// Serves the requests of one stream, whose access is allowed at this moment.
pub async fn serve(
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
                let mut serving = pin!(builder().serve_connection(io, service));
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
    connection.hold(&proxy, KEEP_ALIVE, serving).await;
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

fn builder() -> http2::Builder<TokioExecutor> {
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
