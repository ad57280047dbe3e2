//! The networks of a site: real addresses, and those on the wire.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use crate::object_set::ObjectSet;

/// A network behind a site.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SiteNetwork<'a> {
    pub site: &'a str,
    /// The only gateway that has it. None: the active gateway of the site.
    pub gateway: Option<&'a str>,
    pub real: IpNet,
    /// The addresses that other sites see.
    pub wire: IpNet,
}

/// Returns the networks of a site: its subnets, mapped subnets that are no part of them, and those of its gateways.
pub fn site_networks<'a>(objects: &'a ObjectSet, site: &'a str) -> Vec<SiteNetwork<'a>> {
    let object = objects.site(site);
    let network = |gateway, real: IpNet| {
        let real = real.trunc();
        SiteNetwork { site, gateway, real, wire: wire_network(objects, site, real) }
    };
    let own: Vec<IpNet> = object.into_iter().flat_map(|object| object.networks()).collect();
    let mapped = object.into_iter().flat_map(|object| &object.mapped_subnets);
    let mapped = mapped.filter_map(|mapping| Some(mapping.networks()?.0));
    let mapped: Vec<IpNet> = mapped.filter(|subnet| !own.contains(subnet)).collect();
    let behind = objects.gateways_at(site).flat_map(|gateway| {
        let name = gateway.metadata.name.as_str();
        gateway.networks().map(move |real| (Some(name), real))
    });
    let shared = own.into_iter().chain(mapped).map(|real| (None, real));
    shared.chain(behind).map(|(gateway, real)| network(gateway, real)).collect()
}

/// Returns the network that other sites see: by a mapping of the ESite, else by an allocated range, else itself.
fn wire_network(objects: &ObjectSet, site: &str, real: IpNet) -> IpNet {
    let mappings = objects.site(site).into_iter().flat_map(|object| &object.mapped_subnets);
    let mappings = mappings.filter_map(|mapping| mapping.networks());
    let covering = mappings.filter(|(subnet, _)| subnet.contains(&real));
    match covering.max_by_key(|(subnet, _)| subnet.prefix_len()) {
        Some(mapping) => {
            let address = map_address(real.network(), mapping);
            IpNet::new(address, real.prefix_len()).unwrap_or(real)
        }
        None => objects.layer3.range_of(site, real).unwrap_or(real),
    }
}

/// Returns the address under which other sites see a host. None: no network of the site contains it.
pub fn wire_address(objects: &ObjectSet, site: &str, ip: IpAddr) -> Option<IpAddr> {
    let networks = site_networks(objects, site).into_iter().filter(|network| network.real.contains(&ip));
    let nearest = networks.max_by_key(|network| network.real.prefix_len())?;
    Some(map_address(ip, (nearest.real, nearest.wire)))
}

/// Returns an address with the prefix of the second network and the host bits it has in the first.
pub fn map_address(ip: IpAddr, (subnet, seen_as): (IpNet, IpNet)) -> IpAddr {
    match (ip, subnet, seen_as) {
        (IpAddr::V4(ip), IpNet::V4(subnet), IpNet::V4(seen_as)) => {
            let host = u32::from(ip) & u32::from(subnet.hostmask());
            IpAddr::V4(Ipv4Addr::from(u32::from(seen_as.network()) | host))
        }
        (IpAddr::V6(ip), IpNet::V6(subnet), IpNet::V6(seen_as)) => {
            let host = u128::from(ip) & u128::from(subnet.hostmask());
            IpAddr::V6(Ipv6Addr::from(u128::from(seen_as.network()) | host))
        }
        _ => ip,
    }
}
