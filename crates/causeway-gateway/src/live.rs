//! What crosses now, and by what right. When a netmap arrives, everything that crosses is judged again.
//!
//! A claim is what must stay true for something to go on; it is pure. `LiveConnections` keeps one entry for each crossing, bounded, and
//! cuts those whose claim no longer holds. How a cut is said to a client is its protocol's matter.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use causeway_netmap::{NetmapView, PolicyName, ServerName, ServiceName, SiteName};
use tokio_util::sync::CancellationToken;

use crate::audit::ConnectionEnd;
use crate::connection_record::{ByteMeter, CrossingDirection};
use crate::limits::LimitTable;
use crate::policy::{self, Permit, PolicyRefusal, Principal};

/// What somebody wants, and what they say or show of themselves.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AccessRequest {
    /// A client of our own site at a presence, known by its address.
    Use { service: ServiceName, client: IpAddr },
    /// Somebody of another site, at a service that runs here. `subject` is what the other gateway says.
    Reach { service: ServiceName, origin: SiteName, subject: String },
    /// Somebody of our own site, at a node anywhere.
    UseNode { node: ServerName, port: u16, who: Principal },
    /// Somebody of our own site, at something that is no node and that the configuration allows to dial.
    Direct { target: String, who: Principal },
    /// Somebody of another site, at a node here.
    ReachNode { node: ServerName, port: u16, origin: SiteName, subject: String },
}

impl AccessRequest {
    /// Does it hold, and for whom?
    pub fn judge(&self, view: &NetmapView) -> Result<(Principal, Permit), PolicyRefusal> {
        match self {
            AccessRequest::Use { service, client } => {
                let who = policy::who_at(view, *client)?;
                let presence = view.presences.get(service);
                let presence =
                    presence.ok_or_else(|| PolicyRefusal::NoService { service: service.clone() })?;
                let permit = policy::may_use(view, presence, &who)?;
                // Nobody else will ask: the other end is us.
                if presence.home == who.site {
                    policy::may_reach(view, service, &who)?;
                }
                Ok((who, permit))
            }
            AccessRequest::Reach { service, origin, subject } => {
                let who = policy::who_from(view, origin, subject)?;
                let (_, permit) = policy::may_reach(view, service, &who)?;
                Ok((who, permit))
            }
            AccessRequest::UseNode { node, port, who } => {
                let (_, permit) = policy::may_reach_node(view, node, *port, who)?;
                Ok((who.clone(), permit))
            }
            AccessRequest::Direct { who, .. } => Ok((who.clone(), Permit::configured())),
            AccessRequest::ReachNode { node, port, origin, subject } => {
                let who = policy::who_from(view, origin, subject)?;
                let (_, permit) = policy::may_reach_node(view, node, *port, &who)?;
                Ok((who, permit))
            }
        }
    }

    /// Who it is, as well as it can be told whatever the judgement: refusals are recorded, too.
    pub fn who(&self, view: &NetmapView) -> Principal {
        match self {
            AccessRequest::Use { client, .. } => policy::who_at(view, *client)
                .unwrap_or_else(|_| Principal { site: SiteName::from(""), server: None }),
            AccessRequest::UseNode { who, .. } | AccessRequest::Direct { who, .. } => who.clone(),
            AccessRequest::Reach { origin, subject, .. }
            | AccessRequest::ReachNode { origin, subject, .. } => {
                // What is not known here, or is somebody else's, is not recorded as a fact.
                let site = || Principal { site: origin.clone(), server: None };
                policy::who_from(view, origin, subject).unwrap_or_else(|_| site())
            }
        }
    }

    /// The host that another gateway names and that is not who it is taken for here.
    pub fn claimed(&self, who: &Principal) -> Option<&str> {
        match self {
            AccessRequest::Reach { subject, .. } | AccessRequest::ReachNode { subject, .. }
                if !subject.is_empty() && who.server.is_none() =>
            {
                Some(subject)
            }
            _ => None,
        }
    }

    /// What is wanted, in the words of the audit.
    pub fn target(&self) -> String {
        match self {
            AccessRequest::Use { service, .. } | AccessRequest::Reach { service, .. } => service.to_string(),
            AccessRequest::UseNode { node, port, .. } | AccessRequest::ReachNode { node, port, .. } => {
                format!("node/{node}:{port}")
            }
            AccessRequest::Direct { target, .. } => format!("direct/{target}"),
        }
    }
}

/// Everything that crosses now.
pub struct LiveConnections {
    entries: Mutex<HashMap<u64, Arc<LiveConnection>>>,
    next: AtomicU64,
    max: usize,
}

/// One that crosses.
pub struct LiveConnection {
    id: u64,
    pub claim: AccessRequest,
    pub direction: CrossingDirection,
    pub protocol: &'static str,
    pub begun: Instant,
    pub meter: Arc<ByteMeter>,
    /// Who it is and by which policy, as judged at the beginning.
    pub right: OnceLock<(Principal, PolicyName)>,
    cut: CancellationToken,
    why: OnceLock<CutReason>,
    /// Of a request: the head of its response is on the way to the client.
    answered: AtomicBool,
}

/// Why something was cut off.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CutReason {
    Revoked(PolicyRefusal),
    Limit(PolicyRefusal),
    Stopped,
}

impl CutReason {
    pub fn end(&self) -> ConnectionEnd {
        match self {
            CutReason::Revoked(_) => ConnectionEnd::Revoked,
            CutReason::Limit(_) => ConnectionEnd::Limit,
            CutReason::Stopped => ConnectionEnd::Stopped,
        }
    }
}

impl LiveConnection {
    /// Is it a request that has its answer? `None`: it is no request.
    pub fn is_answered(&self) -> Option<bool> {
        matches!(self.protocol, "http" | "grpc").then(|| self.answered.load(Ordering::Relaxed))
    }

    pub(crate) fn set_answered(&self) {
        self.answered.store(true, Ordering::Relaxed);
    }

    /// Resolves when this must not go on.
    pub async fn cut(&self) -> CutReason {
        self.cut.cancelled().await;
        self.why.get().cloned().unwrap_or(CutReason::Stopped)
    }

    /// Why it was cut, if it was.
    pub fn why(&self) -> Option<CutReason> {
        self.why.get().cloned()
    }

    /// Ends it. The first reason counts.
    pub fn end(&self, why: CutReason) {
        let _ = self.why.set(why);
        self.cut.cancel();
    }
}

impl LiveConnections {
    pub fn new(max: usize) -> LiveConnections {
        LiveConnections { entries: Mutex::default(), next: AtomicU64::new(0), max }
    }

    /// Takes one in, before it is judged: so a netmap that arrives meanwhile finds it here.
    pub(crate) fn enter(
        &self,
        claim: AccessRequest,
        direction: CrossingDirection,
        protocol: &'static str,
        meter: Arc<ByteMeter>,
    ) -> Result<Arc<LiveConnection>, PolicyRefusal> {
        let mut entries = self.lock();
        if entries.len() >= self.max {
            return Err(PolicyRefusal::Full { what: "connections" });
        }
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let entry = Arc::new(LiveConnection {
            id,
            claim,
            direction,
            protocol,
            begun: Instant::now(),
            meter,
            right: OnceLock::new(),
            cut: CancellationToken::new(),
            why: OnceLock::new(),
            answered: AtomicBool::new(false),
        });
        entries.insert(id, entry.clone());
        Ok(entry)
    }

    pub(crate) fn leave(&self, entry: &LiveConnection) {
        self.lock().remove(&entry.id);
    }

    /// Cuts what the netmap no longer permits, and brings the rest under its limits. Returns how many were cut.
    pub fn judge(&self, view: &NetmapView, limits: &LimitTable) -> usize {
        let now = Instant::now();
        let mut cut = 0;
        for entry in self.all() {
            let renewed = match (entry.claim.judge(view), entry.meter.allowance()) {
                (Err(refusal), _) => Err(CutReason::Revoked(refusal)),
                (Ok((who, permit)), Some(allowance)) => {
                    limits.renew(allowance, &permit, &who, now).map_err(CutReason::Limit)
                }
                (Ok(_), None) => Ok(()),
            };
            if let Err(why) = renewed {
                entry.end(why);
                cut += 1;
            }
        }
        cut
    }

    /// Cuts everything: the gateway stops.
    pub fn stop(&self) {
        self.all().iter().for_each(|entry| entry.end(CutReason::Stopped));
    }

    pub fn all(&self) -> Vec<Arc<LiveConnection>> {
        self.lock().values().cloned().collect()
    }

    /// Those of `entries` that have not ended.
    pub fn still_live(&self, mut entries: Vec<Arc<LiveConnection>>) -> Vec<Arc<LiveConnection>> {
        let live = self.lock();
        entries.retain(|entry| live.contains_key(&entry.id));
        entries
    }

    pub fn len(&self) -> usize {
        self.lock().len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Arc<LiveConnection>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use causeway_netmap::{
        ExposureEntry, GatewayEntry, PolicyEntry, PresenceEntry, PresenceIp, ServiceEntry, ServiceProtocol,
        SubjectEntry,
    };

    use super::*;
    use crate::limits;

    /// Site oslo: a presence of `far`, which runs at rome, and `near`, which runs at oslo itself. `shop` may use both.
    fn view() -> NetmapView {
        let mut view = NetmapView::default();
        view.gateway = Some(GatewayEntry {
            name: "oslo-1".into(),
            site: "oslo".into(),
            ip: None,
            presence_cidrs: Vec::new(),
            priority: 0,
            relay: false,
            prefer: Default::default(),
        });
        for (service, home) in [("far", "rome"), ("near", "oslo")] {
            view.presences.insert(service.into(), presence(service, home));
        }
        view.services.insert("near".into(), service(&["oslo", "rome"]));
        let policy = |servers: &[&str]| PolicyEntry {
            name: "p".into(),
            servers: servers.iter().map(|server| (*server).into()).collect(),
            sites: Vec::new(),
            limits: None,
            http: Vec::new(),
        };
        view.policies.insert("p".into(), policy(&["shop", "till"]));
        for (server, site) in [("till", "rome"), ("shop", "oslo")] {
            let subject = SubjectEntry { server: server.into(), site: site.into(), ip: None };
            view.subjects.insert(server.into(), subject);
        }
        view
    }

    fn presence(service: &str, home: &str) -> PresenceEntry {
        PresenceEntry {
            service: service.into(),
            addresses: vec![PresenceIp("198.18.0.1".parse().unwrap())],
            port: 80,
            protocol: ServiceProtocol::Tcp,
            brokers: 0,
            names: Vec::new(),
            home: home.into(),
            policies: vec!["p".into()],
        }
    }

    fn service(sites: &[&str]) -> ServiceEntry {
        let sites = sites.iter().map(|site| (*site).into()).collect();
        ServiceEntry {
            name: "near".into(),
            port: 80,
            protocol: ServiceProtocol::Tcp,
            backends: Vec::new(),
            domain_name: None,
            health_check: None,
            backend_tls: None,
            proxy_protocol: false,
            exposures: vec![ExposureEntry { sites, policies: vec!["p".into()] }],
        }
    }

    fn reach(origin: &str, subject: &str) -> AccessRequest {
        AccessRequest::Reach { service: "near".into(), origin: origin.into(), subject: subject.into() }
    }

    fn enter(live: &LiveConnections, claim: AccessRequest) -> Result<Arc<LiveConnection>, PolicyRefusal> {
        live.enter(claim, CrossingDirection::Inbound, "tcp", Arc::new(ByteMeter::new()))
    }

    #[test]
    fn a_claim_holds_for_those_who_are_named_and_speak_for_themselves() {
        let view = view();
        assert!(reach("rome", "till").judge(&view).is_ok());
        // A gateway of another site speaks for a host that is not its own.
        assert_eq!(reach("kyiv", "till").judge(&view).unwrap_err().word(), "not-its-host");
        assert_eq!(reach("kyiv", "shop").judge(&view).unwrap_err().word(), "not-its-host");
        assert_eq!(reach("kyiv", "anybody").judge(&view).unwrap_err().word(), "not-exposed");
        assert_eq!(reach("rome", "").judge(&view).unwrap_err().word(), "not-allowed");
        let unknown = AccessRequest::Use { service: "far".into(), client: "10.0.0.9".parse().unwrap() };
        assert_eq!(unknown.judge(&view).unwrap_err().word(), "not-allowed");
        assert_eq!(unknown.judge(&NetmapView::default()).unwrap_err().word(), "no-netmap");
    }

    #[test]
    fn invented_hosts_are_their_site_and_share_one_limit() {
        let mut view = view();
        let limits = causeway_netmap::PolicyLimits { connections: Some(10), ..Default::default() };
        let policy = view.policies.get_mut("p").unwrap();
        (policy.sites, policy.limits) = (vec!["rome".into()], Some(limits));
        let table = LimitTable::new(1000);
        let now = Instant::now();
        let connect = |subject: &str| {
            let claim = reach("rome", subject);
            let (who, permit) = claim.judge(&view).unwrap();
            let claimed = claim.claimed(&who).map(str::to_owned);
            (table.connect(limits::LimitedEnd::Far, &permit, "near", &who, now), who, claimed)
        };
        let held: Vec<_> = (0..100).map(|number| connect(&format!("ghost-{number}"))).collect();
        let open = held.iter().filter(|(allowance, ..)| allowance.is_ok()).count();
        assert_eq!((open, table.len()), (19, 1), "ten and the tolerance, in one share");
        let (_, who, claimed) = &held[0];
        assert_eq!((who.server.as_ref(), claimed.as_deref()), (None, Some("ghost-0")), "a claim, not a fact");
        // A host that is known has its own share, and is a fact.
        let (allowance, who, claimed) = connect("till");
        assert_eq!((allowance.is_ok(), who.server, claimed), (true, Some("till".into()), None));
        // One of another site is not recorded as one of this site.
        assert_eq!(reach("kyiv", "till").who(&view).server, None);
        assert_eq!(reach("kyiv", "till").claimed(&reach("kyiv", "till").who(&view)), Some("till"));
    }

    #[test]
    fn what_stays_at_home_is_judged_by_both_rules() {
        let mut view = view();
        view.policies.get_mut("p").unwrap().sites = vec!["oslo".into()];
        let claim = AccessRequest::Use { service: "near".into(), client: "10.0.0.9".parse().unwrap() };
        assert!(claim.judge(&view).is_ok());
        // Presented here, but its own exposure does not name us.
        view.services.insert("near".into(), service(&["rome"]));
        assert_eq!(claim.judge(&view).unwrap_err().word(), "not-exposed");
    }

    #[tokio::test]
    async fn a_netmap_cuts_what_it_no_longer_allows_and_nothing_else() {
        let (live, limits, mut view) = (LiveConnections::new(10), LimitTable::new(10), view());
        let stays = enter(&live, reach("rome", "till")).unwrap();
        let goes = enter(&live, reach("oslo", "shop")).unwrap();
        assert_eq!(live.judge(&view, &limits), 0);
        view.policies.get_mut("p").unwrap().servers = vec!["till".into()];
        assert_eq!(live.judge(&view, &limits), 1);
        assert_eq!(goes.cut().await.end(), ConnectionEnd::Revoked);
        assert!(!stays.cut.is_cancelled());
        live.stop();
        assert_eq!(stays.cut().await, CutReason::Stopped);
        assert_eq!(goes.cut().await.end(), ConnectionEnd::Revoked, "the first reason counts");
    }

    #[test]
    fn there_is_a_bound_and_who_leaves_makes_room() {
        let live = LiveConnections::new(1);
        let first = enter(&live, reach("rome", "till")).unwrap();
        assert_eq!(enter(&live, reach("rome", "till")).err().map(|refusal| refusal.word()), Some("full"));
        live.leave(&first);
        assert!(live.is_empty() && enter(&live, reach("rome", "till")).is_ok());
    }
}
