//! Links: laid, cut, restored, and given other addresses.

use anyhow::{Context, Result};
use ipnet::IpNet;

use super::Net;
use super::plan::{self, Wire};

/// The way in which a link is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// The cable is pulled at the far end: the lower node sees its carrier go, and come back.
    Unplugged,
    /// The lower node's own interface is set down, as an operator does. Its routes go with it.
    Down,
    /// Packets vanish one hop away. Nothing can be seen at the lower node.
    Silent,
}

impl Net {
    /// Cuts the uplink of a node. It is as unreachable from below as from above.
    pub fn cut(&mut self, node: &str, how: Cut) -> Result<()> {
        let wire = self.uplink(node)?.clone();
        match how {
            Cut::Unplugged => self.ip(&wire.above.node, &format!("link set {} down", wire.above.interface)),
            Cut::Down => self.ip(&wire.below.node, &format!("link set {} down", wire.below.interface)),
            Cut::Silent => self.change_rules(&wire.above.node, |rules| rules.cut(&wire.above.interface)),
        }
    }

    /// Restores a cut link, with the addresses and routes that were lost with it.
    pub fn restore(&mut self, node: &str) -> Result<()> {
        let wire = self.uplink(node)?.clone();
        self.change_rules(&wire.above.node, |rules| rules.join(&wire.above.interface))?;
        self.ip(&wire.above.node, &wire.above.up())?;
        self.ip(&wire.below.node, &wire.below.up())?;
        self.route(&wire.above.node)?;
        self.route(&wire.below.node)
    }

    /// Gives the uplink of a node other addresses of the same networks; families that are not named keep theirs.
    /// The old address is gone before the new one is there, as with a lease that ran out.
    pub fn readdress(&mut self, node: &str, addresses: &[&str]) -> Result<()> {
        let place = self.wires.iter().position(|wire| wire.below.node == node);
        let place = place.with_context(|| format!("{node} has no uplink"))?;
        let mut lines = String::new();
        for text in addresses {
            let address: std::net::IpAddr = text.parse()?;
            let end = &mut self.wires[place].below;
            let old = end.addresses.iter_mut().find(|old| old.addr().is_ipv4() == address.is_ipv4());
            let old = old.with_context(|| format!("{node} has no address like {text}"))?;
            lines.push_str(&format!("addr del {old} dev {}\n", end.interface));
            *old = IpNet::new(address, old.prefix_len())?;
        }
        lines.push_str(&self.wires[place].below.up());
        self.ip(node, &lines)?;
        self.route(node)?;
        // Nodes above may have routes by way of the old address.
        let above = self.wires[place].above.node.clone();
        self.route(&above)
    }

    /// Makes the pair of interfaces, each already where it belongs.
    pub(super) fn lay(&self, wire: &Wire) -> Result<()> {
        let above = self.node(&wire.above.node)?.namespace.name();
        self.ip(
            &wire.below.node,
            &format!(
                "link add {} type veth peer name {} netns {above}",
                wire.below.interface, wire.above.interface
            ),
        )
    }

    pub(super) fn route(&self, node: &str) -> Result<()> {
        match plan::routes(node, &self.wires) {
            lines if lines.is_empty() => Ok(()),
            lines => self.ip(node, &lines),
        }
    }

    fn ip(&self, node: &str, lines: &str) -> Result<()> {
        self.node(node)?.namespace.ip(lines)
    }
}
