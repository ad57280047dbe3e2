//! The gateway itself: what every protocol shares, and what keeps it running.
//!
//! Roles make it from `GatewayParts`, `run` it, and hand it the streams of other sites with `serve`. Tasks are its own: a link that ends
//! takes no task with it, so that every crossing comes to its record.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use causeway_channel::link::{Stream, StreamHeader, StreamPurpose};
use causeway_daemon::coalesce::CoalesceLimits;
use causeway_netmap::{NetmapView, ServiceName, SiteName};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::audit::{AuditSink, Coalescing};
use crate::diagnose::QUESTIONS_MAX;
use crate::dial::{Dialer, OwnListeners, SharedDialRules};
use crate::dns::{DnsOptions, DnsServer, DnsState};
use crate::in_flight;
use crate::limits::LimitTable;
use crate::live::LiveConnections;
use crate::metrics::GatewayMetrics;
use crate::peers::GatewayPeers;
use crate::presence_namespace::PresenceNamespace;
use crate::problems::ProblemReporter;
use crate::proxy::backends::BackendSelector;
use crate::proxy::connect::{AllowList, ConnectTlsListener, ConnectUnixListener, listener};
use crate::proxy::entry::{self, EntryProtocol};
use crate::proxy::http::HttpConnections;
use crate::proxy::listeners::{ListenPolicy, ListenersReport, PresenceEvent, PresenceListeners};
use crate::proxy::start_limit::StartLimit;
use crate::proxy::udp::{UdpBackends, UdpOptions, UdpSessions};
use crate::proxy::{inbound, kafka, outbound, udp};
use crate::slots::ClientSlots;
use crate::socket_binder::SocketBinder;

/// What a role gives.
pub struct GatewayParts {
    /// The netmap as it changes; the default one while there is none.
    pub netmaps: watch::Receiver<Arc<NetmapView>>,
    pub peers: Arc<dyn GatewayPeers>,
    pub audit: Arc<dyn AuditSink>,
    pub options: GatewayOptions,
    /// What the role says of itself to `causeway doctor`.
    pub role_facts: Option<RoleFacts>,
}

/// What the configuration says.
#[derive(Clone, Debug)]
pub struct GatewayOptions {
    /// Whether presences listen here.
    pub listen: bool,
    /// Where they do.
    pub standing: PresenceMode,
    /// More addresses to listen on, by service: for those who have no rights on this host.
    pub ports: BTreeMap<ServiceName, SocketAddr>,
    /// One address for many names: by the host of requests, and by the name that TLS asks for.
    pub entry_http: Option<SocketAddr>,
    pub entry_tls: Option<SocketAddr>,
    /// What may cross at the same time. Each connection costs a file and some KiB; as many as local ports of one address.
    pub connections_max: usize,
    /// How long a backend, or a stream to another site, may take.
    pub connect_timeout: Duration,
    /// How long nothing may move in either direction. Longer than the keepalive of anything that means to live.
    pub idle_timeout: Duration,
    /// How long what is in flight may go on after the stop is told; see `Gateway::finish_in_flight`.
    pub drain: Duration,
    /// What may be dialled for a CONNECT although it is no node.
    pub connect_allow: AllowList,
    /// Callers of CONNECT at the same time, with those who have not said anything yet.
    pub connects_max: usize,
    /// Which addresses may be dialled.
    pub dial_rules: SharedDialRules,
    /// Where the process of this gateway listens. The role adds its own.
    pub own_listeners: OwnListeners,
    pub dns: DnsOptions,
    pub udp: UdpOptions,
}

/// Where presences stand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PresenceMode {
    /// In a room where one can be made, else on the host's own addresses.
    Auto,
    Room,
    Host,
}

impl Default for GatewayOptions {
    fn default() -> GatewayOptions {
        GatewayOptions {
            listen: true,
            standing: PresenceMode::Auto,
            ports: BTreeMap::new(),
            entry_http: None,
            entry_tls: None,
            connections_max: 65_536,
            connect_timeout: Duration::from_secs(5),
            idle_timeout: Duration::from_secs(3600),
            // A tunnel does not know where its clients' work ends; those that are quick may finish.
            drain: Duration::from_secs(1),
            connect_allow: AllowList::new(),
            // An API server keeps a connection or two to each of its nodes, and one for each exec and log.
            connects_max: 8192,
            dial_rules: SharedDialRules::default(),
            own_listeners: OwnListeners::default(),
            dns: DnsOptions::default(),
            udp: UdpOptions::default(),
        }
    }
}

/// What a role says of itself to `causeway doctor`, without secrets.
pub type RoleFacts = Box<dyn Fn() -> serde_json::Value + Send + Sync>;

/// What every protocol of one gateway shares.
pub struct GatewayContext {
    netmaps: watch::Receiver<Arc<NetmapView>>,
    pub peers: Arc<dyn GatewayPeers>,
    pub audit: Coalescing,
    pub live: LiveConnections,
    pub limits: LimitTable,
    /// The only way to backends and nodes.
    pub dialer: Dialer,
    pub backends: BackendSelector,
    pub udp_sessions: UdpSessions,
    pub udp_backends: UdpBackends,
    pub http: HttpConnections,
    pub kafka: kafka::BrokerNames,
    /// For connections at an entry whose first message is not there yet.
    pub(crate) hellos: ClientSlots,
    pub figures: GatewayMetrics,
    pub options: GatewayOptions,
    reports: watch::Sender<ListenersReport>,
    pub role_facts: Option<RoleFacts>,
    /// Places for questions of `causeway doctor`.
    pub questions: Arc<Semaphore>,
    /// Nothing new begins; what can finish does.
    pub stopping: CancellationToken,
}

impl GatewayContext {
    pub fn new(parts: GatewayParts) -> Arc<GatewayContext> {
        let GatewayParts { netmaps, peers, audit, options, role_facts } = parts;
        let dialer = Dialer::new(options.dial_rules.clone(), options.own_listeners.clone());
        Arc::new(GatewayContext {
            netmaps,
            peers,
            audit: Coalescing::new(audit, CoalesceLimits::default()),
            live: LiveConnections::new(options.connections_max),
            // Somebody who has a share has a connection, or had one a moment ago.
            limits: LimitTable::new(options.connections_max.saturating_mul(2)),
            backends: BackendSelector::new(&options, dialer.clone()),
            udp_sessions: UdpSessions::new(&options.udp),
            udp_backends: UdpBackends::new(dialer.clone()),
            dialer,
            http: HttpConnections::default(),
            kafka: kafka::BrokerNames::default(),
            hellos: ClientSlots::new(entry::HELLOS_MAX),
            stopping: CancellationToken::new(),
            figures: GatewayMetrics::default(),
            options,
            reports: watch::Sender::default(),
            role_facts,
            questions: Arc::new(Semaphore::new(QUESTIONS_MAX)),
        })
    }

    /// The netmap in force.
    pub fn view(&self) -> Arc<NetmapView> {
        self.netmaps.borrow().clone()
    }

    /// Where the traffic with the home of a service is at home.
    fn home_of(&self, service: &ServiceName) -> Option<Handle> {
        let view = self.view();
        self.peers.home(&view.presences.get(service)?.home)
    }

    /// The netmap as it changes.
    pub fn netmaps(&self) -> watch::Receiver<Arc<NetmapView>> {
        self.netmaps.clone()
    }
}

/// A gateway. Clones are the same.
#[derive(Clone)]
pub struct Gateway {
    shared: Arc<GatewayContext>,
    tasks: TaskTracker,
    /// For callers of CONNECT.
    places: Arc<Semaphore>,
    dns: Arc<DnsServer>,
    /// None: presences listen on the host.
    room: Option<PresenceNamespace>,
}

impl Gateway {
    pub fn new(parts: GatewayParts) -> Gateway {
        let places = Arc::new(Semaphore::new(parts.options.connects_max));
        let dns = DnsServer::new(parts.netmaps.clone(), parts.options.dns.clone());
        let dns = Arc::new(dns.registering(parts.options.own_listeners.clone()));
        let wants_room = parts.options.listen && parts.options.standing != PresenceMode::Host;
        let room = wants_room.then(PresenceNamespace::default);
        Gateway { shared: GatewayContext::new(parts), tasks: TaskTracker::new(), places, dns, room }
    }

    pub(crate) fn room(&self) -> Option<&PresenceNamespace> {
        self.room.as_ref()
    }

    pub fn shared(&self) -> &Arc<GatewayContext> {
        &self.shared
    }

    /// Shows its figures in `/metrics`.
    pub fn register(&self, registry: &mut prometheus_client::registry::Registry) {
        self.shared.figures.register(registry);
        self.dns.register(registry);
    }

    /// What it should do and cannot, as that changes.
    pub fn regrets(&self) -> ProblemReporter {
        ProblemReporter::new(self.dns.state(), self.listening(), self.shared.clone())
    }

    /// Where names are answered, and where not, as it changes.
    pub fn dns(&self) -> watch::Receiver<DnsState> {
        self.dns.state()
    }

    /// How it stands with the listeners of presences, as it changes.
    pub fn listening(&self) -> watch::Receiver<ListenersReport> {
        self.shared.reports.subscribe()
    }

    /// Serves a stream that came over the channel. `origin` is what a certificate says. Returns at once.
    pub fn serve(&self, origin: SiteName, header: StreamHeader, stream: Stream) {
        if header.purpose() == Some(StreamPurpose::Diagnose) {
            self.tasks.spawn(self.clone().answer(origin, header, stream));
            return;
        }
        let home = stream.home().cloned();
        let serving = inbound::serve(self.shared.clone(), origin, header, stream);
        self.spawn_at(home, serving);
    }

    /// Answers CONNECT on a Unix socket until told to stop. What was opened goes on as long as the gateway does.
    pub async fn run_unix_door(&self, door: ConnectUnixListener, stop: CancellationToken) {
        listener::run_unix(self.hall(stop), door).await;
    }

    /// The same on a port, for those who show a certificate.
    pub async fn run_tls_door(&self, door: ConnectTlsListener, stop: CancellationToken) {
        listener::run_tls(self.hall(stop), door).await;
    }

    fn hall(&self, stop: CancellationToken) -> listener::ConnectContext {
        let (shared, tasks, places) = (self.shared.clone(), self.tasks.clone(), self.places.clone());
        listener::ConnectContext { shared, tasks, places, stop }
    }

    /// Waits until what is in flight now has finished, at most for `time`. Listeners stay open: call this before `run` is told
    /// to stop. Idle connections of clients and idle streams to other sites are not waited for.
    pub async fn finish_in_flight(&self, time: Duration) {
        self.retire_streams();
        in_flight::finish(&self.shared.live, tokio::time::Instant::now() + time).await;
    }

    /// Sends no more requests over the streams to other sites that are open now; each ends with its last request. For when the
    /// link they are on is about to end, or another one is in use.
    pub fn retire_streams(&self) {
        self.shared.http.retire();
    }

    /// Listens at the presences and keeps what crosses in step with the netmap, until told to stop.
    pub async fn run(&self, stop: CancellationToken) {
        let ending = CancellationToken::new();
        let judging = tokio::spawn(judge(self.shared.clone(), ending.clone()));
        let telling = tokio::spawn(tell(self.shared.clone(), ending.clone()));
        let room = self.room.clone();
        // The room stays while what crosses comes to its end.
        let standing = room.clone().map(|room| tokio::spawn(room.run(self.shared.netmaps(), ending.clone())));
        let (dns, until) = (self.dns.clone(), ending.clone());
        // As long as something crosses: what is allowed to finish may ask for names.
        let naming = tokio::spawn(async move { dns.run(until).await });
        let (shared, until) = (self.shared.clone(), ending.clone());
        let asking = tokio::spawn(async move { shared.backends.run(until).await });
        let options = &self.shared.options;
        for (address, speech) in
            [(options.entry_http, EntryProtocol::Http), (options.entry_tls, EntryProtocol::Tls)]
        {
            let Some(address) = address else { continue };
            let (shared, tasks) = (self.shared.clone(), self.tasks.clone());
            self.tasks.spawn(entry::keep(shared, address, speech, tasks, stop.clone()));
        }
        if self.shared.options.listen {
            self.accept(room, &stop).await;
        }
        stop.cancelled().await;
        self.shared.stopping.cancel();
        self.tasks.close();
        let _ = tokio::time::timeout(FAREWELL, self.tasks.wait()).await;
        self.shared.live.stop();
        let _ = tokio::time::timeout(LAST_RECORDS, self.tasks.wait()).await;
        ending.cancel();
        let _ = tokio::join!(judging, telling, naming, asking);
        if let Some(standing) = standing {
            let _ = standing.await;
        }
    }

    /// Beside the link it will use: a request that crosses wakes no other thread then.
    fn spawn_at(&self, home: Option<Handle>, serving: impl Future<Output = ()> + Send + 'static) {
        match home {
            Some(home) => self.tasks.spawn_on(serving, &home),
            None => self.tasks.spawn(serving),
        };
    }

    async fn accept(&self, room: Option<PresenceNamespace>, stop: &CancellationToken) {
        let shared = &self.shared;
        let places = ListenPolicy {
            room: room.map(|room| Arc::new(room) as Arc<dyn SocketBinder>),
            host_instead: shared.options.standing == PresenceMode::Auto,
            ports: shared.options.ports.clone(),
            own_listeners: shared.options.own_listeners.clone(),
        };
        let mut listeners = PresenceListeners::start(
            shared.netmaps(),
            places,
            shared.figures.clone(),
            shared.reports.clone(),
        );
        let starts = StartLimit::default();
        loop {
            let arrival = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                arrival = listeners.next() => arrival,
            };
            match arrival {
                PresenceEvent::Connection(accepted) => {
                    let home = shared.home_of(&accepted.service);
                    let accepted = match &home {
                        Some(home) => accepted.bring(home),
                        None => Some(accepted),
                    };
                    let Some(accepted) = accepted else { continue };
                    let place = tokio::select! {
                        biased;
                        () = stop.cancelled() => return,
                        place = starts.place() => place,
                    };
                    self.spawn_at(home, place.start(outbound::serve(shared.clone(), accepted)));
                }
                PresenceEvent::Datagrams(opened) => {
                    let serving = udp::serve_outbound(shared.clone(), opened, self.tasks.clone());
                    self.tasks.spawn(Box::pin(serving));
                }
            }
        }
    }
}

/// Records what was held back of repeated refusals, about once a second, and the rest at the end.
async fn tell(shared: Arc<GatewayContext>, ending: CancellationToken) {
    let mut ticks = tokio::time::interval(TELL_PERIOD);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            biased;
            () = ending.cancelled() => return shared.audit.tell_all(),
            tick = ticks.tick() => shared.audit.tell(tick.into_std()),
        }
    }
}

const TELL_PERIOD: Duration = Duration::from_secs(1);

/// Clients are told that their connections end, and what is nearly done is done, within this.
const FAREWELL: Duration = Duration::from_millis(250);
/// What was cut has this long to be recorded.
const LAST_RECORDS: Duration = Duration::from_secs(1);

/// Judges everything again when a netmap arrives. Goes on while the gateway drains: a policy may be removed then, too.
async fn judge(shared: Arc<GatewayContext>, ending: CancellationToken) {
    let mut netmaps = shared.netmaps();
    let mut tidying = tokio::time::interval(HttpConnections::TIDY_PERIOD);
    loop {
        tokio::select! {
            biased;
            () = ending.cancelled() => return,
            _ = tidying.tick() => {
                shared.http.tidy(&shared.view());
                continue;
            }
            changed = netmaps.changed() => if changed.is_err() {
                return ending.cancelled().await;
            },
        }
        let view = netmaps.borrow_and_update().clone();
        let cut = shared.live.judge(&view, &shared.limits);
        shared.figures.revoked(cut);
        shared.backends.follow(&view);
        if cut > 0 {
            tracing::info!(generation = %view.generation, cut, "connections that are no longer allowed were cut");
        }
    }
}
