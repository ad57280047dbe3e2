//! Requests to backends of this site: over HTTP/1.1, or HTTP/2 for gRPC; over TLS where the service asks for it.
//!
//! Connections are kept per service and dropped together when the netmap says something else of its backends.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use causeway_netmap::{ServiceEntry, ServiceName, ServiceProtocol};
use http::{Request, Response};
use hyper::body::Incoming;

use super::body::{BodyGate, RequestBody};
use super::error_response::ProxyError;
use super::headers;
use super::pool::{Http1Connection, Http1Pool, Http2Pool, Io, OpenedConnection, PoolLease};
use super::tls::BackendTlsClient;
use crate::connection_record::ByteMeter;
use crate::peers::BoxedFuture;
use crate::policy::PolicyRefusal;
use crate::proxy::Proxy;
use crate::proxy::backends::BackendConnection;

/// How long a backend may think about a request while nothing of it is sent. Slow reports and long polls take minutes;
/// gRPC has deadlines of its own.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(300);
/// How long a `100 Continue` is waited for. RFC 9110, 10.1.1: not for ever; a second is what curl waits.
const CONTINUE_TIMEOUT: Duration = Duration::from_secs(1);
/// Common servers close after 60 to 75 s.
const IDLE: Duration = Duration::from_secs(55);

/// The connections to all backends of this site.
#[derive(Default)]
pub struct BackendPools {
    yards: Mutex<HashMap<ServiceName, Arc<BackendPool>>>,
}

/// The connections to the backends of one service.
struct BackendPool {
    service: ServiceEntry,
    singles: Arc<Http1Pool>,
    lines: Http2Pool,
    /// By whether HTTP/2 is spoken. Made once: reading certificates takes long.
    tls: Option<[Result<BackendTlsClient, String>; 2]>,
}

/// How a request travels to a backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BackendProtocol {
    /// HTTP/1.1, one request after the other.
    Single,
    /// HTTP/1.1 on a connection of its own: it may become something else.
    Alone,
    /// HTTP/2.
    Line,
}

impl BackendProtocol {
    pub fn to(service: &ServiceEntry, headers: &http::HeaderMap, upgrades: bool) -> BackendProtocol {
        match service.protocol {
            _ if upgrades => BackendProtocol::Alone,
            ServiceProtocol::Grpc => BackendProtocol::Line,
            _ if headers::is_grpc(headers) => BackendProtocol::Line,
            // The client is named when a connection begins, so it cannot be used by another.
            _ if service.proxy_protocol => BackendProtocol::Alone,
            _ => BackendProtocol::Single,
        }
    }
}

/// What is to be sent, and for whom.
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
        errand: BackendRequest,
    ) -> Result<(Response<Incoming>, PoolLease), ProxyError> {
        let BackendRequest { request, way, client, meter, gate } = errand;
        let yard = self.yard(service);
        let is_grpc = headers::is_grpc(request.headers());
        let open = || -> BoxedFuture<'_, _> { Box::pin(yard.open(proxy, way, client)) };
        let sending = async {
            match way {
                BackendProtocol::Single => yard.singles.send(request, open).await,
                BackendProtocol::Line => yard.lines.send(request, open).await,
                BackendProtocol::Alone => Http1Connection::connect(open().await?).await?.send(request).await,
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
                return Err(ProxyError::timeout(format!("the backend of {} does not answer", service.name)));
            }
        }
    }

    /// Closes what was not used for a while, and what no service has any more.
    pub fn tidy(&self, is_known: impl Fn(&ServiceName) -> bool) {
        let mut yards = self.yards.lock().unwrap_or_else(PoisonError::into_inner);
        yards.retain(|name, yard| {
            let (singles, lines) = (yard.singles.tidy(IDLE), yard.lines.tidy(IDLE));
            is_known(name) && !(singles && lines && Arc::strong_count(yard) == 1)
        });
    }

    /// A service whose backends or TLS have changed begins anew; what is on its way keeps its connection.
    fn yard(&self, service: &ServiceEntry) -> Arc<BackendPool> {
        let mut yards = self.yards.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(yard) = yards.get(&service.name)
            && yard.fits(service)
        {
            return yard.clone();
        }
        let yard = Arc::new(BackendPool::new(service.clone()));
        yards.insert(service.name.clone(), yard.clone());
        yard
    }
}

impl BackendPool {
    fn new(service: ServiceEntry) -> BackendPool {
        let tls = service.backend_tls.as_ref().map(|tls| {
            [false, true]
                .map(|h2| BackendTlsClient::new(&service, tls, h2).map_err(|error| error.to_string()))
        });
        BackendPool { service, singles: Arc::default(), lines: Http2Pool::default(), tls }
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
        let io: Box<dyn Io> = match &self.tls {
            None => Box::new(stream),
            Some(tls) => {
                let tls =
                    tls[usize::from(way == BackendProtocol::Line)].as_ref().map_err(|why| self.down(why))?;
                let handshake =
                    tokio::time::timeout(proxy.options.connect_timeout, tls.connect(stream)).await;
                let stream = handshake.map_err(|_| self.down("no TLS handshake in time"))?;
                Box::new(stream.map_err(|error| self.down(&error.to_string()))?)
            }
        };
        Ok(OpenedConnection { io, note: None, place: Box::new(lease) })
    }

    fn down(&self, why: &str) -> ProxyError {
        let refusal = PolicyRefusal::BackendDown { service: self.service.name.clone() };
        let verdict = ProxyError::from(&refusal);
        ProxyError { text: format!("{}: {why}", verdict.text), ..verdict }
    }
}
