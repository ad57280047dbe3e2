//! A small world of hosts in network namespaces: links, routers, masquerading NATs, both address families.
//!
//! A `Plan` says what there is, `Net` builds it and changes it while programs run in it: paths are blocked, links cut,
//! addresses changed. Everything goes away with the value; what a killed run left behind is removed by the next one.
//! Needs root, `ip` and `nft`; `missing` says what is not there, so that a test can skip itself by name.

mod plan;

mod echo;
mod firewall;
mod links;
mod namespace;
mod ping;

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::process::{Command, Stdio};
use std::sync::Arc;

use anyhow::{Context, Result};
use ipnet::IpNet;

pub use echo::{Echo, datagrams_dropped, reach_tcp, reach_udp};
pub use firewall::{Fault, Traffic};
pub use links::Cut;
pub use namespace::{Crossed, Host};
pub use ping::reach_ping;
pub use plan::Plan;

use firewall::Rules;
use namespace::Namespace;
use plan::{Kind, Wire};

/// Why no network can be built here; none when it can.
pub fn missing() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("needs root to make network namespaces".to_owned());
    }
    let absent = |program: &&str| {
        let mut command = Command::new(program);
        command.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_err()
    };
    let programs: Vec<&str> = ["ip", "nft", "sysctl", "setpriv"].into_iter().filter(absent).collect();
    if !programs.is_empty() {
        return Some(format!("needs {} (.ci/needs test installs them)", programs.join(", ")));
    }
    Namespace::possible().err().map(|error| format!("needs network namespaces: {error:#}"))
}

/// A network that runs. The name of a link is the name of the node at its lower end, which has its default route there.
#[derive(Debug)]
pub struct Net {
    wires: Vec<Wire>,
    nodes: BTreeMap<String, Node>,
}

#[derive(Debug)]
struct Node {
    namespace: Arc<Namespace>,
    rules: Rules,
}

impl Net {
    pub fn build(plan: &Plan) -> Result<Net> {
        let wires = plan.wires()?;
        Namespace::sweep();
        let mut nodes = BTreeMap::new();
        for (name, kind) in plan.nodes() {
            let namespace = Namespace::create(name)?;
            let outside = wires.iter().filter(|wire| wire.below.node == *name);
            let rules = Rules::new(kind, outside.map(|wire| wire.below.interface.clone()).collect());
            nodes.insert(name.to_owned(), Node { namespace: Arc::new(namespace), rules });
        }
        let net = Net { wires, nodes };
        for wire in &net.wires {
            net.lay(wire)?;
        }
        for (name, node) in &net.nodes {
            net.settle(name, node).with_context(|| format!("{name} cannot be set up"))?;
        }
        for name in net.nodes.keys() {
            net.route(name)?;
        }
        Ok(net)
    }

    /// Programs run here.
    pub fn host(&self, name: &str) -> Result<Host> {
        Ok(Host::new(name, self.node(name)?.namespace.clone()))
    }

    /// The first address of a node's uplink.
    pub fn ipv4(&self, name: &str) -> Result<Ipv4Addr> {
        let addresses = &self.uplink(name)?.below.addresses;
        let found = addresses.iter().find_map(|net| match net {
            IpNet::V4(net) => Some(net.addr()),
            IpNet::V6(_) => None,
        });
        found.with_context(|| format!("{name} has no IPv4 address"))
    }

    pub fn ipv6(&self, name: &str) -> Result<Ipv6Addr> {
        let addresses = &self.uplink(name)?.below.addresses;
        let found = addresses.iter().find_map(|net| match net {
            IpNet::V6(net) => Some(net.addr()),
            IpNet::V4(_) => None,
        });
        found.with_context(|| format!("{name} has no IPv6 address"))
    }

    /// The address of the upper end of a node's uplink: of its gateway.
    pub fn gateway_ipv4(&self, name: &str) -> Result<Ipv4Addr> {
        let addresses = &self.uplink(name)?.above.addresses;
        let found = addresses.iter().find_map(|net| match net {
            IpNet::V4(net) => Some(net.addr()),
            IpNet::V6(_) => None,
        });
        found.with_context(|| format!("{name} has no IPv4 gateway"))
    }

    /// At a router or NAT the fault meets what is forwarded, at a host its own packets.
    pub fn impose(&mut self, node: &str, fault: Fault) -> Result<()> {
        self.change_rules(node, |rules| rules.impose(fault))
    }

    pub fn lift(&mut self, node: &str, fault: Fault) -> Result<()> {
        self.change_rules(node, |rules| rules.lift(fault))
    }

    /// Packets vanish, as behind a firewall that says nothing.
    pub fn block(&mut self, node: &str, traffic: Traffic) -> Result<()> {
        self.impose(node, Fault::Drop(traffic))
    }

    pub fn allow(&mut self, node: &str, traffic: Traffic) -> Result<()> {
        self.lift(node, Fault::Drop(traffic))
    }

    fn change_rules(&mut self, node: &str, change: impl FnOnce(&mut Rules)) -> Result<()> {
        let node = self.nodes.get_mut(node).with_context(|| format!("there is no node {node}"))?;
        change(&mut node.rules);
        node.namespace.nft(&node.rules.faults())
    }

    fn settle(&self, name: &str, node: &Node) -> Result<()> {
        let mut settings = vec!["net.ipv4.conf.all.rp_filter=0", "net.ipv6.conf.all.accept_dad=0"];
        if node.rules.kind() != Kind::Host {
            settings.extend(["net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1"]);
        }
        node.namespace.sysctl(&settings)?;
        node.namespace.ip("link set lo up")?;
        for wire in &self.wires {
            for end in [&wire.below, &wire.above].into_iter().filter(|end| end.node == name) {
                node.namespace.ip(&end.up())?;
            }
        }
        match node.rules.nat() {
            Some(script) => node.namespace.nft(&script),
            None => Ok(()),
        }
    }

    fn node(&self, name: &str) -> Result<&Node> {
        self.nodes.get(name).with_context(|| format!("there is no node {name}"))
    }

    fn uplink(&self, name: &str) -> Result<&Wire> {
        let found = self.wires.iter().find(|wire| wire.below.node == name);
        found.with_context(|| format!("{name} has no uplink"))
    }
}
