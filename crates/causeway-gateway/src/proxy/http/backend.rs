//! Sends requests to backends of this site: over HTTP/1.1, or HTTP/2 for gRPC; over TLS if the service
//! requires it.
//!
//! Connections are pooled per service and dropped together when the netmap changes its backends.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use causeway_daemon::sync::MutexExt;
use causeway_netmap::{ServiceEntry, ServiceName, ServiceProtocol};
use http::{Request, Response};
use hyper::body::Incoming;

use super::body::{BodyGate, RequestBody};
use super::error_response::ProxyError;
use super::headers;
use super::pool::{Http1Connection, Http1Pool, Http2Pool, OpenedConnection, PoolLease};
use super::tls::BackendTlsClient;
use crate::connection_record::ByteMeter;
use crate::policy::PolicyRefusal;
use crate::proxy::Proxy;
use crate::proxy::backends::BackendConnection;

/// Time in which a backend must respond while no byte of the request moves. Slow reports and long polls take
/// minutes; gRPC has its own deadlines.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(300);
/// Time to wait for a `100 Continue`. RFC 9110, 10.1.1: not indefinitely; curl waits one second.
const CONTINUE_TIMEOUT: Duration = Duration::from_secs(1);
/// Idle time of a pooled connection. Common servers close after 60 to 75 s.
const IDLE: Duration = Duration::from_secs(55);

/// Pools of connections to all backends of this site.
#[derive(Default)]
pub struct BackendPools {
    pools: Mutex<HashMap<ServiceName, Arc<BackendPool>>>,
}

/// The pool of connections to the backends of one service.
struct BackendPool {
    service: ServiceEntry,
    http1: Arc<Http1Pool>,
    http2: Http2Pool,
    /// TLS clients without and with HTTP/2. Built once: parsing certificates is slow.
    tls: Option<[Result<BackendTlsClient, String>; 2]>,
}

/// The protocol of a request to a backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BackendProtocol {
    /// HTTP/1.1, one request after the other.
    Http1,
    /// HTTP/1.1 on a connection of its own, which may be upgraded.
    Http1Exclusive,
    /// HTTP/2.
    Http2,
}

impl BackendProtocol {
    pub fn to(service: &ServiceEntry, headers: &http::HeaderMap, upgrades: bool) -> BackendProtocol {
        match service.protocol {
            _ if upgrades => BackendProtocol::Http1Exclusive,
            ServiceProtocol::Grpc => BackendProtocol::Http2,
            _ if headers::is_grpc(headers) => BackendProtocol::Http2,
            // The PROXY header names the client when a connection begins, so no other client can use it.
            _ if service.proxy_protocol => BackendProtocol::Http1Exclusive,
            _ => BackendProtocol::Http1,
        }
    }
}

/// A request to a backend, and its client.
pub struct BackendRequest {
    pub request: Request<RequestBody>,
    pub way: BackendProtocol,
    pub client: Option<SocketAddr>,
    pub meter: Arc<ByteMeter>,
    /// The client waits for a `100 Continue`.
    pub gate: Option<Arc<BodyGate>>,
}

impl BackendPools {
    /// Sends a request and waits for the head of its response.
    pub async fn send(
        &self,
        proxy: &Proxy,
        service: &ServiceEntry,
        outgoing: BackendRequest,
    ) -> Result<(Response<Incoming>, PoolLease), ProxyError> {
        let BackendRequest { request, way, client, meter, gate } = outgoing;
        let pool = self.pool(service);
        let is_grpc = headers::is_grpc(request.headers());
        let open = || pool.open(proxy, way, client);
        let sending = async {
            match way {
                BackendProtocol::Http1 => pool.http1.send(request, open).await,
                BackendProtocol::Http2 => pool.http2.send(request, open).await,
                BackendProtocol::Http1Exclusive => {
                    Http1Connection::connect(Box::pin(open()).await?).await?.send(request).await
                }
            }
        };
        let mut sending = pin!(sending);
        if let Some(gate) = gate {
            match tokio::time::timeout(CONTINUE_TIMEOUT, &mut sending).await {
                Ok(sent) => return sent,
                Err(_) => gate.open(),
            }
        }
        if is_grpc {
            return sending.await;
        }
        loop {
            let before = meter.sent();
            if let Ok(sent) = tokio::time::timeout(RESPONSE_TIMEOUT, &mut sending).await {
                return sent;
            }
            if meter.sent() == before {
                return Err(ProxyError::timeout(format!(
                    "no backend of service {} responded in time",
                    service.name
                )));
            }
        }
    }

    /// Closes idle connections, and the pools of services that no longer exist.
    pub fn tidy(&self, is_known: impl Fn(&ServiceName) -> bool) {
        let mut pools = self.pools.lock_ignoring_poison();
        pools.retain(|name, pool| {
            let (http1, http2) = (pool.http1.tidy(IDLE), pool.http2.tidy(IDLE));
            is_known(name) && !(http1 && http2 && Arc::strong_count(pool) == 1)
        });
    }

    /// Returns the pool of a service. If its backends or TLS settings have changed, it is a new one; requests
    /// in flight keep their connections.
    fn pool(&self, service: &ServiceEntry) -> Arc<BackendPool> {
        let mut pools = self.pools.lock_ignoring_poison();
        if let Some(pool) = pools.get(&service.name)
            && pool.fits(service)
        {
            return pool.clone();
        }
        let pool = Arc::new(BackendPool::new(service.clone()));
        pools.insert(service.name.clone(), pool.clone());
        pool
    }
}

impl BackendPool {
    fn new(service: ServiceEntry) -> BackendPool {
        let tls = service.backend_tls.as_ref().map(|tls| {
            [false, true]
                .map(|h2| BackendTlsClient::new(&service, tls, h2).map_err(|error| error.to_string()))
        });
        BackendPool { service, http1: Arc::default(), http2: Http2Pool::default(), tls }
    }

    fn fits(&self, service: &ServiceEntry) -> bool {
        let ours = &self.service;
        ours.backends == service.backends
            && ours.backend_tls == service.backend_tls
            && ours.domain_name == service.domain_name
            && ours.proxy_protocol == service.proxy_protocol
    }

    async fn open(
        &self,
        proxy: &Proxy,
        way: BackendProtocol,
        client: Option<SocketAddr>,
    ) -> Result<OpenedConnection, ProxyError> {
        let dialled = proxy.backends.dial_for(&self.service, client).await;
        let BackendConnection { stream, lease } = dialled.map_err(|refusal| ProxyError::from(&refusal))?;
        let Some(tls) = &self.tls else { return Ok(OpenedConnection::Tcp { io: stream, lease }) };
        let tls = tls[usize::from(way == BackendProtocol::Http2)].as_ref().map_err(|why| self.down(why))?;
        let handshake = tokio::time::timeout(proxy.options.connect_timeout, tls.connect(stream)).await;
        let stream = handshake.map_err(|_| self.down("the TLS handshake timed out"))?;
        let stream = stream.map_err(|error| self.down(&error.to_string()))?;
        Ok(OpenedConnection::Tls { io: Box::new(stream), lease })
    }

    fn down(&self, why: &str) -> ProxyError {
        let refusal = PolicyRefusal::BackendDown { service: self.service.name.clone() };
        let verdict = ProxyError::from(&refusal);
        ProxyError { text: format!("{}: {why}", verdict.text), ..verdict }
    }
}
