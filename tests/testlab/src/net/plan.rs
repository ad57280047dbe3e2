//! The parts of a network, and the interfaces, addresses and routes that follow from them. Values only.
//!
//! The plan is a tree, or nearly: every link goes from a node below to a node above. The lower end gets the second
//! address of each of the link's networks and its default route there; the upper end gets the first address, and routes
//! to what lies below. Nodes behind a NAT are unknown to the nodes above it.

use std::net::IpAddr;

use anyhow::{Context, Result, ensure};
use ipnet::IpNet;

/// The longest name of an interface in Linux.
const INTERFACE_NAME_MAX: usize = 15;
/// A node with several uplinks prefers the first.
const FIRST_METRIC: usize = 100;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Host,
    Router,
    /// A router that puts its own address in place of those below it.
    Nat,
}

#[derive(Debug, Clone, Default)]
pub struct Plan {
    nodes: Vec<(String, Kind)>,
    links: Vec<(String, String, Vec<String>)>,
}

impl Plan {
    pub fn new() -> Plan {
        Plan::default()
    }

    pub fn host(self, name: &str) -> Plan {
        self.node(name, Kind::Host)
    }

    pub fn router(self, name: &str) -> Plan {
        self.node(name, Kind::Router)
    }

    pub fn nat(self, name: &str) -> Plan {
        self.node(name, Kind::Nat)
    }

    /// A link on networks of its own, one per address family at most. A second link of `below` is its second choice.
    pub fn link(mut self, below: &str, above: &str, networks: &[&str]) -> Plan {
        let networks = networks.iter().map(|network| (*network).to_owned()).collect();
        self.links.push((below.to_owned(), above.to_owned(), networks));
        self
    }

    pub(super) fn nodes(&self) -> impl Iterator<Item = (&String, Kind)> {
        self.nodes.iter().map(|(name, kind)| (name, *kind))
    }

    /// Every link with the names and addresses of both its ends.
    pub(super) fn wires(&self) -> Result<Vec<Wire>> {
        let mut wires: Vec<Wire> = Vec::new();
        for (below, above, networks) in &self.links {
            for node in [below, above] {
                ensure!(self.kind(node).is_some(), "the link {below} to {above} needs a node {node}");
            }
            let networks: Vec<IpNet> = networks
                .iter()
                .map(|text| text.parse().with_context(|| format!("{text} is no network")))
                .collect::<Result<_>>()?;
            let place = wires.iter().filter(|wire| wire.below.node == *below).count();
            let far = if place == 0 { below.clone() } else { format!("{below}{place}") };
            ensure!(far.len() <= INTERFACE_NAME_MAX, "{far} is too long for the name of an interface");
            wires.push(Wire {
                below: End::new(below, &format!("eth{place}"), &networks, 2)?,
                above: End::new(above, &far, &networks, 1)?,
                metric: FIRST_METRIC + place,
                hides: self.kind(below) == Some(Kind::Nat),
            });
        }
        Ok(wires)
    }

    fn node(mut self, name: &str, kind: Kind) -> Plan {
        self.nodes.push((name.to_owned(), kind));
        self
    }

    fn kind(&self, name: &str) -> Option<Kind> {
        self.nodes.iter().find(|(node, _)| node == name).map(|(_, kind)| *kind)
    }
}

/// A link as it is built: a pair of interfaces in two namespaces.
#[derive(Debug, Clone)]
pub struct Wire {
    pub below: End,
    pub above: End,
    pub metric: usize,
    /// The lower end is a NAT: what lies below it cannot be reached from above.
    pub hides: bool,
}

#[derive(Debug, Clone)]
pub struct End {
    pub node: String,
    pub interface: String,
    pub addresses: Vec<IpNet>,
}

impl End {
    fn new(node: &str, interface: &str, networks: &[IpNet], place: usize) -> Result<End> {
        let addresses = networks.iter().map(|network| nth_address(*network, place)).collect::<Result<_>>()?;
        Ok(End { node: node.to_owned(), interface: interface.to_owned(), addresses })
    }

    /// The lines for `ip -batch` that bring this end up. Running them twice changes nothing.
    pub fn up(&self) -> String {
        let mut lines = format!("link set {} up\n", self.interface);
        for address in &self.addresses {
            // No other node is on the link, so duplicate address detection is not needed.
            let flag = if address.addr().is_ipv6() { " nodad" } else { "" };
            lines.push_str(&format!("addr replace {address} dev {}{flag}\n", self.interface));
        }
        lines
    }
}

/// The lines for `ip -batch` that give `node` its routes. Running them twice changes nothing.
pub fn routes(node: &str, wires: &[Wire]) -> String {
    let mut lines = String::new();
    for wire in wires.iter().filter(|wire| wire.below.node == node) {
        for gateway in &wire.above.addresses {
            let interface = &wire.below.interface;
            lines.push_str(&route("default", gateway.addr(), interface, wire.metric));
        }
    }
    for wire in wires.iter().filter(|wire| wire.above.node == node && !wire.hides) {
        for network in beneath(&wire.below.node, wires) {
            let via = wire.below.addresses.iter().find(|address| same_family(address, &network));
            if let Some(via) = via {
                lines.push_str(&route(&network.to_string(), via.addr(), &wire.above.interface, wire.metric));
            }
        }
    }
    lines
}

fn route(to: &str, via: IpAddr, interface: &str, metric: usize) -> String {
    format!("route replace {to} via {via} dev {interface} metric {metric}\n")
}

/// The networks that lie below a node and can be seen through it.
fn beneath(node: &str, wires: &[Wire]) -> Vec<IpNet> {
    let mut networks = Vec::new();
    for wire in wires.iter().filter(|wire| wire.above.node == node) {
        networks.extend(wire.above.addresses.iter().map(IpNet::trunc));
        if !wire.hides {
            networks.extend(beneath(&wire.below.node, wires));
        }
    }
    networks
}

fn nth_address(network: IpNet, place: usize) -> Result<IpNet> {
    // Not `hosts()`: for IPv6 it begins with the network itself.
    let address: IpAddr = match network.network() {
        IpAddr::V4(first) => (u32::from(first) + u32::try_from(place)?).to_be_bytes().into(),
        IpAddr::V6(first) => (u128::from(first) + place as u128).to_be_bytes().into(),
    };
    ensure!(network.contains(&address), "{network} is too small for a link");
    Ok(IpNet::new(address, network.prefix_len())?)
}

fn same_family(a: &IpNet, b: &IpNet) -> bool {
    a.addr().is_ipv4() == b.addr().is_ipv4()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> Plan {
        Plan::new()
            .router("internet")
            .host("cloud")
            .link("cloud", "internet", &["203.0.113.0/24", "2001:db8:1::/64"])
            .router("office")
            .link("office", "internet", &["198.51.100.0/24"])
            .host("desk")
            .link("desk", "office", &["10.1.0.0/24"])
            .nat("nat")
            .link("nat", "internet", &["192.0.2.0/24"])
            .host("edge")
            .link("edge", "nat", &["192.168.1.0/24"])
            .link("edge", "internet", &["192.0.3.0/24"])
    }

    #[test]
    fn the_lower_end_is_second_on_the_link_and_the_upper_end_first() {
        let wires = plan().wires().unwrap();
        assert_eq!(
            wires[0].below.up(),
            "link set eth0 up\naddr replace 203.0.113.2/24 dev eth0\naddr replace 2001:db8:1::2/64 dev eth0 nodad\n"
        );
        assert_eq!(wires[0].above.addresses[0].to_string(), "203.0.113.1/24");
        assert_eq!(wires[0].above.interface, "cloud");
    }

    #[test]
    fn a_second_uplink_has_names_of_its_own_and_a_worse_metric() {
        let wires = plan().wires().unwrap();
        let routes = routes("edge", &wires);
        assert!(routes.contains("default via 192.168.1.1 dev eth0 metric 100"), "{routes}");
        assert!(routes.contains("default via 192.0.3.1 dev eth1 metric 101"), "{routes}");
        assert_eq!(wires[5].above.interface, "edge1");
    }

    #[test]
    fn a_router_is_told_what_lies_below_it_unless_a_nat_hides_it() {
        let routes = routes("internet", &plan().wires().unwrap());
        assert!(routes.contains("10.1.0.0/24 via 198.51.100.2 dev office"), "{routes}");
        assert!(!routes.contains("192.168.1.0"), "{routes}");
    }

    #[test]
    fn a_link_to_nowhere_is_refused() {
        let plan = Plan::new().host("edge").link("edge", "internet", &["10.0.0.0/24"]);
        assert!(plan.wires().unwrap_err().to_string().contains("needs a node internet"));
    }
}
