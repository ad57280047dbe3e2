//! Allocates mapped networks for overlapping subnets of a community, from `mapFrom`.
//!
//! An allocation stays for as long as its site is a member, has the subnet and does not map it itself: addresses that
//! people have written down do not move when the other site of an overlap leaves.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use super::facts::MappedRange;
use super::networks::{SiteNetwork, site_networks};
use super::overlap::{ConflictTable, precedence};
use crate::kinds::ECommunity;
use crate::object_set::ObjectSet;

/// The ranges that a community should have.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct RangePlan {
    /// Sorted by site and subnet.
    pub ranges: Vec<MappedRange>,
    /// Overlapping networks for which `mapFrom` has no room, or which are of another address family.
    pub without: Vec<(String, IpNet)>,
}

/// Returns the ranges that a community should have, given those it has.
pub fn plan_ranges(objects: &ObjectSet, community: &ECommunity) -> RangePlan {
    let Ok(pool) = community.map_from.parse::<IpNet>() else { return RangePlan::default() };
    let mut members: Vec<&str> = community.members.iter().map(String::as_str).collect();
    members.sort_unstable_by_key(|site| precedence(objects, site));
    members.dedup();
    let networks: Vec<SiteNetwork<'_>> =
        members.iter().flat_map(|site| site_networks(objects, site)).collect();
    let held = objects.layer3.ranges.get(&community.metadata.name).map(Vec::as_slice).unwrap_or_default();
    let is_used = |range: &&MappedRange| {
        let fits = pool.contains(&range.seen_as) && range.subnet.prefix_len() == range.seen_as.prefix_len();
        fits && networks.iter().any(|network| {
            network.site == range.site && network.real == range.subnet && network.wire == range.seen_as
        })
    };
    let mut ranges: Vec<MappedRange> = held.iter().filter(is_used).cloned().collect();
    let mut table = ConflictTable::default();
    networks.iter().for_each(|network| table.insert(network));
    let mut taken: Vec<IpNet> = networks.iter().flat_map(|network| [network.real, network.wire]).collect();
    taken.extend(ranges.iter().map(|range| range.seen_as));
    let mut without = Vec::new();
    for network in &networks {
        // A mapped network has its addresses.
        if network.wire != network.real || table.conflicts(network).next().is_none() {
            continue;
        }
        let is_planned = |range: &MappedRange| range.site == network.site && range.subnet == network.real;
        if ranges.iter().any(is_planned) {
            continue;
        }
        match first_free(pool, network.real, &taken) {
            Some(seen_as) => {
                taken.push(seen_as);
                ranges.push(MappedRange { site: network.site.to_owned(), subnet: network.real, seen_as });
            }
            None => without.push((network.site.to_owned(), network.real)),
        }
    }
    ranges.sort();
    RangePlan { ranges, without }
}

/// Returns the first block of the pool with the size of `subnet` that overlaps none of `taken`.
fn first_free(pool: IpNet, subnet: IpNet, taken: &[IpNet]) -> Option<IpNet> {
    let length = subnet.prefix_len();
    if pool.addr().is_ipv4() != subnet.addr().is_ipv4() || length < pool.prefix_len() {
        return None;
    }
    let mut next = pool.network();
    // Each turn passes one taken network, so the number of turns is bounded.
    loop {
        let block = IpNet::new(next, length).ok()?.trunc();
        if !pool.contains(&block) {
            return None;
        }
        let overlaps = |other: &&IpNet| block.contains(*other) || other.contains(&block);
        let Some(other) = taken.iter().find(overlaps) else { return Some(block) };
        let end = if other.contains(&block) { other.broadcast() } else { block.broadcast() };
        next = after(end).filter(|next| pool.contains(next))?;
    }
}

fn after(ip: IpAddr) -> Option<IpAddr> {
    match ip {
        IpAddr::V4(ip) => u32::from(ip).checked_add(1).map(|next| IpAddr::V4(Ipv4Addr::from(next))),
        IpAddr::V6(ip) => u128::from(ip).checked_add(1).map(|next| IpAddr::V6(Ipv6Addr::from(next))),
    }
}
