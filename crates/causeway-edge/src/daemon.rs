//! Assembles an edge from its parts and runs it.
//!
//! Input: the effective configuration and, the first time, a way to enrol. `start` does everything that may fail:
//! it locks the data dir, opens the netmap and the spool, and binds the admin port. `run` enrols if needed, then
//! forwards until it is told to stop. Enrolment and certificates are in `edge`, the link in `link`.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use causeway_apicache::server::{EdgeApiOptions, EdgeApiStatus};
use causeway_channel::clock::UtcTimestamp;
use causeway_channel::dial::ConnectProxy;
use causeway_channel::session::AllowedTransports;
use causeway_daemon::admin::AdminEndpoints;
use causeway_daemon::readiness::ReadinessCheck;
use causeway_daemon::{AdminServer, Metrics, Readiness, notify};
use causeway_gateway::problems::ProblemReporter;
use causeway_gateway::{Gateway, GatewayOptions, dial};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::edge::{CertificateSignals, Edge, EdgeError, EnrolmentOutcome, JoinCredential};
use crate::gateway::{self, CloudStreamServer, GatewayNeighbours};
use crate::kubernetes::{self, KubernetesState};
use crate::link::{CurrentLink, LinkKeeper, LinkPublisher, LinkServices};
use crate::metrics;
use crate::netmap::NetmapKeeper;
use crate::spool::{Spool, SpoolLimits};
use crate::state::EdgeIdentity;

const SOFTWARE: &str = concat!("causeway ", env!("CARGO_PKG_VERSION"));

/// The effective configuration of an edge.
#[derive(Clone, Debug)]
pub struct EdgeConfig {
    pub data_dir: PathBuf,
    pub admin: SocketAddr,
    pub transports: AllowedTransports,
    /// HTTP proxy for TCP connections to the cloud. `None`: direct.
    pub proxy: Option<ConnectProxy>,
    pub gateway: GatewayOptions,
    /// The Kubernetes API at this edge; None: not served.
    pub kubernetes: Option<EdgeApiOptions>,
    /// The same configuration without secrets, for the admin dump.
    pub shown: Value,
}

/// An edge whose listeners are bound and whose data dir is locked, not yet running.
pub struct EdgeDaemon {
    data_dir: PathBuf,
    edge: Edge,
    join: Option<JoinCredential>,
    enrolled: ReadinessCheck,
    netmaps: NetmapKeeper,
    spool: Option<Spool>,
    gateway: Gateway,
    link: CurrentLink,
    link_keeper: LinkKeeper,
    certificate_signals: CertificateSignals,
    admin: AdminServer,
    admin_address: SocketAddr,
    drain: Duration,
    kubernetes: Option<EdgeApiOptions>,
    kubernetes_state: KubernetesState,
}

impl EdgeDaemon {
    /// Opens the data dir and binds the admin port. Fails with `NotEnrolled` if the edge has neither an identity
    /// nor a way to enrol.
    pub async fn start(config: EdgeConfig, join: Option<JoinCredential>) -> Result<EdgeDaemon, EdgeError> {
        let edge = Edge::open(&config.data_dir)?.through(config.proxy);
        if edge.peer().is_none() && join.is_none() {
            return Err(EdgeError::NotEnrolled);
        }
        let (readiness, metrics) = (Readiness::new(), Metrics::new(env!("CARGO_PKG_VERSION")));
        let enrolled = readiness.register("enrolled");
        let netmaps = NetmapKeeper::open(&config.data_dir, Some(readiness.register("netmap")))?;
        let spool = open_spool(&config.data_dir);
        // The gateway opens streams on the link and serves those of the cloud: `CurrentLink` is made before it,
        // the keeper of the link after it.
        let (publisher, link) = LinkPublisher::new(&edge.link_options(config.transports));
        let kubernetes_state = KubernetesState::new();
        let role_facts = role_facts(&link, &netmaps, &readiness, edge.identity(), &kubernetes_state);
        let (drain, own_listeners) = (config.gateway.drain, config.gateway.own_listeners.clone());
        let tunnel_port = config.gateway.tunnel.as_ref().map_or(0, |tunnel| tunnel.listen.port());
        let gateway = gateway::gateway(
            &netmaps,
            link.clone(),
            spool.clone(),
            config.gateway,
            Box::new(role_facts.clone()),
        );
        let services = LinkServices {
            netmaps: Arc::new(netmaps.clone()),
            streams: Arc::new(CloudStreamServer(gateway.clone())),
            neighbours: Arc::new(GatewayNeighbours(gateway.clone())),
            tunnel: gateway::tunnel_report(&gateway, tunnel_port),
            switched_off: gateway.switched_off().iter().map(|plane| plane.word().to_owned()).collect(),
            ..LinkServices::none()
        };
        let services = match &spool {
            Some(spool) => LinkServices { spool: Arc::new(spool.clone()), ..services },
            None => services,
        };
        let (link_keeper, certificate_signals) = edge.link_keeper(config.transports, publisher, services);
        netmaps.register(&metrics);
        metrics.register(|registry| gateway.register(registry));
        metrics.register(|registry| metrics::register(registry, link.clone(), spool.clone()));
        let shown = kubernetes_state.clone();
        metrics.register(|registry| causeway_apicache::metrics::register(registry, shown.status.subscribe()));
        let mut endpoints =
            admin_endpoints(metrics, readiness, config.shown, &link, &netmaps, &gateway, role_facts);
        endpoints.dumps.push(("kubernetes", Box::new(move || shown.summary())));
        let bind_error = |source| EdgeError::Bind { address: config.admin, source };
        let admin = AdminServer::bind(config.admin, endpoints).await.map_err(bind_error)?;
        let admin_address = admin.address().map_err(bind_error)?;
        own_listeners.keep("admin", dial::SocketProtocol::Tcp, admin_address);
        Ok(EdgeDaemon {
            data_dir: config.data_dir,
            edge,
            join,
            enrolled,
            netmaps,
            spool,
            gateway,
            link,
            link_keeper,
            certificate_signals,
            admin,
            admin_address,
            drain,
            kubernetes: config.kubernetes,
            kubernetes_state,
        })
    }

    /// Enrols unless that was done before, then forwards until `stop`. A stop before the cloud has answered the
    /// enrolment is no error: the same token works again.
    pub async fn run(self, stop: CancellationToken) -> Result<(), EdgeError> {
        let address_file = write_address_file(&self.data_dir, self.admin_address);
        let admin_stop = CancellationToken::new();
        let admin = tokio::spawn(self.admin.run(admin_stop.clone()));
        let spool = self.spool.clone();
        let forwarding = Forwarding {
            edge: &self.edge,
            gateway: &self.gateway,
            spool: self.spool.as_ref(),
            link: self.link,
            kubernetes: self.kubernetes_state.clone(),
            drain: self.drain,
        };
        let running = async {
            let outcome = match &self.join {
                Some(JoinCredential::Token(token)) => Some(self.edge.enrol(token, &stop).await?),
                Some(JoinCredential::ServiceAccount(join)) => Some(self.edge.enrol_node(join, &stop).await?),
                None => None,
            };
            if let Some(EnrolmentOutcome::Now(_)) = outcome {
                self.netmaps.forget().await;
            }
            self.enrolled.ready();
            notify::ready();
            if let Some(peer) = self.edge.peer() {
                tracing::info!(%peer, data_dir = %self.data_dir.display(), "the edge runs");
            }
            let (kubernetes_stop, link) = (CancellationToken::new(), forwarding.link.clone());
            let kubernetes = self.kubernetes.map(|options| {
                tokio::spawn(kubernetes::run(options, link, self.kubernetes_state, kubernetes_stop.clone()))
            });
            let forwarded = async {
                let ended = forwarding.run(self.link_keeper, self.certificate_signals, &stop).await;
                kubernetes_stop.cancel();
                ended
            };
            // Watches end when the edge is told to stop, while the link is still there.
            let stopping = async {
                tokio::select! {
                    () = stop.cancelled() => kubernetes_stop.cancel(),
                    () = kubernetes_stop.cancelled() => {}
                }
            };
            let (ended, ()) = tokio::join!(forwarded, stopping);
            if let Some(kubernetes) = kubernetes {
                let _ = kubernetes.await;
            }
            ended
        };
        let mut running = std::pin::pin!(running);
        let ended = tokio::select! {
            ended = &mut running => ended,
            never = notify::keep_alive() => match never {},
            () = stop.cancelled() => {
                notify::stopping();
                running.await
            }
        };
        spool.inspect(Spool::close);
        admin_stop.cancel();
        admin.await.map_err(EdgeError::Admin)?;
        if let Some(path) = address_file {
            let _ = std::fs::remove_file(path);
        }
        match ended {
            Ok(()) | Err(EdgeError::Stopped) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// The parts that run while an enrolled edge forwards.
struct Forwarding<'a> {
    edge: &'a Edge,
    gateway: &'a Gateway,
    spool: Option<&'a Spool>,
    link: CurrentLink,
    kubernetes: KubernetesState,
    drain: Duration,
}

impl Forwarding<'_> {
    /// Runs the gateway and the link until `stop`. Connections end before the link does: their last bytes and
    /// their audit records are sent over it.
    async fn run(
        mut self,
        link_keeper: LinkKeeper,
        certificate_signals: CertificateSignals,
        stop: &CancellationToken,
    ) -> Result<(), EdgeError> {
        let (gateway_stop, link_stop) = (CancellationToken::new(), CancellationToken::new());
        let gateway = async {
            tokio::select! {
                () = self.gateway.run(gateway_stop.clone()) => {}
                () = report_problems(self.gateway.problems(), &self.kubernetes, self.spool) => {}
                () = retire_streams(&mut self.link, self.gateway) => {}
            }
            link_stop.cancel();
        };
        let link = async {
            let ended = self.edge.run_linked(link_keeper, certificate_signals, link_stop.clone()).await;
            gateway_stop.cancel();
            ended
        };
        let stopping = async {
            tokio::select! {
                () = stop.cancelled() => {
                    self.gateway.finish_in_flight(self.drain).await;
                    gateway_stop.cancel();
                }
                () = gateway_stop.cancelled() => {}
            }
        };
        let (ended, (), ()) = tokio::join!(link, gateway, stopping);
        ended
    }
}

/// Closes idle streams that are kept for later requests when their link is about to end.
async fn retire_streams(link: &mut CurrentLink, gateway: &Gateway) {
    loop {
        link.retired().await;
        gateway.retire_streams();
    }
}

// The readiness of pods is looked at every 15 s.
const READINESS_PERIOD: Duration = Duration::from_secs(5);

/// Reports listen errors, those of the Kubernetes API included, unreachable backends, pods that are not ready for offline and a spent byte
/// budget to the cloud whenever they change.
async fn report_problems(mut problems: ProblemReporter, kubernetes: &KubernetesState, spool: Option<&Spool>) {
    let mut reported = None;
    let mut of_gateway = problems.next().await;
    loop {
        let mut current = of_gateway.clone();
        current.gateway.extend(kubernetes.problems());
        current.offline = kubernetes.status.borrow().as_ref().and_then(EdgeApiStatus::pods_at_risk);
        current.budget = kubernetes.status.borrow().as_ref().and_then(EdgeApiStatus::budget);
        if reported.as_ref() != Some(&current) {
            if let Some(spool) = spool {
                spool.report_problems(SOFTWARE, &current);
            }
            reported = Some(current);
        }
        tokio::select! {
            next = problems.next() => of_gateway = next,
            () = tokio::time::sleep(READINESS_PERIOD) => {}
        }
    }
}

/// Opens the spool of records for the cloud. An edge without it forwards as usual and reports nothing.
fn open_spool(data_dir: &Path) -> Option<Spool> {
    let folder = data_dir.join("upstream");
    match Spool::open(&folder, SpoolLimits::default()) {
        Ok(spool) => {
            spool.report_start(SOFTWARE);
            Some(spool)
        }
        Err(error) => {
            tracing::error!(%error, folder = %folder.display(), "cannot open the spool; audit records and problems are not reported to the cloud");
            None
        }
    }
}

fn admin_endpoints(
    metrics: Metrics,
    readiness: Readiness,
    config: Value,
    link: &CurrentLink,
    netmaps: &NetmapKeeper,
    gateway: &Gateway,
    role_facts: impl Fn() -> Value + Send + Sync + 'static,
) -> AdminEndpoints {
    let (link, netmaps, backends, tunnel) = (link.clone(), netmaps.clone(), gateway.clone(), gateway.clone());
    let (dns, presences, started) = (gateway.dns(), gateway.listening(), SystemTime::now());
    let neighbours = gateway.neighbours();
    AdminEndpoints {
        metrics,
        readiness,
        dumps: vec![
            ("config", Box::new(move || config.clone())),
            ("link", Box::new(move || serde_json::to_value(link.shown()).unwrap_or_default())),
            ("netmap", Box::new(move || netmaps.dump())),
            ("dns", Box::new(move || serde_json::to_value(&*dns.borrow()).unwrap_or_default())),
            ("presences", Box::new(move || serde_json::to_value(&*presences.borrow()).unwrap_or_default())),
            ("neighbours", Box::new(move || serde_json::to_value(&*neighbours.borrow()).unwrap_or_default())),
            ("edge", Box::new(role_facts)),
            ("backends", Box::new(move || dump_backends(&backends))),
            ("tunnel", Box::new(move || dump_tunnel(&tunnel))),
            ("started", Box::new(move || Value::from(UtcTimestamp(started).to_string()))),
        ],
    }
}

/// Returns the function that describes this edge to `causeway doctor`, here and at the cloud.
fn role_facts(
    link: &CurrentLink,
    netmaps: &NetmapKeeper,
    readiness: &Readiness,
    identity: watch::Receiver<Option<Arc<EdgeIdentity>>>,
    kubernetes: &KubernetesState,
) -> impl Fn() -> Value + Clone + Send + Sync + 'static {
    let (link, netmaps, readiness) = (link.clone(), netmaps.clone(), readiness.clone());
    let kubernetes = kubernetes.clone();
    move || {
        let checks = readiness.report().checks.into_iter();
        let not_ready: BTreeMap<String, String> =
            checks.filter_map(|(name, failure)| Some((name, failure?))).collect();
        let identity = identity.borrow().as_ref().map(|identity| {
            json!({
                "gateway": identity.peer.gateway(),
                "site": identity.peer.site(),
                "certificateExpires": UtcTimestamp(identity.facts.not_after).to_string(),
                "endpoints": identity.dial().iter().map(ToString::to_string).collect::<Vec<_>>(),
            })
        });
        json!({
            "link": link.shown(),
            "netmap": netmaps.dump(),
            "notReady": not_ready,
            "identity": identity,
            "kubernetes": kubernetes.facts(),
            "software": SOFTWARE,
            "time": UtcTimestamp(SystemTime::now()).to_string(),
        })
    }
}

/// The state of the tunnel: its device, port and peers. Null: it is switched off.
fn dump_tunnel(gateway: &Gateway) -> Value {
    let state = gateway.tunnel().map(|tunnel| tunnel.state().borrow().clone());
    serde_json::to_value(state).unwrap_or_default()
}

/// Lists every backend of the services at this site, with its connections and whether it is in use.
fn dump_backends(gateway: &Gateway) -> Value {
    let backends = &gateway.proxy().backends;
    let outages = backends.outages();
    let shown = backends.shown().into_iter().map(|(service, backend, connections, is_used)| {
        let outage = outages.get(service.as_str()).map(|outage| outage.why.clone());
        json!({
            "service": service.as_str(),
            "backend": backend.to_string(),
            "connections": connections,
            "used": is_used,
            "why": outage.filter(|_| !is_used),
        })
    });
    shown.collect()
}

/// Writes the admin address to DATA_DIR/run/edge.json, from which commands on this host read it. Without the file
/// they try the default address.
fn write_address_file(data_dir: &Path, admin: SocketAddr) -> Option<PathBuf> {
    let folder = data_dir.join("run");
    let path = folder.join("edge.json");
    let text = json!({"admin": admin, "pid": std::process::id()}).to_string();
    let written = causeway_daemon::data_dir::make_folder(&folder).and_then(|()| std::fs::write(&path, text));
    match written {
        Ok(()) => Some(path),
        Err(error) => {
            tracing::warn!(%error, path = %path.display(), "cannot write the admin address; causeway doctor will not find the admin port of this edge");
            None
        }
    }
}
