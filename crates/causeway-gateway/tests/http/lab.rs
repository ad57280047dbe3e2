//! Two gateways with a link of the channel between them: clients at oslo, services at berlin. Every test has its own.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use causeway_channel::link::{Link, LinkLimits, LinkSide, ResetCode, Stream, StreamHeader};
use causeway_channel::tcp::{self, TcpPeer};
use causeway_gateway::audit::{AuditRecord, AuditSink};
use causeway_gateway::peers::{BoxedFuture, GatewayPeers, PeerError};
use causeway_gateway::proxy::http::{self, ClientEntry};
use causeway_gateway::{Gateway, GatewayOptions, GatewayParts};
use causeway_netmap::{
    BackendEndpoint, BackendTlsSettings, DnsName, ExposureEntry, GatewayEntry as GatewayFact, Generation,
    NetmapEntry, NetmapView, PolicyEntry, PolicyHttpRule, PolicyLimits, PresenceEntry, PresenceIp,
    ServiceEntry, ServiceProtocol,
};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

/// Longer than any test here may take, on a machine that is busy with builds.
pub const DEADLINE: Duration = Duration::from_secs(60);

pub async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(DEADLINE, future).await.expect("it takes too long")
}

pub async fn eventually(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !condition() {
        assert!(Instant::now() < deadline, "never: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The service, and the policies for it.
#[derive(Clone)]
pub struct Plan {
    pub protocol: ServiceProtocol,
    pub backend: SocketAddr,
    pub backend_tls: Option<BackendTlsSettings>,
    /// The rules of the policy at both ends.
    pub rules: Vec<PolicyHttpRule>,
    pub limits: Option<PolicyLimits>,
    /// The sites at which the policy is attached: at oslo, at berlin.
    pub allowed: (bool, bool),
    /// Streams of one client at oslo.
    pub client_streams_max: usize,
    /// The gateway of berlin drains.
    pub drain: bool,
}

impl Plan {
    pub fn new(backend: SocketAddr) -> Plan {
        let protocol = ServiceProtocol::Http;
        Plan {
            protocol,
            backend,
            backend_tls: None,
            rules: Vec::new(),
            limits: None,
            allowed: (true, true),
            client_streams_max: GatewayOptions::default().client_streams_max,
            drain: false,
        }
    }

    fn oslo(&self) -> NetmapView {
        let presence = PresenceEntry {
            service: "web".into(),
            addresses: vec![PresenceIp("127.0.0.1".parse().unwrap())],
            port: 80,
            protocol: self.protocol,
            brokers: 0,
            names: vec![DnsName::new("web.example")],
            service_site: "berlin".into(),
            policies: vec!["p".into()],
        };
        let facts = [gateway("oslo", false), NetmapEntry::Presence(presence)];
        view(facts.into_iter().chain(self.allowed.0.then(|| self.policy())))
    }

    fn berlin(&self) -> NetmapView {
        let exposure = ExposureEntry { sites: vec!["oslo".into()], policies: vec!["p".into()] };
        let service = ServiceEntry {
            name: "web".into(),
            port: self.backend.port(),
            protocol: self.protocol,
            backends: vec![BackendEndpoint::Address(self.backend.ip(), self.backend.port())],
            domain_name: None,
            health_check: None,
            backend_tls: self.backend_tls.clone(),
            proxy_protocol: false,
            exposures: vec![exposure],
        };
        let facts = [gateway("berlin", self.drain), NetmapEntry::Service(service)];
        view(facts.into_iter().chain(self.allowed.1.then(|| self.policy())))
    }

    fn policy(&self) -> NetmapEntry {
        let sites = vec!["oslo".into()];
        NetmapEntry::Policy(PolicyEntry {
            name: "p".into(),
            servers: vec![],
            sites,
            limits: self.limits,
            http: self.rules.clone(),
            ports: Vec::new(),
        })
    }
}

fn gateway(site: &str, drain: bool) -> NetmapEntry {
    NetmapEntry::Gateway(GatewayFact {
        name: format!("{site}-1").into(),
        site: site.into(),
        ip: None,
        presence_cidrs: vec![],
        priority: 0,
        relay: false,
        prefer: Default::default(),
        drain,
        tunnel_networks: Vec::new(),
        mappings: Vec::new(),
    })
}

fn view(facts: impl Iterator<Item = NetmapEntry>) -> NetmapView {
    NetmapView::of_entries(Generation { epoch: 1, revision: 1 }, facts).unwrap()
}

/// Keeps all audit records.
#[derive(Default, Clone)]
pub struct Journal(Arc<Mutex<Vec<AuditRecord>>>);

impl AuditSink for Journal {
    fn record(&self, record: AuditRecord) {
        self.0.lock().unwrap().push(record);
    }
}

impl Journal {
    pub fn records(&self) -> Vec<AuditRecord> {
        self.0.lock().unwrap().clone()
    }

    pub fn len(&self) -> usize {
        self.0.lock().unwrap().len()
    }
}

/// One link to the other gateway, which can be cut.
#[derive(Clone)]
struct Line(Arc<Mutex<Option<Link>>>);

impl GatewayPeers for Line {
    fn open_stream(&self, header: StreamHeader) -> BoxedFuture<'_, Result<Stream, PeerError>> {
        let link = self.0.lock().unwrap().clone();
        Box::pin(async move {
            let site = header.site.as_str().into();
            match link {
                Some(link) => {
                    let refused = |_| PeerError::Refused { site, code: ResetCode::Refused };
                    link.open_stream(header).await.map_err(refused)
                }
                None => Err(PeerError::Away { site, why: "the link is cut".into() }),
            }
        })
    }
}

pub struct Lab {
    pub plan: Plan,
    /// The address at which the presence listens.
    pub address: SocketAddr,
    pub oslo: Gateway,
    pub at_oslo: Journal,
    pub at_berlin: Journal,
    netmaps: (watch::Sender<Arc<NetmapView>>, watch::Sender<Arc<NetmapView>>),
    line: Line,
    stop: CancellationToken,
    _tasks: Vec<AbortOnDropHandle<()>>,
}

impl Lab {
    pub async fn new(plan: Plan) -> Lab {
        Lab::at(plan, ClientEntry::Presence("web".into())).await
    }

    pub async fn at(plan: Plan, entry: ClientEntry) -> Lab {
        let (one, other) = tokio::io::duplex(256 << 10);
        let meta = TcpPeer { remote_address: "127.0.0.1:1".parse().unwrap(), certificate: None };
        let limits = LinkLimits::default();
        let near: Link = tcp::over(one, LinkSide::Dialled, &limits, meta.clone()).into();
        let far: Link = tcp::over(other, LinkSide::Accepted, &limits, meta).into();
        let line = Line(Arc::new(Mutex::new(Some(near))));
        let nobody = Line(Arc::new(Mutex::new(None)));
        let (at_oslo, at_berlin) = (Journal::default(), Journal::default());
        let (oslo_sender, oslo_view) = watch::channel(Arc::new(plan.oslo()));
        let (berlin_sender, berlin_view) = watch::channel(Arc::new(plan.berlin()));
        let make = |netmaps, peers: &Line, audit: &Journal| {
            let (peers, audit) = (Arc::new(peers.clone()), Arc::new(audit.clone()));
            let client_streams_max = plan.client_streams_max;
            let options = GatewayOptions { listen: false, client_streams_max, ..GatewayOptions::default() };
            Gateway::new(GatewayParts { netmaps, peers, audit, options, role_facts: None })
        };
        let oslo = make(oslo_view, &line, &at_oslo);
        let berlin = make(berlin_view, &nobody, &at_berlin);
        let stop = CancellationToken::new();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut tasks = Vec::new();
        for gateway in [oslo.clone(), berlin.clone()] {
            let stop = stop.clone();
            tasks.push(spawn(async move { gateway.run(stop).await }));
        }
        tasks.push(spawn({
            let berlin = berlin.clone();
            async move {
                while let Ok((header, stream)) = far.accept_stream().await {
                    berlin.serve("oslo".into(), header, stream);
                }
            }
        }));
        tasks.push(spawn({
            let shared = oslo.proxy().clone();
            async move {
                while let Ok((stream, client)) = listener.accept().await {
                    tokio::spawn(http::serve_client(shared.clone(), stream, client, entry.clone()));
                }
            }
        }));
        let netmaps = (oslo_sender, berlin_sender);
        Lab { plan, address, oslo, at_oslo, at_berlin, netmaps, line, stop, _tasks: tasks }
    }

    /// Sends a new netmap to oslo, to berlin, or to both.
    pub fn replan(&mut self, plan: Plan, oslo: bool, berlin: bool) {
        if oslo {
            self.netmaps.0.send_replace(Arc::new(plan.oslo()));
        }
        if berlin {
            self.netmaps.1.send_replace(Arc::new(plan.berlin()));
        }
        self.plan = plan;
    }

    /// The link from oslo to berlin.
    pub fn link(&self) -> Link {
        self.line.0.lock().unwrap().clone().expect("the link is not cut")
    }

    pub fn cut_line(&self) {
        *self.line.0.lock().unwrap() = None;
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

fn spawn(future: impl Future<Output = ()> + Send + 'static) -> AbortOnDropHandle<()> {
    AbortOnDropHandle::new(tokio::spawn(future))
}

pub fn rule(methods: &[&str], paths: &[&str]) -> PolicyHttpRule {
    let owned = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    PolicyHttpRule { methods: owned(methods), paths: owned(paths) }
}
