//! Interprets the target of a CONNECT: a node, an address that may be dialled directly, or an error. Pure.

use causeway_netmap::{DnsNameTarget, NetmapView, ServerName};

use super::allow::{AllowRule, ConnectHost};

/// The destination of a CONNECT.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ConnectTarget {
    Node { node: ServerName, port: u16 },
    Direct { host: ConnectHost, port: u16 },
}

/// The target is invalid or unknown.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum InvalidTarget {
    #[error("the target must be HOST:PORT, as in node-1:10250")]
    Malformed,
    /// Two sites may use the same addresses, so an address identifies no node.
    #[error(
        "{host} is an address, and nodes are reached by their names only: sites may use the same addresses. For \
         kube-apiserver set --kubelet-preferred-address-types=Hostname; what is no node must be in the allow-list"
    )]
    Address { host: ConnectHost, port: u16 },
    #[error(
        "{host} is no node that this site may reach (an EServer with ports, and an EPolicy that allows the site), and the \
         allow-list does not name it"
    )]
    Unknown { host: ConnectHost, port: u16 },
}

/// Node names precede the allow-list: a node is reached through its gateway, whatever else is allowed.
pub fn decide(
    view: &NetmapView,
    allowed: &[AllowRule],
    authority: &str,
) -> Result<ConnectTarget, InvalidTarget> {
    let (host, port) = authority.rsplit_once(':').ok_or(InvalidTarget::Malformed)?;
    let port = port.parse::<u16>().ok().filter(|port| *port != 0).ok_or(InvalidTarget::Malformed)?;
    if !is_host(host) {
        return Err(InvalidTarget::Malformed);
    }
    let named = view.named(host);
    let host = ConnectHost::new(host);
    if let (Some(DnsNameTarget::Node(node)), ConnectHost::Name(_)) = (named, &host) {
        return Ok(ConnectTarget::Node { node: node.clone(), port });
    }
    match allowed.iter().any(|rule| rule.allows(&host, port)) {
        true => Ok(ConnectTarget::Direct { host, port }),
        false if matches!(host, ConnectHost::Address(_)) => Err(InvalidTarget::Address { host, port }),
        false => Err(InvalidTarget::Unknown { host, port }),
    }
}

/// Checks the length of a DNS name, and that its characters may be written to a log. A bare IPv6 address is
/// not a host: its end would be parsed as a port.
fn is_host(text: &str) -> bool {
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let plain = |character: char| character.is_ascii_alphanumeric() || matches!(character, '-' | '_' | '.');
    match bare {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => !text.is_empty() && text.len() <= 253 && text.chars().all(plain),
    }
}

#[cfg(test)]
mod tests {
    use causeway_netmap::{DnsName, Generation, NetmapEntry, NodeEntry};

    use super::*;

    fn view() -> NetmapView {
        let node = NetmapEntry::Node(NodeEntry {
            server: "Node-1".into(),
            site: "oslo".into(),
            ip: None,
            ports: vec![10250],
            names: vec![DnsName::new("Node-1"), DnsName::new("node-1.oslo.causeway.internal")],
            policies: vec![],
        });
        NetmapView::of_entries(Generation { epoch: 1, revision: 1 }, [node]).unwrap()
    }

    #[test]
    fn a_target_is_a_node_by_any_of_its_names_or_on_the_allow_list_or_nothing() {
        let view = view();
        let allowed: Vec<AllowRule> = ["hooks.example.org:443", "10.96.0.0/12:443", "node-1:22"]
            .map(|rule| rule.parse().unwrap())
            .into();
        let check = |authority: &str, expected: Result<ConnectTarget, InvalidTarget>| {
            assert_eq!(decide(&view, &allowed, authority), expected, "{authority}");
        };
        let node = |port| Ok(ConnectTarget::Node { node: "Node-1".into(), port });
        check("node-1:10250", node(10250));
        check("NODE-1.:10250", node(10250));
        check("Node-1.Oslo.causeway.internal:10250", node(10250));
        // The policy decides whether the port is open.
        check("node-1:22", node(22));
        let name = |name: &str| ConnectHost::Name(name.to_owned());
        check(
            "Hooks.example.org:443",
            Ok(ConnectTarget::Direct { host: name("hooks.example.org"), port: 443 }),
        );
        check("10.96.0.1:443", Ok(ConnectTarget::Direct { host: ConnectHost::new("10.96.0.1"), port: 443 }));
        check(
            "10.0.0.5:10250",
            Err(InvalidTarget::Address { host: ConnectHost::new("10.0.0.5"), port: 10250 }),
        );
        check("[::1]:443", Err(InvalidTarget::Address { host: ConnectHost::new("::1"), port: 443 }));
        check("node-2:10250", Err(InvalidTarget::Unknown { host: name("node-2"), port: 10250 }));
        for malformed in [
            "",
            "node-1",
            ":443",
            "node-1:",
            "node-1:0",
            "node-1:65536",
            "::1:443",
            "a@node-1:443",
            "a b:1",
            "[x]:1",
        ] {
            check(malformed, Err(InvalidTarget::Malformed));
        }
    }
}
