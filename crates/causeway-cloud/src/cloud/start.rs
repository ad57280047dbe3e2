//! Builds the parts of a cloud in stages.
//!
//! Input: the configuration, the data dir and the bound listeners. Output: the persistent parts (`Base`), the forwarding parts
//! (`Traffic`), the servers, and the loops that keep objects right (`Controllers`). `Cloud` puts the stages in order and runs
//! the result.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use causeway_api::layer3::{self, TunnelRecord};
use causeway_apicache::upstream::Upstream;
use causeway_apiserver::registry::RegistryHooks;
use causeway_apiserver::{ApiLimits, ApiServer, ApiServerParts, Registry, SystemClock};
use causeway_channel::Clock;
use causeway_channel::port::{CertificateCheck, ChannelPort, PortSockets};
use causeway_channel::quic::EndpointKeys;
use causeway_daemon::admin::AdminEndpoints;
use causeway_daemon::coalesce::CoalesceLimits;
use causeway_daemon::data_dir::DataDirError;
use causeway_daemon::{AdminServer, AuditLog, DataDir, Metrics, Readiness};
use causeway_gateway::Gateway;
use causeway_store::{Store, StoreError, StoreSpec};
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::listeners::{bind_error, local, own_endpoints};
use super::{ADDRESSES_FILE, Addresses, Base, CloudConfig, CloudError, Controllers, Traffic};
use crate::actions::{CloudActions, GatewayAnswers};
use crate::admin_journal::{self, AdminJournal};
use crate::aggregated_api::{self, ClusterDelegate, FrontProxyOnly};
use crate::audit::AuditJournal;
use crate::audit_export::{self, AuditExport};
use crate::channel::ChannelServer;
use crate::deleted_gateways::DeletedGateways;
use crate::events::{self, EventKeeper, EventQueue, EventWriter};
use crate::fleet_stats::{FleetSessions, FleetStats};
use crate::garbage::GarbageCollector;
use crate::gateway;
use crate::gateway_sites::GatewaySites;
use crate::health::StoreHealth;
use crate::identity::{
    EnrolmentLimits, EnrolmentServer, IdentityConfig, NodeEnrolment, Registrar, host_name, outward_addresses,
};
use crate::kubernetes;
use crate::netmaps::NetmapPublisher;
use crate::reconcile::Reconciler;
use crate::replicas::{
    ActiveGatewayWriter, Fleet, GatewayLocation, LinkDispatcher, ReplicaAddress, SessionDirectory,
};
use crate::reports::{ReportInbox, ReportWriter, ReportedState};
use crate::sessions::{ConnectionWatch, LiveSessions, SessionLimits, SessionServices, Sessions};
use crate::spool_intake::{self, SpoolIntake};
use crate::tunnels::{TunnelHolder, TunnelReportWriter, TunnelReports};
use crate::{bootstrap, fleet_metrics, site_metrics};

const PORT_KEYS_FILE: &str = "channel.keys";
const AUDIT_FOLDER: &str = "audit";

/// A start under way. Each method is one stage and takes the results of the stages before it.
pub(super) struct Start {
    pub(super) config: CloudConfig,
    pub(super) data_dir: DataDir,
    pub(super) addresses: Addresses,
    pub(super) metrics: Metrics,
    pub(super) readiness: Readiness,
}

impl Start {
    /// Opens the logs, the store, identity and the directory of replicas, and creates the objects that every cloud has.
    pub(super) async fn open_base(&self) -> Result<(Base, EventQueue), CloudError> {
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
        let export = AuditExport::open(
            &folder.join(audit_export::FOLDER),
            config.audit_export.clone(),
            &self.metrics,
        )?;
        let open = |name, journal| {
            let tap = export.as_ref().map(|export| export.tap(journal));
            AuditLog::open_tapped(folder, name, config.audit, CoalesceLimits::default(), tap)
        };
        let identity = open(causeway_daemon::audit::NAME, "identity")?;
        let admin = open(admin_journal::NAME, "admin")?;
        Ok((export, identity, admin))
    }

    /// Opens the intake of records, and builds sessions, fleet and gateway on it.
    pub(super) fn open_traffic(&self, base: &Base) -> Result<Traffic, CloudError> {
        let config = &self.config;
        let inbox = Arc::new(ReportInbox::default());
        let netmaps = NetmapPublisher::new(&self.metrics, inbox.clone())
            .with_community_peers_max(self.config.community_peers_max);
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
        let tunnel_holder =
            tunnel_holder.with_own_tunnel(own_tunnel(&gateway, port, &base.registrar.endpoints()));
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
                matches!(directory.location_of(gateway), GatewayLocation::There { .. })
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

    /// The enrolment of Kubernetes nodes, where a cluster and its service accounts are configured.
    pub(super) async fn node_enrolment(&self, base: &Base) -> Result<Option<NodeEnrolment>, CloudError> {
        let (Some(kubeconfig), Some(nodes)) = (&self.config.kubernetes, &self.config.node_enrolment) else {
            return Ok(None);
        };
        Ok(Some(kubernetes::node_enrolment(kubeconfig, nodes.clone(), &base.registry).await?))
    }

    /// The channel port: enrolment, sessions of edges, links of other replicas.
    pub(super) fn channel_server(
        &self,
        sockets: PortSockets,
        base: &Base,
        traffic: &Traffic,
        kubernetes: Option<Arc<Upstream>>,
        nodes: Option<NodeEnrolment>,
    ) -> Result<ChannelServer, CloudError> {
        let (tls, keys) = (base.registrar.channel_tls(), port_keys(&self.data_dir)?);
        let sessions = traffic.sessions.clone();
        let check: CertificateCheck =
            Box::new(move |shown, client| sessions.check_certificate(shown, client));
        let port = ChannelPort::with_check(sockets, tls, keys, self.config.port.clone(), check)
            .map_err(bind_error("channel", self.config.channel))?;
        self.metrics.register(|registry| port.metrics().register(registry));
        let (sessions, fleet) = (traffic.sessions.clone(), traffic.fleet.clone());
        let links = LinkDispatcher::new(sessions, fleet, traffic.gateway.clone(), kubernetes);
        let enrolment = EnrolmentServer::new(base.registrar.clone(), nodes, EnrolmentLimits::default());
        Ok(ChannelServer { port, enrolment, links: Arc::new(links) })
    }

    pub(super) fn api_server(
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
    pub(super) async fn aggregated_api(
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
            answers: GatewayAnswers::default(),
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

    pub(super) fn admin_server(
        &self,
        listener: TcpListener,
        traffic: &Traffic,
    ) -> Result<AdminServer, CloudError> {
        let (shown, netmaps) = (self.config.shown.clone(), traffic.netmaps.clone());
        let (dns, presences) = (traffic.gateway.dns(), traffic.gateway.listening());
        let tunnel = traffic.gateway.tunnel().map(causeway_gateway::tun::Tunnel::state);
        let neighbours = traffic.gateway.neighbours();
        let endpoints = AdminEndpoints {
            metrics: self.metrics.clone(),
            readiness: self.readiness.clone(),
            dumps: vec![
                ("config", Box::new(move || shown.clone())),
                ("netmaps", Box::new(move || netmaps.dump())),
                ("dns", Box::new(move || dump(&dns))),
                ("presences", Box::new(move || dump(&presences))),
                ("neighbours", Box::new(move || dump(&neighbours))),
                ("tunnel", Box::new(move || tunnel.as_ref().map(dump).unwrap_or_default())),
            ],
        };
        AdminServer::on(listener, endpoints).map_err(bind_error("admin", self.config.admin))
    }

    pub(super) fn controllers(
        &self,
        base: &Base,
        traffic: &Traffic,
        recorded_events: EventQueue,
    ) -> Controllers {
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
            .with_netmaps(traffic.netmaps.clone())
            .with_reports(reported)
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
    pub(super) fn publish_addresses(&self) {
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

pub(super) fn new_metrics() -> Metrics {
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
        return Ok(SessionDirectory::single_replica(Clock::system()));
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
