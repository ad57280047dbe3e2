//! Decides where an allowed request goes from here: to the gateway of another site, or to a backend of this site. Pure.

use causeway_netmap::{NetmapView, ServiceEntry, SiteName};

use crate::live::AccessRequest;
use crate::policy::{PolicyRefusal, Principal};

pub enum NextHop<'a> {
    /// The gateway of that site.
    Away(&'a SiteName),
    /// A backend of this site.
    Here(&'a ServiceEntry),
}

impl<'a> NextHop<'a> {
    /// Returns the next hop of an access that was granted by the same netmap.
    pub fn of(
        view: &'a NetmapView,
        claim: &AccessRequest,
        who: &Principal,
    ) -> Result<NextHop<'a>, PolicyRefusal> {
        let service = claim.service();
        let service = service.ok_or(PolicyRefusal::Malformed { why: "it is not for a service" })?;
        let unknown = || PolicyRefusal::NoService { service: service.clone() };
        if let AccessRequest::Use { .. } = claim {
            let presence = view.presences.get(service).ok_or_else(unknown)?;
            if presence.service_site != who.site {
                return Ok(NextHop::Away(&presence.service_site));
            }
        }
        view.services.get(service).map(NextHop::Here).ok_or_else(unknown)
    }
}
