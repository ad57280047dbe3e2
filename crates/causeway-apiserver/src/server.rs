//! Accepts connections and serves requests until stopped.
//!
//! Each connection is a task: a TLS handshake with a time limit, then HTTP/1.1 or HTTP/2, then `handle` for
//! every request. A stop is graceful: no new connections, watches end, requests in flight are finished within
//! a deadline.

mod ending;
mod stall;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use causeway_daemon::{ACCEPT_PAUSE, Metrics, Readiness};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use rustls::pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::console::sessions::ConsoleSessions;
use crate::delegate::AccessDelegate;
use crate::handle::{Handler, RequestPeer};
use crate::limits::failures::AuthFailures;
use crate::limits::sources::Sources;
use crate::limits::watches::WatchLimits;
use crate::limits::{ApiLimits, RequestQueue};
use crate::metrics::ApiMetrics;
use crate::render::Renderer;
use crate::watch::RenderContext;
use crate::{Actions, AdminAudit, Authenticator, GatewayStatsSource, Registry};
use ending::{CountedBody, Requests};
use stall::StallGuard;

/// The parts of the server.
pub struct ApiServerParts {
    pub registry: Arc<Registry>,
    pub authenticator: Arc<dyn Authenticator>,
    pub actions: Arc<dyn Actions>,
    /// Stores the records of administrative acts.
    pub admin_audit: Arc<dyn AdminAudit>,
    pub stats: Arc<dyn GatewayStatsSource>,
    /// The report for `/readyz`.
    pub readiness: Readiness,
    pub metrics: Metrics,
    /// None: plain HTTP, for tests on loopback only. The content is swapped to change certificates and CAs;
    /// its ALPN protocols should be `h2` and `http/1.1`, and client certificates optional.
    pub tls: Option<Arc<ArcSwap<rustls::ServerConfig>>>,
    pub limits: ApiLimits,
    /// Set for a server behind a front proxy, which accepts no other callers.
    pub delegate: Option<Arc<dyn AccessDelegate>>,
}

#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {addr}")]
pub struct BindError {
    pub addr: SocketAddr,
    pub source: std::io::Error,
}

pub struct ApiServer {
    listener: TcpListener,
    addr: SocketAddr,
    tls: Option<Arc<ArcSwap<rustls::ServerConfig>>>,
    handler: Arc<Handler>,
}

impl ApiServer {
    pub async fn bind(addr: SocketAddr, parts: ApiServerParts) -> Result<ApiServer, BindError> {
        let listener = TcpListener::bind(addr).await.map_err(|source| BindError { addr, source })?;
        ApiServer::on(listener, parts).map_err(|source| BindError { addr, source })
    }

    /// Serves on a listener that was bound earlier, for callers that need its port before they can make the
    /// parts.
    pub fn on(listener: TcpListener, parts: ApiServerParts) -> std::io::Result<ApiServer> {
        let addr = listener.local_addr()?;
        let metrics = ApiMetrics::register(&parts.metrics);
        let renderer = Renderer::new(parts.stats, parts.registry.clock());
        let handler = Handler {
            requests: RequestQueue::for_work(&parts.limits),
            bodies: RequestQueue::for_bodies(&parts.limits),
            watches: WatchLimits::new(parts.limits.watches_per_identity_max),
            failures: AuthFailures::new(parts.limits.failures_per_minute_max),
            sessions: ConsoleSessions::default(),
            shared: Arc::new(RenderContext {
                encoder: Arc::new(renderer),
                observer: Arc::new(metrics.clone()),
            }),
            registry: parts.registry,
            authenticator: parts.authenticator,
            delegate: parts.delegate,
            actions: parts.actions,
            admin_audit: parts.admin_audit,
            readiness: parts.readiness,
            metrics,
            limits: parts.limits,
            stop: CancellationToken::new(),
        };
        Ok(ApiServer { listener, addr, tls: parts.tls, handler: Arc::new(handler) })
    }

    pub fn local_addr(&self) -> SocketAddr {
        self.addr
    }

    /// Serves until `stop`; then ends watches, finishes requests in flight within a deadline, and returns.
    pub async fn run(self, stop: CancellationToken) {
        let connections = TaskTracker::new();
        let limits = &self.handler.limits;
        let places = Arc::new(Semaphore::new(limits.connections_max));
        let sources = Sources::new(limits.connections_per_address_max, limits.connections_from_loopback_max);
        let mut told_of_full_source: Option<Instant> = None;
        let mut sweep = tokio::time::interval(SWEEP_PERIOD);
        sweep.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let cut = CancellationToken::new();
        loop {
            let accepted = tokio::select! {
                biased;
                () = stop.cancelled() => break,
                // Before `accept`, which a client can keep busy: revoked credentials must lose their watches all the same.
                _ = sweep.tick() => {
                    self.handler.watches.sweep(&*self.handler.authenticator);
                    self.handler.failures.tidy();
                    self.handler.sessions.sweep(Instant::now(), &*self.handler.authenticator);
                    continue;
                }
                accepted = self.listener.accept() => accepted,
            };
            let (socket, address) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    // Most likely the file descriptors are used up; open connections must close first.
                    tracing::warn!(%error, "the API server cannot accept a connection; retrying after a pause");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let Some(counted) = sources.enter(address.ip()) else {
                self.handler.metrics.rejected("connections-per-address");
                if told_of_full_source.is_none_or(|told| told.elapsed() >= TELL_PERIOD) {
                    told_of_full_source = Some(Instant::now());
                    let max = limits.connections_per_address_max;
                    tracing::warn!(
                        address = %address.ip(),
                        max,
                        "API connections of this address are closed: it has too many open (api-connections-per-address in [cloud])"
                    );
                }
                continue;
            };
            // At the limit the connection is closed at once, which tells a client more than silence.
            let Ok(place) = places.clone().try_acquire_owned() else {
                self.handler.metrics.rejected("connections");
                continue;
            };
            let tls = self.tls.as_ref().map(|tls| TlsAcceptor::from(tls.load_full()));
            let connection = serve(self.handler.clone(), socket, address, tls);
            let cut = cut.clone();
            connections.spawn(async move {
                tokio::select! {
                    () = cut.cancelled() => {}
                    () = connection => {}
                }
                drop((place, counted));
            });
        }
        drop(self.listener);
        self.handler.stop.cancel();
        connections.close();
        if tokio::time::timeout(self.handler.limits.drain_time_max, connections.wait()).await.is_err() {
            tracing::warn!(
                connections = connections.len(),
                "API connections were closed with requests in flight: the drain time is over"
            );
            cut.cancel();
            connections.wait().await;
        }
    }
}

// The watches of a revoked credential end within a second.
const SWEEP_PERIOD: Duration = Duration::from_millis(500);
// One log line per period suffices while an address floods.
const TELL_PERIOD: Duration = Duration::from_secs(60);
// client-go carries all its watches over one connection.
const STREAMS_MAX: u32 = 2_000;
// A peer that vanished silently is noticed a little after this time.
const PING_PERIOD: Duration = Duration::from_secs(30);

async fn serve(handler: Arc<Handler>, socket: TcpStream, address: SocketAddr, tls: Option<TlsAcceptor>) {
    // Events are small and must not be delayed to be batched.
    let _ = socket.set_nodelay(true);
    let stall = handler.limits.stall_time_max;
    let Some(acceptor) = tls else {
        return serve_http(handler, StallGuard::new(socket, stall), RequestPeer::new(address, Vec::new()))
            .await;
    };
    let handshake = tokio::time::timeout(handler.limits.handshake_time_max, acceptor.accept(socket)).await;
    let stream = match handshake {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            tracing::debug!(%address, %error, "the TLS handshake of an API client failed");
            return;
        }
        Err(_) => {
            tracing::debug!(%address, "the TLS handshake of an API client timed out");
            return;
        }
    };
    let certificates = stream.get_ref().1.peer_certificates().unwrap_or_default();
    let certificates: Vec<CertificateDer<'static>> =
        certificates.iter().map(|certificate| certificate.clone().into_owned()).collect();
    serve_http(handler, StallGuard::new(stream, stall), RequestPeer::new(address, certificates)).await;
}

async fn serve_http<S>(handler: Arc<Handler>, stream: S, caller: RequestPeer)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    handler.metrics.connections.inc();
    let caller = Arc::new(caller);
    let address = caller.address;
    let requests = Requests::default();
    let service = service_fn({
        let (handler, requests) = (handler.clone(), requests.clone());
        move |request| {
            let (handler, caller, counted) = (handler.clone(), caller.clone(), requests.begin());
            async move {
                // Requests are large futures and idle connections many: the box exists only while a request
                // does.
                let response = Box::pin(handler.handle(&caller, request)).await;
                Ok::<_, std::convert::Infallible>(response.map(|body| CountedBody::new(body, counted)))
            }
        }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(handler.limits.header_time_max);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_PERIOD)
        .max_concurrent_streams(STREAMS_MAX)
        .max_header_list_size(64 << 10);
    let connection = builder.serve_connection(TokioIo::new(requests.track(stream)), service);
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = handler.stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            tokio::select! {
                ended = connection => ended,
                // An idle HTTP/2 client may be slow to agree that the connection ends. A response that a slow
                // client still receives may continue until the drain deadline.
                () = requests.finished() => Ok(()),
            }
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%address, %error, "an API connection ended with an error");
    }
    handler.metrics.connections.dec();
}
