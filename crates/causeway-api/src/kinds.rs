//! The kinds and how each is served; the fields of each are in one file below.
//!
//! Eight kinds are Causeway's own (`Kind::ALL`). Three more are Kubernetes' (`Kind::FOREIGN`), because its
//! tools look for them in every server. A file below holds the fields of one kind as a client writes them,
//! the defaults, and the validation. Relations between objects are not checked here: references may dangle,
//! and `conditions` reports them.

mod community;
pub mod event;
mod expose;
mod gateway;
mod namespace;
mod policy;
mod presence;
mod server;
mod service;
mod services;
mod site;

use std::fmt;

pub use community::ECommunity;
pub use event::{Event, EventSeries, EventSource, EventType, ObjectReference};
pub use expose::{ExposeMode, ServiceExpose};
pub use gateway::{EGateway, GatewayPrefer, PRESENCE_CIDR_DEFAULT};
pub use namespace::{NAMESPACE, Namespace};
pub use policy::{EPolicy, HttpRule, Limits, PortProtocol, PortRange};
pub use presence::VirtualPresence;
pub use server::EServer;
pub use service::{BackendTls, BackendTlsMode, EService, Endpoint, HealthCheck, HealthCheckType, Protocol};
pub use services::Service;
pub use site::{CachedResource, ESite, MappedSubnet};

use crate::wire::ApiVersion;

/// The kind of an object.
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
    Namespace,
    Event,
    Service,
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

    /// Kinds of Kubernetes that its tools look for: kopf waits for namespaces, `kubectl describe` shows events, and
    /// `kubectl cluster-info` asks for services, of which there are none here.
    pub const FOREIGN: [Kind; 3] = [Kind::Namespace, Kind::Event, Kind::Service];

    /// All kinds that are served.
    pub const SERVED: [Kind; 11] = [
        Kind::ESite,
        Kind::EGateway,
        Kind::EService,
        Kind::EServer,
        Kind::EPolicy,
        Kind::ServiceExpose,
        Kind::VirtualPresence,
        Kind::ECommunity,
        Kind::Namespace,
        Kind::Event,
        Kind::Service,
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
            Kind::Namespace => "Namespace",
            Kind::Event => "Event",
            Kind::Service => "Service",
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
            Kind::Namespace => "NamespaceList",
            Kind::Event => "EventList",
            Kind::Service => "ServiceList",
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
            Kind::Namespace => "namespaces",
            Kind::Event => "events",
            Kind::Service => "services",
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
            Kind::Namespace => "namespace",
            Kind::Event => "event",
            Kind::Service => "service",
        }
    }

    /// The short name for the command line.
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
            Kind::Namespace => "ns",
            Kind::Event => "ev",
            Kind::Service => "svc",
        }
    }

    /// The API versions it is served under, the preferred one last.
    pub const fn versions(self) -> &'static [ApiVersion] {
        match self {
            Kind::Namespace | Kind::Service => &[ApiVersion::Core],
            Kind::Event => &[ApiVersion::Core, ApiVersion::Events],
            _ => &[ApiVersion::Core, ApiVersion::Group],
        }
    }

    /// Tells whether it is one of Causeway's own eight.
    pub const fn is_ours(self) -> bool {
        !matches!(self, Kind::Namespace | Kind::Event | Kind::Service)
    }

    /// Tells whether its objects are in a namespace. There is one namespace, `NAMESPACE`.
    pub const fn is_namespaced(self) -> bool {
        matches!(self, Kind::Event | Kind::Service)
    }

    /// Tells whether clients can only read it.
    pub const fn is_read_only(self) -> bool {
        matches!(self, Kind::Namespace | Kind::Service)
    }

    /// Tells whether it has the subresource `status`.
    pub const fn has_status(self) -> bool {
        self.is_ours()
    }

    /// The largest stored object, in bytes. etcd refuses values above 1.5 MiB. Events are many and small: 8192 of them take at
    /// most 128 MiB.
    pub const fn object_bytes_max(self) -> usize {
        match self {
            Kind::Event => 16 << 10,
            _ => 1 << 20,
        }
    }

    /// The kind of a path under an API version.
    pub fn served(version: ApiVersion, plural: &str) -> Option<Kind> {
        Kind::SERVED.into_iter().find(|kind| kind.plural() == plural && kind.versions().contains(&version))
    }

    /// One of the eight, by its plural.
    pub fn from_plural(plural: &str) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| kind.plural() == plural)
    }

    /// One of the eight, by the exact name in `kind:`.
    pub fn from_name(name: &str) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Returns the kind for anything a user may type: kind, plural, singular or short name, in any case.
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

    #[test]
    fn the_kinds_of_kubernetes_are_found_under_their_own_versions_alone() {
        let check =
            |version, plural, expected| assert_eq!(Kind::served(version, plural), expected, "{plural}");
        check(ApiVersion::Core, "namespaces", Some(Kind::Namespace));
        check(ApiVersion::Group, "namespaces", None);
        check(ApiVersion::Core, "events", Some(Kind::Event));
        check(ApiVersion::Events, "events", Some(Kind::Event));
        check(ApiVersion::Group, "events", None);
        check(ApiVersion::Events, "esites", None);
        check(ApiVersion::Group, "esites", Some(Kind::ESite));
        for (index, kind) in Kind::SERVED.into_iter().enumerate() {
            assert_eq!(kind as usize, index);
            assert_eq!(kind.is_ours(), Kind::ALL.contains(&kind));
            assert_ne!(kind.is_ours(), Kind::FOREIGN.contains(&kind));
        }
    }
}
