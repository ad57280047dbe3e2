//! Puts a cloud together and runs it.
//!
//! `start` does everything that may fail: the lock, the store, identity, and every listener is bound before
//! anything runs. `run` goes on until told to stop, then drains: what is in flight finishes while every listener is still
//! open; then callers end, and what serves them after. Idle connections are not waited for.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use causeway_apiserver::{ApiLimits, ApiServer, ApiServerParts, Registry, RegistryError, SystemClock};
use causeway_channel::port::{ChannelPort, PortLimits, PortSockets};
use causeway_channel::quic::EndpointKeys;
use causeway_channel::{ChannelEndpoint, Clock};
use causeway_daemon::admin::AdminEndpoints as AdminDoors;
use causeway_daemon::audit::AuditLimits;
use causeway_daemon::coalesce::CoalesceLimits;
use causeway_daemon::data_dir::DataDirError;
use causeway_daemon::{AdminServer, AuditLog, DataDir, Metrics, Readiness, Role, notify};
use causeway_gateway::Gateway;
use causeway_gateway::dial::{OwnListeners, Transport};
use causeway_gateway::dns::DnsState;
use causeway_gateway::proxy::listeners::ListenersReport;
use causeway_store::{Store, StoreError, StoreSpec};
use serde::Serialize;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::actions::CloudActions;
use crate::admin_journal::{self, AdminJournal};
use crate::audit::AuditJournal;
use crate::bootstrap;
use crate::channel::ChannelServer;
use crate::connect_listeners::ConnectListeners;
use crate::deleted_gateways::DeletedGateways;
use crate::events::{self, EventKeeper, EventWriter};
use crate::fleet_metrics;
use crate::fleet_stats::FleetStats;
use crate::garbage::GarbageCollector;
use crate::gateway::{self, NetmapFollower};
use crate::gateway_sites::GatewaySites;
use crate::health::StoreHealth;
use crate::identity::{
    EnrolmentLimits, EnrolmentServer, IdentityConfig, IdentityError, Registrar, host_name, outward_addresses,
};
use crate::netmaps::{NetmapConditionWriter, NetmapPublisher};
use crate::problem_reports::{ConditionWriter, ProblemInbox, ProblemWriter};
use crate::reconcile::Reconciler;
use crate::replicas::{
    self, EdgeStreamServer, Fleet, GatewayLocation, LinkDispatcher, ReplicaAddress, SessionDirectory,
};
use crate::sessions::{SessionLimits, SessionServices, Sessions};
use crate::spool_intake::{self, CloudRecordWriter, SpoolIntake};

/// Everything a cloud needs to know.
#[derive(Clone, Debug)]
pub struct CloudConfig {
    pub data_dir: PathBuf,
    pub api: SocketAddr,
    pub channel: SocketAddr,
    pub admin: SocketAddr,
    /// Where those with a certificate may say CONNECT.
    pub connect: Option<SocketAddr>,
    /// The channel endpoints edges are given; empty: this machine's own addresses.
    pub advertise: Vec<ChannelEndpoint>,
    /// Where other replicas reach the channel port; None: the first endpoint that edges are given.
    pub peer_address: Option<ChannelEndpoint>,
    pub store: StoreSpec,
    /// None: seal.key in the data dir.
    pub seal_key: Option<PathBuf>,
    /// Names and addresses for the certificate of the API, beside those of `advertise` and of this machine.
    pub api_names: Vec<String>,
    /// Connections that one address may have open on the API port.
    pub api_connections_per_address: usize,
    /// Make a CA although a cloud with another one has run in the data dir.
    pub new_fleet: bool,
    /// How long an expired certificate may still be renewed with its old key.
    pub expired_grace: Duration,
    pub audit: AuditLimits,
    /// Bounds on strangers at the channel port, and on what one link may hold.
    pub port: PortLimits,
    /// How long what is in flight may go on after the stop.
    pub drain: Duration,
    /// How the cloud's own gateway forwards.
    pub gateway: causeway_gateway::GatewayOptions,
    /// The effective configuration, without secrets, for the admin dump.
    pub shown: serde_json::Value,
}

#[derive(Debug, thiserror::Error)]
pub enum CloudError {
    #[error(transparent)]
    DataDir(#[from] DataDirError),
    #[error("the store cannot be opened")]
    Store(#[from] StoreError),
    #[error("identity cannot be opened")]
    Identity(#[from] IdentityError),
    #[error("cannot listen on {address} for {purpose}: choose another address with --{purpose}")]
    Bind { purpose: &'static str, address: SocketAddr, source: std::io::Error },
    #[error("the audit log in {} cannot be opened", folder.display())]
    Audit { folder: PathBuf, source: std::io::Error },
    #[error("the first objects cannot be made: {0}")]
    First(RegistryError),
    #[error("{0} ended although nobody told it to")]
    Ended(&'static str),
}

/// Where a running cloud listens. Stands in DATA_DIR/run/addresses.json, for tests and local clients.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Addresses {
    pub api: SocketAddr,
    pub channel: SocketAddr,
    pub admin: SocketAddr,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connect: Option<SocketAddr>,
    pub pid: u32,
}

const ADDRESSES_FILE: &str = "run/addresses.json";
const PORT_KEYS_FILE: &str = "channel.keys";

/// A cloud, bound and not yet running.
pub struct Cloud {
    data_dir: DataDir,
    store: Store,
    audit: AuditLog,
    admin_audit: AuditLog,
    registrar: Arc<Registrar>,
    api: ApiServer,
    channel: ChannelServer,
    sessions: Sessions,
    fleet: Arc<Fleet>,
    admin: AdminServer,
    reconciler: Reconciler,
    gateway_sites: GatewaySites,
    registry: Arc<Registry>,
    events: EventWriter,
    desk: NetmapPublisher,
    reporter: NetmapConditionWriter,
    reports: ProblemWriter,
    gateway: Gateway,
    doors: ConnectListeners,
    follower: NetmapFollower,
    records: CloudRecordWriter,
    health: StoreHealth,
    readiness: Readiness,
    addresses: Addresses,
    drain: Duration,
}

impl Cloud {
    pub async fn start(config: CloudConfig) -> Result<Cloud, CloudError> {
        let data_dir = DataDir::open_as(&config.data_dir, Role::Cloud)?;
        let (metrics, readiness) = (Metrics::new(env!("CARGO_PKG_VERSION")), Readiness::new());
        let shown = config.shown.clone();
        let desk = NetmapPublisher::new(&metrics);
        let dumped = desk.clone();
        // Put in when the gateway exists, which needs much of what follows.
        let dns: Arc<OnceLock<watch::Receiver<DnsState>>> = Arc::default();
        let presences: Arc<OnceLock<watch::Receiver<ListenersReport>>> = Arc::default();
        let (shown_dns, shown_presences) = (dns.clone(), presences.clone());
        let doors = AdminDoors {
            metrics: metrics.clone(),
            readiness: readiness.clone(),
            dumps: vec![
                ("config", Box::new(move || shown.clone())),
                ("netmaps", Box::new(move || dumped.dump())),
                ("dns", Box::new(move || dump(&shown_dns))),
                ("presences", Box::new(move || dump(&shown_presences))),
            ],
        };
        let api_listener = listen("api", config.api).await?;
        let channel_sockets =
            PortSockets::bind(config.channel).await.map_err(bind_error("channel", config.channel))?;
        let admin =
            AdminServer::bind(config.admin, doors).await.map_err(bind_error("admin", config.admin))?;
        let connect_listener = match config.connect {
            Some(address) => Some(listen("connect", address).await?),
            None => None,
        };
        let connect = connect_listener.as_ref().map(TcpListener::local_addr).transpose();
        let addresses = Addresses {
            connect: connect.map_err(bind_error("connect", config.connect.unwrap_or(config.api)))?,
            api: api_listener.local_addr().map_err(bind_error("api", config.api))?,
            channel: channel_sockets.local_addr(),
            admin: admin.address().map_err(bind_error("admin", config.admin))?,
            pid: std::process::id(),
        };

        register_listeners(&config.gateway.own_listeners, &addresses);

        let folder = data_dir.folder("audit")?;
        let opened = AuditLog::open(&folder, config.audit).and_then(|audit| {
            let coalesce = CoalesceLimits::default();
            Ok((audit, AuditLog::open_as(&folder, admin_journal::NAME, config.audit, coalesce)?))
        });
        let (audit, admin_audit) = opened.map_err(|source| CloudError::Audit { folder, source })?;
        let store = Store::open(config.store.clone()).await?;
        let identity = identity_config(&config, &addresses, audit.clone());
        let registrar = Registrar::open(store.clone(), identity).await?;
        metrics.register(|registry| registrar.figures().register(registry));
        let port = ChannelPort::on(
            channel_sockets,
            registrar.channel_tls(),
            port_keys(&data_dir)?,
            config.port.clone(),
        )
        .map_err(bind_error("channel", config.channel))?;
        metrics.register(|registry| port.figures().register(registry));

        let registry = Arc::new(Registry::new(store.clone(), Arc::new(SystemClock)));
        let admin_journal = Arc::new(AdminJournal::new(admin_audit.clone(), replica_name(&addresses)));
        registry.record_controllers(admin_journal.clone());
        bootstrap::ensure(&registry).await.map_err(CloudError::First)?;
        let directory = open_directory(&config, &store, &registrar).await?;
        let intake = Arc::new(open_intake(&config, &data_dir, &store)?);
        metrics.register(|registry| intake.figures().register(registry));
        let board = Arc::new(ProblemInbox::default());
        let carrier = Arc::new(EdgeStreamServer::default());
        let passengers = SessionServices {
            netmaps: Arc::new(desk.clone()),
            upstream: Arc::new(spool_intake::SpoolIntakeHandle {
                intake: intake.clone(),
                board: board.clone(),
            }),
            streams: carrier.clone(),
        };
        let sessions = Sessions::new(
            replica_name(&addresses),
            registrar.clone(),
            registry.clone(),
            passengers,
            SessionLimits {
                // A gateway that changes its transport has two links for a while.
                sessions_max: config.port.links_max * 3 / 5,
                ..SessionLimits::default()
            },
        );
        metrics.register(|registry| sessions.register(registry));
        metrics.register(|registry| fleet_metrics::register(registry, sessions.clone(), desk.clone()));
        let fleet =
            Fleet::new(directory.clone(), Arc::new(sessions.clone()), registrar.clone(), desk.sites());
        let (own_records, records) = spool_intake::own_records(&intake);
        let (gateway, follower) = gateway::gateway(&desk, &fleet, own_records, config.gateway.clone());
        metrics.register(|registry| gateway.register(registry));
        let _ = dns.set(gateway.dns());
        let _ = presences.set(gateway.listening());
        let doors = ConnectListeners::open(&data_dir, connect_listener, &registrar);
        carrier.set(&fleet, &gateway);
        sessions.set_elsewhere(move |gateway| {
            matches!(directory.whereabouts(gateway), GatewayLocation::There { .. })
        });
        let checking = sessions.clone();
        port.check_certificates(Box::new(move |shown, client| checking.check_certificate(shown, client)));
        let channel = ChannelServer {
            port,
            enrolment: EnrolmentServer::new(registrar.clone(), EnrolmentLimits::default()),
            links: Arc::new(LinkDispatcher::new(sessions.clone(), fleet.clone())),
        };
        let figures = Arc::new(FleetStats::new(registry.now(), sessions.clone(), fleet.clone()));
        let journals = AuditJournal::new(&data_dir.join("audit"));
        let actions = CloudActions {
            registry: registry.clone(),
            registrar: registrar.clone(),
            figures: figures.clone(),
            fleet: fleet.clone(),
            journals: journals.clone(),
            gateway: gateway.clone(),
        };
        fleet.show_journals(journals);
        let parts = ApiServerParts {
            registry: registry.clone(),
            authenticator: registrar.clone(),
            actions: Arc::new(actions),
            admin_audit: admin_journal,
            figures,
            tls: Some(registrar.api_tls()),
            readiness: readiness.clone(),
            metrics: metrics.clone(),
            limits: ApiLimits {
                connections_per_address_max: config.api_connections_per_address,
                ..ApiLimits::default()
            },
        };
        let reporter = NetmapConditionWriter { desk: desk.clone(), registry: registry.clone() };
        let pen = ConditionWriter { registry: registry.clone(), directory: fleet.directory().clone() };
        let reports = ProblemWriter::new(board, pen, gateway.regrets());
        let gateway_sites =
            GatewaySites { store: store.clone(), registry: registry.clone(), sessions: sessions.clone() };
        let events = events::record(&registry, replica_name(&addresses), &metrics);
        let reconciler = Reconciler::new(registry.clone(), readiness.register("reconcile"), &metrics)
            .telling(desk.clone())
            .keeping_own_objects();
        let folder = match &config.store {
            StoreSpec::Sqlite { path } => path.parent().map(Path::to_owned),
            StoreSpec::Etcd { .. } => None,
        };
        let health = StoreHealth { store: store.clone(), check: readiness.register("store"), folder };
        if let Err(error) = publish_addresses(&data_dir, &addresses) {
            // A full disk: nothing can be written, and reads shall go on all the same.
            let error = &error as &dyn std::error::Error;
            tracing::warn!(error, "local clients will not find the addresses of this cloud");
        }
        Ok(Cloud {
            api: ApiServer::on(api_listener, parts).map_err(bind_error("api", config.api))?,
            channel,
            sessions,
            fleet,
            data_dir,
            store,
            audit,
            admin_audit,
            registrar,
            admin,
            reconciler,
            gateway_sites,
            registry,
            events,
            desk,
            reporter,
            reports,
            gateway,
            doors,
            follower,
            records,
            health,
            readiness,
            addresses,
            drain: config.drain,
        })
    }

    pub fn addresses(&self) -> &Addresses {
        &self.addresses
    }

    pub fn kubeconfig(&self) -> PathBuf {
        self.registrar.kubeconfig_path()
    }

    /// The checks behind `/readyz`.
    pub fn readiness(&self) -> &Readiness {
        &self.readiness
    }

    /// Runs until `stop`, then drains. Returns early, with an error, only when a part ends by itself.
    pub async fn run(self, stop: CancellationToken) -> Result<(), CloudError> {
        let Addresses { api, channel, admin, .. } = self.addresses;
        tracing::info!(%api, %channel, %admin, data_dir = %self.data_dir.path().display(), "the cloud runs");
        // Whatever ends this function also ends every part.
        let (callers, carriers, servants) =
            (CancellationToken::new(), CancellationToken::new(), CancellationToken::new());
        let _ended = [&callers, &carriers, &servants].map(|token| token.clone().drop_guard());

        let mut front = JoinSet::new();
        let named = |name: &'static str, part: Pin<Box<dyn Future<Output = ()> + Send>>| async move {
            part.await;
            name
        };
        front.spawn(named("the API server", Box::pin(self.api.run(callers.clone()))));
        let (gateway, token) = (self.gateway.clone(), callers.clone());
        // What crosses at the end needs the sessions for its last words.
        let carried = carriers.clone().drop_guard();
        front.spawn(named(
            "the gateway",
            Box::pin(async move {
                gateway.run(token).await;
                drop(carried);
            }),
        ));
        front.spawn(named("CONNECT", Box::pin(self.doors.run(self.gateway.clone(), callers.clone()))));
        front.spawn(named("the channel", Box::pin(self.channel.run(carriers.clone()))));
        let mut back = JoinSet::new();
        let registrar = self.registrar.clone();
        let token = servants.clone();
        back.spawn(named("identity", Box::pin(async move { registrar.run(token).await })));
        let (sessions, token) = (self.sessions.clone(), servants.clone());
        back.spawn(named("sessions", Box::pin(async move { sessions.run(token).await })));
        let (directory, token) = (self.fleet.directory().clone(), servants.clone());
        back.spawn(named("the directory", Box::pin(async move { directory.run(token).await })));
        let in_flight = InFlight {
            sessions: self.sessions.clone(),
            gateway: self.gateway.clone(),
            fleet: self.fleet.clone(),
        };
        let (sessions, fleet, token) = (self.sessions, self.fleet, servants.clone());
        let following = async move { replicas::follow(&sessions, fleet.directory(), token).await };
        back.spawn(named("the attachments", Box::pin(following)));
        let departures = DeletedGateways::new(self.store.clone(), self.registrar.clone());
        back.spawn(named("the watch over deleted gateways", Box::pin(departures.run(servants.clone()))));
        back.spawn(named("the sites of gateways", Box::pin(self.gateway_sites.run(servants.clone()))));
        back.spawn(named("reconcile", Box::pin(self.reconciler.run(servants.clone()))));
        back.spawn(named("the writer of events", Box::pin(self.events.run(servants.clone()))));
        let keeper = EventKeeper::new(self.registry.clone());
        back.spawn(named("the keeper of events", Box::pin(keeper.run(servants.clone()))));
        let collector = GarbageCollector::new(self.registry);
        back.spawn(named("garbage collection", Box::pin(collector.run(servants.clone()))));
        back.spawn(named("the compiler of netmaps", Box::pin(self.desk.run(servants.clone()))));
        back.spawn(named("the gateway's netmaps", Box::pin(self.follower.run(servants.clone()))));
        back.spawn(named("the gateway's records", Box::pin(self.records.run(servants.clone()))));
        back.spawn(named("the writer of reports", Box::pin(self.reports.run(servants.clone()))));
        back.spawn(named("the reporter of netmaps", Box::pin(self.reporter.run(servants.clone()))));
        back.spawn(named("the watch over the store", Box::pin(self.health.run(servants.clone()))));
        back.spawn(named("the admin server", Box::pin(self.admin.run(servants.clone()))));
        notify::ready();

        let early = tokio::select! {
            biased;
            () = stop.cancelled() => None,
            Some(ended) = front.join_next() => Some(ended.unwrap_or("a listener that failed")),
            Some(ended) = back.join_next() => Some(ended.unwrap_or("a part that failed")),
        };
        notify::stopping();
        if early.is_none() {
            in_flight.finish(self.drain).await;
        }
        callers.cancel();
        while front.join_next().await.is_some() {}
        servants.cancel();
        while back.join_next().await.is_some() {}
        drop(self.registrar);
        self.audit.close();
        self.admin_audit.close();
        if let Err(error) = self.store.close().await {
            tracing::warn!(error = &error as &dyn std::error::Error, "the store was not closed in order");
        }
        let _ = std::fs::remove_file(self.data_dir.join(ADDRESSES_FILE));
        tracing::info!("the cloud has stopped");
        early.map_or(Ok(()), |name| Err(CloudError::Ended(name)))
    }
}

/// What is waited for before anything is closed.
struct InFlight {
    sessions: Sessions,
    gateway: Gateway,
    fleet: Arc<Fleet>,
}

impl InFlight {
    /// Sends edges elsewhere where they can go, then lets what is in flight finish, all of it within `time`.
    async fn finish(self, time: Duration) {
        let begun = Instant::now();
        // Before edges are told: they are asked to send no more requests over the streams that are open now.
        self.gateway.retire_streams();
        self.sessions.announce_stop(time).await;
        let left = time.saturating_sub(begun.elapsed());
        tokio::join!(self.gateway.finish_in_flight(left), self.fleet.finish_in_flight(left));
        tracing::info!(took = ?begun.elapsed(), "what was in flight has finished");
    }
}

/// What the cloud's own gateway says of itself, once it exists.
fn dump<T: Clone + serde::Serialize>(state: &OnceLock<watch::Receiver<T>>) -> serde_json::Value {
    let state = state.get().map(|state| state.borrow().clone());
    serde_json::to_value(state).unwrap_or_default()
}

/// One of several on etcd; with SQLite there is no other.
async fn open_directory(
    config: &CloudConfig,
    store: &Store,
    registrar: &Registrar,
) -> Result<Arc<SessionDirectory>, StoreError> {
    if matches!(config.store, StoreSpec::Sqlite { .. }) {
        return Ok(SessionDirectory::alone(Clock::system()));
    }
    let endpoints = registrar.endpoints();
    let given = config.peer_address.as_ref().map(ToString::to_string);
    let address = given.or_else(|| endpoints.first().cloned()).unwrap_or_default();
    SessionDirectory::open(store.clone(), ReplicaAddress { address, endpoints }, Clock::system()).await
}

fn open_intake(config: &CloudConfig, data_dir: &DataDir, store: &Store) -> Result<SpoolIntake, CloudError> {
    let folder = data_dir.join("audit");
    SpoolIntake::open(&folder, config.audit, store.clone(), Clock::system())
        .map_err(|source| CloudError::Audit { folder, source })
}

fn publish_addresses(data_dir: &DataDir, addresses: &Addresses) -> Result<(), DataDirError> {
    data_dir.folder("run")?;
    data_dir.write(ADDRESSES_FILE, &serde_json::to_vec_pretty(addresses).unwrap_or_default()).map(drop)
}

/// How this replica is called in logs and messages: its host and the port that edges dial.
fn replica_name(addresses: &Addresses) -> String {
    format!("{}:{}", host_name(), addresses.channel.port())
}

async fn listen(purpose: &'static str, address: SocketAddr) -> Result<TcpListener, CloudError> {
    TcpListener::bind(address).await.map_err(bind_error(purpose, address))
}

/// So that the cloud's own gateway never dials them.
fn register_listeners(own: &OwnListeners, addresses: &Addresses) {
    own.keep("api", Transport::Tcp, addresses.api);
    own.keep("admin", Transport::Tcp, addresses.admin);
    own.keep("channel", Transport::Tcp, addresses.channel);
    own.keep("channel", Transport::Udp, addresses.channel);
    if let Some(connect) = addresses.connect {
        own.keep("connect", Transport::Tcp, connect);
    }
}

fn bind_error(purpose: &'static str, address: SocketAddr) -> impl FnOnce(std::io::Error) -> CloudError {
    move |source| CloudError::Bind { purpose, address, source }
}

/// Kept, so that edges notice a restart at once: the links that were lost are answered with resets they believe.
fn port_keys(data_dir: &DataDir) -> Result<EndpointKeys, DataDirError> {
    let kept = std::fs::read(data_dir.join(PORT_KEYS_FILE)).ok();
    if let Some(keys) = kept.and_then(|bytes| EndpointKeys::from_bytes(&bytes)) {
        return Ok(keys);
    }
    let keys = EndpointKeys::generate();
    data_dir.write(PORT_KEYS_FILE, &keys.to_bytes())?;
    Ok(keys)
}

fn identity_config(config: &CloudConfig, addresses: &Addresses, audit: AuditLog) -> IdentityConfig {
    let advertise = match config.advertise.is_empty() {
        false => config.advertise.clone(),
        true => own_endpoints(addresses.channel, &outward_addresses(), &host_name()),
    };
    IdentityConfig {
        seal_key: config.seal_key.clone(),
        names: config.api_names.clone(),
        new_fleet: config.new_fleet,
        listen: [addresses.api, addresses.channel].into_iter().chain(addresses.connect).collect(),
        connect: addresses.connect.is_some(),
        grace: config.expired_grace,
        audit: Some(audit),
        ..IdentityConfig::new(&config.data_dir, advertise, format!("https://{}", local(addresses.api)))
    }
}

/// The address by which a client on this host reaches a listener.
fn local(listener: SocketAddr) -> SocketAddr {
    let ip = match listener.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    SocketAddr::new(ip, listener.port())
}

/// Where edges find the channel when nobody said: the listener's own address, or, when it listens on all, those
/// that others see; the host's name as a last resort.
fn own_endpoints(channel: SocketAddr, outward: &[IpAddr], host: &str) -> Vec<ChannelEndpoint> {
    let ip = channel.ip();
    let listens_for = |other: &&IpAddr| ip.is_ipv6() || other.is_ipv4();
    let mut texts: Vec<String> = match ip.is_unspecified() {
        false => vec![channel.to_string()],
        true => {
            let seen = outward.iter().filter(listens_for);
            seen.map(|ip| SocketAddr::new(*ip, channel.port()).to_string()).collect()
        }
    };
    if texts.is_empty() {
        texts.push(format!("{host}:{}", channel.port()));
    }
    texts.iter().filter_map(|text| text.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edges_are_given_addresses_that_others_see() {
        let check = |channel: &str, outward: &[&str], expected: &[&str]| {
            let outward: Vec<IpAddr> = outward.iter().map(|ip| ip.parse().unwrap()).collect();
            let endpoints = own_endpoints(channel.parse().unwrap(), &outward, "host");
            let texts: Vec<String> = endpoints.iter().map(ToString::to_string).collect();
            assert_eq!(texts, expected, "{channel}");
        };
        check("10.1.2.3:7444", &["192.0.2.7"], &["10.1.2.3:7444"]);
        check("0.0.0.0:7444", &["192.0.2.7", "2001:db8::7"], &["192.0.2.7:7444"]);
        check("[::]:7444", &["192.0.2.7", "2001:db8::7"], &["192.0.2.7:7444", "[2001:db8::7]:7444"]);
        check("0.0.0.0:7444", &[], &["host:7444"]);
    }

    #[test]
    fn a_client_on_this_host_reaches_a_wildcard_listener_on_loopback() {
        for (listener, expected) in
            [("0.0.0.0:1", "127.0.0.1:1"), ("[::]:1", "[::1]:1"), ("10.0.0.1:1", "10.0.0.1:1")]
        {
            assert_eq!(local(listener.parse().unwrap()).to_string(), expected);
        }
    }
}
