//! A netmap as a gateway reads it: entries indexed by their lookup keys.
//!
//! Built once when a netmap arrives, read on every connection. Entries that cannot be decoded are omitted and
//! counted, so that they deny access; the netmap itself keeps them.

use std::borrow::Borrow;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use crate::entries::{
    CommunityEntry, GatewayEntry, HostEntry, NetmapEntry, NetmapEntryError, NodeEntry, OnDemandEntry,
    PolicyEntry, PresenceEntry, RelayGroupEntry, ServiceEntry, SiteEntry, SubjectEntry,
    TranslatedPresenceEntry, TranslatedServiceEntry, TunnelPeerEntry,
};
use crate::generation::Generation;
use crate::names::{
    CommunityName, DnsName, GatewayName, PolicyName, PresenceIp, ServerName, ServiceName, SiteName,
};
use crate::netmap::{BuildError, Netmap};

/// All facts of a gateway at one generation.
#[derive(Clone, Default, Debug)]
pub struct NetmapView {
    pub generation: Generation,
    /// `None`: the netmap does not name this gateway; nothing is forwarded.
    pub gateway: Option<GatewayEntry>,
    pub sites: BTreeMap<SiteName, SiteEntry>,
    pub presences: BTreeMap<ServiceName, PresenceEntry>,
    pub services: BTreeMap<ServiceName, ServiceEntry>,
    pub policies: BTreeMap<PolicyName, PolicyEntry>,
    pub subjects: BTreeMap<ServerName, SubjectEntry>,
    pub nodes: BTreeMap<ServerName, NodeEntry>,
    pub hosts: BTreeMap<ServerName, HostEntry>,
    pub translated_presences: BTreeMap<ServiceName, TranslatedPresenceEntry>,
    pub translated_services: BTreeMap<ServiceName, TranslatedServiceEntry>,
    pub tunnel_peers: BTreeMap<GatewayName, TunnelPeerEntry>,
    pub communities: BTreeMap<CommunityName, CommunityEntry>,
    pub relay_groups: BTreeMap<String, RelayGroupEntry>,
    /// None: every member of a community is a peer.
    pub on_demand: Option<OnDemandEntry>,
    names: HashMap<DnsName, DnsNameTarget>,
    presence_addresses: HashMap<PresenceIp, ServiceName>,
    subject_addresses: HashMap<IpAddr, ServerName>,
    remote_subject_addresses: HashMap<IpAddr, ServerName>,
    /// Entries of kinds that this version does not know.
    pub unknown: usize,
    /// Entries of known kinds that cannot be used.
    pub damaged: Vec<NetmapEntryError>,
}

/// Target of a DNS name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DnsNameTarget {
    Presence(ServiceName),
    TranslatedPresence(ServiceName),
    Node(ServerName),
    /// A host of another site that packets reach.
    Host(ServerName),
}

impl NetmapView {
    /// Returns the view of a netmap that has these entries, without an encoded netmap from the cloud. For tests and tools.
    pub fn of_entries<E: Borrow<NetmapEntry>>(
        generation: Generation,
        entries: impl IntoIterator<Item = E>,
    ) -> Result<NetmapView, BuildError> {
        let entries = entries.into_iter().map(|entry| entry.borrow().encode()).collect();
        Ok(NetmapView::decode(&Netmap::build(generation, entries, None)?))
    }

    pub fn decode(netmap: &Netmap) -> NetmapView {
        let mut view = NetmapView { generation: netmap.generation(), ..NetmapView::default() };
        for (key, value) in netmap.entries() {
            match NetmapEntry::decode(key, value) {
                Ok(Some(fact)) => view.take(fact),
                Ok(None) => view.unknown += 1,
                Err(error) => view.damaged.push(error),
            }
        }
        view
    }

    /// Returns the target of a name. Case and a trailing dot make no difference.
    pub fn named(&self, name: &str) -> Option<&DnsNameTarget> {
        self.names.get(&DnsName::new(name))
    }

    pub fn presence_at(&self, address: PresenceIp) -> Option<&PresenceEntry> {
        self.presences.get(self.presence_addresses.get(&address)?)
    }

    /// Returns the host of our own site that has an address.
    pub fn subject_at(&self, ip: IpAddr) -> Option<&SubjectEntry> {
        self.subjects.get(self.subject_addresses.get(&ip)?)
    }

    /// Returns the host of another site that has an address on the wire.
    pub fn remote_subject_at(&self, ip: IpAddr) -> Option<&SubjectEntry> {
        self.subjects.get(self.remote_subject_addresses.get(&ip)?)
    }

    /// Returns the first of these policies that allows the client, if any does. A policy that does not exist
    /// allows no client.
    pub fn allowed_by<'a>(
        &'a self,
        policies: impl IntoIterator<Item = &'a PolicyName>,
        site: &SiteName,
        server: Option<&ServerName>,
    ) -> Option<&'a PolicyEntry> {
        let mut existing = policies.into_iter().filter_map(|name| self.policies.get(name));
        existing.find(|policy| policy.allows(site, server))
    }

    // If two entries claim the same name or address, the first by key has it, so that all gateways agree.
    fn take(&mut self, fact: NetmapEntry) {
        match fact {
            NetmapEntry::Gateway(gateway) => self.gateway = Some(gateway),
            NetmapEntry::Site(site) => {
                self.sites.insert(site.name.clone(), site);
            }
            NetmapEntry::Presence(presence) => {
                for name in &presence.names {
                    let named = DnsNameTarget::Presence(presence.service.clone());
                    // A presence takes precedence over a node of the same name: it was exposed under it on
                    // purpose.
                    match self.names.get(name) {
                        Some(DnsNameTarget::Presence(_) | DnsNameTarget::TranslatedPresence(_)) => {}
                        _ => drop(self.names.insert(name.clone(), named)),
                    }
                }
                for address in &presence.addresses {
                    self.presence_addresses.entry(*address).or_insert_with(|| presence.service.clone());
                }
                self.presences.insert(presence.service.clone(), presence);
            }
            NetmapEntry::Service(service) => {
                self.services.insert(service.name.clone(), service);
            }
            NetmapEntry::Policy(policy) => {
                self.policies.insert(policy.name.clone(), policy);
            }
            NetmapEntry::Subject(subject) => {
                if let Some(ip) = subject.ip {
                    // The gateway's own entry is the first of a netmap.
                    let is_here = self.gateway.as_ref().is_none_or(|gateway| gateway.site == subject.site);
                    let addresses = if is_here {
                        &mut self.subject_addresses
                    } else {
                        &mut self.remote_subject_addresses
                    };
                    addresses.entry(ip).or_insert_with(|| subject.server.clone());
                }
                self.subjects.insert(subject.server.clone(), subject);
            }
            NetmapEntry::Node(node) => {
                for name in &node.names {
                    match self.names.get(name) {
                        None | Some(DnsNameTarget::Host(_)) => {
                            let named = DnsNameTarget::Node(node.server.clone());
                            self.names.insert(name.clone(), named);
                        }
                        Some(_) => {}
                    }
                }
                self.nodes.insert(node.server.clone(), node);
            }
            NetmapEntry::TranslatedPresence(presence) => {
                for name in &presence.names {
                    let named = DnsNameTarget::TranslatedPresence(presence.service.clone());
                    match self.names.get(name) {
                        Some(DnsNameTarget::Presence(_) | DnsNameTarget::TranslatedPresence(_)) => {}
                        _ => drop(self.names.insert(name.clone(), named)),
                    }
                }
                self.translated_presences.insert(presence.service.clone(), presence);
            }
            NetmapEntry::TranslatedService(service) => {
                self.translated_services.insert(service.service.clone(), service);
            }
            // A service or node that was given the name on purpose has it before a host.
            NetmapEntry::Host(host) => {
                for name in &host.names {
                    self.names
                        .entry(name.clone())
                        .or_insert_with(|| DnsNameTarget::Host(host.server.clone()));
                }
                self.hosts.insert(host.server.clone(), host);
            }
            NetmapEntry::TunnelPeer(peer) => {
                self.tunnel_peers.insert(peer.gateway.clone(), peer);
            }
            NetmapEntry::Community(community) => {
                self.communities.insert(community.name.clone(), community);
            }
            NetmapEntry::RelayGroup(group) => {
                self.relay_groups.insert(group.name.clone(), group);
            }
            NetmapEntry::OnDemand(entry) => self.on_demand = Some(entry),
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::entries::ServiceProtocol;
    use crate::netmap::EntryKey;

    fn presence(service: &str, ip: &str, name: &str) -> NetmapEntry {
        NetmapEntry::Presence(PresenceEntry {
            service: service.into(),
            addresses: vec![PresenceIp(ip.parse().unwrap())],
            port: 80,
            protocol: ServiceProtocol::Tcp,
            brokers: 0,
            names: vec![DnsName::new(name)],
            service_site: "berlin".into(),
            policies: vec!["p".into(), "missing".into()],
        })
    }

    fn view(facts: &[NetmapEntry], more: &[(&str, &'static [u8])]) -> NetmapView {
        let more = more.iter().map(|(key, value)| (EntryKey::new(*key), Bytes::from_static(value)));
        let entries = facts.iter().map(NetmapEntry::encode).chain(more).collect();
        NetmapView::decode(&Netmap::build(Generation { epoch: 1, revision: 5 }, entries, None).unwrap())
    }

    #[test]
    fn facts_are_found_by_what_a_connection_knows() {
        let node = NetmapEntry::Node(NodeEntry {
            server: "n".into(),
            site: "oslo".into(),
            ip: None,
            ports: vec![22],
            names: vec![DnsName::new("n"), DnsName::new("cam")],
            policies: vec![],
        });
        let subject = NetmapEntry::Subject(SubjectEntry {
            server: "S".into(),
            site: "oslo".into(),
            ip: "10.0.0.1".parse().ok(),
        });
        let view = view(&[presence("cam", "198.18.0.1", "cam"), node, subject], &[]);
        assert_eq!(view.named("CAM."), Some(&DnsNameTarget::Presence("cam".into())));
        assert_eq!(view.named("n"), Some(&DnsNameTarget::Node("n".into())));
        assert_eq!(view.named("other"), None);
        let at =
            |ip: &str| view.presence_at(PresenceIp(ip.parse().unwrap())).map(|found| found.service.as_str());
        assert_eq!((at("198.18.0.1"), at("198.18.0.2")), (Some("cam"), None));
        assert_eq!(view.subject_at("10.0.0.1".parse().unwrap()).unwrap().server.as_str(), "S");
    }

    #[test]
    fn a_host_of_another_site_is_never_taken_for_a_local_one() {
        let gateway = NetmapEntry::Gateway(GatewayEntry::named("oslo-1", "oslo"));
        let subject = |server: &str, site: &str, ip: &str| {
            NetmapEntry::Subject(SubjectEntry {
                server: server.into(),
                site: site.into(),
                ip: ip.parse().ok(),
            })
        };
        let view = view(&[gateway, subject("a", "rome", "10.0.0.1"), subject("b", "oslo", "10.0.0.2")], &[]);
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let local = |text| view.subject_at(ip(text)).map(|subject| subject.server.as_str());
        let remote = |text| view.remote_subject_at(ip(text)).map(|subject| subject.server.as_str());
        assert_eq!((local("10.0.0.1"), remote("10.0.0.1")), (None, Some("a")));
        assert_eq!((local("10.0.0.2"), remote("10.0.0.2")), (Some("b"), None));
    }

    #[test]
    fn nobody_is_allowed_who_is_not_named() {
        let policy = NetmapEntry::Policy(PolicyEntry {
            name: "p".into(),
            servers: vec!["S".into()],
            sites: vec!["oslo".into()],
            limits: None,
            http: vec![],
            ports: vec![],
        });
        let view = view(&[policy, presence("cam", "198.18.0.1", "cam")], &[]);
        let cam = view.presences.get("cam").unwrap();
        let allowed = |policies: &[PolicyName], site: &str, server: Option<&str>| {
            view.allowed_by(policies, &site.into(), server.map(Into::into).as_ref()).is_some()
        };
        assert!(allowed(&cam.policies, "oslo", None));
        assert!(allowed(&cam.policies, "berlin", Some("S")));
        assert!(!allowed(&cam.policies, "berlin", Some("T")));
        assert!(!allowed(&["missing".into()], "oslo", Some("S")));
        assert!(!allowed(&[], "oslo", Some("S")));
    }

    #[test]
    fn what_is_not_understood_is_counted_and_left_out() {
        let view = view(&[], &[("tunnel/x", b"?"), ("policy/x", b"\xff")]);
        assert_eq!((view.unknown, view.damaged.len()), (1, 1));
        assert!(view.policies.is_empty());
    }

    #[test]
    fn two_with_one_address_are_told_apart_the_same_way_everywhere() {
        let facts = [presence("a", "198.18.0.1", "x"), presence("b", "198.18.0.1", "x")];
        for facts in [facts.clone(), [facts[1].clone(), facts[0].clone()]] {
            let view = view(&facts, &[]);
            assert_eq!(view.named("x"), Some(&DnsNameTarget::Presence("a".into())));
            assert_eq!(
                view.presence_at(PresenceIp("198.18.0.1".parse().unwrap())).unwrap().service.as_str(),
                "a"
            );
        }
    }
}
