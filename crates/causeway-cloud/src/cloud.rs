//! Assembles a cloud and runs it.
//!
//! `start` does everything that may fail: it takes the lock, binds every listener, opens the store and identity, and builds
//! the servers and controllers in stages (`Start`). `run` runs until it is told to stop, then drains: requests and streams
//! in flight finish while every listener is still open; then the front servers end, then the parts they use. Idle
//! connections are not waited for.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use causeway_api::layer3::{self, TunnelRecord};
use causeway_apicache::upstream::Upstream;
use causeway_apiserver::registry::RegistryHooks;
use causeway_apiserver::{ApiLimits, ApiServer, ApiServerParts, Registry, RegistryError, SystemClock};
use causeway_channel::port::{ChannelPort, PortLimits, PortSockets};
use causeway_channel::quic::EndpointKeys;
use causeway_channel::{ChannelEndpoint, Clock};
use causeway_daemon::admin::AdminEndpoints;
use causeway_daemon::audit::AuditLimits;
use causeway_daemon::coalesce::CoalesceLimits;
use causeway_daemon::data_dir::DataDirError;
use causeway_daemon::{AdminServer, AuditLog, DataDir, Metrics, Readiness, Role, notify};
use causeway_gateway::Gateway;
use causeway_gateway::dial::{OwnListeners, Transport};
use causeway_store::{Store, StoreError, StoreSpec};
use serde::Serialize;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::actions::CloudActions;
use crate::admin_journal::{self, AdminJournal};
use crate::aggregated_api::{self, AggregatedApiConfig, AggregatedApiError, ClusterDelegate, FrontProxyOnly};
use crate::audit::AuditJournal;
use crate::audit_export::{AuditExport, AuditExportConfig};
use crate::bootstrap;
use crate::channel::ChannelServer;
use crate::connect_listeners::ConnectListeners;
use crate::deleted_gateways::DeletedGateways;
use crate::events::{self, EventKeeper, EventQueue, EventWriter};
use crate::fleet_metrics;
use crate::fleet_stats::{FleetSessions, FleetStats};
use crate::garbage::GarbageCollector;
use crate::gateway::{self, NetmapFollower};
use crate::gateway_sites::GatewaySites;
use crate::health::StoreHealth;
use crate::identity::{
    EnrolmentLimits, EnrolmentServer, IdentityConfig, IdentityError, Registrar, host_name, outward_addresses,
};
use crate::kubernetes;
use crate::netmaps::NetmapPublisher;
use crate::reconcile::Reconciler;
use crate::replicas::{
    self, ActiveGatewayWriter, Fleet, GatewayLocation, LinkDispatcher, ReplicaAddress, SessionDirectory,
};
use crate::reports::{ReportInbox, ReportWriter, ReportedState};
use crate::sessions::{ConnectionWatch, LiveSessions, SessionLimits, SessionServices, Sessions};
use crate::site_metrics;
use crate::spool_intake::{self, CloudRecordWriter, SpoolIntake};
use crate::tunnels::{TunnelHolder, TunnelReportWriter, TunnelReports};

/// The configuration of a cloud.
#[derive(Clone, Debug)]
pub struct CloudConfig {
    pub data_dir: PathBuf,
    pub api: SocketAddr,
    pub channel: SocketAddr,
    pub admin: SocketAddr,
    /// The address for CONNECT requests with a client certificate.
    pub connect: Option<SocketAddr>,
    /// The channel endpoints edges are given; empty: this machine's own addresses.
    pub advertise: Vec<ChannelEndpoint>,
    /// The channel endpoint for other replicas; None: the first endpoint that edges are given.
    pub peer_address: Option<ChannelEndpoint>,
    pub store: StoreSpec,
    /// None: seal.key in the data dir.
    pub seal_key: Option<PathBuf>,
    /// Names and addresses for the certificate of the API, beside those of `advertise` and of this machine.
    pub api_names: Vec<String>,
    /// Connections that one address may have open on the API port.
    pub api_connections_per_address: usize,
    /// Allows a new CA in a data dir where a cloud with another CA has run.
    pub new_fleet: bool,
    /// The time after its end in which a certificate may still be renewed with its old key.
    pub expired_grace: Duration,
    pub audit: AuditLimits,
    /// Collectors that get a copy of all audit records.
    pub audit_export: AuditExportConfig,
    /// Bounds on unauthenticated peers at the channel port, and on the resources of one link.
    pub port: PortLimits,
    /// The time that requests and streams in flight have after the stop.
    pub drain: Duration,
    /// The kubeconfig of the cluster whose API edges have a copy of; None: no cluster.
    pub kubernetes: Option<PathBuf>,
    /// The listener for the kube-apiserver of a cluster that registers this API as its own; None: not served.
    pub aggregated_api: Option<AggregatedApiConfig>,
    /// Keys of the labels of ESites that metrics show.
    pub metrics_site_labels: Vec<String>,
    /// The settings of the cloud's own gateway.
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
    #[error("cannot create the objects of the cloud: {0}")]
    First(RegistryError),
    #[error("the cluster of --kubernetes cannot be used")]
    Kubernetes(#[from] causeway_apicache::upstream::cluster::ClusterError),
    #[error("the aggregated API cannot be served")]
    AggregatedApi(#[from] AggregatedApiError),
    #[error("{0} ended unexpectedly")]
    Ended(&'static str),
}

/// The addresses of a running cloud. Written to DATA_DIR/run/addresses.json for tests and local clients.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Addresses {
    pub api: SocketAddr,
    pub channel: SocketAddr,
    pub admin: SocketAddr,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connect: Option<SocketAddr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub aggregated: Option<SocketAddr>,
    pub pid: u32,
}

const ADDRESSES_FILE: &str = "run/addresses.json";
const PORT_KEYS_FILE: &str = "channel.keys";
const AUDIT_FOLDER: &str = "audit";
/// Below `AUDIT_FOLDER`: records that wait for collectors.
const EXPORT_FOLDER: &str = "export";

/// A cloud, bound and not yet running.
pub struct Cloud {
    data_dir: DataDir,
    base: Base,
    traffic: Traffic,
    channel: ChannelServer,
    connect: ConnectListeners,
    api: ApiServer,
    aggregated_api: Option<ApiServer>,
    admin: AdminServer,
    controllers: Controllers,
    readiness: Readiness,
    addresses: Addresses,
    drain: Duration,
}

/// The sockets of a cloud, bound before anything else is opened, so that a bad address stops the start.
struct Listeners {
    api: TcpListener,
    channel: PortSockets,
    admin: TcpListener,
    connect: Option<TcpListener>,
    aggregated: Option<TcpListener>,
}

/// The persistent parts: the logs, the store, identity and the objects.
struct Base {
    export: Option<AuditExport>,
    audit: AuditLog,
    admin_audit: AuditLog,
    admin_journal: Arc<AdminJournal>,
    store: Store,
    registrar: Arc<Registrar>,
    directory: Arc<SessionDirectory>,
    live_sessions: LiveSessions,
    registry: Arc<Registry>,
}

/// The forwarding parts: netmaps, sessions, the fleet, the cloud's own gateway, and the records of all gateways.
struct Traffic {
    netmaps: NetmapPublisher,
    inbox: Arc<ReportInbox>,
    sessions: Sessions,
    fleet: Arc<Fleet>,
    journals: AuditJournal,
    gateway: Gateway,
    netmap_follower: NetmapFollower,
    records: CloudRecordWriter,
    tunnel_reports: TunnelReportWriter,
    tunnel_holder: TunnelHolder,
}

/// The loops that keep objects and their status right.
struct Controllers {
    reconciler: Reconciler,
    reports: ReportWriter,
    active_gateways: ActiveGatewayWriter,
    gateway_sites: GatewaySites,
    deleted_gateways: DeletedGateways,
    events: EventWriter,
    event_keeper: EventKeeper,
    garbage: GarbageCollector,
    store_health: StoreHealth,
}

impl Cloud {
    pub async fn start(config: CloudConfig) -> Result<Cloud, CloudError> {
        let data_dir = DataDir::open_as(&config.data_dir, Role::Cloud)?;
        let listeners = Listeners::bind(&config).await?;
        let addresses = listeners.addresses(&config)?;
        register_listeners(&config.gateway.own_listeners, &addresses);
        let start =
            Start { config, data_dir, addresses, metrics: new_metrics(), readiness: Readiness::new() };
        let (base, recorded_events) = start.open_base().await?;
        let traffic = start.open_traffic(&base)?;
        let stats =
            Arc::new(FleetStats::new(base.registry.now(), traffic.sessions.clone(), traffic.fleet.clone()));
        let kubernetes = kubernetes::open(start.config.kubernetes.as_deref(), &base.registry).await?;
        let channel = start.channel_server(listeners.channel, &base, &traffic, kubernetes)?;
        let connect = ConnectListeners::open(&start.data_dir, listeners.connect, &base.registrar);
        let aggregated_api =
            start.aggregated_api(listeners.aggregated, &base, &traffic, stats.clone()).await?;
        let api = start.api_server(listeners.api, &base, &traffic, stats)?;
        let admin = start.admin_server(listeners.admin, &traffic)?;
        let controllers = start.controllers(&base, &traffic, recorded_events);
        start.publish_addresses();
        Ok(Cloud {
            data_dir: start.data_dir,
            base,
            traffic,
            channel,
            connect,
            api,
            aggregated_api,
            admin,
            controllers,
            readiness: start.readiness,
            addresses: start.addresses,
            drain: start.config.drain,
        })
    }

    pub fn addresses(&self) -> &Addresses {
        &self.addresses
    }

    pub fn kubeconfig(&self) -> PathBuf {
        self.base.registrar.kubeconfig_path()
    }

    /// The checks behind `/readyz`.
    pub fn readiness(&self) -> &Readiness {
        &self.readiness
    }

    /// Runs until `stop`, then drains. Returns an error early only when a part ends by itself.
    pub async fn run(self, stop: CancellationToken) -> Result<(), CloudError> {
        let Addresses { api, channel, admin, .. } = self.addresses;
        tracing::info!(%api, %channel, %admin, data_dir = %self.data_dir.path().display(), "the cloud runs");
        // However this function ends, every part ends with it.
        let (callers, carriers, servants) =
            (CancellationToken::new(), CancellationToken::new(), CancellationToken::new());
        let _ended = [&callers, &carriers, &servants].map(|token| token.clone().drop_guard());

        let mut front = JoinSet::new();
        let named = |name: &'static str, part: Pin<Box<dyn Future<Output = ()> + Send>>| async move {
            part.await;
            name
        };
        let Traffic { netmaps, sessions, fleet, gateway, netmap_follower, records, .. } = self.traffic;
        let (tunnel_reports, tunnel_holder) = (self.traffic.tunnel_reports, self.traffic.tunnel_holder);
        front.spawn(named("the API server", Box::pin(self.api.run(callers.clone()))));
        if let Some(aggregated) = self.aggregated_api {
            front.spawn(named("the aggregated API", Box::pin(aggregated.run(callers.clone()))));
        }
        let (running, token) = (gateway.clone(), callers.clone());
        // Traffic that ends with the gateway needs the sessions for its last bytes.
        let carried = carriers.clone().drop_guard();
        front.spawn(named(
            "the gateway",
            Box::pin(async move {
                running.run(token).await;
                drop(carried);
            }),
        ));
        front.spawn(named("CONNECT", Box::pin(self.connect.run(gateway.clone(), callers.clone()))));
        front.spawn(named("the channel", Box::pin(self.channel.run(carriers.clone()))));
        let mut back = JoinSet::new();
        let (registrar, token) = (self.base.registrar.clone(), servants.clone());
        back.spawn(named("identity", Box::pin(async move { registrar.run(token).await })));
        let (running, token) = (sessions.clone(), servants.clone());
        back.spawn(named("sessions", Box::pin(async move { running.run(token).await })));
        let (directory, token) = (fleet.directory().clone(), servants.clone());
        back.spawn(named("the directory", Box::pin(async move { directory.run(token).await })));
        let own_problems = Some(gateway.problems());
        let in_flight = InFlight { sessions: sessions.clone(), gateway, fleet: fleet.clone() };
        let token = servants.clone();
        let following = async move { replicas::follow(&sessions, fleet.directory(), token).await };
        back.spawn(named("the attachments", Box::pin(following)));
        back.spawn(named("the netmap compiler", Box::pin(netmaps.run(servants.clone()))));
        back.spawn(named("the gateway's netmaps", Box::pin(netmap_follower.run(servants.clone()))));
        back.spawn(named("the gateway's records", Box::pin(records.run(servants.clone()))));
        back.spawn(named("the tunnels of gateways", Box::pin(tunnel_reports.run(servants.clone()))));
        back.spawn(named("the tunnel of the cloud", Box::pin(tunnel_holder.run(servants.clone()))));
        let controllers = self.controllers;
        back.spawn(named("reconcile", Box::pin(controllers.reconciler.run(servants.clone()))));
        let reports = controllers.reports.run(own_problems, servants.clone());
        back.spawn(named("the writer of reports", Box::pin(reports)));
        let active = controllers.active_gateways.run(servants.clone());
        back.spawn(named("the writer of active gateways", Box::pin(active)));
        back.spawn(named("the sites of gateways", Box::pin(controllers.gateway_sites.run(servants.clone()))));
        let deleted = controllers.deleted_gateways.run(servants.clone());
        back.spawn(named("the watch over deleted gateways", Box::pin(deleted)));
        back.spawn(named("the writer of events", Box::pin(controllers.events.run(servants.clone()))));
        back.spawn(named("the keeper of events", Box::pin(controllers.event_keeper.run(servants.clone()))));
        back.spawn(named("garbage collection", Box::pin(controllers.garbage.run(servants.clone()))));
        back.spawn(named(
            "the store's health check",
            Box::pin(controllers.store_health.run(servants.clone())),
        ));
        if let Some(export) = self.base.export {
            back.spawn(named("the export of audit records", Box::pin(export.run(servants.clone()))));
        }
        back.spawn(named("the admin server", Box::pin(self.admin.run(servants.clone()))));
        notify::ready();

        let early = tokio::select! {
            biased;
            () = stop.cancelled() => None,
            Some(ended) = front.join_next() => Some(ended.unwrap_or("a listener that failed")),
            Some(ended) = back.join_next() => Some(ended.unwrap_or("a part that failed")),
            never = notify::keep_alive() => match never {},
        };
        notify::stopping();
        if early.is_none() {
            in_flight.finish(self.drain).await;
        }
        callers.cancel();
        while front.join_next().await.is_some() {}
        servants.cancel();
        while back.join_next().await.is_some() {}
        drop(self.base.registrar);
        self.base.audit.close();
        self.base.admin_audit.close();
        if let Err(error) = self.base.store.close().await {
            tracing::warn!(error = &error as &dyn std::error::Error, "cannot close the store in order");
        }
        let _ = std::fs::remove_file(self.data_dir.join(ADDRESSES_FILE));
        tracing::info!("the cloud has stopped");
        early.map_or(Ok(()), |name| Err(CloudError::Ended(name)))
    }
}

/// The traffic that is waited for before anything is closed.
struct InFlight {
    sessions: Sessions,
    gateway: Gateway,
    fleet: Arc<Fleet>,
}

impl InFlight {
    /// Sends edges to other replicas where there are any, then lets traffic in flight finish, all within `time`.
    async fn finish(self, time: Duration) {
        let begun = Instant::now();
        // Before edges are told to leave: they are asked to send no more requests over the streams that are open now.
        self.gateway.retire_streams();
        self.sessions.announce_stop(time).await;
        let left = time.saturating_sub(begun.elapsed());
        tokio::join!(self.gateway.finish_in_flight(left), self.fleet.finish_in_flight(left));
        tracing::info!(took = ?begun.elapsed(), "traffic in flight has finished");
    }
}

impl Listeners {
    async fn bind(config: &CloudConfig) -> Result<Listeners, CloudError> {
        Ok(Listeners {
            api: listen("api", config.api).await?,
            channel: PortSockets::bind(config.channel)
                .await
                .map_err(bind_error("channel", config.channel))?,
            admin: listen("admin", config.admin).await?,
            connect: match config.connect {
                Some(address) => Some(listen("connect", address).await?),
                None => None,
            },
            aggregated: match &config.aggregated_api {
                Some(aggregated) => Some(listen("aggregated", aggregated.listen).await?),
                None => None,
            },
        })
    }

    fn addresses(&self, config: &CloudConfig) -> Result<Addresses, CloudError> {
        let connect = self.connect.as_ref().map(TcpListener::local_addr).transpose();
        let aggregated = self.aggregated.as_ref().map(TcpListener::local_addr).transpose();
        Ok(Addresses {
            connect: connect.map_err(bind_error("connect", config.connect.unwrap_or(config.api)))?,
            aggregated: aggregated.map_err(bind_error("aggregated", config.api))?,
            api: self.api.local_addr().map_err(bind_error("api", config.api))?,
            channel: self.channel.local_addr(),
            admin: self.admin.local_addr().map_err(bind_error("admin", config.admin))?,
            pid: std::process::id(),
        })
    }
}

/// A start under way. Each method is one stage and takes the results of the stages before it.
struct Start {
    config: CloudConfig,
    data_dir: DataDir,
    addresses: Addresses,
    metrics: Metrics,
    readiness: Readiness,
}

impl Start {
    /// Opens the logs, the store, identity and the directory of replicas, and creates the objects that every cloud has.
    async fn open_base(&self) -> Result<(Base, EventQueue), CloudError> {
        let config = &self.config;
        let folder = self.data_dir.folder(AUDIT_FOLDER)?;
        let (export, audit, admin_audit) =
            self.open_logs(&folder).map_err(|source| CloudError::Audit { folder, source })?;
        let store = Store::open(config.store.clone()).await?;
        let identity = identity_config(config, &self.addresses, audit.clone());
        let registrar = Registrar::open(store.clone(), identity).await?;
        self.metrics.register(|registry| registrar.metrics().register(registry));
        let directory = open_directory(config, &store, &registrar).await?;
        let live_sessions = LiveSessions::new(&self.session_limits());
        let admin_journal = Arc::new(AdminJournal::new(admin_audit.clone(), replica_name(&self.addresses)));
        let (recorder, recorded_events) = events::recorder(&self.metrics);
        let sessions = FleetSessions { directory: directory.clone(), live: live_sessions.clone() };
        let hooks = RegistryHooks {
            admin_audit: Some(admin_journal.clone()),
            observer: Some(Arc::new(recorder)),
            sessions: Some(Arc::new(sessions)),
        };
        let registry = Arc::new(Registry::with_hooks(store.clone(), Arc::new(SystemClock), hooks));
        bootstrap::ensure(&registry).await.map_err(CloudError::First)?;
        let base = Base {
            export,
            audit,
            admin_audit,
            admin_journal,
            store,
            registrar,
            directory,
            live_sessions,
            registry,
        };
        Ok((base, recorded_events))
    }

    /// Opens the export of records, and the logs of identity and of administration.
    fn open_logs(&self, folder: &Path) -> std::io::Result<(Option<AuditExport>, AuditLog, AuditLog)> {
        let config = &self.config;
        let export =
            AuditExport::open(&folder.join(EXPORT_FOLDER), config.audit_export.clone(), &self.metrics)?;
        let open = |name, journal| {
            let tap = export.as_ref().map(|export| export.tap(journal));
            AuditLog::open_tapped(folder, name, config.audit, CoalesceLimits::default(), tap)
        };
        let identity = open(causeway_daemon::audit::NAME, "identity")?;
        let admin = open(admin_journal::NAME, "admin")?;
        Ok((export, identity, admin))
    }

    /// Opens the intake of records, and builds sessions, fleet and gateway on it.
    fn open_traffic(&self, base: &Base) -> Result<Traffic, CloudError> {
        let config = &self.config;
        let inbox = Arc::new(ReportInbox::default());
        let netmaps = NetmapPublisher::new(&self.metrics, inbox.clone());
        let directory_of_holder = base.directory.clone();
        let intake = Arc::new(self.open_intake(base)?);
        self.metrics.register(|registry| intake.metrics().register(registry));
        let tunnel_reports = TunnelReports::default();
        let sessions = self.sessions(base, &netmaps, intake.clone(), inbox.clone(), &tunnel_reports);
        self.metrics.register(|registry| sessions.register(registry));
        self.metrics
            .register(|registry| fleet_metrics::register(registry, sessions.clone(), netmaps.clone()));
        let labels = &config.metrics_site_labels;
        self.metrics.register(|registry| site_metrics::register(registry, labels, netmaps.clone()));
        let journals = AuditJournal::new(&self.data_dir.join(AUDIT_FOLDER));
        let fleet = Fleet::new(
            base.directory.clone(),
            Arc::new(sessions.clone()),
            base.registrar.clone(),
            netmaps.sites(),
            Some(journals.clone()),
        );
        let (tunnel_holder, lease) =
            TunnelHolder::new(base.store.clone(), directory_of_holder, Clock::system());
        let (own_records, records) = spool_intake::own_records(&intake);
        let (gateway, netmap_follower) =
            gateway::gateway(&netmaps, &fleet, own_records, config.gateway.clone(), lease);
        self.metrics.register(|registry| gateway.register(registry));
        let port = config.gateway.tunnel.as_ref().map_or(0, |tunnel| tunnel.listen.port());
        let tunnel_holder = tunnel_holder.offering(own_tunnel(&gateway, port, &base.registrar.endpoints()));
        let tunnel_reports = TunnelReportWriter {
            reports: tunnel_reports,
            store: base.store.clone(),
            clock: Clock::system(),
            registrar: base.registrar.clone(),
        };
        Ok(Traffic {
            netmaps,
            inbox,
            sessions,
            fleet,
            journals,
            gateway,
            netmap_follower,
            records,
            tunnel_reports,
            tunnel_holder,
        })
    }

    fn open_intake(&self, base: &Base) -> Result<SpoolIntake, CloudError> {
        let folder = self.data_dir.join(AUDIT_FOLDER);
        let tap = base.export.as_ref().map(|export| export.tap("traffic"));
        SpoolIntake::open(&folder, self.config.audit, base.store.clone(), Clock::system(), tap)
            .map_err(|source| CloudError::Audit { folder, source })
    }

    fn sessions(
        &self,
        base: &Base,
        netmaps: &NetmapPublisher,
        intake: Arc<SpoolIntake>,
        inbox: Arc<ReportInbox>,
        tunnels: &TunnelReports,
    ) -> Sessions {
        let directory = base.directory.clone();
        let services = SessionServices {
            netmaps: Arc::new(netmaps.clone()),
            spool: Arc::new(spool_intake::SpoolIntakeHandle { intake, inbox }),
            is_elsewhere: Some(Arc::new(move |gateway| {
                matches!(directory.whereabouts(gateway), GatewayLocation::There { .. })
            })),
            tunnels: Some(tunnels.clone()),
        };
        Sessions::new(
            replica_name(&self.addresses),
            base.registrar.clone(),
            base.registry.clone(),
            base.live_sessions.clone(),
            services,
            self.session_limits(),
        )
    }

    fn session_limits(&self) -> SessionLimits {
        SessionLimits {
            // A gateway that changes its transport has two links for a while.
            sessions_max: self.config.port.links_max * 3 / 5,
            ..SessionLimits::default()
        }
    }

    /// The channel port: enrolment, sessions of edges, links of other replicas.
    fn channel_server(
        &self,
        sockets: PortSockets,
        base: &Base,
        traffic: &Traffic,
        kubernetes: Option<Arc<Upstream>>,
    ) -> Result<ChannelServer, CloudError> {
        let (tls, keys) = (base.registrar.channel_tls(), port_keys(&self.data_dir)?);
        let port = ChannelPort::on(sockets, tls, keys, self.config.port.clone())
            .map_err(bind_error("channel", self.config.channel))?;
        self.metrics.register(|registry| port.metrics().register(registry));
        let sessions = traffic.sessions.clone();
        port.check_certificates(Box::new(move |shown, client| sessions.check_certificate(shown, client)));
        let (sessions, fleet) = (traffic.sessions.clone(), traffic.fleet.clone());
        let links = LinkDispatcher::new(sessions, fleet, traffic.gateway.clone(), kubernetes);
        let enrolment = EnrolmentServer::new(base.registrar.clone(), EnrolmentLimits::default());
        Ok(ChannelServer { port, enrolment, links: Arc::new(links) })
    }

    fn api_server(
        &self,
        listener: TcpListener,
        base: &Base,
        traffic: &Traffic,
        stats: Arc<FleetStats>,
    ) -> Result<ApiServer, CloudError> {
        let parts = self.api_parts(base, traffic, stats);
        ApiServer::on(listener, parts).map_err(bind_error("api", self.config.api))
    }

    /// The listener for a cluster's kube-apiserver, which names the callers; the cluster decides about their rights.
    async fn aggregated_api(
        &self,
        listener: Option<TcpListener>,
        base: &Base,
        traffic: &Traffic,
        stats: Arc<FleetStats>,
    ) -> Result<Option<ApiServer>, CloudError> {
        let (Some(listener), Some(config)) = (listener, &self.config.aggregated_api) else { return Ok(None) };
        let tls = aggregated_api::server_tls(&config.request_header_ca, base.registrar.api_tls())?;
        let delegate = ClusterDelegate::open(config).await?;
        let parts = ApiServerParts {
            authenticator: Arc::new(FrontProxyOnly),
            tls: Some(tls),
            delegate: Some(Arc::new(delegate)),
            // The names of the metrics are those of the API; a second set of them would be an error for Prometheus.
            metrics: new_metrics(),
            // All callers come from the addresses of kube-apiserver.
            limits: ApiLimits::default(),
            ..self.api_parts(base, traffic, stats)
        };
        let server = ApiServer::on(listener, parts).map_err(bind_error("aggregated", config.listen))?;
        Ok(Some(server))
    }

    fn api_parts(&self, base: &Base, traffic: &Traffic, stats: Arc<FleetStats>) -> ApiServerParts {
        let actions = CloudActions {
            registry: base.registry.clone(),
            registrar: base.registrar.clone(),
            stats: stats.clone(),
            fleet: traffic.fleet.clone(),
            journals: traffic.journals.clone(),
            gateway: traffic.gateway.clone(),
            netmaps: traffic.netmaps.clone(),
        };
        ApiServerParts {
            registry: base.registry.clone(),
            authenticator: base.registrar.clone(),
            actions: Arc::new(actions),
            admin_audit: base.admin_journal.clone(),
            stats,
            tls: Some(base.registrar.api_tls()),
            readiness: self.readiness.clone(),
            metrics: self.metrics.clone(),
            limits: ApiLimits {
                connections_per_address_max: self.config.api_connections_per_address,
                ..ApiLimits::default()
            },
            delegate: None,
        }
    }

    fn admin_server(&self, listener: TcpListener, traffic: &Traffic) -> Result<AdminServer, CloudError> {
        let (shown, netmaps) = (self.config.shown.clone(), traffic.netmaps.clone());
        let (dns, presences) = (traffic.gateway.dns(), traffic.gateway.listening());
        let tunnel = traffic.gateway.tunnel().map(causeway_gateway::tun::Tunnel::state);
        let endpoints = AdminEndpoints {
            metrics: self.metrics.clone(),
            readiness: self.readiness.clone(),
            dumps: vec![
                ("config", Box::new(move || shown.clone())),
                ("netmaps", Box::new(move || netmaps.dump())),
                ("dns", Box::new(move || dump(&dns))),
                ("presences", Box::new(move || dump(&presences))),
                ("tunnel", Box::new(move || tunnel.as_ref().map(dump).unwrap_or_default())),
            ],
        };
        AdminServer::on(listener, endpoints).map_err(bind_error("admin", self.config.admin))
    }

    fn controllers(&self, base: &Base, traffic: &Traffic, recorded_events: EventQueue) -> Controllers {
        let Base { store, registrar, registry, .. } = base;
        let reported = Arc::new(ReportedState::default());
        let reports = ReportWriter {
            registry: registry.clone(),
            directory: traffic.fleet.directory().clone(),
            inbox: traffic.inbox.clone(),
            state: reported.clone(),
            connections: Some(ConnectionWatch::new(traffic.sessions.clone())),
        };
        let check = self.readiness.register("reconcile");
        let reconciler = Reconciler::new(registry.clone(), check, &self.metrics)
            .telling(traffic.netmaps.clone())
            .reporting(reported)
            .keeping_own_objects();
        let folder = match &self.config.store {
            StoreSpec::Sqlite { path } => path.parent().map(Path::to_owned),
            StoreSpec::Etcd { .. } => None,
        };
        Controllers {
            reconciler,
            reports,
            active_gateways: ActiveGatewayWriter::new(
                store.clone(),
                traffic.fleet.clone(),
                traffic.netmaps.sites(),
                traffic.sessions.changes(),
            ),
            gateway_sites: GatewaySites {
                store: store.clone(),
                registry: registry.clone(),
                sessions: traffic.sessions.clone(),
            },
            deleted_gateways: DeletedGateways::new(store.clone(), registrar.clone()),
            events: EventWriter::new(registry.clone(), recorded_events, replica_name(&self.addresses)),
            event_keeper: EventKeeper::new(registry.clone()),
            garbage: GarbageCollector::new(registry.clone()),
            store_health: StoreHealth {
                store: store.clone(),
                check: self.readiness.register("store"),
                folder,
            },
        }
    }

    /// Writes the addresses for local clients. A cloud whose disk is full starts without the file.
    fn publish_addresses(&self) {
        let addresses = serde_json::to_vec_pretty(&self.addresses).unwrap_or_default();
        let written =
            self.data_dir.folder("run").and_then(|_| self.data_dir.write(ADDRESSES_FILE, &addresses));
        if let Err(error) = written {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(error, "cannot write {ADDRESSES_FILE}: local clients will not find this cloud");
        }
    }
}

/// The tunnel of the cloud's own gateway: other gateways reach it at the hosts that edges are given, at the tunnel's port.
fn own_tunnel(gateway: &Gateway, port: u16, advertised: &[String]) -> Option<TunnelRecord> {
    let tunnel = gateway.tunnel()?;
    let at_port = |endpoint: &String| {
        let (host, _) = endpoint.rsplit_once(':')?;
        Some(format!("{host}:{port}"))
    };
    let endpoints: BTreeSet<String> = advertised.iter().filter_map(at_port).collect();
    Some(TunnelRecord {
        public_key: layer3::show_key(&tunnel.public_key()?.0),
        port,
        aes: tunnel.has_aes(),
        endpoints: endpoints.into_iter().collect(),
        ..TunnelRecord::default()
    })
}

fn new_metrics() -> Metrics {
    Metrics::new(env!("CARGO_PKG_VERSION"))
}

fn dump<T: Clone + serde::Serialize>(state: &watch::Receiver<T>) -> serde_json::Value {
    serde_json::to_value(state.borrow().clone()).unwrap_or_default()
}

/// Opens the directory of sessions: shared with other replicas on etcd, alone with SQLite.
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

/// The name of this replica in logs and messages: its host and the port that edges dial.
fn replica_name(addresses: &Addresses) -> String {
    format!("{}:{}", host_name(), addresses.channel.port())
}

async fn listen(purpose: &'static str, address: SocketAddr) -> Result<TcpListener, CloudError> {
    TcpListener::bind(address).await.map_err(bind_error(purpose, address))
}

/// Registers the listeners, so that the cloud's own gateway never dials them.
fn register_listeners(own: &OwnListeners, addresses: &Addresses) {
    own.keep("api", Transport::Tcp, addresses.api);
    own.keep("admin", Transport::Tcp, addresses.admin);
    own.keep("channel", Transport::Tcp, addresses.channel);
    own.keep("channel", Transport::Udp, addresses.channel);
    if let Some(connect) = addresses.connect {
        own.keep("connect", Transport::Tcp, connect);
    }
    if let Some(aggregated) = addresses.aggregated {
        own.keep("aggregated", Transport::Tcp, aggregated);
    }
}

fn bind_error(purpose: &'static str, address: SocketAddr) -> impl FnOnce(std::io::Error) -> CloudError {
    move |source| CloudError::Bind { purpose, address, source }
}

/// Returns the keys of the channel port. They are kept on disk, so that edges accept the resets of a restarted cloud for
/// their lost links and notice the restart at once.
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

/// The channel endpoints for edges when none are configured: the listener's own address, or, for a wildcard listener, the
/// outward addresses of the host, or else the host's name.
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
