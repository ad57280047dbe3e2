//! Requests to backends of this site: over HTTP/1.1, or HTTP/2 for gRPC; over TLS where the service asks for it.
//!
//! Connections are kept per service and dropped together when the netmap says something else of its backends.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use causeway_netmap::{Protocol, Service, ServiceName};
use http::{Request, Response};
use hyper::body::Incoming;

use super::answer::Verdict;
use super::body::{Gate, Upload};
use super::headers;
use super::pool::{Io, Lease, Lines, Opened, Single, Singles};
use super::tls::Tls;
use crate::gateway::Shared;
use crate::passage::Meter;
use crate::peers::Later;
use crate::policy::Refusal;
use crate::proxy::backends::Dialled;

/// How long a backend may think about a request while nothing of it is sent. Slow reports and long polls take minutes;
/// gRPC has deadlines of its own.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(300);
/// How long a `100 Continue` is waited for. RFC 9110, 10.1.1: not for ever; a second is what curl waits.
const CONTINUE_TIMEOUT: Duration = Duration::from_secs(1);
/// Common servers close after 60 to 75 s.
const IDLE: Duration = Duration::from_secs(55);

/// The connections to all backends of this site.
#[derive(Default)]
pub struct Yards {
    yards: Mutex<HashMap<ServiceName, Arc<Yard>>>,
}

/// The connections to the backends of one service.
struct Yard {
    service: Service,
    singles: Arc<Singles>,
    lines: Lines,
    /// By whether HTTP/2 is spoken. Made once: reading certificates takes long.
    tls: Option<[Result<Tls, String>; 2]>,
}

/// How a request travels to a backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// HTTP/1.1, one request after the other.
    Single,
    /// HTTP/1.1 on a connection of its own: it may become something else.
    Alone,
    /// HTTP/2.
    Line,
}

impl Way {
    pub fn to(service: &Service, headers: &http::HeaderMap, upgrades: bool) -> Way {
        match service.protocol {
            _ if upgrades => Way::Alone,
            Protocol::Grpc => Way::Line,
            _ if headers::is_grpc(headers) => Way::Line,
            // The client is named when a connection begins, so it cannot be used by another.
            _ if service.proxy_protocol => Way::Alone,
            _ => Way::Single,
        }
    }
}

/// What is to be sent, and for whom.
pub struct Errand {
    pub request: Request<Upload>,
    pub way: Way,
    pub client: Option<SocketAddr>,
    pub meter: Arc<Meter>,
    /// The client waits for a `100 Continue`.
    pub gate: Option<Arc<Gate>>,
}

impl Yards {
    /// Sends a request and waits for the head of its response.
    pub async fn send(
        &self,
        shared: &Shared,
        service: &Service,
        errand: Errand,
    ) -> Result<(Response<Incoming>, Lease), Verdict> {
        let Errand { request, way, client, meter, gate } = errand;
        let yard = self.yard(service);
        let is_grpc = headers::is_grpc(request.headers());
        let open = || -> Later<'_, _> { Box::pin(yard.open(shared, way, client)) };
        let sending = async {
            match way {
                Way::Single => yard.singles.send(request, open).await,
                Way::Line => yard.lines.send(request, open).await,
                Way::Alone => Single::connect(open().await?).await?.send(request).await,
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
                return Err(Verdict::timeout(format!("the backend of {} does not answer", service.name)));
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
    fn yard(&self, service: &Service) -> Arc<Yard> {
        let mut yards = self.yards.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(yard) = yards.get(&service.name)
            && yard.fits(service)
        {
            return yard.clone();
        }
        let yard = Arc::new(Yard::new(service.clone()));
        yards.insert(service.name.clone(), yard.clone());
        yard
    }
}

impl Yard {
    fn new(service: Service) -> Yard {
        let tls = service.backend_tls.as_ref().map(|tls| {
            [false, true].map(|h2| Tls::new(&service, tls, h2).map_err(|error| error.to_string()))
        });
        Yard { service, singles: Arc::default(), lines: Lines::default(), tls }
    }

    fn fits(&self, service: &Service) -> bool {
        let ours = &self.service;
        ours.backends == service.backends
            && ours.backend_tls == service.backend_tls
            && ours.domain_name == service.domain_name
            && ours.proxy_protocol == service.proxy_protocol
    }

    async fn open(&self, shared: &Shared, way: Way, client: Option<SocketAddr>) -> Result<Opened, Verdict> {
        let dialled = shared.backends.dial_for(&self.service, client).await;
        let Dialled { stream, lease } = dialled.map_err(|refusal| Verdict::from(&refusal))?;
        let io: Box<dyn Io> = match &self.tls {
            None => Box::new(stream),
            Some(tls) => {
                let tls = tls[usize::from(way == Way::Line)].as_ref().map_err(|why| self.down(why))?;
                let handshake =
                    tokio::time::timeout(shared.options.connect_timeout, tls.connect(stream)).await;
                let stream = handshake.map_err(|_| self.down("no TLS handshake in time"))?;
                Box::new(stream.map_err(|error| self.down(&error.to_string()))?)
            }
        };
        Ok(Opened { io, note: None, place: Box::new(lease) })
    }

    fn down(&self, why: &str) -> Verdict {
        let refusal = Refusal::BackendDown { service: self.service.name.clone() };
        let verdict = Verdict::from(&refusal);
        Verdict { text: format!("{}: {why}", verdict.text), ..verdict }
    }
}
