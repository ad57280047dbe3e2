//! Finds the peer behind which an address is: the longest prefix decides.
//!
//! Input: networks with the slot of their peer. The table holds disjoint ranges in order, so that a lookup is one
//! binary search, whatever the number of networks and however they are nested.

use std::net::IpAddr;

use ipnet::IpNet;

#[derive(Clone, Default, Debug)]
pub struct RouteTable {
    v4: Vec<RangeStart>,
    v6: Vec<RangeStart>,
}

/// A range begins here and goes on until the next one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct RangeStart {
    first: u128,
    slot: Option<usize>,
}

impl RouteTable {
    /// Of two equal networks, the lower slot has it.
    pub fn new(networks: impl IntoIterator<Item = (IpNet, usize)>) -> RouteTable {
        let (v4, v6): (Vec<_>, Vec<_>) =
            networks.into_iter().partition(|(network, _)| matches!(network, IpNet::V4(_)));
        RouteTable { v4: ranges(v4), v6: ranges(v6) }
    }

    /// Returns the slot of the longest prefix that contains the address.
    pub fn find(&self, address: IpAddr) -> Option<usize> {
        let (ranges, number) = match address {
            IpAddr::V4(_) => (&self.v4, number(address)),
            IpAddr::V6(_) => (&self.v6, number(address)),
        };
        let after = ranges.partition_point(|range| range.first <= number);
        ranges.get(after.checked_sub(1)?)?.slot
    }
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u32::from(address).into(),
        IpAddr::V6(address) => address.into(),
    }
}

/// Cuts nested networks of one family into ranges.
fn ranges(mut networks: Vec<(IpNet, usize)>) -> Vec<RangeStart> {
    // An outer network comes before the networks inside it.
    networks.sort_by_key(|(network, slot)| (number(network.network()), network.prefix_len(), *slot));
    networks.dedup_by_key(|(network, _)| network.trunc());
    let mut found: Vec<RangeStart> = Vec::with_capacity(2 * networks.len());
    let mut begin = |first: u128, slot: Option<usize>| {
        // A network that begins or ends where another one does replaces it from there.
        found.pop_if(|last| last.first == first);
        if found.last().map_or(slot.is_some(), |last| last.slot != slot) {
            found.push(RangeStart { first, slot });
        }
    };
    // The networks around the present one, the innermost last, with their last address.
    let mut open: Vec<(u128, usize)> = Vec::new();
    let end_of = |network: &IpNet| number(network.broadcast());
    for (network, slot) in &networks {
        let first = number(network.network());
        while let Some((last, _)) = open.pop_if(|(last, _)| *last < first) {
            begin(last + 1, open.last().map(|(_, slot)| *slot));
        }
        begin(first, Some(*slot));
        open.push((end_of(network), *slot));
    }
    while let Some((last, _)) = open.pop() {
        // Nothing follows the last address of the family.
        if let Some(next) = last.checked_add(1) {
            begin(next, open.last().map(|(_, slot)| *slot));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use proptest::prelude::*;

    use super::*;

    /// The slow, obvious lookup.
    fn search(networks: &[(IpNet, usize)], address: IpAddr) -> Option<usize> {
        let around = networks.iter().filter(|(network, _)| network.contains(&address));
        around
            .min_by_key(|(network, slot)| (std::cmp::Reverse(network.prefix_len()), *slot))
            .map(|(_, slot)| *slot)
    }

    #[test]
    fn the_innermost_network_has_an_address() {
        let net = |text: &str, slot| (text.parse::<IpNet>().unwrap(), slot);
        let table = RouteTable::new([
            net("10.0.0.0/8", 1),
            net("10.1.0.0/16", 2),
            net("10.1.255.0/24", 3),
            net("0.0.0.0/0", 4),
            net("255.255.255.255/32", 5),
            net("fd00::/8", 6),
            net("10.1.0.0/16", 7),
        ]);
        let check = |address: &str, slot| assert_eq!(table.find(address.parse().unwrap()), slot, "{address}");
        check("10.0.0.1", Some(1));
        check("10.1.0.0", Some(2));
        check("10.1.255.255", Some(3));
        check("10.2.0.0", Some(1));
        check("11.0.0.0", Some(4));
        check("255.255.255.255", Some(5));
        check("fd00::1", Some(6));
        check("fe00::1", None);
        assert_eq!(RouteTable::default().find(IpAddr::V4(Ipv4Addr::UNSPECIFIED)), None);
    }

    proptest! {
        // Few bits in few places, so that networks are nested, equal and adjacent.
        #[test]
        fn every_address_is_found_as_by_a_search(
            networks in proptest::collection::vec((0_u32..64, 24_u8..=32, 0_usize..9), 0..24),
            is_v6 in any::<bool>(),
        ) {
            let network = |bits: u32, length: u8| match is_v6 {
                false => IpNet::new(IpAddr::from(bits.to_be_bytes()), length).unwrap().trunc(),
                true => IpNet::new(IpAddr::from(u128::from(bits).to_be_bytes()), length + 96).unwrap().trunc(),
            };
            let networks: Vec<(IpNet, usize)> =
                networks.into_iter().map(|(bits, length, slot)| (network(bits * 5, length), slot)).collect();
            let table = RouteTable::new(networks.clone());
            for bits in 0..400_u32 {
                let address = match is_v6 {
                    false => IpAddr::from(bits.to_be_bytes()),
                    true => IpAddr::from(u128::from(bits).to_be_bytes()),
                };
                prop_assert_eq!(table.find(address), search(&networks, address), "{}", address);
            }
        }
    }
}
