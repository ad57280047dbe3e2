//! Decides for which addresses a gateway answers at which interface, from the netmap and the interfaces of the host. Pure.
//!
//! An address is answered at the one interface whose connected network holds it, if a route of this gateway leads
//! packets for it into the presence namespace or the tunnel. The rest of the LAN is left to its hosts.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use causeway_netmap::NetmapView;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::message::{HardwareAddress, NeighbourFamily};
use crate::tun::service_plan::ServicePlan;

/// An Ethernet interface of the host that is up.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LanInterface {
    pub index: u32,
    pub name: String,
    pub hardware: HardwareAddress,
    /// Addresses of the host at this interface, with the lengths of their networks.
    pub addresses: Vec<IpNet>,
}

/// The parts of the gateway that take packets at this moment.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct PacketSinks {
    /// Networks that are routed into the presence namespace.
    pub presence_networks: Vec<IpNet>,
    /// The TUN device exists.
    pub tunnel: bool,
}

/// The addresses that are answered at one interface, of one family.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct AnsweredAddresses {
    /// Presences. Each is probed before it is answered.
    pub addresses: BTreeSet<IpAddr>,
    /// Networks of other sites, and those in which clients of translated services have addresses.
    pub networks: Vec<IpNet>,
    /// Known hosts in `networks`; hosts of the LAN are told when this gateway becomes active.
    pub hosts: BTreeSet<IpAddr>,
    /// Addresses of the gateway's host and of known hosts of this site: never answered.
    pub excluded: BTreeSet<IpAddr>,
}

impl AnsweredAddresses {
    fn is_empty(&self) -> bool {
        self.addresses.is_empty() && self.networks.is_empty()
    }

    /// Tells whether an address is in one of the networks, and is the LAN's own by no other fact.
    pub fn is_in_network(&self, address: IpAddr) -> bool {
        !self.excluded.contains(&address) && self.networks.iter().any(|network| network.contains(&address))
    }
}

/// The interfaces at which a gateway answers, by index and family. Empty at a standby gateway.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct NeighbourPlan {
    pub interfaces: BTreeMap<(u32, NeighbourFamily), AnsweredAddresses>,
    /// Networks in no connected network: other hosts need a route to them.
    pub routed: Vec<NeededRoute>,
}

/// A route that hosts of the site need, on each of them or on their router.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct NeededRoute {
    pub network: IpNet,
    /// The address of the gateway's host at the site. None: it has none of this family.
    pub via: Option<IpAddr>,
}

impl NeighbourPlan {
    pub fn new(view: &NetmapView, interfaces: &[LanInterface], sinks: &PacketSinks) -> NeighbourPlan {
        let mut plan = NeighbourPlan::default();
        let Some(gateway) = &view.gateway else { return plan };
        let active = view.sites.get(&gateway.site).and_then(|site| site.active.as_ref());
        if active.is_some_and(|active| *active != gateway.name) {
            return plan;
        }
        let own = interfaces.iter().flat_map(|interface| &interface.addresses).map(IpNet::addr);
        let subjects = view.subjects.values().filter(|subject| subject.site == gateway.site);
        let excluded: BTreeSet<IpAddr> =
            own.chain(subjects.filter_map(|subject| subject.ip)).chain(gateway.ip).collect();
        let mut add = |wanted: Wanted| {
            let Some((index, connected)) = holder(interfaces, wanted.network()) else { return false };
            let key = (index, NeighbourFamily::of(connected.addr()));
            let there = plan.interfaces.entry(key).or_default();
            match wanted {
                Wanted::Presence(_, address)
                    if !excluded.contains(&address) && is_host(&connected, address) =>
                {
                    there.addresses.insert(address);
                }
                Wanted::Presence(..) => {}
                Wanted::Network(network) => there.networks.push(network),
                Wanted::Host(_, address) => {
                    there.hosts.insert(address);
                }
            }
            true
        };
        let mut routed = BTreeSet::new();
        for address in view.presences.values().flat_map(|presence| &presence.addresses) {
            let within = |network: &&IpNet| network.contains(&address.0);
            let Some(range) = sinks.presence_networks.iter().find(within) else { continue };
            if !add(Wanted::Presence(*range, address.0)) {
                routed.insert(*range);
            }
        }
        if sinks.tunnel {
            // A presence or a client needs the route of the range that it is from.
            let range = |network: IpNet| {
                gateway
                    .presence_cidrs
                    .iter()
                    .find(|range| range.contains(&network))
                    .copied()
                    .unwrap_or(network)
            };
            for address in view.translated_presences.values().flat_map(|presence| &presence.addresses) {
                if !add(Wanted::Presence(address.0.into(), address.0)) {
                    routed.insert(range(address.0.into()));
                }
            }
            let services = ServicePlan::new(view);
            for network in services.client_networks() {
                if !add(Wanted::Network(*network)) {
                    routed.insert(range(*network));
                }
            }
            let is_own = |network: &IpNet| {
                let overlaps = |own: &IpNet| own.contains(network) || network.contains(own);
                gateway.tunnel_networks.iter().any(overlaps)
            };
            for peer in view.tunnel_peers.values().filter(|peer| peer.site != gateway.site) {
                for network in peer.networks.iter().map(IpNet::trunc).filter(|network| !is_own(network)) {
                    if !add(Wanted::Network(network)) {
                        routed.insert(network);
                    }
                    for host in view.hosts.values().filter(|host| network.contains(&host.ip)) {
                        add(Wanted::Host(network, host.ip));
                    }
                }
            }
            let on_demand = view.on_demand.iter().flat_map(|entry| &entry.networks);
            for network in on_demand.map(IpNet::trunc).filter(|network| !is_own(network)) {
                if !add(Wanted::Network(network)) {
                    routed.insert(network);
                }
            }
        }
        let near: Vec<IpNet> = view
            .sites
            .get(&gateway.site)
            .map(|site| site.subnets.as_slice())
            .unwrap_or_default()
            .iter()
            .chain(&gateway.tunnel_networks)
            .copied()
            .collect();
        // Ranges of loopback addresses are the host's own.
        plan.routed = routed
            .into_iter()
            .filter(|network| !network.addr().is_loopback())
            .map(|network| NeededRoute { network, via: next_hop(interfaces, gateway.ip, &near, network) })
            .collect();
        plan.interfaces.retain(|_, answered| !answered.is_empty());
        for answered in plan.interfaces.values_mut() {
            answered.networks.sort();
            answered.networks.dedup();
            answered.excluded.clone_from(&excluded);
            for interface in interfaces {
                answered.excluded.extend(interface.addresses.iter().flat_map(edges));
            }
        }
        plan
    }
}

enum Wanted {
    /// An address, and the network of the route that leads to its sink.
    Presence(IpNet, IpAddr),
    Network(IpNet),
    Host(IpNet, IpAddr),
}

impl Wanted {
    fn network(&self) -> IpNet {
        match self {
            Wanted::Presence(network, _) | Wanted::Network(network) | Wanted::Host(network, _) => *network,
        }
    }
}

/// Returns the interface with the smallest connected network that holds the whole of `network`. The connected network is
/// larger: with an equal one the route of the kernel would lead packets back to the LAN.
fn holder(interfaces: &[LanInterface], network: IpNet) -> Option<(u32, IpNet)> {
    let all = interfaces
        .iter()
        .flat_map(|interface| interface.addresses.iter().map(|address| (interface.index, address.trunc())));
    all.filter(|(_, connected)| connected.contains(&network) && connected.prefix_len() < network.prefix_len())
        .max_by_key(|(_, connected)| connected.prefix_len())
}

/// Returns the address of the gateway's host to which a router of the site sends packets for a network: the one that
/// its EGateway names, else one in a network of the site, else any.
fn next_hop(
    interfaces: &[LanInterface],
    named: Option<IpAddr>,
    near: &[IpNet],
    network: IpNet,
) -> Option<IpAddr> {
    let is_usable = |address: &IpAddr| {
        let is_link_local = match address {
            IpAddr::V4(address) => address.is_link_local(),
            IpAddr::V6(address) => address.is_unicast_link_local(),
        };
        address.is_ipv4() == network.addr().is_ipv4() && !is_link_local && !network.contains(address)
    };
    let own = interfaces.iter().flat_map(|interface| &interface.addresses).map(IpNet::addr).filter(is_usable);
    let rank = |address: &IpAddr| match address {
        address if Some(*address) == named => 0,
        address if near.iter().any(|network| network.contains(address)) => 1,
        _ => 2,
    };
    own.min_by_key(rank)
}

/// Tells whether a host of the network may have the address.
fn is_host(network: &IpNet, address: IpAddr) -> bool {
    !edges(network).contains(&address)
}

/// The addresses of a network that no host has: the first one, and for IPv4 the last one.
fn edges(network: &IpNet) -> Vec<IpAddr> {
    match network {
        IpNet::V4(net) if net.prefix_len() >= 31 => Vec::new(),
        IpNet::V4(net) => vec![net.network().into(), net.broadcast().into()],
        // The subnet-router anycast address (RFC 4291, 2.6.1).
        IpNet::V6(net) => vec![net.network().into()],
    }
}

#[cfg(test)]
mod tests;
