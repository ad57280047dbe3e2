//! Networks of different sites that collide, and who keeps its route.
//!
//! Two networks of one address family overlap when one contains the other, so a table of prefixes finds all that
//! overlap with a network without a walk over the rest.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;

use super::networks::{SiteNetwork, site_networks};
use crate::object_set::ObjectSet;
use crate::time::Time;

/// Two networks of different sites that cannot both be reached.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct NetworkOverlap {
    /// The older site keeps its route.
    pub keeps: (String, IpNet),
    pub loses: (String, IpNet),
}

impl NetworkOverlap {
    /// Describes the overlap for a condition.
    pub fn message(&self) -> String {
        let ((older, kept), (younger, lost)) = (&self.keeps, &self.loses);
        format!(
            "{lost} of ESite {younger} overlaps {kept} of ESite {older}, which is older and keeps its route: \
             set mappedSubnets of one of them, or mapFrom of the ECommunity"
        )
    }
}

/// Precedence of a site: the older first, then the first by name. A site without an ESite is the youngest.
pub(super) fn precedence<'a>(objects: &ObjectSet, site: &'a str) -> (bool, Option<Time>, &'a str) {
    let created = objects.site(site).and_then(|site| site.metadata.creation_timestamp);
    (created.is_none(), created, site)
}

/// Returns the networks of other sites that a gateway of `site` can route: none that collides with a network of its own
/// site, and of two that collide, the one of the older site. `neighbours` are the sites that share a community with it.
pub fn routable<'a>(
    objects: &'a ObjectSet,
    site: &'a str,
    neighbours: impl IntoIterator<Item = &'a str>,
) -> Vec<SiteNetwork<'a>> {
    let mut own = NetworkTable::default();
    for network in site_networks(objects, site) {
        own.insert(network.real, site);
        own.insert(network.wire, site);
    }
    let mut sites: Vec<&str> = neighbours.into_iter().filter(|other| *other != site).collect();
    sites.sort_unstable_by_key(|site| precedence(objects, site));
    sites.dedup();
    let (mut taken, mut accepted) = (NetworkTable::default(), Vec::new());
    for network in sites.into_iter().flat_map(|site| site_networks(objects, site)) {
        let is_free = own.overlapping(network.wire).next().is_none()
            && taken.overlapping(network.wire).all(|other| *other == network.site);
        if is_free {
            taken.insert(network.wire, network.site);
            accepted.push(network);
        }
    }
    accepted
}

/// Returns the overlaps between the networks of `site` and those of the sites it shares a community with.
pub fn overlaps_of(objects: &ObjectSet, site: &str) -> BTreeSet<NetworkOverlap> {
    let own = site_networks(objects, site);
    let mut found = BTreeSet::new();
    if own.is_empty() {
        return found;
    }
    let mut table = ConflictTable::default();
    own.iter().for_each(|network| table.insert(network));
    for other in objects.neighbours(site) {
        for network in site_networks(objects, other) {
            found.extend(table.conflicts(&network).map(|own| overlap(objects, own, &network)));
        }
    }
    found
}

/// Returns the overlaps between members of a community.
pub fn overlaps_in<'a>(
    objects: &'a ObjectSet,
    members: impl IntoIterator<Item = &'a str>,
) -> BTreeSet<NetworkOverlap> {
    let mut sites: Vec<&str> = members.into_iter().collect();
    sites.sort_unstable();
    sites.dedup();
    let networks: Vec<SiteNetwork<'_>> =
        sites.into_iter().flat_map(|site| site_networks(objects, site)).collect();
    let (mut table, mut found) = (ConflictTable::default(), BTreeSet::new());
    for network in &networks {
        found.extend(table.conflicts(network).map(|other| overlap(objects, other, network)));
        table.insert(network);
    }
    found
}

fn overlap(objects: &ObjectSet, one: &SiteNetwork<'_>, other: &SiteNetwork<'_>) -> NetworkOverlap {
    let is_older = precedence(objects, one.site) < precedence(objects, other.site);
    let (keeps, loses) = if is_older { (one, other) } else { (other, one) };
    let named = |network: &SiteNetwork<'_>| (network.site.to_owned(), network.real);
    NetworkOverlap { keeps: named(keeps), loses: named(loses) }
}

/// Networks by the addresses that must differ from those of other sites.
///
/// On the wire, both must differ. The real addresses of one must differ from the wire addresses of the other, because its
/// gateway could not tell them apart. Two mapped networks may have the same real addresses.
#[derive(Default)]
pub(super) struct ConflictTable<'a> {
    wire: NetworkTable<SiteNetwork<'a>>,
    real: NetworkTable<SiteNetwork<'a>>,
}

impl<'a> ConflictTable<'a> {
    pub(super) fn insert(&mut self, network: &SiteNetwork<'a>) {
        self.wire.insert(network.wire, *network);
        if network.real != network.wire {
            self.real.insert(network.real, *network);
        }
    }

    /// Returns the networks of other sites that collide with this one.
    pub(super) fn conflicts<'b>(
        &'b self,
        network: &'b SiteNetwork<'_>,
    ) -> impl Iterator<Item = &'b SiteNetwork<'a>> + 'b {
        let on_wire = self.wire.overlapping(network.wire);
        let behind = self.real.overlapping(network.wire);
        let real = (network.real != network.wire).then_some(network.real);
        let to_wire = real.into_iter().flat_map(|real| self.wire.overlapping(real));
        on_wire.chain(behind).chain(to_wire).filter(|other| other.site != network.site)
    }
}

/// Values by network.
pub(super) struct NetworkTable<T> {
    values: BTreeMap<(bool, u128, u8), Vec<T>>,
}

impl<T> Default for NetworkTable<T> {
    fn default() -> NetworkTable<T> {
        NetworkTable { values: BTreeMap::new() }
    }
}

impl<T> NetworkTable<T> {
    pub(super) fn insert(&mut self, network: IpNet, value: T) {
        self.values.entry(key(network)).or_default().push(value);
    }

    /// Returns the values of all networks that contain this one or lie in it.
    pub(super) fn overlapping(&self, network: IpNet) -> impl Iterator<Item = &T> {
        let (is_v6, first, length) = key(network);
        let last = bits(network.broadcast());
        let inside = self.values.range((is_v6, first, length)..=(is_v6, last, u8::MAX));
        let inside = inside.filter(move |((_, _, found), _)| *found >= length);
        let around = (0..length).filter_map(move |shorter| {
            let wider = IpNet::new(network.addr(), shorter).ok()?.trunc();
            self.values.get(&key(wider))
        });
        inside.map(|(_, values)| values).chain(around).flatten()
    }
}

fn key(network: IpNet) -> (bool, u128, u8) {
    (network.addr().is_ipv6(), bits(network.network()), network.prefix_len())
}

fn bits(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => u32::from(ip).into(),
        IpAddr::V6(ip) => ip.into(),
    }
}
