//! The address pool of one site: its ranges, the taken addresses, and the next free one.
//!
//! The next address is the lowest that was never used, or not for the longest time; then the one that was
//! freed first.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use super::{AddressFamily, FreedAddresses};
use crate::kinds::{EGateway, ServiceExpose};
use crate::object_set::ObjectSet;

/// The addresses that a site can allocate. Cheap to create: the taken addresses are read only when needed.
pub struct AddressPool<'a> {
    objects: &'a ObjectSet,
    site: &'a str,
    ranges: Vec<IpNet>,
    /// Addresses that no presence may have: each gateway's own address, and the first and last of its ranges.
    reserved: HashSet<IpAddr>,
    taken: Option<HashSet<IpAddr>>,
    /// Per range: all addresses below this one are taken.
    next: Vec<u128>,
    /// A service of this site is translated: its gateways give addresses of the upper half to clients of other sites.
    is_lower_only: bool,
}

impl<'a> AddressPool<'a> {
    pub fn of(objects: &'a ObjectSet, site: &'a str) -> AddressPool<'a> {
        let gateways = in_order(objects, site);
        let ranges: Vec<IpNet> =
            AddressFamily::ALL.into_iter().filter_map(|family| range(&gateways, family)).collect();
        let next = ranges.iter().map(|range| number(range.network())).collect();
        let mut exposes =
            objects.services_at(site).flat_map(|service| objects.exposes_of(&service.metadata.name));
        let is_lower_only = exposes.any(ServiceExpose::is_translated);
        AddressPool { objects, site, ranges, reserved: reserved(&gateways), taken: None, next, is_lower_only }
    }

    /// Returns the address families of the site.
    pub fn families(&self) -> impl Iterator<Item = AddressFamily> {
        self.ranges.iter().map(|range| AddressFamily::of(range.network()))
    }

    pub fn range(&self, family: AddressFamily) -> Option<IpNet> {
        self.ranges.iter().copied().find(|range| AddressFamily::of(range.network()) == family)
    }

    /// Tells whether no address is left. Returns early when the site cannot have that many presences.
    pub fn is_full(&mut self, family: AddressFamily) -> bool {
        let Some(range) = self.range(family) else { return true };
        let hosts = self.last(range) - number(range.network());
        let used = self.objects.presence_count(self.site) + self.reserved.len();
        used as u128 >= hosts && self.take(family, &FreedAddresses::default(), &HashSet::new()).is_none()
    }

    /// Takes the next address of a family. `avoid` are addresses that are being taken concurrently.
    pub fn take(
        &mut self,
        family: AddressFamily,
        freed: &FreedAddresses,
        avoid: &HashSet<IpAddr>,
    ) -> Option<IpAddr> {
        let index = self.ranges.iter().position(|range| AddressFamily::of(range.network()) == family)?;
        let range = self.ranges[index];
        let last = self.last(range);
        let (objects, site) = (self.objects, self.site);
        let taken = self.taken.get_or_insert_with(|| {
            objects.presences_at(site).filter_map(|presence| presence.ip_addr()).collect()
        });
        let is_free = |ip: &IpAddr| !self.reserved.contains(ip) && !taken.contains(ip) && !avoid.contains(ip);
        let fresh = (self.next[index]..=last)
            .map(|number| address(number, family))
            .find(|ip| is_free(ip) && freed.moment(site, *ip).is_none());
        let found = match fresh {
            Some(ip) => ip,
            None => freed
                .in_order(site)
                .into_iter()
                .find(|ip| range.contains(ip) && number(*ip) <= last && is_free(ip))?,
        };
        self.next[index] = fresh.map_or(last, number);
        taken.insert(found);
        Some(found)
    }

    /// Returns the last address of a range that a presence may have.
    fn last(&self, range: IpNet) -> u128 {
        let lower = range.subnets(range.prefix_len() + 1).ok().and_then(|mut halves| halves.next());
        let usable = lower.filter(|_| self.is_lower_only).unwrap_or(range);
        number(usable.broadcast())
    }
}

/// Returns the gateways of a site, the active one first: the highest priority, then the name.
fn in_order<'a>(objects: &'a ObjectSet, site: &str) -> Vec<&'a EGateway> {
    let mut gateways: Vec<&EGateway> = objects.gateways_at(site).collect();
    gateways.sort_by_key(|gateway| (-gateway.priority, &gateway.metadata.name));
    gateways
}

/// Returns the range of the active gateway, narrowed to the addresses that the standby gateways can present
/// as well.
fn range(gateways: &[&EGateway], family: AddressFamily) -> Option<IpNet> {
    let ranges = gateways.iter().flat_map(|gateway| gateway.presence_cidrs());
    let of_family = ranges.filter(|range| AddressFamily::of(range.network()) == family);
    of_family.reduce(|active, other| if active.contains(&other) { other } else { active })
}

fn reserved(gateways: &[&EGateway]) -> HashSet<IpAddr> {
    let own = gateways.iter().filter_map(|gateway| gateway.ip.parse().ok());
    let ranges = gateways.iter().flat_map(|gateway| gateway.presence_cidrs());
    // IPv6 has no broadcast address.
    let ends = ranges.flat_map(|range| {
        [Some(range.network()), Some(range.broadcast()).filter(IpAddr::is_ipv4)].into_iter().flatten()
    });
    own.chain(ends).collect()
}

fn number(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => u128::from(u32::from(ip)),
        IpAddr::V6(ip) => u128::from(ip),
    }
}

fn address(number: u128, family: AddressFamily) -> IpAddr {
    match family {
        AddressFamily::V4 => Ipv4Addr::from(number as u32).into(),
        AddressFamily::V6 => Ipv6Addr::from(number).into(),
    }
}
