//! Resolves names at this gateway: the decisions of its DNS server.
//!
//! Input: the netmap, the queried name and type, and the location of the client. Output: records, a refusal,
//! or `Forward` for names that upstream resolvers serve. Reads only values; `message` handles the wire
//! format, `server` the sockets.

use std::net::IpAddr;

use causeway_netmap::{
    DnsName, DnsNameTarget, GatewayEntry, NetmapView, NodeEntry, PolicyName, PresenceEntry, PresenceIp,
};
use hickory_proto::rr::rdata::{A, AAAA, PTR, SOA};
use hickory_proto::rr::{Name, RData, Record, RecordType};
use ipnet::IpNet;

/// The gateway is authoritative for this zone: no name in it is ever forwarded.
pub const ZONE: &str = "causeway.internal";

/// Short, because a netmap can change at any time and clients should follow within seconds.
pub const TTL_SECONDS: u32 = 5;
/// Shorter than `TTL_SECONDS`: a client that asks just before a service is exposed should not have to wait
/// long.
pub const NEGATIVE_TTL_SECONDS: u32 = 2;

/// The location of a DNS client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DnsClient {
    /// This host, a network it is connected to, or one of the site's subnets.
    Near,
    /// Any other client. It is refused, so that a public address is no open resolver and reveals no names.
    Far,
}

/// The decision about one query.
#[derive(Clone, PartialEq, Debug)]
pub enum DnsAnswer {
    Records(Vec<Record>),
    /// The name exists, but not with this type.
    NoData {
        soa: Record,
    },
    /// The name does not exist.
    NoName {
        soa: Record,
    },
    Refused,
    /// The name is in our zone, but this gateway has no netmap yet.
    NotYet,
    /// The name is not ours: upstream is asked.
    Forward,
}

/// Locates a client. `connected` are the networks this host is connected to.
pub fn client_location(view: &NetmapView, connected: &[IpNet], client: IpAddr) -> DnsClient {
    let client = client.to_canonical();
    let site = view.gateway.as_ref().and_then(|gateway| view.sites.get(&gateway.site));
    let mut subnets = site.into_iter().flat_map(|site| &site.subnets).chain(connected);
    match client.is_loopback() || subnets.any(|subnet| subnet.contains(&client)) {
        true => DnsClient::Near,
        false => DnsClient::Far,
    }
}

/// Returns the answer to a client that asks for `name`.
pub fn answer(view: &NetmapView, client_location: DnsClient, name: &Name, kind: RecordType) -> DnsAnswer {
    // Zone transfers are refused: clients have no use for a copy of the whole zone.
    if client_location == DnsClient::Far || matches!(kind, RecordType::AXFR | RecordType::IXFR) {
        return DnsAnswer::Refused;
    }
    let text = DnsName::new(&name.to_ascii());
    let zone = ZoneQuery { view, name, text: text.as_str(), kind };
    match &view.gateway {
        Some(gateway) => zone.answer(gateway),
        None if zone.is_ours() => DnsAnswer::NotYet,
        None => DnsAnswer::Forward,
    }
}

/// Returns the site of a name `HOST.SITE.causeway.internal` whose hosts are not in the netmap because the site may be a member
/// of a large community and is no peer yet. None: the netmap knows all hosts of the name's site.
pub fn awaited_site(view: &NetmapView, name: &Name) -> Option<String> {
    view.on_demand.as_ref()?;
    let text = DnsName::new(&name.to_ascii());
    let (host, site) = text.as_str().strip_suffix(ZONE)?.strip_suffix('.')?.split_once('.')?;
    let is_known = |known: &str| known.eq_ignore_ascii_case(site);
    let is_here = view.gateway.as_ref().is_some_and(|gateway| is_known(gateway.site.as_str()));
    let is_peer = view.tunnel_peers.values().any(|peer| is_known(peer.site.as_str()));
    (!host.is_empty() && !site.contains('.') && !is_here && !is_peer).then(|| site.to_owned())
}

/// One query against one netmap.
struct ZoneQuery<'a> {
    view: &'a NetmapView,
    name: &'a Name,
    /// The name in lower case, without a trailing dot.
    text: &'a str,
    kind: RecordType,
}

impl ZoneQuery<'_> {
    fn answer(&self, gateway: &GatewayEntry) -> DnsAnswer {
        match self.view.named(self.text) {
            Some(DnsNameTarget::Presence(service)) => match self.view.presences.get(service) {
                Some(presence) if is_usable(self.view, gateway, presence) => {
                    self.addresses(presence.addresses.iter().map(|address| address.0))
                }
                _ => self.no_name(),
            },
            Some(DnsNameTarget::TranslatedPresence(service)) => {
                let presence = self.view.translated_presences.get(service);
                match presence.filter(|presence| is_permitted(self.view, gateway, &presence.policies)) {
                    Some(presence) => self.addresses(presence.addresses.iter().map(|address| address.0)),
                    None => self.no_name(),
                }
            }
            Some(DnsNameTarget::Node(server)) => match self.view.nodes.get(server) {
                Some(node) => self.addresses(node_address(self.view, gateway, node)),
                None => self.no_name(),
            },
            Some(DnsNameTarget::Host(server)) => match self.view.hosts.get(server) {
                Some(host) => self.addresses([host.ip]),
                None => self.no_name(),
            },
            None if self.is_ours() => self.empty_name(gateway),
            None => self.reverse(gateway).unwrap_or(DnsAnswer::Forward),
        }
    }

    fn is_ours(&self) -> bool {
        is_below(self.text, ZONE)
    }

    /// Answers a name in our zone that has no records. It still exists when there are names below it: a
    /// resolver that learns that a name does not exist may conclude that no name below it exists (RFC 8020).
    fn empty_name(&self, gateway: &GatewayEntry) -> DnsAnswer {
        if self.text == ZONE && self.kind == RecordType::SOA {
            return DnsAnswer::Records(vec![self.soa()]);
        }
        let usable = self.view.presences.values().filter(|presence| is_usable(self.view, gateway, presence));
        let services = usable.flat_map(|presence| &presence.names);
        let translated = self.view.translated_presences.values();
        let translated = translated.filter(|presence| is_permitted(self.view, gateway, &presence.policies));
        let services = services.chain(translated.flat_map(|presence| &presence.names));
        let nodes = self.view.nodes.values().flat_map(|node| &node.names);
        let hosts = self.view.hosts.values().flat_map(|host| &host.names);
        let mut known = services.chain(nodes).chain(hosts);
        match self.text == ZONE || known.any(|known| is_below(known.as_str(), self.text)) {
            true => self.no_data(),
            false => self.no_name(),
        }
    }

    /// Answers a reverse query for a presence address, also when the address is unused: only this gateway
    /// knows the names in our presence networks.
    fn reverse(&self, gateway: &GatewayEntry) -> Option<DnsAnswer> {
        let network = self.name.parse_arpa_name().ok()?;
        let whole = network.prefix_len() == network.max_prefix_len();
        let presence = self.view.presence_at(PresenceIp(network.addr())).filter(|_| whole);
        let address = PresenceIp(network.addr());
        let mut translated = self.view.translated_presences.values();
        let translated = translated.find(|presence| whole && presence.addresses.contains(&address));
        if let Some(translated) =
            translated.filter(|presence| is_permitted(self.view, gateway, &presence.policies))
        {
            return Some(self.pointer(&translated.names));
        }
        match presence.filter(|presence| is_usable(self.view, gateway, presence)) {
            Some(presence) => Some(self.pointer(&presence.names)),
            None if !gateway.presence_cidrs.iter().any(|ours| ours.contains(&network)) => None,
            None if whole => Some(self.no_name()),
            None => Some(self.no_data()),
        }
    }

    fn pointer(&self, names: &[DnsName]) -> DnsAnswer {
        // A single name: the one that no other service can have.
        let own = names.iter().find(|name| is_below(name.as_str(), ZONE));
        let target = own.or(names.first()).and_then(|name| full_name(name.as_str()));
        match target.filter(|_| matches!(self.kind, RecordType::PTR | RecordType::ANY)) {
            Some(target) => DnsAnswer::Records(vec![self.record(RData::PTR(PTR(target)))]),
            None => self.no_data(),
        }
    }

    fn addresses(&self, addresses: impl IntoIterator<Item = IpAddr>) -> DnsAnswer {
        let fitting = addresses.into_iter().filter_map(|address| match (address, self.kind) {
            (IpAddr::V4(ip), RecordType::A | RecordType::ANY) => Some(RData::A(A(ip))),
            (IpAddr::V6(ip), RecordType::AAAA | RecordType::ANY) => Some(RData::AAAA(AAAA(ip))),
            _ => None,
        });
        let records: Vec<Record> = fitting.map(|data| self.record(data)).collect();
        match records.is_empty() {
            true => self.no_data(),
            false => DnsAnswer::Records(records),
        }
    }

    fn record(&self, data: RData) -> Record {
        Record::from_rdata(self.name.clone(), TTL_SECONDS, data)
    }

    fn no_data(&self) -> DnsAnswer {
        DnsAnswer::NoData { soa: self.soa() }
    }

    fn no_name(&self) -> DnsAnswer {
        DnsAnswer::NoName { soa: self.soa() }
    }

    /// The SOA record carries the TTL of a negative answer (RFC 2308). A name outside our zone is treated as
    /// a zone of its own, so that the answer does not cover its siblings.
    fn soa(&self) -> Record {
        let zone = full_name(ZONE).unwrap_or_else(Name::root);
        let owner = if self.is_ours() { zone.clone() } else { self.name.clone() };
        // These names are never queried: the gateway in front of the client is the only server it needs.
        let server = zone.prepend_label("gateway").unwrap_or_else(|_| zone.clone());
        let mailbox = zone.prepend_label("hostmaster").unwrap_or(zone);
        let serial = self.view.generation.revision as u32;
        let seconds = NEGATIVE_TTL_SECONDS as i32;
        let soa = SOA::new(server, mailbox, serial, seconds, seconds, seconds, NEGATIVE_TTL_SECONDS);
        Record::from_rdata(owner, NEGATIVE_TTL_SECONDS, RData::SOA(soa))
    }
}

/// Tells whether any client of this site may use the presence. A presence without a permitted client has no
/// name here.
fn is_usable(view: &NetmapView, gateway: &GatewayEntry, presence: &PresenceEntry) -> bool {
    is_permitted(view, gateway, &presence.policies)
}

fn is_permitted(view: &NetmapView, gateway: &GatewayEntry, policies: &[PolicyName]) -> bool {
    let is_here = |server| view.subjects.get(server).is_some_and(|subject| subject.site == gateway.site);
    let mut existing = policies.iter().filter_map(|name| view.policies.get(name));
    existing.any(|policy| policy.sites.contains(&gateway.site) || policy.servers.iter().any(is_here))
}

/// A node of our own site is returned with its own address, and one that packets reach with its address on the wire. Any
/// other node is reached through the entry ports of this gateway.
fn node_address(view: &NetmapView, gateway: &GatewayEntry, node: &NodeEntry) -> Option<IpAddr> {
    let host = view.hosts.get(&node.server).filter(|host| host.site == node.site);
    match node.site == gateway.site {
        true => node.ip,
        false => host.map(|host| host.ip).or(gateway.ip),
    }
}

fn is_below(name: &str, zone: &str) -> bool {
    name.strip_suffix(zone).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

fn full_name(text: &str) -> Option<Name> {
    let mut name = Name::from_ascii(text).ok()?;
    name.set_fqdn(true);
    Some(name)
}

#[cfg(test)]
mod tests;
