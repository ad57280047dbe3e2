//! May this request pass, and where does it go from here? Both ends ask; only the netmap answers. Pure.

use causeway_netmap::{PolicyName, Service, SiteName, View};

use crate::live::Claim;
use crate::policy::{self, Permit, Refusal, Who};

/// Where requests go next, and what has to agree to each of them.
pub struct Onward<'a> {
    pub next: Next<'a>,
    /// One for each end that has to agree and is here: never empty.
    permits: Vec<Permit>,
}

pub enum Next<'a> {
    /// The gateway of that site.
    Away(&'a SiteName),
    /// A backend of this site.
    Here(&'a Service),
}

/// The way of a claim that holds. At home here, the second end's question is asked as well: nobody else will.
pub fn onward<'a>(view: &'a View, claim: &Claim, who: &Who, permit: Permit) -> Result<Onward<'a>, Refusal> {
    let (service, used) = match claim {
        Claim::Use { service, .. } => (service, true),
        Claim::Reach { service, .. } => (service, false),
        Claim::UseNode { node, .. } | Claim::ReachNode { node, .. } => {
            return Err(Refusal::NoNode { node: node.clone() });
        }
        Claim::Direct { .. } => return Err(Refusal::Malformed { why: "it is not for a service" }),
    };
    let mut permits = vec![permit];
    if used {
        let presence = view.presences.get(service);
        let presence = presence.ok_or_else(|| Refusal::NoService { service: service.clone() })?;
        if presence.home != who.site {
            return Ok(Onward { next: Next::Away(&presence.home), permits });
        }
    }
    let (found, permit) = policy::may_reach(view, service, who)?;
    permits.push(permit);
    Ok(Onward { next: Next::Here(found), permits })
}

/// Would a request that is on its way be let in now?
pub fn holds(view: &View, claim: &Claim, method: &str, path: &str) -> Result<(), Refusal> {
    let (who, permit) = claim.judge(view)?;
    onward(view, claim, &who, permit)?.allows(method, path).map(drop)
}

impl Onward<'_> {
    /// The policy under which a request may pass. `path` is in its one form when `reads_requests`.
    pub fn allows(&self, method: &str, path: &str) -> Result<&PolicyName, Refusal> {
        for permit in self.permits.iter().skip(1) {
            permit.allows_request(method, path)?;
        }
        self.permit().allows_request(method, path)
    }

    /// Does any policy look at method and path? If not, paths may be what they like.
    pub fn reads_requests(&self) -> bool {
        self.permits.iter().any(Permit::reads_requests)
    }

    pub fn permit(&self) -> &Permit {
        self.permits.first().expect("there is one permit at least: `onward` makes no other")
    }
}
