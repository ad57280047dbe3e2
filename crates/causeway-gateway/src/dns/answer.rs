//! What a name stands for at this gateway: the decisions of its DNS.
//!
//! The netmap, the name and type that are asked for, and from where somebody asks come in; records, a refusal, or the word
//! that others know better come out. Reads only values; the wire is `message`'s matter, the sockets are `server`'s.

use std::net::IpAddr;

use causeway_netmap::{
    DnsName, DnsNameTarget, GatewayEntry, NetmapView, NodeEntry, PresenceEntry, PresenceIp,
};
use hickory_proto::rr::rdata::{A, AAAA, PTR, SOA};
use hickory_proto::rr::{Name, RData, Record, RecordType};
use ipnet::IpNet;

/// Everything below it is ours: no name in it is ever asked for elsewhere.
pub const ZONE: &str = "causeway.internal";

/// A netmap can change any moment, and clients shall see it within seconds.
pub const TTL_SECONDS: u32 = 5;
/// Shorter: whoever asks just before a service is exposed shall not wait for it.
pub const NEGATIVE_TTL_SECONDS: u32 = 2;

/// From where somebody asks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DnsClient {
    /// This host, a network it stands in, or one of the site's subnets.
    Near,
    /// Anybody else: gets nothing, so that a public address is no open resolver and tells nothing about us.
    Far,
}

/// What is answered.
#[derive(Clone, PartialEq, Debug)]
pub enum DnsAnswer {
    Records(Vec<Record>),
    /// The name exists, but not with this type.
    NoData {
        soa: Record,
    },
    /// There is no such name.
    NoName {
        soa: Record,
    },
    Refused,
    /// It would be ours to answer, but the cloud has told this gateway nothing yet.
    NotYet,
    /// Not ours: upstream is asked.
    Forward,
}

/// From where does a client ask? `connected` are the networks this host stands in.
pub fn asker(view: &NetmapView, connected: &[IpNet], client: IpAddr) -> DnsClient {
    let client = client.to_canonical();
    let site = view.gateway.as_ref().and_then(|gateway| view.sites.get(&gateway.site));
    let mut subnets = site.into_iter().flat_map(|site| &site.subnets).chain(connected);
    match client.is_loopback() || subnets.any(|subnet| subnet.contains(&client)) {
        true => DnsClient::Near,
        false => DnsClient::Far,
    }
}

/// What is answered to somebody who asks for `name`.
pub fn answer(view: &NetmapView, asker: DnsClient, name: &Name, kind: RecordType) -> DnsAnswer {
    // Nobody needs a copy of everything.
    if asker == DnsClient::Far || matches!(kind, RecordType::AXFR | RecordType::IXFR) {
        return DnsAnswer::Refused;
    }
    let text = DnsName::new(&name.to_ascii());
    let zone = Zone { view, name, text: text.as_str(), kind };
    match &view.gateway {
        Some(gateway) => zone.answer(gateway),
        None if zone.is_ours() => DnsAnswer::NotYet,
        None => DnsAnswer::Forward,
    }
}

/// One question to one netmap.
struct Zone<'a> {
    view: &'a NetmapView,
    name: &'a Name,
    /// The name in small letters, without a dot at its end.
    text: &'a str,
    kind: RecordType,
}

impl Zone<'_> {
    fn answer(&self, gateway: &GatewayEntry) -> DnsAnswer {
        match self.view.named(self.text) {
            Some(DnsNameTarget::Presence(service)) => match self.view.presences.get(service) {
                Some(presence) if is_usable(self.view, gateway, presence) => {
                    self.addresses(presence.addresses.iter().map(|address| address.0))
                }
                _ => self.no_name(),
            },
            Some(DnsNameTarget::Node(server)) => match self.view.nodes.get(server) {
                Some(node) => self.addresses(node_address(gateway, node)),
                None => self.no_name(),
            },
            None if self.is_ours() => self.between(gateway),
            None => self.reverse(gateway).unwrap_or(DnsAnswer::Forward),
        }
    }

    fn is_ours(&self) -> bool {
        is_below(self.text, ZONE)
    }

    /// A name in our zone that stands for nothing. It exists all the same when there are names below it: whoever hears that
    /// a name does not exist may conclude that nothing below it does (RFC 8020).
    fn between(&self, gateway: &GatewayEntry) -> DnsAnswer {
        if self.text == ZONE && self.kind == RecordType::SOA {
            return DnsAnswer::Records(vec![self.soa()]);
        }
        let usable = self.view.presences.values().filter(|presence| is_usable(self.view, gateway, presence));
        let services = usable.flat_map(|presence| &presence.names);
        let nodes = self.view.nodes.values().flat_map(|node| &node.names);
        match self.text == ZONE || services.chain(nodes).any(|known| is_below(known.as_str(), self.text)) {
            true => self.no_data(),
            false => self.no_name(),
        }
    }

    /// The name of a presence address, or of nothing: what lies in our presence networks is known to nobody else.
    fn reverse(&self, gateway: &GatewayEntry) -> Option<DnsAnswer> {
        let network = self.name.parse_arpa_name().ok()?;
        let whole = network.prefix_len() == network.max_prefix_len();
        let presence = self.view.presence_at(PresenceIp(network.addr())).filter(|_| whole);
        match presence.filter(|presence| is_usable(self.view, gateway, presence)) {
            Some(presence) => Some(self.pointer(presence)),
            None if !gateway.presence_cidrs.iter().any(|ours| ours.contains(&network)) => None,
            None if whole => Some(self.no_name()),
            None => Some(self.no_data()),
        }
    }

    fn pointer(&self, presence: &PresenceEntry) -> DnsAnswer {
        // One name, the one that no other service can have.
        let own = presence.names.iter().find(|name| is_below(name.as_str(), ZONE));
        let target = own.or(presence.names.first()).and_then(|name| full_name(name.as_str()));
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

    /// Says for how long a negative answer may be remembered (RFC 2308). A name outside our zone is a zone of its own: so it
    /// says nothing about its neighbours.
    fn soa(&self) -> Record {
        let zone = full_name(ZONE).unwrap_or_else(Name::root);
        let owner = if self.is_ours() { zone.clone() } else { self.name.clone() };
        // Names that nobody asks: the gateway in front of the client is the only server it needs.
        let server = zone.prepend_label("gateway").unwrap_or_else(|_| zone.clone());
        let mailbox = zone.prepend_label("hostmaster").unwrap_or(zone);
        let serial = self.view.generation.revision as u32;
        let seconds = NEGATIVE_TTL_SECONDS as i32;
        let soa = SOA::new(server, mailbox, serial, seconds, seconds, seconds, NEGATIVE_TTL_SECONDS);
        Record::from_rdata(owner, NEGATIVE_TTL_SECONDS, RData::SOA(soa))
    }
}

/// May anybody of this site use the presence? What nobody may use has no name here.
fn is_usable(view: &NetmapView, gateway: &GatewayEntry, presence: &PresenceEntry) -> bool {
    let is_here = |server| view.subjects.get(server).is_some_and(|subject| subject.site == gateway.site);
    let mut existing = presence.policies.iter().filter_map(|name| view.policies.get(name));
    existing.any(|policy| policy.sites.contains(&gateway.site) || policy.servers.iter().any(is_here))
}

/// A node of our own site is where it is; one elsewhere is reached through the entry ports of this gateway.
fn node_address(gateway: &GatewayEntry, node: &NodeEntry) -> Option<IpAddr> {
    match node.site == gateway.site {
        true => node.ip,
        false => gateway.ip,
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
