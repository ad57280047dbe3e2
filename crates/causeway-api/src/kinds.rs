//! The eight kinds: their names here, their fields in one file each.
//!
//! A file below holds the fields of one kind as a client writes them, the defaults, and what is refused.
//! Relations between objects are not looked at here: references may dangle, and `conditions` speaks about them.

mod community;
mod expose;
mod gateway;
mod policy;
mod presence;
mod server;
mod service;
mod site;

use std::fmt;

pub use community::ECommunity;
pub use expose::ServiceExpose;
pub use gateway::{EGateway, PRESENCE_CIDR_DEFAULT};
pub use policy::{EPolicy, HttpRule, Limits};
pub use presence::VirtualPresence;
pub use server::EServer;
pub use service::{BackendTls, BackendTlsMode, EService, Endpoint, HealthCheck, HealthCheckType, Protocol};
pub use site::ESite;

/// Which kind an object is of.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Kind {
    ESite,
    EGateway,
    EService,
    EServer,
    EPolicy,
    ServiceExpose,
    VirtualPresence,
    ECommunity,
}

impl Kind {
    pub const ALL: [Kind; 8] = [
        Kind::ESite,
        Kind::EGateway,
        Kind::EService,
        Kind::EServer,
        Kind::EPolicy,
        Kind::ServiceExpose,
        Kind::VirtualPresence,
        Kind::ECommunity,
    ];

    /// As written in `kind:`.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::ESite => "ESite",
            Kind::EGateway => "EGateway",
            Kind::EService => "EService",
            Kind::EServer => "EServer",
            Kind::EPolicy => "EPolicy",
            Kind::ServiceExpose => "ServiceExpose",
            Kind::VirtualPresence => "VirtualPresence",
            Kind::ECommunity => "ECommunity",
        }
    }

    /// As written in a list's `kind:`.
    pub const fn list_name(self) -> &'static str {
        match self {
            Kind::ESite => "ESiteList",
            Kind::EGateway => "EGatewayList",
            Kind::EService => "EServiceList",
            Kind::EServer => "EServerList",
            Kind::EPolicy => "EPolicyList",
            Kind::ServiceExpose => "ServiceExposeList",
            Kind::VirtualPresence => "VirtualPresenceList",
            Kind::ECommunity => "ECommunityList",
        }
    }

    /// As written in paths, and the collection in the store.
    pub const fn plural(self) -> &'static str {
        match self {
            Kind::ESite => "esites",
            Kind::EGateway => "egateways",
            Kind::EService => "eservices",
            Kind::EServer => "eservers",
            Kind::EPolicy => "epolicies",
            Kind::ServiceExpose => "serviceexposes",
            Kind::VirtualPresence => "virtualpresences",
            Kind::ECommunity => "ecommunities",
        }
    }

    pub const fn singular(self) -> &'static str {
        match self {
            Kind::ESite => "esite",
            Kind::EGateway => "egateway",
            Kind::EService => "eservice",
            Kind::EServer => "eserver",
            Kind::EPolicy => "epolicy",
            Kind::ServiceExpose => "serviceexpose",
            Kind::VirtualPresence => "virtualpresence",
            Kind::ECommunity => "ecommunity",
        }
    }

    /// The short name for hands in a hurry.
    pub const fn short(self) -> &'static str {
        match self {
            Kind::ESite => "est",
            Kind::EGateway => "egw",
            Kind::EService => "esvc",
            Kind::EServer => "esrv",
            Kind::EPolicy => "epol",
            Kind::ServiceExpose => "sx",
            Kind::VirtualPresence => "vp",
            Kind::ECommunity => "ecom",
        }
    }

    pub fn from_plural(plural: &str) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| kind.plural() == plural)
    }

    /// By the exact name in `kind:`.
    pub fn from_name(name: &str) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// By anything a person may type: kind, plural, singular or short name, in any case.
    pub fn from_word(word: &str) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| {
            [kind.name(), kind.plural(), kind.singular(), kind.short()]
                .into_iter()
                .any(|name| name.eq_ignore_ascii_case(word))
        })
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_leads_to_its_kind_and_no_two_kinds_share_one() {
        for kind in Kind::ALL {
            assert_eq!(Kind::from_name(kind.name()), Some(kind));
            assert_eq!(Kind::from_plural(kind.plural()), Some(kind));
            for word in [kind.name(), kind.plural(), kind.singular(), kind.short()] {
                assert_eq!(Kind::from_word(&word.to_uppercase()), Some(kind));
            }
            assert_eq!(kind.list_name(), format!("{}List", kind.name()));
        }
        assert_eq!(Kind::from_word("pods"), None);
    }
}
