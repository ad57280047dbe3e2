//! May this request pass, and where does it go from here? Both ends ask; only the netmap answers. Pure.

use causeway_netmap::{NetmapView, PolicyName, ServiceEntry, SiteName};

use crate::live::AccessRequest;
use crate::policy::{self, Permit, PolicyRefusal, Principal};

/// Where requests go next, and what has to agree to each of them.
pub struct RequestRoute<'a> {
    pub next: NextHop<'a>,
    /// One for each end that has to agree and is here: never empty.
    permits: Vec<Permit>,
}

pub enum NextHop<'a> {
    /// The gateway of that site.
    Away(&'a SiteName),
    /// A backend of this site.
    Here(&'a ServiceEntry),
}

/// The way of a claim that holds. At home here, the second end's question is asked as well: nobody else will.
pub fn onward<'a>(
    view: &'a NetmapView,
    claim: &AccessRequest,
    who: &Principal,
    permit: Permit,
) -> Result<RequestRoute<'a>, PolicyRefusal> {
    let (service, used) = match claim {
        AccessRequest::Use { service, .. } => (service, true),
        AccessRequest::Reach { service, .. } => (service, false),
        AccessRequest::UseNode { node, .. } | AccessRequest::ReachNode { node, .. } => {
            return Err(PolicyRefusal::NoNode { node: node.clone() });
        }
        AccessRequest::Direct { .. } => {
            return Err(PolicyRefusal::Malformed { why: "it is not for a service" });
        }
    };
    let mut permits = vec![permit];
    if used {
        let presence = view.presences.get(service);
        let presence = presence.ok_or_else(|| PolicyRefusal::NoService { service: service.clone() })?;
        if presence.home != who.site {
            return Ok(RequestRoute { next: NextHop::Away(&presence.home), permits });
        }
    }
    let (found, permit) = policy::may_reach(view, service, who)?;
    permits.push(permit);
    Ok(RequestRoute { next: NextHop::Here(found), permits })
}

/// Would a request that is on its way be let in now?
pub fn holds(
    view: &NetmapView,
    claim: &AccessRequest,
    method: &str,
    path: &str,
) -> Result<(), PolicyRefusal> {
    let (who, permit) = claim.judge(view)?;
    onward(view, claim, &who, permit)?.allows(method, path).map(drop)
}

impl RequestRoute<'_> {
    /// The policy under which a request may pass. `path` is in its one form when `reads_requests`.
    pub fn allows(&self, method: &str, path: &str) -> Result<&PolicyName, PolicyRefusal> {
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
