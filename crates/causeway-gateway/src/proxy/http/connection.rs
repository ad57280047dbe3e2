//! One connection that carries HTTP requests, from a client or from another gateway: its requests, its tunnels and its end.
//!
//! `LiveConnections` judges requests; a revoked request ends the connection that carries it. A connection without traffic is
//! closed. `ConnectionCount` applies the connection limits.

use std::net::IpAddr;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use causeway_channel::link::ResetCode;
use causeway_daemon::sync::MutexExt;
use causeway_netmap::ServiceName;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::channel::StreamEndNote;
use crate::connection_record::AdmittedAccess;
use crate::limits::{Allowance, LimitTable, LimitedEnd};
use crate::live::{AccessGrant, AccessRequest, ClaimJudge, LiveConnection, NetmapObserver};
use crate::peers::BoxedFuture;
use crate::policy::{Permit, PolicyRefusal, Principal};
use crate::proxy::Proxy;

/// Ends the tunnels of a connection when its task is dropped.
struct Tunnels<'a>(&'a HttpConnection);

impl Drop for Tunnels<'_> {
    fn drop(&mut self) {
        let tunnels = self.0.tunnels.lock_ignoring_poison().take();
        drop(tunnels);
    }
}

/// State of one connection, shared by its task, its socket and its requests.
pub struct HttpConnection {
    begun: Instant,
    /// Time of the last byte, in milliseconds since the beginning.
    moved: AtomicU64,
    /// Requests in flight.
    requests: AtomicUsize,
    /// Cancelled when the connection must end: a request on it was revoked, or a limit no longer allows it.
    cut: CancellationToken,
    tunnel: Mutex<Option<BoxedFuture<'static, ()>>>,
    /// HTTP/2 streams that became tunnels. Created with the first one.
    tunnels: Mutex<Option<JoinSet<()>>>,
    /// True for HTTP/2, with several requests at once.
    multiplexed: AtomicBool,
    /// The last head has both a length and a transfer encoding.
    two_lengths: AtomicBool,
    origin: ConnectionOrigin,
}

/// The peer of a connection.
pub enum ConnectionOrigin {
    /// A client, under connection limits.
    Client(ConnectionCount),
    /// Another gateway, over a stream: a cut is sent with its reset code.
    Gateway(Arc<StreamEndNote>),
}

/// Counts a request in flight until it is dropped.
pub struct RequestGuard {
    connection: Arc<HttpConnection>,
}

impl RequestGuard {
    /// Returns the reset code of the other gateway, if it reset the stream.
    pub fn received_code(&self) -> Option<ResetCode> {
        match &self.connection.origin {
            ConnectionOrigin::Gateway(note) => note.received_code(),
            ConnectionOrigin::Client(_) => None,
        }
    }

    /// Sets the reset code for the other gateway, sent when its stream is dropped.
    pub fn set_code(&self, code: ResetCode) {
        if let ConnectionOrigin::Gateway(note) = &self.connection.origin {
            note.set_code(code);
        }
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.connection.requests.fetch_sub(1, Ordering::Relaxed);
        self.connection.touch();
    }
}

impl HttpConnection {
    pub fn new(origin: ConnectionOrigin) -> Arc<HttpConnection> {
        Arc::new(HttpConnection {
            begun: Instant::now(),
            moved: AtomicU64::new(0),
            requests: AtomicUsize::new(0),
            cut: CancellationToken::new(),
            tunnel: Mutex::default(),
            tunnels: Mutex::default(),
            multiplexed: AtomicBool::new(false),
            two_lengths: AtomicBool::new(false),
            origin,
        })
    }

    /// Counts a request in flight. When it is revoked, the connection ends with it.
    pub fn begin_request(self: &Arc<Self>, entry: &LiveConnection) -> RequestGuard {
        self.requests.fetch_add(1, Ordering::Relaxed);
        entry.carried_by(&self.cut);
        RequestGuard { connection: self.clone() }
    }

    /// Counts a client connection at a presence when it arrives.
    pub fn arrive(&self, proxy: &Proxy, service: &ServiceName, client: IpAddr) -> Result<(), PolicyRefusal> {
        match &self.origin {
            ConnectionOrigin::Client(counting) => {
                let claim = AccessRequest::Use { service: service.clone(), client, request: None };
                let judged = claim.judge(&proxy.context.view());
                counting.arrive(&proxy.context.limits, &claim, judged)
            }
            ConnectionOrigin::Gateway(_) => Ok(()),
        }
    }

    /// Counts a client connection for the service of a request.
    pub fn count(
        &self,
        proxy: &Proxy,
        claim: &AccessRequest,
        admitted: &AdmittedAccess,
    ) -> Result<(), PolicyRefusal> {
        match &self.origin {
            ConnectionOrigin::Client(counting) => {
                counting.count(&proxy.context.limits, claim, &admitted.who, &admitted.permit)
            }
            // It carries requests of many client connections, which the gateway of the clients counts.
            ConnectionOrigin::Gateway(_) => Ok(()),
        }
    }

    /// Sets the tunnel that the connection becomes after its last response.
    pub fn become_tunnel(&self, tunnel: BoxedFuture<'static, ()>) {
        *self.tunnel.lock_ignoring_poison() = Some(tunnel);
    }

    /// Runs the tunnel that one HTTP/2 stream becomes. It ends with the connection.
    pub fn carry_tunnel(&self, tunnel: BoxedFuture<'static, ()>) {
        let mut tunnels = self.tunnels.lock_ignoring_poison();
        let tunnels = tunnels.get_or_insert_default();
        while tunnels.try_join_next().is_some() {}
        tunnels.spawn(tunnel);
    }

    /// Notes that bytes moved on the socket.
    pub fn touch(&self) {
        self.moved.store(self.begun.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    pub fn is_waiting(&self) -> bool {
        !self.multiplexed.load(Ordering::Relaxed) && self.requests.load(Ordering::Relaxed) == 0
    }

    pub fn set_multiplexed(&self) {
        self.multiplexed.store(true, Ordering::Relaxed);
    }

    pub fn set_two_lengths(&self) {
        self.two_lengths.store(true, Ordering::Relaxed);
    }

    pub fn take_two_lengths(&self) -> bool {
        self.two_lengths.swap(false, Ordering::Relaxed)
    }

    /// Drives the connection, then its tunnel, until it ends, is cut, or is idle for too long.
    pub async fn hold(&self, proxy: &Proxy, keep_alive: Duration, serving: impl Future<Output = ()>) {
        // Tunnels and connection hold each other: the guard drops the tunnels however this task ends.
        let _tunnels = Tunnels(self);
        let mut whole = pin!(async {
            serving.await;
            let tunnel = self.tunnel.lock_ignoring_poison().take();
            if let Some(tunnel) = tunnel {
                tunnel.await;
            }
        });
        let mut idle = pin!(tokio::time::sleep(keep_alive));
        loop {
            tokio::select! {
                biased;
                () = self.cut.cancelled() => {
                    if let ConnectionOrigin::Gateway(note) = &self.origin {
                        note.set_code(ResetCode::Revoked);
                    }
                    return;
                }
                () = &mut whole => return,
                () = &mut idle => {
                    let patience = match self.requests.load(Ordering::Relaxed) {
                        0 => keep_alive,
                        _ => proxy.options.idle_timeout,
                    };
                    let quiet = self.begun.elapsed().saturating_sub(self.moved());
                    if quiet >= patience {
                        return;
                    }
                    // Checked again when the shorter of the two times could have passed.
                    let wait = patience.min(keep_alive).saturating_sub(quiet).max(Duration::from_secs(1));
                    idle.as_mut().reset(tokio::time::Instant::now() + wait);
                }
            }
        }
    }

    fn moved(&self) -> Duration {
        Duration::from_millis(self.moved.load(Ordering::Relaxed))
    }
}

impl NetmapObserver for HttpConnection {
    /// Applies the connection limits of a new netmap. Requests on the connection are judged by `LiveConnections`.
    fn follow(&self, judge: &ClaimJudge<'_>, limits: &LimitTable) {
        if let ConnectionOrigin::Client(counting) = &self.origin
            && counting.renew(limits, judge).is_err()
        {
            self.cut.cancel();
        }
    }
}

/// Counts a client connection under connection limits: once for each service it is used for, until it ends.
///
/// At a presence the service is known when the connection arrives, at a shared entry with the first request
/// for it. A request on a connection over the limit gets a 429; a later one may succeed.
#[derive(Default)]
pub struct ConnectionCount {
    counted: Mutex<Vec<(AccessRequest, Allowance)>>,
}

impl ConnectionCount {
    /// Counts a connection that arrives at a presence. One that may not use the service is not counted: its
    /// requests are refused.
    fn arrive(
        &self,
        limits: &LimitTable,
        claim: &AccessRequest,
        judged: Result<AccessGrant, PolicyRefusal>,
    ) -> Result<(), PolicyRefusal> {
        match judged {
            Ok(AccessGrant { who, permit, .. }) => self.count(limits, claim, &who, &permit),
            Err(_) => Ok(()),
        }
    }

    /// Counts the connection for the service of a request, unless it is counted already.
    pub fn count(
        &self,
        limits: &LimitTable,
        claim: &AccessRequest,
        who: &Principal,
        permit: &Permit,
    ) -> Result<(), PolicyRefusal> {
        let mut counted = self.lock();
        if counted.iter().any(|(known, _)| known == claim) {
            return Ok(());
        }
        let allowance = limits.connect(LimitedEnd::Near, permit, &claim.target(), who, Instant::now())?;
        counted.push((claim.clone(), allowance));
        Ok(())
    }

    /// Applies the limits of a new netmap. An error: the connection must end.
    fn renew(&self, limits: &LimitTable, judge: &ClaimJudge<'_>) -> Result<(), PolicyRefusal> {
        let now = Instant::now();
        let mut counted = self.lock();
        let mut over = Ok(());
        counted.retain(|(claim, allowance)| match judge(claim) {
            Ok(AccessGrant { who, permit, .. }) => {
                if let Err(refusal) = limits.renew(allowance, &permit, &who, now) {
                    over = Err(refusal);
                }
                true
            }
            // Its requests are cut separately; a connection that may not be used is not counted.
            Err(_) => false,
        });
        over
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(AccessRequest, Allowance)>> {
        self.counted.lock_ignoring_poison()
    }
}

#[cfg(test)]
mod tests {
    use causeway_netmap::{
        GatewayEntry, NetmapView, PolicyEntry, PolicyLimits, PresenceEntry, ServiceProtocol,
    };

    use super::*;

    /// Site oslo with two services of rome, which all of oslo may use within `limits`.
    fn view(limits: Option<PolicyLimits>) -> NetmapView {
        let mut view = NetmapView::default();
        view.gateway = Some(GatewayEntry::named("oslo-1", "oslo"));
        for service in ["web", "shop"] {
            let presence = PresenceEntry {
                service: service.into(),
                addresses: Vec::new(),
                port: 80,
                protocol: ServiceProtocol::Http,
                names: Vec::new(),
                service_site: "rome".into(),
                policies: vec!["p".into()],
                brokers: 0,
            };
            view.presences.insert(service.into(), presence);
        }
        let sites = vec!["oslo".into()];
        let policy = PolicyEntry {
            name: "p".into(),
            servers: Vec::new(),
            sites,
            limits,
            http: Vec::new(),
            ports: Vec::new(),
        };
        view.policies.insert("p".into(), policy);
        view
    }

    const CLIENT: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 7));

    fn limit(connections: u64) -> Option<PolicyLimits> {
        Some(PolicyLimits { connections: Some(connections), ..PolicyLimits::default() })
    }

    fn arrive(
        counting: &ConnectionCount,
        limits: &LimitTable,
        view: &NetmapView,
        service: &str,
    ) -> Result<(), PolicyRefusal> {
        let claim = AccessRequest::Use { service: service.into(), client: CLIENT, request: None };
        counting.arrive(limits, &claim, claim.judge(view))
    }

    fn renew(
        counting: &ConnectionCount,
        limits: &LimitTable,
        view: &NetmapView,
    ) -> Result<(), PolicyRefusal> {
        counting.renew(limits, &|claim| claim.judge(view))
    }

    #[test]
    fn a_connection_counts_once_for_each_service_until_it_ends() {
        let (limits, view) = (LimitTable::new(10), view(limit(1)));
        let arrive = |counting: &ConnectionCount, service: &str| {
            super::tests::arrive(counting, &limits, &view, service).map_err(|refusal| refusal.word())
        };
        let first = ConnectionCount::default();
        assert_eq!(arrive(&first, "web"), Ok(()));
        assert_eq!(arrive(&first, "web"), Ok(()), "its next request is no other connection");
        let second = ConnectionCount::default();
        assert_eq!(arrive(&second, "web"), Err("limit"));
        assert_eq!(arrive(&second, "shop"), Ok(()), "another service has limits of its own");
        drop(first);
        assert_eq!(arrive(&second, "web"), Ok(()));
        assert_eq!(arrive(&second, "unknown"), Ok(()), "the request is refused, not the connection");
    }

    #[test]
    fn a_netmap_brings_idle_connections_under_its_limits() {
        let limits = LimitTable::new(10);
        let idle = ConnectionCount::default();
        arrive(&idle, &limits, &view(None), "web").unwrap();
        let narrow = view(limit(1));
        assert_eq!(renew(&idle, &limits, &narrow), Ok(()));
        let other = ConnectionCount::default();
        assert!(arrive(&other, &limits, &narrow, "web").is_err(), "the idle one counts");
        assert!(renew(&idle, &limits, &view(limit(0))).is_err());
        // No longer allowed, so no longer counted.
        assert_eq!(renew(&idle, &limits, &NetmapView::default()), Ok(()));
        assert_eq!(arrive(&other, &limits, &narrow, "web"), Ok(()));
    }
}
