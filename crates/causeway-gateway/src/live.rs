//! Live connections, and the access requests that allow them. When a netmap arrives, all are judged again.
//!
//! `AccessRequest` is pure. `LiveConnections` keeps one entry for each connection, session or request,
//! bounded, and cuts those that are no longer allowed. Each protocol translates a cut for its clients.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::time::Instant;

use causeway_daemon::sync::MutexExt;
use causeway_netmap::{NetmapView, PolicyName, ServerName, ServiceName, SiteName};
use tokio_util::sync::CancellationToken;

use crate::audit::ConnectionEnd;
use crate::connection_record::{ByteMeter, CrossingDirection};
use crate::limits::LimitTable;
use crate::policy::{self, Permit, PolicyRefusal, Principal, path};

/// A request for access: the client, as known or claimed, and the target. It must stay allowed while a connection lasts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AccessRequest {
    /// A client of this site, known by its address, at a presence.
    Use { service: ServiceName, client: IpAddr, request: Option<RequestLine> },
    /// A client of another site, at a service that runs here. `subject` is the host that the other gateway names.
    Reach { service: ServiceName, origin: SiteName, subject: String, request: Option<RequestLine> },
    /// A client of this site, at a node of any site.
    UseNode { node: ServerName, port: u16, who: Principal },
    /// A client of this site, at a target that is not a node and that the configuration allows to dial.
    Direct { target: String, who: Principal },
    /// A client of another site, at a node here.
    ReachNode { node: ServerName, port: u16, origin: SiteName, subject: String },
}

/// Method and path of an HTTP request, as the client sent them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RequestLine {
    pub method: String,
    pub path: String,
}

/// The result of an access request that a netmap allows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AccessGrant {
    pub who: Principal,
    pub permit: Permit,
    /// The permit of the service's own exposure, when the service runs at the client's site: no other gateway checks it.
    service_permit: Option<Permit>,
}

/// An HTTP request that the policies allow.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AllowedRequest {
    /// The path that was judged, and that is sent on.
    pub path: String,
    /// The policy that allows it.
    pub rule: PolicyName,
    /// True if any policy has rules for method and path.
    pub has_rules: bool,
}

impl AccessGrant {
    /// Checks method and path by the HTTP rules of all policies. Without rules, a path may have any form.
    pub fn check(&self, line: &RequestLine) -> Result<AllowedRequest, PolicyRefusal> {
        let has_rules = self.permits().any(Permit::has_http_rules);
        let path = match has_rules {
            true => path::normal(&line.path).map_err(|why| PolicyRefusal::Malformed { why })?.into_owned(),
            false => line.path.clone(),
        };
        if let Some(permit) = &self.service_permit {
            permit.allows_request(&line.method, &path)?;
        }
        let rule = self.permit.allows_request(&line.method, &path)?.clone();
        Ok(AllowedRequest { path, rule, has_rules })
    }

    fn permits(&self) -> impl Iterator<Item = &Permit> {
        std::iter::once(&self.permit).chain(&self.service_permit)
    }
}

impl AccessRequest {
    /// Decides whether a netmap allows the access, and for an HTTP request its method and path.
    pub fn judge(&self, view: &NetmapView) -> Result<AccessGrant, PolicyRefusal> {
        let grant = self.grant(view)?;
        if let Some(line) = self.request_line() {
            grant.check(line)?;
        }
        Ok(grant)
    }

    /// Decides whether a netmap allows the access, without regard to method and path.
    pub(crate) fn grant(&self, view: &NetmapView) -> Result<AccessGrant, PolicyRefusal> {
        let mut service_permit = None;
        let (who, permit) = match self {
            AccessRequest::Use { service, client, .. } => {
                let who = policy::principal_at(view, *client)?;
                let presence = view.presences.get(service);
                let presence =
                    presence.ok_or_else(|| PolicyRefusal::NoService { service: service.clone() })?;
                let permit = policy::may_use(view, presence, &who)?;
                // This gateway is also the gateway of the service: no other one checks its exposure.
                if presence.service_site == who.site {
                    service_permit = Some(policy::may_reach(view, service, &who)?.1);
                }
                (who, permit)
            }
            AccessRequest::Reach { service, origin, subject, .. } => {
                let who = policy::principal_of_peer(view, origin, subject)?;
                let (_, permit) = policy::may_reach(view, service, &who)?;
                (who, permit)
            }
            AccessRequest::UseNode { node, port, who } => {
                let (_, permit) = policy::may_reach_node(view, node, *port, who)?;
                (who.clone(), permit)
            }
            AccessRequest::Direct { who, .. } => (who.clone(), Permit::configured()),
            AccessRequest::ReachNode { node, port, origin, subject } => {
                let who = policy::principal_of_peer(view, origin, subject)?;
                let (_, permit) = policy::may_reach_node(view, node, *port, &who)?;
                (who, permit)
            }
        };
        Ok(AccessGrant { who, permit, service_permit })
    }

    /// Returns the same access for one HTTP request.
    pub fn for_request(&self, line: RequestLine) -> AccessRequest {
        let mut access = self.clone();
        if let AccessRequest::Use { request, .. } | AccessRequest::Reach { request, .. } = &mut access {
            *request = Some(line);
        }
        access
    }

    pub fn request_line(&self) -> Option<&RequestLine> {
        match self {
            AccessRequest::Use { request, .. } | AccessRequest::Reach { request, .. } => request.as_ref(),
            _ => None,
        }
    }

    /// Returns the service, if the target is one.
    pub fn service(&self) -> Option<&ServiceName> {
        match self {
            AccessRequest::Use { service, .. } | AccessRequest::Reach { service, .. } => Some(service),
            _ => None,
        }
    }

    /// Returns the principal as far as it is known, also if access is refused: refusals are recorded, too.
    pub fn who(&self, view: &NetmapView) -> Principal {
        match self {
            AccessRequest::Use { client, .. } => policy::principal_at(view, *client)
                .unwrap_or_else(|_| Principal { site: SiteName::from(""), server: None }),
            AccessRequest::UseNode { who, .. } | AccessRequest::Direct { who, .. } => who.clone(),
            AccessRequest::Reach { origin, subject, .. }
            | AccessRequest::ReachNode { origin, subject, .. } => {
                // A host that is unknown here, or belongs to another site, is not recorded as a fact.
                let site = || Principal { site: origin.clone(), server: None };
                policy::principal_of_peer(view, origin, subject).unwrap_or_else(|_| site())
            }
        }
    }

    /// Returns the host that another gateway names, if it is not the principal.
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

    /// Returns the target as the audit names it.
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

/// All live connections of a gateway. It alone judges them again when a netmap arrives.
pub struct LiveConnections {
    entries: Mutex<HashMap<u64, Arc<LiveConnection>>>,
    /// Client connections for HTTP, which count under limits also between requests.
    followers: Mutex<HashMap<u64, Weak<dyn NetmapObserver>>>,
    next: AtomicU64,
    max: usize,
}

/// A connection that has no entry of its own and to which a new netmap is applied all the same.
pub(crate) trait NetmapObserver: Send + Sync {
    /// `judge` decides by the new netmap whether an access request is still allowed.
    fn follow(&self, judge: &ClaimJudge<'_>, limits: &LimitTable);
}

/// The decision of `LiveConnections` about an access request, by one netmap.
pub(crate) type ClaimJudge<'a> = dyn Fn(&AccessRequest) -> Result<AccessGrant, PolicyRefusal> + 'a;

/// Removes a follower when it is dropped.
pub(crate) struct FollowGuard<'a> {
    live: &'a LiveConnections,
    id: u64,
}

impl Drop for FollowGuard<'_> {
    fn drop(&mut self) {
        self.live.followers().remove(&self.id);
    }
}

/// One live connection, UDP session or HTTP request.
pub struct LiveConnection {
    id: u64,
    pub claim: AccessRequest,
    pub direction: CrossingDirection,
    pub protocol: &'static str,
    pub begun: Instant,
    pub meter: Arc<ByteMeter>,
    /// The principal and the policy, as judged at the beginning.
    pub right: OnceLock<(Principal, PolicyName)>,
    cut: CancellationToken,
    why: OnceLock<CutReason>,
    /// Cancelled when the entry is revoked: ends the connection that carries this request.
    carrier: OnceLock<CancellationToken>,
    /// For a request: the head of its response is on the way to the client.
    answered: AtomicBool,
}

/// Why a connection was cut.
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
    /// Returns whether a request has its response. `None`: it is not a request.
    pub fn is_answered(&self) -> Option<bool> {
        matches!(self.protocol, "http" | "grpc").then(|| self.answered.load(Ordering::Relaxed))
    }

    pub(crate) fn set_answered(&self) {
        self.answered.store(true, Ordering::Relaxed);
    }

    /// Resolves when the connection is cut.
    pub async fn cut(&self) -> CutReason {
        self.cut.cancelled().await;
        self.why.get().cloned().unwrap_or(CutReason::Stopped)
    }

    /// Runs `work` to its end, unless the connection is cut first. Pin it (`pin!`) rather than box it.
    pub async fn until_cut<F: Future + Unpin>(&self, work: F) -> Result<F::Output, CutReason> {
        tokio::select! {
            biased;
            cut = self.cut() => Err(cut),
            done = work => Ok(done),
        }
    }

    /// Cancels `connection`, which carries this request, when the request is revoked.
    pub(crate) fn carried_by(&self, connection: &CancellationToken) {
        let _ = self.carrier.set(connection.clone());
        // `end` cancels `cut` before it looks at the carrier for the last time: one of the two sees the other.
        if self.cut.is_cancelled() {
            self.revoke_carrier();
        }
    }

    fn revoke_carrier(&self) {
        if let (Some(CutReason::Revoked(_)), Some(carrier)) = (self.why.get(), self.carrier.get()) {
            carrier.cancel();
        }
    }

    /// Returns why it was cut, if it was.
    pub fn why(&self) -> Option<CutReason> {
        self.why.get().cloned()
    }

    /// Cuts it. The first reason counts.
    pub fn end(&self, why: CutReason) {
        let _ = self.why.set(why);
        // The carrier first: a client whose request is revoked sees its connection end rather than an answer.
        self.revoke_carrier();
        self.cut.cancel();
        self.revoke_carrier();
    }
}

impl LiveConnections {
    pub fn new(max: usize) -> LiveConnections {
        LiveConnections {
            entries: Mutex::default(),
            followers: Mutex::default(),
            next: AtomicU64::new(0),
            max,
        }
    }

    /// Adds an entry before it is judged, so that a netmap that arrives meanwhile finds it.
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
            carrier: OnceLock::new(),
            answered: AtomicBool::new(false),
        });
        entries.insert(id, entry.clone());
        Ok(entry)
    }

    pub(crate) fn remove(&self, entry: &LiveConnection) {
        self.lock().remove(&entry.id);
    }

    /// Cuts the connections that the netmap no longer allows, and applies its limits to the rest. Returns the
    /// number of cut ones.
    pub fn judge(&self, view: &NetmapView, limits: &LimitTable) -> usize {
        let now = Instant::now();
        let mut cut = 0;
        for entry in self.all() {
            let renewed = match (entry.claim.judge(view), entry.meter.allowance()) {
                (Err(refusal), _) => Err(CutReason::Revoked(refusal)),
                (Ok(AccessGrant { who, permit, .. }), Some(allowance)) => {
                    limits.renew(allowance, &permit, &who, now).map_err(CutReason::Limit)
                }
                (Ok(_), None) => Ok(()),
            };
            if let Err(why) = renewed {
                entry.end(why);
                cut += 1;
            }
        }
        let followers: Vec<_> = self.followers().values().filter_map(Weak::upgrade).collect();
        followers.iter().for_each(|follower| follower.follow(&|claim| claim.judge(view), limits));
        cut
    }

    /// Applies every netmap that `judge` applies to `follower`, too, until the guard is dropped.
    pub(crate) fn register<F: NetmapObserver + 'static>(&self, follower: &Arc<F>) -> FollowGuard<'_> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let follower: Weak<F> = Arc::downgrade(follower);
        self.followers().insert(id, follower);
        FollowGuard { live: self, id }
    }

    /// Cuts all connections: the gateway stops.
    pub fn stop(&self) {
        self.all().iter().for_each(|entry| entry.end(CutReason::Stopped));
    }

    pub fn all(&self) -> Vec<Arc<LiveConnection>> {
        self.lock().values().cloned().collect()
    }

    /// Returns those of `entries` that have not ended.
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

    fn followers(&self) -> MutexGuard<'_, HashMap<u64, Weak<dyn NetmapObserver>>> {
        self.followers.lock_ignoring_poison()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Arc<LiveConnection>>> {
        self.entries.lock_ignoring_poison()
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
        view.gateway = Some(GatewayEntry::named("oslo-1", "oslo"));
        for (service, service_site) in [("far", "rome"), ("near", "oslo")] {
            view.presences.insert(service.into(), presence(service, service_site));
        }
        view.services.insert("near".into(), service(&["oslo", "rome"]));
        let policy = |servers: &[&str]| PolicyEntry {
            name: "p".into(),
            servers: servers.iter().map(|server| (*server).into()).collect(),
            sites: Vec::new(),
            limits: None,
            http: Vec::new(),
            ports: Vec::new(),
        };
        view.policies.insert("p".into(), policy(&["shop", "till"]));
        for (server, site) in [("till", "rome"), ("shop", "oslo")] {
            let subject = SubjectEntry { server: server.into(), site: site.into(), ip: None };
            view.subjects.insert(server.into(), subject);
        }
        view
    }

    fn presence(service: &str, service_site: &str) -> PresenceEntry {
        PresenceEntry {
            service: service.into(),
            addresses: vec![PresenceIp("198.18.0.1".parse().unwrap())],
            port: 80,
            protocol: ServiceProtocol::Tcp,
            brokers: 0,
            names: Vec::new(),
            service_site: service_site.into(),
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
        AccessRequest::Reach {
            service: "near".into(),
            origin: origin.into(),
            subject: subject.into(),
            request: None,
        }
    }

    fn enter(live: &LiveConnections, claim: AccessRequest) -> Result<Arc<LiveConnection>, PolicyRefusal> {
        live.enter(claim, CrossingDirection::Inbound, "tcp", Arc::new(ByteMeter::new()))
    }

    #[test]
    fn a_claim_holds_for_those_who_are_named_and_speak_for_themselves() {
        let view = view();
        assert!(reach("rome", "till").judge(&view).is_ok());
        // The gateway of another site names a host that is not its own.
        assert_eq!(reach("kyiv", "till").judge(&view).unwrap_err().word(), "not-its-host");
        assert_eq!(reach("kyiv", "shop").judge(&view).unwrap_err().word(), "not-its-host");
        assert_eq!(reach("kyiv", "anybody").judge(&view).unwrap_err().word(), "not-exposed");
        assert_eq!(reach("rome", "").judge(&view).unwrap_err().word(), "not-allowed");
        let unknown =
            AccessRequest::Use { service: "far".into(), client: "10.0.0.9".parse().unwrap(), request: None };
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
            let AccessGrant { who, permit, .. } = claim.judge(&view).unwrap();
            let claimed = claim.claimed(&who).map(str::to_owned);
            (table.connect(limits::LimitedEnd::Far, &permit, "near", &who, now), who, claimed)
        };
        let held: Vec<_> = (0..100).map(|number| connect(&format!("ghost-{number}"))).collect();
        let open = held.iter().filter(|(allowance, ..)| allowance.is_ok()).count();
        assert_eq!((open, table.len()), (19, 1), "ten and the tolerance, in one share");
        let (_, who, claimed) = &held[0];
        assert_eq!((who.server.as_ref(), claimed.as_deref()), (None, Some("ghost-0")), "a claim, not a fact");
        // A known host has its own share, and is a fact.
        let (allowance, who, claimed) = connect("till");
        assert_eq!((allowance.is_ok(), who.server, claimed), (true, Some("till".into()), None));
        // A host of another site is not recorded as one of this site.
        assert_eq!(reach("kyiv", "till").who(&view).server, None);
        assert_eq!(reach("kyiv", "till").claimed(&reach("kyiv", "till").who(&view)), Some("till"));
    }

    #[test]
    fn what_stays_at_the_site_is_judged_by_both_rules() {
        let mut view = view();
        view.policies.get_mut("p").unwrap().sites = vec!["oslo".into()];
        let claim =
            AccessRequest::Use { service: "near".into(), client: "10.0.0.9".parse().unwrap(), request: None };
        assert!(claim.judge(&view).is_ok());
        // It has a presence here, but its own exposure does not name this site.
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
        live.remove(&first);
        assert!(live.is_empty() && enter(&live, reach("rome", "till")).is_ok());
    }

    #[test]
    fn a_netmap_cuts_a_request_that_its_rules_no_longer_allow_and_the_connection_that_carries_it() {
        let (live, limits, mut view) = (LiveConnections::new(10), LimitTable::new(10), view());
        let request = |path: &str| {
            let line = RequestLine { method: "GET".into(), path: path.into() };
            let entry = enter(&live, reach("rome", "till").for_request(line)).unwrap();
            let connection = CancellationToken::new();
            entry.carried_by(&connection);
            (entry, connection)
        };
        let (open, secret) = (request("/open/a"), request("/open/../secret"));
        assert_eq!(live.judge(&view, &limits), 0, "no rules: any path");
        let rule =
            causeway_netmap::PolicyHttpRule { methods: vec!["GET".into()], paths: vec!["/open/*".into()] };
        view.policies.get_mut("p").unwrap().http = vec![rule];
        assert_eq!(live.judge(&view, &limits), 1);
        let cut = secret.0.why().map(|why| why.end());
        assert_eq!((cut, secret.1.is_cancelled()), (Some(ConnectionEnd::Revoked), true));
        assert_eq!((open.0.why(), open.1.is_cancelled()), (None, false));
        live.stop();
        assert!(!open.1.is_cancelled(), "a stop ends requests, not the connections that carry them");
    }
}
