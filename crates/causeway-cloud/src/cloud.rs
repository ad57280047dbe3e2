//! Assembles a cloud and runs it.
//!
//! `start` does everything that may fail: it takes the lock, binds every listener, opens the store and identity, and builds
//! the servers and controllers in stages (`Start`). `run` runs until it is told to stop, then drains: requests and streams
//! in flight finish while every listener is still open; then the front servers end, then the parts they use. Idle
//! connections are not waited for.

mod listeners;
mod start;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use causeway_apiserver::{ApiServer, Registry, RegistryError};
use causeway_channel::ChannelEndpoint;
use causeway_channel::port::PortLimits;
use causeway_daemon::audit::AuditLimits;
use causeway_daemon::data_dir::DataDirError;
use causeway_daemon::{AdminServer, AuditLog, DataDir, ProcessRole, Readiness, notify};
use causeway_gateway::Gateway;
use causeway_store::{Store, StoreError, StoreSpec};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::admin_journal::AdminJournal;
use crate::aggregated_api::{AggregatedApiConfig, AggregatedApiError};
use crate::audit::AuditJournal;
use crate::audit_export::{AuditExport, AuditExportConfig};
use crate::channel::ChannelServer;
use crate::connect_listeners::ConnectListeners;
use crate::deleted_gateways::DeletedGateways;
use crate::events::{EventKeeper, EventWriter};
use crate::fleet_stats::FleetStats;
use crate::garbage::GarbageCollector;
use crate::gateway::NetmapFollower;
use crate::gateway_sites::GatewaySites;
use crate::health::StoreHealth;
use crate::identity::{IdentityError, NodeEnrolmentConfig, Registrar};
use crate::kubernetes;
use crate::netmaps::NetmapPublisher;
use crate::reconcile::Reconciler;
use crate::replicas::{self, ActiveGatewayWriter, Fleet, SessionDirectory};
use crate::reports::{ReportInbox, ReportWriter};
use crate::sessions::{LiveSessions, Sessions};
use crate::spool_intake::CloudRecordWriter;
use crate::tunnels::{TunnelHolder, TunnelReportWriter};

pub use self::listeners::Addresses;
use self::listeners::{Listeners, register_listeners};
use self::start::{Start, new_metrics};

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
    /// The nodes of the cluster of `kubernetes` that may enrol; None: none.
    pub node_enrolment: Option<NodeEnrolmentConfig>,
    /// The listener for the kube-apiserver of a cluster that registers this API as its own; None: not served.
    pub aggregated_api: Option<AggregatedApiConfig>,
    /// Keys of the labels of ESites that metrics show.
    pub metrics_site_labels: Vec<String>,
    /// Members above which gateways of a community ask for the members with which they exchange packets.
    pub community_peers_max: usize,
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

const ADDRESSES_FILE: &str = "run/addresses.json";

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
        let data_dir = DataDir::open_as(&config.data_dir, ProcessRole::Cloud)?;
        let listeners = Listeners::bind(&config).await?;
        let addresses = listeners.addresses(&config)?;
        register_listeners(&config.gateway.own_listeners, &addresses);
        let start =
            Start { config, data_dir, addresses, metrics: new_metrics(), readiness: Readiness::new() };
        let (base, recorded_events) = start.open_base().await?;
        let traffic = start.open_traffic(&base)?;
        let stats = Arc::new(FleetStats::new(
            base.registry.now(),
            traffic.sessions.clone(),
            traffic.fleet.clone(),
            &traffic.gateway,
        ));
        let kubernetes = kubernetes::open(start.config.kubernetes.as_deref(), &base.registry).await?;
        let nodes = start.node_enrolment(&base).await?;
        let channel = start.channel_server(listeners.channel, &base, &traffic, kubernetes, nodes)?;
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
