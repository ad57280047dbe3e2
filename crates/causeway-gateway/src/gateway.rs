//! Assembles a gateway: the context that all planes share, and the planes `proxy`, `dns` and `tun`.
//!
//! A role builds it from `GatewayParts`, calls `run`, and passes the streams of other sites to `serve`. A plane has
//! `run` and `state`; `run` starts every plane. Connections run as
//! tasks of the gateway, not of a link: a link that ends cancels none of them, so that each writes its audit record.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use causeway_channel::link::{ResetCode, Stream, StreamHeader, StreamPurpose};
use causeway_daemon::coalesce::CoalesceLimits;
use causeway_netmap::{GatewayName, NetmapView, ServiceName, SiteName};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::audit::{AuditSink, Coalescing};
use crate::diagnose::{Diagnostics, RoleFacts};
use crate::dial::{OwnListeners, SharedDialRules};
use crate::dns::{DnsOptions, DnsServer, DnsState};
use crate::in_flight;
use crate::limits::LimitTable;
use crate::live::LiveConnections;
use crate::metrics::GatewayMetrics;
use crate::neighbour_proxy::{NeighbourProxy, NeighbourState};
use crate::packet_carrier::{self, AwaitedPeers, PacketCarrier, PacketHandler};
use crate::peer_requests::PeerRequests;
use crate::peers::{self, GatewayPeers, PeerError};
use crate::problems::ProblemReporter;
use crate::proxy::Proxy;
use crate::proxy::connect::{AllowList, ConnectTlsListener, ConnectUnixListener};
use crate::proxy::listeners::ListenersReport;
use crate::proxy::udp::UdpOptions;
use crate::trace::{TraceOptions, Tracer};
use crate::tun::{Tunnel, TunnelOptions};

/// Inputs of a gateway, from the role that runs it.
pub struct GatewayParts {
    /// The netmap as it changes; the default netmap until the first one arrives.
    pub netmaps: watch::Receiver<Arc<NetmapView>>,
    pub peers: Arc<dyn GatewayPeers>,
    pub audit: Arc<dyn AuditSink>,
    pub options: GatewayOptions,
    /// The facts of the role for `causeway doctor`.
    pub role_facts: Option<RoleFacts>,
}

/// Settings of a gateway, from the configuration.
#[derive(Clone, Debug)]
pub struct GatewayOptions {
    /// True if presences listen at this gateway.
    pub listen: bool,
    /// The network namespace in which presences listen.
    pub presence_mode: PresenceMode,
    /// Additional listen addresses by service, for hosts on which the gateway has no privileges.
    pub ports: BTreeMap<ServiceName, SocketAddr>,
    /// Shared entries: one address for many services, selected by the Host header or by the SNI of TLS.
    pub entry_http: Option<SocketAddr>,
    pub entry_tls: Option<SocketAddr>,
    /// Connections at the same time. Each costs a file descriptor and some KiB; the default is the number of ports of one address.
    pub connections_max: usize,
    /// Time limit for connecting to a backend and for opening a stream to another site.
    pub connect_timeout: Duration,
    /// Time without a byte in either direction after which a connection is closed. Longer than common keepalive periods.
    pub idle_timeout: Duration,
    /// Time that connections in flight have after the stop; see `Gateway::finish_in_flight`.
    pub drain: Duration,
    /// Targets of CONNECT that may be dialled although they are not nodes.
    pub connect_allow: AllowList,
    /// Streams that one client of this site has open over one link.
    pub client_streams_max: usize,
    /// CONNECT clients at the same time, including those that have not sent a request yet.
    pub connects_max: usize,
    /// Addresses that may be dialled.
    pub dial_rules: SharedDialRules,
    /// Listen addresses of this process. The role adds its own.
    pub own_listeners: OwnListeners,
    pub dns: DnsOptions,
    pub udp: UdpOptions,
    /// True if no connections are carried: no listener of a presence, no CONNECT, no backend.
    pub services_off: bool,
    /// None: no packets cross between sites.
    pub tunnel: Option<TunnelOptions>,
    /// None: no traces are exported. They need the feature `traces`.
    pub traces: Option<TraceOptions>,
}

/// The network namespace in which presences listen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PresenceMode {
    /// A namespace of the gateway's own where one can be made, else that of the host.
    Auto,
    Namespace,
    Host,
}

impl Default for GatewayOptions {
    fn default() -> GatewayOptions {
        GatewayOptions {
            listen: true,
            presence_mode: PresenceMode::Auto,
            ports: BTreeMap::new(),
            entry_http: None,
            entry_tls: None,
            connections_max: 65_536,
            connect_timeout: Duration::from_secs(5),
            idle_timeout: Duration::from_secs(3600),
            // A tunnel does not know when its client's work is complete; short transfers finish in a second.
            drain: Duration::from_secs(1),
            connect_allow: AllowList::new(),
            client_streams_max: CLIENT_STREAMS_MAX,
            // An API server keeps one or two connections to each of its nodes, and one for each exec and log.
            connects_max: 8192,
            dial_rules: SharedDialRules::default(),
            own_listeners: OwnListeners::default(),
            dns: DnsOptions::default(),
            udp: UdpOptions::default(),
            services_off: false,
            tunnel: None,
            traces: None,
        }
    }
}

/// A plane of a gateway that its configuration switches off. The other planes work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SwitchedOff {
    Services,
    Layer3,
}

impl SwitchedOff {
    /// Returns the planes that are off. Options without a tunnel come from tests and examples: no configuration switched it off.
    fn of(options: &GatewayOptions) -> Vec<SwitchedOff> {
        let is_tunnel_off = options.tunnel.as_ref().is_some_and(|tunnel| tunnel.off);
        let services = options.services_off.then_some(SwitchedOff::Services);
        services.into_iter().chain(is_tunnel_off.then_some(SwitchedOff::Layer3)).collect()
    }

    /// Returns one word, for reports to the cloud.
    pub fn word(self) -> &'static str {
        match self {
            SwitchedOff::Services => "services",
            SwitchedOff::Layer3 => "layer3",
        }
    }
}

/// Three quarters of the 16,384 streams that a link carries by default (`streams_max`). A single busy client, such as a
/// reverse proxy, is hardly limited; without a policy limit it still leaves 4,096 streams to all other clients.
const CLIENT_STREAMS_MAX: usize = 12_288;

/// State that every plane of one gateway shares.
pub struct GatewayContext {
    netmaps: watch::Receiver<Arc<NetmapView>>,
    pub peers: Arc<dyn GatewayPeers>,
    /// Time limit for opening a stream to another site.
    connect_timeout: Duration,
    pub live: LiveConnections,
    pub limits: LimitTable,
    pub audit: Coalescing,
    pub metrics: GatewayMetrics,
    /// Questions for members of large communities.
    pub peer_requests: Arc<PeerRequests>,
    /// Places for streams of members that become peers.
    pub(crate) peers_awaited: AwaitedPeers,
    pub(crate) tracer: Tracer,
    /// Tasks of connections and streams. A gateway that stops waits for them.
    pub(crate) tasks: TaskTracker,
    /// Cancelled when the gateway stops: no connection begins, and those that can finish do.
    pub(crate) stopping: CancellationToken,
}

impl GatewayContext {
    pub(crate) fn new(
        netmaps: watch::Receiver<Arc<NetmapView>>,
        peers: Arc<dyn GatewayPeers>,
        audit: Arc<dyn AuditSink>,
        options: &GatewayOptions,
    ) -> Arc<GatewayContext> {
        Arc::new(GatewayContext {
            netmaps,
            peers,
            connect_timeout: options.connect_timeout,
            live: LiveConnections::new(options.connections_max),
            // A subject with a share has a connection, or had one a moment ago.
            limits: LimitTable::new(options.connections_max.saturating_mul(2)),
            audit: Coalescing::new(audit, CoalesceLimits::default()),
            metrics: GatewayMetrics::default(),
            peer_requests: Arc::default(),
            peers_awaited: AwaitedPeers::default(),
            tracer: Tracer::new(options.traces.as_ref()),
            tasks: TaskTracker::new(),
            stopping: CancellationToken::new(),
        })
    }

    /// Opens a stream to the active gateway of a site, within the connect timeout.
    pub(crate) async fn open_stream(
        &self,
        site: &SiteName,
        header: StreamHeader,
    ) -> Result<Stream, PeerError> {
        peers::open_within(&*self.peers, self.connect_timeout, site, header).await
    }

    /// Returns the netmap in force.
    pub fn view(&self) -> Arc<NetmapView> {
        self.netmaps.borrow().clone()
    }

    /// Returns the netmap as it changes.
    pub fn netmaps(&self) -> watch::Receiver<Arc<NetmapView>> {
        self.netmaps.clone()
    }
}

/// A gateway. Clones share all state.
#[derive(Clone)]
pub struct Gateway {
    context: Arc<GatewayContext>,
    proxy: Arc<Proxy>,
    dns: Arc<DnsServer>,
    /// None: switched off.
    tunnel: Option<Tunnel>,
    /// Planes that the configuration switches off.
    switched_off: Vec<SwitchedOff>,
    neighbours: NeighbourProxy,
    carrier: Arc<PacketCarrier>,
    diagnostics: Arc<Diagnostics>,
}

impl Gateway {
    pub fn new(parts: GatewayParts) -> Gateway {
        let GatewayParts { netmaps, peers, audit, mut options, role_facts } = parts;
        let switched_off = SwitchedOff::of(&options);
        if options.services_off {
            options.listen = false;
            (options.entry_http, options.entry_tls) = (None, None);
        }
        let context = GatewayContext::new(netmaps.clone(), peers, audit, &options);
        let dns =
            DnsServer::new(netmaps, options.dns.clone()).with_peer_requests(context.peer_requests.clone());
        let dns = dns.with_own_listeners(options.own_listeners.clone());
        let carrier = PacketCarrier::new(context.clone());
        let tunnel = options.tunnel.clone().filter(|tunnel| !tunnel.off).map(|tunnel| {
            let (own_listeners, dial_rules) = (options.own_listeners.clone(), options.dial_rules.clone());
            let tunnel = TunnelOptions { own_listeners, dial_rules, ..tunnel };
            Tunnel::new(context.clone(), tunnel, carrier.clone())
        });
        let proxy = Proxy::new(context.clone(), options);
        let diagnostics = Arc::new(Diagnostics::new(role_facts));
        let (proxy, dns) = (Arc::new(proxy), Arc::new(dns));
        let neighbours = NeighbourProxy::new(context.metrics.neighbour_answers.clone());
        Gateway { context, proxy, dns, tunnel, switched_off, neighbours, carrier, diagnostics }
    }

    /// Returns the planes that the configuration switches off.
    pub fn switched_off(&self) -> &[SwitchedOff] {
        &self.switched_off
    }

    pub fn context(&self) -> &Arc<GatewayContext> {
        &self.context
    }

    pub fn proxy(&self) -> &Arc<Proxy> {
        &self.proxy
    }

    pub fn diagnostics(&self) -> &Diagnostics {
        &self.diagnostics
    }

    /// Adds the metrics of the gateway to `/metrics`.
    pub fn register(&self, registry: &mut prometheus_client::registry::Registry) {
        self.context.metrics.register(registry);
        self.context.tracer.register(registry);
        self.dns.register(registry);
        if let Some(tunnel) = &self.tunnel {
            tunnel.register(registry);
        }
    }

    /// Returns the plane of packets. None: it is switched off.
    pub fn tunnel(&self) -> Option<&Tunnel> {
        self.tunnel.as_ref()
    }

    /// Returns what the gateway should do and cannot, as that changes.
    pub fn problems(&self) -> ProblemReporter {
        let tunnel = self.tunnel.as_ref().map(Tunnel::state);
        ProblemReporter::new(self.dns.state(), self.proxy.clone(), tunnel, self.neighbours.state())
    }

    /// Returns the addresses at which DNS is served, and those that failed, as they change.
    pub fn dns(&self) -> watch::Receiver<DnsState> {
        self.dns.state()
    }

    /// Returns the state of the listeners of presences, as it changes.
    pub fn listening(&self) -> watch::Receiver<ListenersReport> {
        self.proxy.state()
    }

    /// Returns the state of the answers to ARP and NDP, as it changes.
    pub fn neighbours(&self) -> watch::Receiver<NeighbourState> {
        self.neighbours.state()
    }

    /// Serves a stream that arrived over the channel. `origin` is the site in the peer's certificate. Returns at once.
    pub fn serve(&self, origin: SiteName, header: StreamHeader, stream: Stream) {
        if header.purpose() == Some(StreamPurpose::Diagnose) {
            self.context.tasks.spawn(self.clone().answer(origin, header, stream));
            return;
        }
        if header.purpose() == Some(StreamPurpose::Packets) {
            return self.receive_packets(origin, &header, stream);
        }
        self.proxy.serve(origin, header, stream);
    }

    /// The cloud stamps the gateway from its certificate; a stream of the cloud itself has no origin.
    fn receive_packets(&self, site: SiteName, header: &StreamHeader, stream: Stream) {
        let Some(tunnel) = self.tunnel.clone() else { return stream.refuse(ResetCode::NotAllowed) };
        let from = match &header.origin {
            Some(origin) => origin.gateway.as_str().into(),
            None => GatewayName::from(site.as_str()),
        };
        let handle: PacketHandler = Arc::new(move |from, packet| tunnel.handle_carried(from, packet));
        self.context.tasks.spawn(packet_carrier::receive(self.context.clone(), (site, from), stream, handle));
    }

    /// Answers CONNECT on a Unix socket until told to stop. Tunnels that are open go on as long as the gateway does.
    pub async fn run_connect_unix(&self, listener: ConnectUnixListener, stop: CancellationToken) {
        self.proxy.run_connect_unix(listener, stop).await;
    }

    /// Answers CONNECT on a TLS port, for clients that present a certificate, until told to stop.
    pub async fn run_connect_tls(&self, listener: ConnectTlsListener, stop: CancellationToken) {
        self.proxy.run_connect_tls(listener, stop).await;
    }

    /// Waits until the connections that are in flight now have finished, at most for `time`. Listeners stay open: call
    /// this before `run` is told to stop. Idle client connections and idle streams to other sites are not waited for.
    pub async fn finish_in_flight(&self, time: Duration) {
        self.retire_streams();
        in_flight::finish(&self.context.live, tokio::time::Instant::now() + time).await;
    }

    /// Sends no more requests over the streams to other sites that are open now; each ends with its last request. Call
    /// this when the link that carries them is about to end, or when another link is in use.
    pub fn retire_streams(&self) {
        self.proxy.retire_streams();
    }

    /// Runs all planes, and cuts connections that a new netmap no longer allows, until told to stop.
    pub async fn run(&self, stop: CancellationToken) {
        // Cancelled after the last connection: one that may finish still needs DNS, backends and re-evaluation.
        let end = CancellationToken::new();
        let (proxy, dns) = (self.proxy.clone(), self.dns.clone());
        let (proxy_stop, proxy_end, dns_end) = (stop.clone(), end.clone(), end.clone());
        let mut running = JoinSet::new();
        running.spawn(reevaluate(self.context.clone(), end.clone()));
        running.spawn(flush_audit(self.context.clone(), end.clone()));
        running.spawn(export_traces(self.context.clone(), end.clone()));
        running.spawn(async move { proxy.run(proxy_stop, proxy_end).await });
        running.spawn(async move { dns.run(dns_end).await });
        running.spawn(self.clone().answer_neighbours(end.clone()));
        if let Some(tunnel) = self.tunnel.clone() {
            self.carrier.start();
            let tunnel_end = end.clone();
            running.spawn(async move { tunnel.run(tunnel_end).await });
        }
        stop.cancelled().await;
        self.drain().await;
        end.cancel();
        while running.join_next().await.is_some() {}
    }

    async fn answer_neighbours(self, end: CancellationToken) {
        let (netmaps, namespace) = (self.context.netmaps(), self.proxy.namespace().cloned());
        let tunnel = self.tunnel.as_ref().map(Tunnel::state);
        self.neighbours.run(netmaps, namespace, tunnel, end).await;
    }

    /// Ends all connections: those that finish quickly on their own, then the rest by force.
    async fn drain(&self) {
        let GatewayContext { stopping, tasks, live, .. } = &*self.context;
        stopping.cancel();
        tasks.close();
        let _ = tokio::time::timeout(GRACEFUL_CLOSE_MAX, tasks.wait()).await;
        live.stop();
        let _ = tokio::time::timeout(LAST_RECORDS_MAX, tasks.wait()).await;
    }
}

/// Writes the held-back records of repeated refusals about once a second, and the remaining ones at the end.
async fn flush_audit(context: Arc<GatewayContext>, end: CancellationToken) {
    let mut ticks = tokio::time::interval(AUDIT_FLUSH_PERIOD);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            biased;
            () = end.cancelled() => return context.audit.tell_all(),
            tick = ticks.tick() => context.audit.flush_ended(tick.into_std()),
        }
    }
}

async fn export_traces(context: Arc<GatewayContext>, end: CancellationToken) {
    context.tracer.run(end).await;
}

const AUDIT_FLUSH_PERIOD: Duration = Duration::from_secs(1);

/// Time in which clients are told that their connections end, and nearly finished transfers finish.
const GRACEFUL_CLOSE_MAX: Duration = Duration::from_millis(250);
/// Time in which connections that were cut write their audit records.
const LAST_RECORDS_MAX: Duration = Duration::from_secs(1);

/// Judges all live connections again when a netmap arrives, also while the gateway drains: a policy may be removed then, too.
async fn reevaluate(context: Arc<GatewayContext>, end: CancellationToken) {
    let mut netmaps = context.netmaps();
    loop {
        tokio::select! {
            biased;
            () = end.cancelled() => return,
            changed = netmaps.changed() => if changed.is_err() {
                return end.cancelled().await;
            },
        }
        let view = netmaps.borrow_and_update().clone();
        let cut = context.live.judge(&view, &context.limits);
        context.metrics.revoked(cut);
        if cut > 0 {
            tracing::info!(generation = %view.generation, cut, "cut connections that the new netmap no longer allows");
        }
    }
}
