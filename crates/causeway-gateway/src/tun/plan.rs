//! The netmap in the form in which the tunnel looks packets up.
//!
//! Made once per netmap, outside of the worker; read for every packet.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use causeway_netmap::{NetmapView, TunnelCipher, TunnelPeerEntry};
use ipnet::IpNet;

use super::admission::OwnSockets;
use super::cipher::TransportCipher;
use super::relay_permit::RelayGroups;
use super::service_plan::ServicePlan;
use super::translate::{PrefixPair, PrefixTable};

#[derive(Default)]
pub struct ForwardPlan {
    pub view: Arc<NetmapView>,
    pub own: OwnSockets,
    /// Networks of this site, with real addresses.
    pub networks: Vec<IpNet>,
    pub mappings: PrefixTable,
    /// Networks of this site, as other sites see them.
    pub networks_on_wire: Vec<IpNet>,
    pub peers: Vec<PlannedPeer>,
    pub services: ServicePlan,
    /// Addresses here that stand for services of other sites.
    presences: HashSet<IpAddr>,
    /// The sites between which this gateway forwards sealed packets. Empty: it is no relay.
    pub relay_groups: RelayGroups,
}

/// A peer with the addresses of its endpoints.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PlannedPeer {
    pub entry: TunnelPeerEntry,
    pub endpoints: Vec<SocketAddr>,
}

impl PlannedPeer {
    pub fn cipher(&self) -> TransportCipher {
        match self.entry.cipher {
            // A peer that is no Causeway gateway knows one cipher only.
            TunnelCipher::Aes256Gcm if !self.entry.plain_wireguard => TransportCipher::Aes256Gcm,
            _ => TransportCipher::ChaCha20Poly1305,
        }
    }
}

impl ForwardPlan {
    pub fn new(view: Arc<NetmapView>, own: OwnSockets, peers: Vec<PlannedPeer>) -> ForwardPlan {
        let (networks, mappings) = match &view.gateway {
            Some(gateway) => (gateway.tunnel_networks.clone(), gateway.mappings.clone()),
            None => Default::default(),
        };
        let pairs: Vec<(IpNet, PrefixPair)> = mappings
            .iter()
            .filter_map(|mapping| Some((mapping.subnet, PrefixPair::new(mapping.subnet, mapping.seen_as)?)))
            .collect();
        let is_unmapped = |network: &&IpNet| !pairs.iter().any(|(subnet, _)| subnet.contains(*network));
        let mut networks_on_wire: Vec<IpNet> = networks.iter().filter(is_unmapped).copied().collect();
        networks_on_wire.extend(mappings.iter().map(|mapping| mapping.seen_as));
        let mappings = PrefixTable::new(pairs.into_iter().map(|(_, pair)| pair));
        let services = ServicePlan::new(&view);
        let relay_groups = RelayGroups::new(&view);
        let proxied = view.presences.values().flat_map(|presence| &presence.addresses);
        let translated = view.translated_presences.values().flat_map(|presence| &presence.addresses);
        let presences = proxied.chain(translated).map(|address| address.0).collect();
        ForwardPlan {
            view,
            own,
            networks,
            mappings,
            networks_on_wire,
            peers,
            services,
            presences,
            relay_groups,
        }
    }

    /// Tells whether an address of this site stands for a service or a client of another site. Such an address may lie inside the
    /// networks of this site, and packets to it leave the site again.
    pub fn stands_for_other_site(&self, real: IpAddr) -> bool {
        self.presences.contains(&real) || self.services.is_client_address(real)
    }

    pub fn is_own(&self, real: IpAddr) -> bool {
        contains(&self.networks, real)
    }

    pub fn is_own_on_wire(&self, address: IpAddr) -> bool {
        contains(&self.networks_on_wire, address)
    }

    /// Tells whether an address is behind a member of a large community, which the cloud knows.
    pub fn is_on_demand(&self, address: IpAddr) -> bool {
        self.view.on_demand.as_ref().is_some_and(|entry| entry.covers(address))
    }

    /// Returns the addresses of this host from which it begins flows through the tunnel, one per address family at most:
    /// the gateway's `ip`, else the first one inside the networks of this site. A packet with another source is dropped.
    pub fn sources(&self, of_host: &[IpAddr]) -> Vec<IpAddr> {
        let preferred = self.view.gateway.as_ref().and_then(|gateway| gateway.ip);
        let inside =
            self.networks.iter().flat_map(|network| of_host.iter().filter(|ip| network.contains(*ip)));
        let candidates: Vec<IpAddr> = preferred.iter().chain(inside).copied().collect();
        let is_usable = |ip: &&IpAddr| of_host.contains(ip) && self.is_own(**ip);
        let usable: Vec<IpAddr> = candidates.iter().filter(is_usable).copied().collect();
        let of_family = |is_v4: bool| usable.iter().find(|ip| ip.is_ipv4() == is_v4).copied();
        of_family(true).into_iter().chain(of_family(false)).collect()
    }

    /// Returns the networks to which the device leads: those of all peers and of members that may become peers, except networks of this site, and the addresses
    /// of translated services and of their clients.
    pub fn routes(&self) -> Vec<IpNet> {
        let mut routes: Vec<IpNet> = self.peers.iter().flat_map(|peer| peer.entry.networks.clone()).collect();
        routes.extend(self.view.on_demand.iter().flat_map(|entry| &entry.networks));
        routes.retain(|network| !self.networks.contains(network));
        routes.extend(self.services.routes());
        routes.sort();
        routes.dedup();
        routes
    }

    /// Returns the networks that the flows of a bridge lead to the device, none of which overlap. Empty at a standby gateway. Networks of this site
    /// stay with the LAN, except the addresses of translated services and of their clients.
    pub fn steered(&self) -> Vec<IpNet> {
        let active = self.view.gateway.as_ref().and_then(|gateway| {
            let site = self.view.sites.get(&gateway.site)?;
            Some(site.active.as_ref()? == &gateway.name)
        });
        if active == Some(false) {
            return Vec::new();
        }
        // A packet to a member that is no peer yet makes the gateway ask for it.
        let on_demand = self.view.on_demand.iter().flat_map(|entry| &entry.networks);
        let of_peers = self.peers.iter().flat_map(|peer| &peer.entry.networks).chain(on_demand);
        let mut steered: Vec<IpNet> =
            of_peers.flat_map(|network| without(network.trunc(), &self.networks)).collect();
        steered.extend(self.services.routes());
        let mut steered = IpNet::aggregate(&steered);
        steered.sort();
        steered
    }
}

/// Returns the parts of a network that are in no network of `others`.
fn without(network: IpNet, others: &[IpNet]) -> Vec<IpNet> {
    if others.iter().any(|other| other.contains(&network)) {
        return Vec::new();
    }
    if !others.iter().any(|other| network.contains(other)) {
        return vec![network];
    }
    let halves = network.subnets(network.prefix_len() + 1).into_iter().flatten();
    halves.flat_map(|half| without(half, others)).collect()
}

pub fn contains(networks: &[IpNet], address: IpAddr) -> bool {
    networks.iter().any(|network| network.contains(&address))
}

#[cfg(test)]
mod tests {
    use causeway_netmap::{
        GatewayEntry, OnDemandEntry, PrefixMapping, PresenceIp, SiteEntry, TranslatedPresenceEntry,
        TranslatedScope, TunnelKey,
    };

    use super::*;

    #[test]
    fn a_mapped_network_is_known_on_the_wire_by_its_other_addresses_only() {
        let net = |text: &str| text.parse::<IpNet>().unwrap();
        let mut view = NetmapView::default();
        view.gateway = Some(GatewayEntry {
            tunnel_networks: vec![net("10.0.0.0/24"), net("10.1.0.0/24")],
            mappings: vec![PrefixMapping { subnet: net("10.0.0.0/24"), seen_as: net("100.64.7.0/24") }],
            ..GatewayEntry::named("oslo-1", "oslo")
        });
        let plan = ForwardPlan::new(Arc::new(view), OwnSockets::default(), Vec::new());
        let check = |address: &str, real: bool, wire: bool| {
            let address = address.parse().unwrap();
            assert_eq!((plan.is_own(address), plan.is_own_on_wire(address)), (real, wire), "{address}");
        };
        check("10.0.0.7", true, false);
        check("100.64.7.7", false, true);
        check("10.1.0.7", true, true);
        check("10.2.0.7", false, false);
    }

    #[test]
    fn a_bridge_leads_networks_of_peers_and_translated_services_to_the_device() {
        let nets =
            |text: &str| -> Vec<IpNet> { text.split_whitespace().map(|net| net.parse().unwrap()).collect() };
        let check_with =
            |name: &str, own: &str, (peer, on_demand): (&str, bool), presences: &str, expected: &str| {
                let mut view = NetmapView::default();
                view.gateway =
                    Some(GatewayEntry { tunnel_networks: nets(own), ..GatewayEntry::named("a-1", "a") });
                let addresses =
                    presences.split_whitespace().map(|ip| PresenceIp(ip.parse().unwrap())).collect();
                let presence = TranslatedPresenceEntry {
                    service: "plc".into(),
                    addresses,
                    scope: TranslatedScope::Everything,
                    names: Vec::new(),
                    service_site: "b".into(),
                    gateway: "b-1".into(),
                    policies: Vec::new(),
                };
                view.translated_presences.insert("plc".into(), presence);
                view.on_demand = on_demand.then(|| OnDemandEntry { networks: nets("10.77.0.0/16") });
                let entry = TunnelPeerEntry {
                    gateway: "b-1".into(),
                    site: "b".into(),
                    public_key: TunnelKey([1; 32]),
                    cipher: TunnelCipher::ChaCha20Poly1305,
                    endpoints: Vec::new(),
                    networks: nets(peer),
                    plain_wireguard: false,
                    relay: false,
                };
                let peers = vec![PlannedPeer { entry, endpoints: Vec::new() }];
                let mut plan = ForwardPlan::new(Arc::new(view.clone()), OwnSockets::default(), peers.clone());
                assert_eq!(plan.steered(), nets(expected), "{name}");
                let site = SiteEntry { name: "a".into(), subnets: Vec::new(), active: Some("a-2".into()) };
                view.sites.insert("a".into(), site);
                plan = ForwardPlan::new(Arc::new(view), OwnSockets::default(), peers);
                assert_eq!(plan.steered(), nets(""), "{name}, at a standby gateway");
            };
        let check = |name: &str, own: &str, peer: &str, presences: &str, expected: &str| {
            check_with(name, own, (peer, false), presences, expected)
        };
        check_with(
            "members that are no peers yet",
            "10.77.1.0/24",
            ("10.1.0.0/24", true),
            "",
            "10.1.0.0/24 10.77.0.0/24 10.77.2.0/23 10.77.4.0/22 10.77.8.0/21 10.77.16.0/20 10.77.32.0/19 10.77.64.0/18 10.77.128.0/17",
        );
        check("nothing", "10.0.0.0/24", "", "", "");
        check("a presence", "10.0.0.0/24", "", "198.18.0.1 fd00::1", "198.18.0.1/32 fd00::1/128");
        check("a presence in the LAN", "10.0.0.0/24", "", "10.0.0.200", "10.0.0.200/32");
        check("a network", "10.0.0.0/24", "10.1.0.0/24 10.1.0.0/25", "10.1.0.7", "10.1.0.0/24");
        check("a network around the LAN", "10.0.0.0/24", "10.0.0.0/22", "", "10.0.1.0/24 10.0.2.0/23");
        check("a network in the LAN", "10.0.0.0/8", "10.0.0.0/22", "", "");
    }

    #[test]
    fn the_host_sends_from_an_address_inside_its_networks() {
        let ips =
            |text: &str| -> Vec<IpAddr> { text.split_whitespace().map(|ip| ip.parse().unwrap()).collect() };
        let check = |ip: Option<&str>, of_host: &str, expected: &str| {
            let mut view = NetmapView::default();
            view.gateway = Some(GatewayEntry {
                ip: ip.map(|ip| ip.parse().unwrap()),
                tunnel_networks: ["10.1.0.0/24", "10.0.0.0/24", "fd00::/64"]
                    .map(|net| net.parse().unwrap())
                    .into(),
                ..GatewayEntry::named("oslo-1", "oslo")
            });
            let plan = ForwardPlan::new(Arc::new(view), OwnSockets::default(), Vec::new());
            assert_eq!(plan.sources(&ips(of_host)), ips(expected), "{ip:?} {of_host}");
        };
        check(None, "203.0.113.2 2001:db8::1", "");
        check(None, "203.0.113.2 10.0.0.2 10.1.0.1 2001:db8::1 fd00::2", "10.1.0.1 fd00::2");
        check(Some("10.0.0.2"), "10.1.0.1 10.0.0.2 fd00::2", "10.0.0.2 fd00::2");
        check(Some("10.0.0.9"), "10.0.0.2", "10.0.0.2");
        check(Some("203.0.113.2"), "203.0.113.2 10.0.0.2", "10.0.0.2");
    }
}
