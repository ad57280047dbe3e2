//! Layer 3 in the netmap of a gateway: its own networks, its peers and its communities.
//!
//! Peers of a gateway are the gateways of sites that share a community with its site. A gateway is told nothing
//! of other sites. The subnets of a site belong to its active gateway, those of an EGateway to that gateway.
//! The gateway of the cloud is a peer of every member without being one: it tells a gateway the address from which its
//! packets come. Without a common community such a peer has no networks, so that no packet of a host crosses.
//! Of a large community a gateway has only the members that `neighbourhood` makes its peers, and the networks of the
//! remaining ones in summary.

use std::collections::{BTreeMap, BTreeSet};

use causeway_api::layer3::{SiteNetwork, map_address, routable, site_networks};
use causeway_api::{ECommunity, EGateway, ObjectSet};
use causeway_netmap::{
    CommunityEntry, GatewayEntry, HostEntry, NetmapEntry, OnDemandEntry, PrefixMapping, RelayGroupEntry,
    TunnelCipher, TunnelKey, TunnelPeerEntry,
};
use ipnet::IpNet;

use super::{Draft, sorted};
use crate::bootstrap::CLOUD;
use crate::replicas::ActiveGateways;

/// Returns the gateway that has the subnets of a site: the active one, or while none is stored, the first by
/// `EGateway::rank`.
pub fn owner_of<'a>(objects: &'a ObjectSet, active: &ActiveGateways, site: &str) -> Option<&'a EGateway> {
    let stored = active.get(site).and_then(|name| objects.gateway(name));
    let first = || objects.gateways_at(site).min_by(|one, other| one.rank().cmp(&other.rank()));
    stored.filter(|gateway| gateway.e_site_name == site).or_else(first)
}

/// Returns all communities, except those that are being deleted.
fn communities(objects: &ObjectSet) -> impl Iterator<Item = &ECommunity> {
    objects.all::<ECommunity>().filter(|community| !community.metadata.is_being_deleted())
}

/// Returns the gateways that carry the networks of a member of any community, except those of the cloud.
fn members_at<'a>(objects: &'a ObjectSet, active: &'a ActiveGateways) -> impl Iterator<Item = &'a str> {
    let sites: BTreeSet<&str> =
        communities(objects).flat_map(|community| &community.members).map(String::as_str).collect();
    sites.into_iter().filter(|site| *site != CLOUD).flat_map(move |site| {
        let owner = owner_of(objects, active, site);
        let with_networks = objects.gateways_at(site).filter(|gateway| gateway.networks().next().is_some());
        owner
            .into_iter()
            .chain(with_networks)
            .filter(|gateway| !gateway.is_plain_wireguard())
            .map(|gateway| gateway.metadata.name.as_str())
    })
}

/// Tells whether a gateway forwards sealed packets between its peers. The cloud always does.
pub(super) fn is_relay(gateway: &EGateway) -> bool {
    (gateway.relay || gateway.metadata.name == CLOUD) && !gateway.is_plain_wireguard()
}

/// The extent to which communities let clients of one site begin flows to hosts of another.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CommunityReach {
    Nothing,
    ByPolicy,
    Everything,
}

impl CommunityReach {
    /// Tells whether a host is known by its address on the wire. A node is also reached by the ports that it offers.
    fn includes(self, is_node: bool) -> bool {
        match self {
            CommunityReach::Nothing => false,
            CommunityReach::ByPolicy => !is_node,
            CommunityReach::Everything => true,
        }
    }
}

impl<'a> Draft<'a> {
    /// Adds layer 3. `own` is the entry of the gateway itself.
    pub(super) fn tunnel(&mut self, active: &ActiveGateways, gateway: &EGateway, own: &mut GatewayEntry) {
        let communities: Vec<&ECommunity> = self.objects.communities_of(self.site).collect();
        let name = gateway.metadata.name.as_str();
        let is_owner =
            owner_of(self.objects, active, self.site).is_some_and(|owner| owner.metadata.name == name);
        let is_own = |network: &SiteNetwork<'_>| network.gateway.map_or(is_owner, |gateway| gateway == name);
        let networks: Vec<SiteNetwork<'_>> =
            site_networks(self.objects, self.site).into_iter().filter(is_own).collect();
        // A standby gateway without networks of its own carries no networks.
        let carries = !networks.is_empty() || is_owner;
        let translated = self.translated_peers(active, name);
        if carries && !communities.is_empty() {
            let real: BTreeSet<IpNet> = networks.iter().map(|network| network.real).collect();
            let mapped = networks.iter().filter(|network| network.real != network.wire);
            let mapped: BTreeSet<PrefixMapping> =
                mapped.map(|network| PrefixMapping { subnet: network.real, seen_as: network.wire }).collect();
            own.tunnel_networks = real.into_iter().collect();
            own.mappings = mapped.into_iter().collect();
            communities.into_iter().for_each(|community| self.community(community));
        }
        // The other gateway keeps the key, and with it the peers.
        if self.objects.tunnel_key_owner(name).is_none() {
            self.peers(active, name, carries, translated);
            if carries && is_relay(gateway) {
                self.relay_groups(name);
            }
        }
    }

    /// Adds the peers of a gateway: those behind which networks are, and those of translated services.
    fn peers(&mut self, active: &ActiveGateways, name: &str, carries: bool, translated: BTreeSet<&'a str>) {
        let mut behind: BTreeMap<&str, BTreeSet<IpNet>> = BTreeMap::new();
        let mut on_demand: Vec<IpNet> = Vec::new();
        // All of them, because sites that are no peers take part in the decision about networks that overlap.
        let neighbours = if carries { self.objects.neighbours(self.site) } else { BTreeSet::new() };
        for network in routable(self.objects, self.site, neighbours) {
            let owner = match network.gateway {
                Some(gateway) => Some(gateway),
                None => {
                    owner_of(self.objects, active, network.site).map(|owner| owner.metadata.name.as_str())
                }
            };
            let Some(owner) = owner else { continue };
            if self.neighbourhood.peers.contains(network.site) {
                behind.entry(owner).or_default().insert(network.wire);
            }
            if self.neighbourhood.on_demand.contains(network.site) && self.has_tunnel(owner) {
                on_demand.push(network.wire);
            }
        }
        for peer in translated {
            behind.entry(peer).or_default();
        }
        if name == CLOUD && carries {
            let members = members_at(self.objects, active);
            for peer in members.chain(super::translated::gateways(self.objects, active)) {
                behind.entry(peer).or_default();
            }
        } else if name != CLOUD && !(behind.is_empty() && on_demand.is_empty()) {
            behind.entry(CLOUD).or_default();
        }
        if !on_demand.is_empty() {
            let networks = IpNet::aggregate(&on_demand);
            self.facts.push(NetmapEntry::OnDemand(OnDemandEntry { networks }));
        }
        for (peer, networks) in behind {
            let entry = self.objects.gateway(peer).and_then(|object| self.peer(name, object, networks));
            self.facts.extend(entry.map(NetmapEntry::TunnelPeer));
        }
    }

    /// Tells whether packets can be sealed for a gateway.
    fn has_tunnel(&self, gateway: &str) -> bool {
        self.objects.tunnel_key(gateway).is_some() && self.objects.tunnel_key_owner(gateway).is_none()
    }

    /// Adds the sites between which a relay forwards sealed packets: the members of communities of its site. The relay of the
    /// cloud serves all communities, and the sites of translated services.
    fn relay_groups(&mut self, name: &str) {
        let is_cloud = name == CLOUD;
        let communities = communities(self.objects)
            .filter(|community| is_cloud || community.members.iter().any(|member| member == self.site))
            .map(|community| (community.metadata.name.clone(), sorted(&community.members)));
        let mut groups: Vec<(String, Vec<&str>)> = communities.collect();
        if is_cloud {
            groups.extend(super::translated::groups(self.objects));
        }
        for (name, sites) in groups.into_iter().filter(|(_, sites)| sites.len() > 1) {
            let sites = sites.into_iter().map(Into::into).collect();
            self.facts.push(NetmapEntry::RelayGroup(RelayGroupEntry { name, sites }));
        }
    }

    /// Adds the hosts of neighbours that clients of this site reach with packets, under their addresses on the wire.
    ///
    /// A host that policies let this site use by its ports stays behind the entry ports of this gateway, unless a
    /// community without policies lets everything cross.
    pub(super) fn hosts_elsewhere(&mut self, active: &ActiveGateways, gateway: &EGateway) {
        let carries = |gateway: &EGateway| self.has_tunnel(&gateway.metadata.name);
        let has_networks =
            |fact: &NetmapEntry| matches!(fact, NetmapEntry::TunnelPeer(peer) if !peer.networks.is_empty());
        let has_peers = self.facts.iter().any(has_networks);
        if !has_peers || !carries(gateway) {
            return;
        }
        let nodes: BTreeSet<String> = self
            .facts
            .iter()
            .filter_map(|fact| match fact {
                NetmapEntry::Node(node) => Some(node.server.to_string()),
                _ => None,
            })
            .collect();
        let mut networks: BTreeMap<&str, Vec<SiteNetwork<'_>>> = BTreeMap::new();
        let routed = routable(self.objects, self.site, self.objects.neighbours(self.site));
        for network in routed.into_iter().filter(|network| self.neighbourhood.peers.contains(network.site)) {
            networks.entry(network.site).or_default().push(network);
        }
        let mut hosts = Vec::new();
        for (site, networks) in networks {
            let reach = self.reach_of(site);
            for server in self.objects.servers_at(site) {
                let is_node = nodes.contains(&server.metadata.name);
                let Some(ip) = server.ip_addr().filter(|_| reach.includes(is_node)) else { continue };
                // The nearest network of the site may be one that collides and has no route.
                let nearest = site_networks(self.objects, site)
                    .into_iter()
                    .filter(|network| network.real.contains(&ip))
                    .max_by_key(|network| network.real.prefix_len());
                let Some(network) = nearest.filter(|network| networks.contains(network)) else { continue };
                let owner = match network.gateway {
                    Some(name) => self.objects.gateway(name),
                    None => owner_of(self.objects, active, site),
                };
                if owner.is_some_and(carries) {
                    hosts.push(NetmapEntry::Host(HostEntry {
                        server: server.metadata.name.as_str().into(),
                        site: site.into(),
                        ip: map_address(ip, (network.real, network.wire)),
                        names: vec![super::facts::host_name(server)],
                    }));
                }
            }
        }
        self.facts.extend(hosts);
    }

    /// Returns how far clients of this site reach into a neighbour.
    fn reach_of(&self, site: &str) -> CommunityReach {
        let common = self.objects.communities_of(self.site);
        let common = common.filter(|community| community.members.iter().any(|member| member == site));
        let mut reach = CommunityReach::Nothing;
        for community in common {
            let Some(policies) = &community.e_policys else { return CommunityReach::Everything };
            let policies = policies.iter().filter_map(|name| self.objects.policy(name));
            let is_here = |server: &String| {
                self.objects.server(server).is_some_and(|host| host.e_site_name == self.site)
            };
            let mut allowing =
                policies.filter(|policy| policy.http.is_empty() && !policy.metadata.is_being_deleted());
            let is_allowed = allowing.any(|policy| {
                policy.allowed_sites.iter().any(|allowed| allowed == self.site)
                    || policy.allowed_servers.iter().any(is_here)
            });
            if is_allowed {
                reach = CommunityReach::ByPolicy;
            }
        }
        reach
    }

    /// None: the peer has no key of its own.
    fn peer(&self, name: &str, peer: &EGateway, networks: BTreeSet<IpNet>) -> Option<TunnelPeerEntry> {
        let peer_name = peer.metadata.name.as_str();
        let public_key = self.objects.tunnel_key(peer_name).map(TunnelKey)?;
        if self.objects.tunnel_key_owner(peer_name).is_some() {
            return None;
        }
        let tunnels = &self.objects.layer3.tunnels;
        let has_aes = |name: &str| tunnels.get(name).is_some_and(|record| record.aes);
        let is_plain = peer.is_plain_wireguard();
        let endpoints = match (is_plain, tunnels.get(peer_name)) {
            (true, _) => vec![peer.endpoint.clone()],
            (false, Some(record)) if !record.endpoints.is_empty() => record.endpoints.clone(),
            (false, Some(record)) => {
                let socket = |ip: &std::net::IpAddr| std::net::SocketAddr::new(*ip, record.port).to_string();
                record.addresses.iter().map(socket).collect()
            }
            (false, None) => Vec::new(),
        };
        Some(TunnelPeerEntry {
            gateway: peer_name.into(),
            site: peer.e_site_name.as_str().into(),
            public_key,
            cipher: match !is_plain && has_aes(name) && has_aes(peer_name) {
                true => TunnelCipher::Aes256Gcm,
                false => TunnelCipher::ChaCha20Poly1305,
            },
            endpoints,
            networks: networks.into_iter().collect(),
            plain_wireguard: is_plain,
            relay: is_relay(peer),
        })
    }

    fn community(&mut self, community: &'a ECommunity) {
        let mut members = sorted(&community.members);
        members.retain(|member| *member == self.site || self.neighbourhood.peers.contains(member));
        let policies = community.e_policys.as_ref().map(sorted);
        for policy in policies.iter().flatten() {
            members.iter().for_each(|member| self.refer(policy, member));
        }
        self.facts.push(NetmapEntry::Community(CommunityEntry {
            name: community.metadata.name.as_str().into(),
            members: members.into_iter().map(Into::into).collect(),
            policies: policies.map(|policies| policies.into_iter().map(Into::into).collect()),
        }));
    }
}
