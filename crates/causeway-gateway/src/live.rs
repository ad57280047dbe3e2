//! What crosses now, and by what right. When a netmap arrives, everything that crosses is judged again.
//!
//! A claim is what must stay true for something to go on; it is pure. `Live` keeps one entry for each crossing, bounded, and
//! cuts those whose claim no longer holds. How a cut is said to a client is its protocol's matter.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use causeway_netmap::{PolicyName, ServerName, ServiceName, SiteName, View};
use tokio_util::sync::CancellationToken;

use crate::audit::End;
use crate::limits::LimitTable;
use crate::passage::{Direction, Meter};
use crate::policy::{self, Permit, Refusal, Who};

/// What somebody wants, and what they say or show of themselves.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Claim {
    /// A client of our own site at a presence, known by its address.
    Use { service: ServiceName, client: IpAddr },
    /// Somebody of another site, at a service that runs here. `subject` is what the other gateway says.
    Reach { service: ServiceName, origin: SiteName, subject: String },
    /// Somebody of our own site, at a node anywhere.
    UseNode { node: ServerName, port: u16, who: Who },
    /// Somebody of our own site, at something that is no node and that the configuration allows to dial.
    Direct { target: String, who: Who },
    /// Somebody of another site, at a node here.
    ReachNode { node: ServerName, port: u16, origin: SiteName, subject: String },
}

impl Claim {
    /// Does it hold, and for whom?
    pub fn judge(&self, view: &View) -> Result<(Who, Permit), Refusal> {
        match self {
            Claim::Use { service, client } => {
                let who = policy::who_at(view, *client)?;
                let presence = view.presences.get(service);
                let presence = presence.ok_or_else(|| Refusal::NoService { service: service.clone() })?;
                let permit = policy::may_use(view, presence, &who)?;
                // Nobody else will ask: the other end is us.
                if presence.home == who.site {
                    policy::may_reach(view, service, &who)?;
                }
                Ok((who, permit))
            }
            Claim::Reach { service, origin, subject } => {
                let who = policy::who_from(view, origin, subject)?;
                let (_, permit) = policy::may_reach(view, service, &who)?;
                Ok((who, permit))
            }
            Claim::UseNode { node, port, who } => {
                let (_, permit) = policy::may_reach_node(view, node, *port, who)?;
                Ok((who.clone(), permit))
            }
            Claim::Direct { who, .. } => Ok((who.clone(), Permit::configured())),
            Claim::ReachNode { node, port, origin, subject } => {
                let who = policy::who_from(view, origin, subject)?;
                let (_, permit) = policy::may_reach_node(view, node, *port, &who)?;
                Ok((who, permit))
            }
        }
    }

    /// Who it is, as well as it can be told whatever the judgement: refusals are recorded, too.
    pub fn who(&self, view: &View) -> Who {
        match self {
            Claim::Use { client, .. } => policy::who_at(view, *client)
                .unwrap_or_else(|_| Who { site: SiteName::from(""), server: None }),
            Claim::UseNode { who, .. } | Claim::Direct { who, .. } => who.clone(),
            Claim::Reach { origin, subject, .. } | Claim::ReachNode { origin, subject, .. } => {
                let server = (!subject.is_empty()).then(|| ServerName::from(subject.as_str()));
                Who { site: origin.clone(), server }
            }
        }
    }

    /// What is wanted, in the words of the audit.
    pub fn target(&self) -> String {
        match self {
            Claim::Use { service, .. } | Claim::Reach { service, .. } => service.to_string(),
            Claim::UseNode { node, port, .. } | Claim::ReachNode { node, port, .. } => {
                format!("node/{node}:{port}")
            }
            Claim::Direct { target, .. } => format!("direct/{target}"),
        }
    }
}

/// Everything that crosses now.
pub struct Live {
    entries: Mutex<HashMap<u64, Arc<Entry>>>,
    next: AtomicU64,
    max: usize,
}

/// One that crosses.
pub struct Entry {
    id: u64,
    pub claim: Claim,
    pub direction: Direction,
    pub protocol: &'static str,
    pub begun: Instant,
    pub meter: Arc<Meter>,
    /// Who it is and by which policy, as judged at the beginning.
    pub right: OnceLock<(Who, PolicyName)>,
    cut: CancellationToken,
    why: OnceLock<Cut>,
}

/// Why something was cut off.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Cut {
    Revoked(Refusal),
    Limit(Refusal),
    Stopped,
}

impl Cut {
    pub fn end(&self) -> End {
        match self {
            Cut::Revoked(_) => End::Revoked,
            Cut::Limit(_) => End::Limit,
            Cut::Stopped => End::Stopped,
        }
    }
}

impl Entry {
    /// Resolves when this must not go on.
    pub async fn cut(&self) -> Cut {
        self.cut.cancelled().await;
        self.why.get().cloned().unwrap_or(Cut::Stopped)
    }

    /// Ends it. The first reason counts.
    pub fn end(&self, why: Cut) {
        let _ = self.why.set(why);
        self.cut.cancel();
    }
}

impl Live {
    pub fn new(max: usize) -> Live {
        Live { entries: Mutex::default(), next: AtomicU64::new(0), max }
    }

    /// Takes one in, before it is judged: so a netmap that arrives meanwhile finds it here.
    pub(crate) fn enter(
        &self,
        claim: Claim,
        direction: Direction,
        protocol: &'static str,
        meter: Arc<Meter>,
    ) -> Result<Arc<Entry>, Refusal> {
        let mut entries = self.lock();
        if entries.len() >= self.max {
            return Err(Refusal::Full { what: "connections" });
        }
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let entry = Arc::new(Entry {
            id,
            claim,
            direction,
            protocol,
            begun: Instant::now(),
            meter,
            right: OnceLock::new(),
            cut: CancellationToken::new(),
            why: OnceLock::new(),
        });
        entries.insert(id, entry.clone());
        Ok(entry)
    }

    pub(crate) fn leave(&self, entry: &Entry) {
        self.lock().remove(&entry.id);
    }

    /// Cuts what the netmap no longer permits, and brings the rest under its limits. Returns how many were cut.
    pub fn judge(&self, view: &View, limits: &LimitTable) -> usize {
        let now = Instant::now();
        let mut cut = 0;
        for entry in self.all() {
            let renewed = match (entry.claim.judge(view), entry.meter.allowance()) {
                (Err(refusal), _) => Err(Cut::Revoked(refusal)),
                (Ok((who, permit)), Some(allowance)) => {
                    limits.renew(allowance, &permit, &who, now).map_err(Cut::Limit)
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
        self.all().iter().for_each(|entry| entry.end(Cut::Stopped));
    }

    pub fn all(&self) -> Vec<Arc<Entry>> {
        self.lock().values().cloned().collect()
    }

    pub fn len(&self) -> usize {
        self.lock().len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Arc<Entry>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
