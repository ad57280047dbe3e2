//! Selects and dials a backend of a service: among several the one with the fewest connections, and none that
//! is known to be down.
//!
//! `health` decides, from values and the time. This file holds the table of endpoints, dials, and runs the
//! loop that probes endpoints that are due (`probe`). An endpoint that refuses a connection is taken out of
//! use at once and probed in the background, so that no client waits for it; when all are out of use, all are
//! tried. `header` encodes the PROXY protocol. `dial` decides which addresses may be dialled, after names are
//! resolved.

pub mod examine;
mod header;
mod health;
mod probe;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use causeway_daemon::sync::MutexExt;
use causeway_netmap::{
    BackendEndpoint, BackendHealthCheck, DnsName, NetmapView, ServiceEntry, ServiceName, ServiceProtocol,
};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use crate::dial::{BackendDialer, Denied, SocketProtocol, prepare};
use crate::gateway::GatewayOptions;
use crate::policy::PolicyRefusal;
use crate::problems::BackendOutage;
use health::EndpointHealth;

/// The connect timeout while another endpoint could be tried: backends are near.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Resolved names of backends are resolved again after this time; an older result is better than none.
const RESOLVE_AGAIN: Duration = Duration::from_secs(5);

/// The backends of the services that run at this site.
pub struct BackendSelector {
    connect_timeout: Duration,
    dialer: BackendDialer,
    groups: Mutex<HashMap<ServiceName, Arc<Group>>>,
    /// An endpoint is out of use, or one is due for a probe.
    changed: Notify,
    /// Counts how often an endpoint went out of use or came back.
    turns: watch::Sender<u64>,
}

/// The endpoints of one service.
struct Group {
    endpoints: Vec<Arc<Endpoint>>,
    check: Option<BackendHealthCheck>,
    proxy_protocol: bool,
    transport: SocketProtocol,
    /// Rotates among endpoints with equal counts.
    rotation: AtomicUsize,
}

struct Endpoint {
    backend: BackendEndpoint,
    open: AtomicUsize,
    health: Mutex<EndpointHealth>,
    resolved: Mutex<Option<(Instant, Vec<SocketAddr>)>>,
    /// The error of the last failure.
    why: Mutex<String>,
}

/// A connection to a backend, counted until the lease is dropped.
pub struct BackendConnection {
    pub stream: TcpStream,
    pub lease: BackendLease,
}

/// One connection in the count of its endpoint.
pub struct BackendLease(Arc<Endpoint>);

impl Drop for BackendLease {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl BackendSelector {
    pub fn new(options: &GatewayOptions, dialer: BackendDialer) -> BackendSelector {
        BackendSelector {
            connect_timeout: options.connect_timeout,
            dialer,
            groups: Mutex::default(),
            changed: Notify::new(),
            turns: watch::Sender::default(),
        }
    }

    /// Applies a netmap. Endpoints that remain keep their health.
    pub fn follow(&self, view: &NetmapView) {
        let mut groups = self.lock();
        groups.retain(|name, _| view.services.contains_key(name));
        for service in view.services.values() {
            let known = groups.get(&service.name);
            if !known.is_some_and(|group| group.is_of(service)) {
                let group = Group::of(service, known.map(Arc::as_ref));
                groups.insert(service.name.clone(), Arc::new(group));
            }
        }
        drop(groups);
        self.changed.notify_one();
        self.turned();
    }

    /// Connects to a backend of the service without a client, for the gateway's own use.
    pub async fn dial(&self, service: &ServiceEntry) -> Result<TcpStream, PolicyRefusal> {
        self.dial_for(service, None).await.map(|dialled| dialled.stream)
    }

    /// Connects to a backend of the service for a client, whose address is sent in the PROXY protocol if the
    /// service asks for it.
    pub async fn dial_for(
        &self,
        service: &ServiceEntry,
        client: Option<SocketAddr>,
    ) -> Result<BackendConnection, PolicyRefusal> {
        let group = self.group(service);
        let order = group.order(Instant::now());
        let mut refusal = None;
        for (place, endpoint) in order.iter().enumerate() {
            let is_last = place + 1 == order.len();
            let within =
                if is_last { self.connect_timeout } else { self.connect_timeout.min(CONNECT_TIMEOUT) };
            match self.attempt(service, endpoint, within, client).await {
                Ok(dialled) => return Ok(dialled),
                // Among several refusals, the error of an endpoint that was dialled and did not answer is
                // more useful.
                Err(denied @ PolicyRefusal::BackendDenied { .. }) => refusal = refusal.or(Some(denied)),
                Err(down) => refusal = Some(down),
            }
        }
        Err(refusal.unwrap_or_else(|| PolicyRefusal::BackendDown { service: service.name.clone() }))
    }

    /// Connects to the backend with that index, or without an index to the best one.
    pub async fn dial_at(
        &self,
        service: &ServiceEntry,
        index: Option<usize>,
        client: Option<SocketAddr>,
    ) -> Result<BackendConnection, PolicyRefusal> {
        match index {
            Some(index) => self.dial_one(service, index, client).await,
            None => self.dial_for(service, client).await,
        }
    }

    /// Connects to this backend of the service and to no other, regardless of its health.
    pub async fn dial_one(
        &self,
        service: &ServiceEntry,
        place: usize,
        client: Option<SocketAddr>,
    ) -> Result<BackendConnection, PolicyRefusal> {
        let down = || PolicyRefusal::BackendDown { service: service.name.clone() };
        let group = self.group(service);
        let endpoint = group.endpoints.get(place).ok_or_else(down)?;
        self.attempt(service, endpoint, self.connect_timeout, client).await
    }

    async fn attempt(
        &self,
        service: &ServiceEntry,
        endpoint: &Arc<Endpoint>,
        within: Duration,
        client: Option<SocketAddr>,
    ) -> Result<BackendConnection, PolicyRefusal> {
        // Counted from the first attempt: simultaneous clients are spread before any of them is connected.
        let lease = endpoint.lease();
        let connecting = connect(&self.dialer, endpoint, service.proxy_protocol, client);
        let connected = match tokio::time::timeout(within, connecting).await {
            Ok(connected) => connected,
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        };
        match connected {
            Ok(stream) => {
                endpoint.health().connected();
                Ok(BackendConnection { stream, lease })
            }
            Err(error) => {
                let backend = &endpoint.backend;
                tracing::debug!(service = %service.name, ?backend, %error, "cannot connect to the backend");
                let is_news = endpoint.health().failed(Instant::now());
                endpoint.record_error(&error);
                if is_news {
                    self.turned();
                    tracing::warn!(service = %service.name, ?backend, %error, "cannot connect to the backend; it is out of use until a probe succeeds");
                }
                self.changed.notify_one();
                Err(match Denied::of(&error) {
                    Some(why) => PolicyRefusal::BackendDenied {
                        what: format!("service {}", service.name),
                        why: why.clone(),
                    },
                    None => PolicyRefusal::BackendDown { service: service.name.clone() },
                })
            }
        }
    }

    /// Probes endpoints that are due, until told to stop.
    pub async fn run(&self, stop: CancellationToken) {
        probe::run(self, stop).await;
    }

    /// Returns every endpoint with its number of connections and whether it is in use, for display.
    pub fn shown(&self) -> Vec<(ServiceName, BackendEndpoint, usize, bool)> {
        let groups =
            self.lock().iter().map(|(name, group)| (name.clone(), group.clone())).collect::<Vec<_>>();
        let mut shown = Vec::new();
        for (name, group) in groups {
            for endpoint in &group.endpoints {
                let open = endpoint.open.load(Ordering::Relaxed);
                shown.push((name.clone(), endpoint.backend.clone(), open, endpoint.health().is_usable()));
            }
        }
        shown
    }

    /// Returns the services whose endpoints are not all in use, with a description.
    pub fn outages(&self) -> BTreeMap<String, BackendOutage> {
        let groups = self.lock();
        let outage = |group: &Group| group.outage(&self.dialer);
        groups.iter().filter_map(|(name, group)| Some((name.to_string(), outage(group)?))).collect()
    }

    /// Changes whenever the outages may have changed.
    pub fn turns(&self) -> watch::Receiver<u64> {
        self.turns.subscribe()
    }

    fn turned(&self) {
        self.turns.send_modify(|turns| *turns = turns.wrapping_add(1));
    }

    fn group(&self, service: &ServiceEntry) -> Arc<Group> {
        let mut groups = self.lock();
        let known = groups.get(&service.name);
        if let Some(group) = known.filter(|group| group.is_of(service)) {
            return group.clone();
        }
        // The netmap of this connection may be slightly newer or older than the table.
        let group = Arc::new(Group::of(service, known.map(Arc::as_ref)));
        groups.insert(service.name.clone(), group.clone());
        group
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ServiceName, Arc<Group>>> {
        self.groups.lock_ignoring_poison()
    }
}

impl Group {
    fn of(service: &ServiceEntry, before: Option<&Group>) -> Group {
        let kept = |backend: &BackendEndpoint| {
            let known = before.into_iter().flat_map(|group| &group.endpoints);
            known.into_iter().find(|endpoint| endpoint.backend == *backend).cloned()
        };
        let endpoints = service.backends.iter();
        let endpoints = endpoints.map(|backend| kept(backend).unwrap_or_else(|| Endpoint::new(backend)));
        Group {
            endpoints: endpoints.collect(),
            check: service.health_check.clone(),
            proxy_protocol: service.proxy_protocol,
            transport: transport(service),
            rotation: AtomicUsize::new(0),
        }
    }

    fn is_of(&self, service: &ServiceEntry) -> bool {
        self.check == service.health_check
            && self.proxy_protocol == service.proxy_protocol
            && self.transport == transport(service)
            && self.endpoints.iter().map(|endpoint| &endpoint.backend).eq(&service.backends)
    }

    /// An endpoint that may not be dialled is reported before it is tried: no client needs to be refused
    /// first.
    fn outage(&self, dialer: &BackendDialer) -> Option<BackendOutage> {
        let of = self.endpoints.len();
        let denied = |endpoint: &Endpoint| endpoint.denied(dialer, self.transport);
        let is_up = |endpoint: &&Arc<Endpoint>| endpoint.health().is_usable() && denied(endpoint).is_none();
        let up = self.endpoints.iter().filter(is_up).count();
        let first = self.endpoints.iter().find_map(|endpoint| Some((endpoint, denied(endpoint)?)));
        if let Some((out, why)) = first {
            return Some(BackendOutage { up, of, why: format!("{}: {why}", out.backend), denied: true });
        }
        let out = self.endpoints.iter().find(|endpoint| !endpoint.health().is_usable())?;
        let why = out.why.lock_ignoring_poison().clone();
        Some(BackendOutage { up, of, why: format!("{}: {why}", out.backend), denied: false })
    }

    /// Returns the endpoints in the order in which to try them.
    fn order(&self, now: Instant) -> Vec<Arc<Endpoint>> {
        let states: Vec<(EndpointHealth, usize)> = self
            .endpoints
            .iter()
            .map(|endpoint| (endpoint.health().clone(), endpoint.open.load(Ordering::Relaxed)))
            .collect();
        let rotation = self.rotation.fetch_add(1, Ordering::Relaxed);
        health::order(&states, rotation, now).into_iter().map(|place| self.endpoints[place].clone()).collect()
    }
}

impl Endpoint {
    fn new(backend: &BackendEndpoint) -> Arc<Endpoint> {
        Arc::new(Endpoint {
            backend: backend.clone(),
            open: AtomicUsize::new(0),
            health: Mutex::default(),
            resolved: Mutex::default(),
            why: Mutex::default(),
        })
    }

    fn lease(self: &Arc<Endpoint>) -> BackendLease {
        self.open.fetch_add(1, Ordering::Relaxed);
        BackendLease(self.clone())
    }

    fn record_error(&self, error: &io::Error) {
        *self.why.lock_ignoring_poison() = error.to_string();
    }

    fn health(&self) -> MutexGuard<'_, EndpointHealth> {
        self.health.lock_ignoring_poison()
    }

    /// Returns the reason if none of its addresses may be dialled. None: one may, or they are not known yet.
    fn denied(&self, dialer: &BackendDialer, transport: SocketProtocol) -> Option<Denied> {
        let addresses = match &self.backend {
            BackendEndpoint::Address(ip, port) => vec![SocketAddr::new(*ip, *port)],
            BackendEndpoint::Host(..) => {
                let known = self.resolved.lock_ignoring_poison();
                known.as_ref().map(|(_, addresses)| addresses.clone()).unwrap_or_default()
            }
        };
        let mut why = None;
        for address in addresses {
            why = Some(dialer.check(transport, address).err()?);
        }
        why
    }

    /// Returns its current addresses.
    async fn addresses(&self) -> io::Result<Vec<SocketAddr>> {
        let (name, port) = match &self.backend {
            BackendEndpoint::Address(ip, port) => return Ok(vec![SocketAddr::new(*ip, *port)]),
            BackendEndpoint::Host(name, port) => (name, *port),
        };
        let known = self.resolved.lock_ignoring_poison().clone();
        if let Some((at, addresses)) = &known
            && at.elapsed() < RESOLVE_AGAIN
        {
            return Ok(addresses.clone());
        }
        match resolve(name, port).await {
            Ok(addresses) => {
                let found = Some((Instant::now(), addresses.clone()));
                *self.resolved.lock_ignoring_poison() = found;
                Ok(addresses)
            }
            Err(error) => known.map(|(_, addresses)| addresses).ok_or(error),
        }
    }
}

fn transport(service: &ServiceEntry) -> SocketProtocol {
    match service.protocol {
        ServiceProtocol::Udp => SocketProtocol::Udp,
        _ => SocketProtocol::Tcp,
    }
}

async fn resolve(name: &DnsName, port: u16) -> io::Result<Vec<SocketAddr>> {
    let found: Vec<SocketAddr> = tokio::net::lookup_host((name.as_str(), port)).await?.collect();
    match found.is_empty() {
        true => Err(io::Error::new(io::ErrorKind::NotFound, "the name has no address")),
        false => Ok(found),
    }
}

/// Without a client the PROXY protocol header has the command LOCAL.
async fn connect(
    dialer: &BackendDialer,
    endpoint: &Endpoint,
    proxy_protocol: bool,
    client: Option<SocketAddr>,
) -> io::Result<TcpStream> {
    let mut stream = dialer.connect_first(endpoint.addresses().await?).await?;
    prepare(&stream)?;
    if proxy_protocol {
        let backend = stream.peer_addr()?;
        stream.write_all(&header::encode(client, backend)).await?;
    }
    Ok(stream)
}
