//! Typed entries of a netmap: one `NetmapEntry` per entry.
//!
//! The compiler encodes them, a gateway decodes them. An entry of an unknown kind is no error, and stays in
//! the netmap. Everything that is absent is denied.

mod decode;
mod encode;
mod translated;
mod tunnel;

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use bytes::Bytes;
use ipnet::IpNet;

use crate::names::{DnsName, GatewayName, PolicyName, PresenceIp, ServerName, ServiceName, SiteName};
use crate::netmap::EntryKey;

pub use translated::{TranslatedExposure, TranslatedPresenceEntry, TranslatedScope, TranslatedServiceEntry};
pub use tunnel::{
    CommunityEntry, IpProtocol, OnDemandEntry, PortRule, PrefixMapping, RelayGroupEntry, TunnelCipher,
    TunnelKey, TunnelPeerEntry,
};

/// One decoded entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NetmapEntry {
    Gateway(GatewayEntry),
    Site(SiteEntry),
    Presence(PresenceEntry),
    Service(ServiceEntry),
    Policy(PolicyEntry),
    Subject(SubjectEntry),
    Node(NodeEntry),
    Host(HostEntry),
    TranslatedPresence(TranslatedPresenceEntry),
    TranslatedService(TranslatedServiceEntry),
    TunnelPeer(TunnelPeerEntry),
    Community(CommunityEntry),
    RelayGroup(RelayGroupEntry),
    OnDemand(OnDemandEntry),
}

/// First part of the keys.
pub(crate) mod kind {
    pub const GATEWAY: &str = "gateway";
    pub const SITE: &str = "site";
    pub const PRESENCE: &str = "presence";
    pub const SERVICE: &str = "service";
    pub const POLICY: &str = "policy";
    pub const SUBJECT: &str = "subject";
    pub const NODE: &str = "node";
    pub const HOST: &str = "host";
    pub const TRANSLATED_PRESENCE: &str = "translatedpresence";
    pub const TRANSLATED_SERVICE: &str = "translatedservice";
    pub const TUNNEL_PEER: &str = "tunnelpeer";
    pub const COMMUNITY: &str = "community";
    pub const RELAY_GROUP: &str = "relaygroup";
    pub const ON_DEMAND: &str = "ondemand";
}

/// A policy with port rules requires this feature: a gateway that does not know it lets no client in.
const PORTS_FEATURE: &str = "ports";

#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the entry {key} cannot be used: {why}")]
pub struct NetmapEntryError {
    pub key: EntryKey,
    pub why: &'static str,
}

/// The gateway this netmap is for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GatewayEntry {
    pub name: GatewayName,
    pub site: SiteName,
    pub ip: Option<IpAddr>,
    pub presence_cidrs: Vec<IpNet>,
    pub priority: i32,
    pub relay: bool,
    /// The gateway gets no new streams; those that carry requests end with the requests on their way.
    pub drain: bool,
    pub prefer: CarriagePreference,
    /// Networks behind this gateway that members of its communities reach, with their real addresses.
    pub tunnel_networks: Vec<IpNet>,
    /// Networks of `tunnel_networks` that have other addresses on the wire.
    pub mappings: Vec<PrefixMapping>,
}

impl GatewayEntry {
    /// Returns the entry of a gateway without addresses, networks or preferences.
    pub fn named(name: impl Into<GatewayName>, site: impl Into<SiteName>) -> GatewayEntry {
        GatewayEntry {
            name: name.into(),
            site: site.into(),
            ip: None,
            presence_cidrs: Vec::new(),
            priority: 0,
            relay: false,
            drain: false,
            prefer: CarriagePreference::default(),
            tunnel_networks: Vec::new(),
            mappings: Vec::new(),
        }
    }
}

/// The transport that a gateway prefers for its streams.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum CarriagePreference {
    #[default]
    Auto,
    Speed,
    Survival,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SiteEntry {
    pub name: SiteName,
    pub subnets: Vec<IpNet>,
    /// The gateway of the site that streams to it go to. None: the site has one gateway only, or an older cloud compiled this.
    pub active: Option<GatewayName>,
}

/// A remote service that can be used at this site, at local addresses.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PresenceEntry {
    pub service: ServiceName,
    pub addresses: Vec<PresenceIp>,
    pub port: u16,
    pub protocol: ServiceProtocol,
    /// Number of Kafka brokers that can be reached one by one, on the ports after `port`. 0 for all other
    /// protocols.
    pub brokers: u16,
    pub names: Vec<DnsName>,
    /// Site where the service runs.
    pub service_site: SiteName,
    /// Policies that allow use of the service from this site. A policy without an entry of its own allows no
    /// client.
    pub policies: Vec<PolicyName>,
}

/// A service that runs at this site and may be used from other sites.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServiceEntry {
    pub name: ServiceName,
    pub port: u16,
    pub protocol: ServiceProtocol,
    pub backends: Vec<BackendEndpoint>,
    /// DNS name of the service inside its site.
    pub domain_name: Option<DnsName>,
    pub health_check: Option<BackendHealthCheck>,
    pub backend_tls: Option<BackendTlsSettings>,
    pub proxy_protocol: bool,
    pub exposures: Vec<ExposureEntry>,
}

impl ServiceEntry {
    /// Returns the policies under which a site may use the service. `None`: it is not exposed there.
    pub fn policies_for(&self, site: &SiteName) -> Option<Vec<&PolicyName>> {
        let mut there = self.exposures.iter().filter(|exposure| exposure.sites.contains(site)).peekable();
        there.peek()?;
        Some(there.flat_map(|exposure| &exposure.policies).collect())
    }
}

/// Sites that may use a service, under these policies.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExposureEntry {
    pub sites: Vec<SiteName>,
    pub policies: Vec<PolicyName>,
}

/// Address of a backend inside the site of the service.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum BackendEndpoint {
    Address(IpAddr, u16),
    /// Resolved by the gateway.
    Host(DnsName, u16),
}

impl fmt::Display for BackendEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BackendEndpoint::Address(ip, port) => write!(f, "{}", SocketAddr::new(*ip, *port)),
            BackendEndpoint::Host(name, port) => write!(f, "{name}:{port}"),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ServiceProtocol {
    Tcp,
    Udp,
    Http,
    Https,
    Grpc,
    Kafka,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BackendHealthCheck {
    pub kind: BackendHealthCheckType,
    pub path: String,
    pub interval_seconds: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BackendHealthCheckType {
    Tcp,
    Http,
}

/// TLS to the backend. Absent: plain TCP.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BackendTlsSettings {
    pub mode: BackendTlsVerification,
    /// Empty: the service's domain name, else its address.
    pub server_name: String,
    /// CAs in PEM. Empty: the CAs that the host trusts.
    pub ca_bundle: String,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BackendTlsVerification {
    Verify,
    Insecure,
}

/// Subjects and sites that may use the services which name this policy, and their limits. Contains only
/// subjects and sites that can reach this gateway.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PolicyEntry {
    pub name: PolicyName,
    pub servers: Vec<ServerName>,
    pub sites: Vec<SiteName>,
    pub limits: Option<PolicyLimits>,
    /// Empty: every request.
    pub http: Vec<PolicyHttpRule>,
    /// Empty: every protocol and port.
    pub ports: Vec<PortRule>,
}

impl PolicyEntry {
    /// Returns whether a client of `site` is allowed. `server` is the client's name, if its address belongs
    /// to a known host of that site.
    pub fn allows(&self, site: &SiteName, server: Option<&ServerName>) -> bool {
        self.sites.contains(site) || server.is_some_and(|server| self.servers.contains(server))
    }

    /// Returns whether the policy is about this port. The port of an ICMP packet is 0.
    pub fn covers_port(&self, protocol: IpProtocol, port: u16) -> bool {
        self.ports.is_empty() || self.ports.iter().any(|rule| rule.covers(protocol, port))
    }
}

/// A missing number means no limit; 0 allows nothing.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct PolicyLimits {
    pub connections_per_second: Option<u64>,
    pub connections: Option<u64>,
    pub bytes_per_second_in: Option<u64>,
    pub bytes_per_second_out: Option<u64>,
    pub requests_per_second: Option<u64>,
}

/// Any of the methods on any of the paths; an empty list is all of them. A path that ends with `*` is a prefix.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PolicyHttpRule {
    pub methods: Vec<String>,
    pub paths: Vec<String>,
}

/// A host that policies can name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SubjectEntry {
    pub server: ServerName,
    pub site: SiteName,
    /// Set for hosts at the gateway's own site, and for hosts of sites that share a community with it: there it
    /// is the address on the wire.
    pub ip: Option<IpAddr>,
}

/// A host that can be reached by its name: at this site, with its address, or at another site.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeEntry {
    pub server: ServerName,
    pub site: SiteName,
    pub ip: Option<IpAddr>,
    pub ports: Vec<u16>,
    pub names: Vec<DnsName>,
    pub policies: Vec<PolicyName>,
}

/// A host of another site that packets reach, because both sites are members of one community.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostEntry {
    pub server: ServerName,
    pub site: SiteName,
    /// The address on the wire: of a mapped network, the mapped one.
    pub ip: IpAddr,
    pub names: Vec<DnsName>,
}

impl NetmapEntry {
    /// Encodes the entry.
    pub fn encode(&self) -> (EntryKey, Bytes) {
        encode::encode(self)
    }

    /// Decodes an entry. Returns `None` for a kind that this version does not know.
    pub fn decode(key: &EntryKey, value: &Bytes) -> Result<Option<NetmapEntry>, NetmapEntryError> {
        decode::decode(key, value)
    }

    pub fn policy_key(name: &str) -> EntryKey {
        EntryKey::of(kind::POLICY, name)
    }

    pub fn subject_key(name: &str) -> EntryKey {
        EntryKey::of(kind::SUBJECT, name)
    }

    pub fn node_key(name: &str) -> EntryKey {
        EntryKey::of(kind::NODE, name)
    }
}

#[cfg(test)]
mod tests;
