//! Reads this host's addresses, its connected networks and its DNS resolvers.
//!
//! Read again every few seconds, because interfaces change and DHCP clients rewrite files. `resolvers` is
//! pure; the rest queries the system. Information that the system does not provide is treated as absent.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::path::Path;

use getifaddrs::InterfaceFlags;
use ipnet::IpNet;

/// The resolver configuration of this host.
pub const RESOLV_CONF: &str = "/etc/resolv.conf";
/// The C library uses three; a few more do no harm.
const RESOLVERS_MAX: usize = 8;
const PORT: u16 = 53;

#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct HostNetworks {
    /// Networks that an interface of this host is connected to.
    pub connected: Vec<IpNet>,
    /// This host's own addresses.
    pub addresses: Vec<IpAddr>,
    /// The resolvers in the order of the file.
    pub resolvers: Vec<SocketAddr>,
}

impl HostNetworks {
    pub fn read(resolv_conf: &Path) -> HostNetworks {
        let text = std::fs::read(resolv_conf).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let resolvers = resolvers(&text, |interface| getifaddrs::if_nametoindex(interface).ok());
        let (connected, addresses) = networks().unwrap_or_default();
        HostNetworks { connected, addresses, resolvers }
    }
}

fn networks() -> std::io::Result<(Vec<IpNet>, Vec<IpAddr>)> {
    let (mut connected, mut addresses) = (Vec::new(), Vec::new());
    for interface in getifaddrs::getifaddrs()?.filter(|found| found.flags.contains(InterfaceFlags::UP)) {
        let Some(address) = interface.address.ip_addr() else { continue };
        addresses.push(address);
        let network = interface.address.netmask().and_then(|mask| IpNet::with_netmask(address, mask).ok());
        // A prefix of length zero would make every address a neighbour.
        connected.extend(network.filter(|network| network.prefix_len() > 0).map(|network| network.trunc()));
    }
    connected.sort();
    connected.dedup();
    Ok((connected, addresses))
}

/// Returns the servers that a resolv.conf names. `index_of` resolves the interface in addresses such as
/// `fe80::1%eth0`.
pub fn resolvers(text: &str, index_of: impl Fn(&str) -> Option<u32>) -> Vec<SocketAddr> {
    let lines = text.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        words.next().filter(|word| *word == "nameserver")?;
        words.next()
    });
    let parsed = lines.filter_map(|word| resolver(word, &index_of));
    let mut found = Vec::new();
    for address in parsed {
        if !found.contains(&address) && found.len() < RESOLVERS_MAX {
            found.push(address);
        }
    }
    found
}

fn resolver(word: &str, index_of: impl Fn(&str) -> Option<u32>) -> Option<SocketAddr> {
    match word.split_once('%') {
        None => Some(SocketAddr::new(word.parse().ok()?, PORT)),
        Some((ip, scope)) => {
            let ip: Ipv6Addr = ip.parse().ok()?;
            let index = scope.parse().ok().or_else(|| index_of(scope))?;
            Some(SocketAddrV6::new(ip, PORT, 0, index).into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_found_in_what_people_write() {
        let text = "# nameserver 9.9.9.9\n; x\nsearch lan\nnameserver 10.0.0.1\n\tnameserver\tfd00::1 # ours\n\
                    nameserver 10.0.0.1\nnameserver\nnameserver nonsense\nnameservers 1.1.1.1\n\
                    nameserver fe80::1%eth0\nnameserver fe80::1%7\nnameserver fe80::1%gone\noptions edns0\n";
        let found = resolvers(text, |interface| (interface == "eth0").then_some(3));
        let found: Vec<String> = found.iter().map(ToString::to_string).collect();
        assert_eq!(found, ["10.0.0.1:53", "[fd00::1]:53", "[fe80::1%3]:53", "[fe80::1%7]:53"]);
        let many: String = (0..99).map(|n| format!("nameserver 10.0.0.{n}\n")).collect();
        assert_eq!(resolvers(&many, |_| None).len(), RESOLVERS_MAX);
    }

    #[test]
    fn this_host_is_in_its_own_networks() {
        let (connected, addresses) = networks().unwrap();
        // Some sandboxes have not even loopback up; the addresses and networks that exist must be consistent.
        for address in addresses {
            assert!(connected.iter().any(|network| network.contains(&address)), "{address} in {connected:?}");
        }
    }

    #[test]
    fn a_host_without_a_file_asks_nobody() {
        assert!(HostNetworks::read(Path::new("/nowhere/resolv.conf")).resolvers.is_empty());
    }
}
