//! Presents networks of this site under other addresses, one to one, and back.
//!
//! Input: a packet parsed by `packet`. Output: the same packet with one address replaced, checksums updated. The
//! host bits stay, so that the change of a checksum is one constant per mapping. An ICMP error quotes a packet of
//! the other direction: its addresses are replaced as well, or the host that caused it would not know it.
//! Stateless: a standby gateway continues flows. Addresses inside payloads (FTP) are not seen.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use super::checksum::{self, ChecksumState};
use super::packet::{self, Fragment, ParsedPacket, TransportHeader};

/// The direction of a packet, seen from this gateway.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Direction {
    /// From this site to the tunnel.
    Outbound,
    /// From the tunnel to this site.
    Inbound,
}

/// A network of this site and the network that other sites see in its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PrefixPair {
    inside: IpNet,
    outside: IpNet,
}

/// The mappings of a site. A longer prefix wins over a shorter one.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct PrefixTable {
    pairs: Vec<PrefixPair>,
}

impl PrefixPair {
    /// Returns a pair. None: the networks differ in family or length.
    pub fn new(inside: IpNet, outside: IpNet) -> Option<PrefixPair> {
        let fits = inside.addr().is_ipv4() == outside.addr().is_ipv4()
            && inside.prefix_len() == outside.prefix_len();
        fits.then(|| PrefixPair { inside: inside.trunc(), outside: outside.trunc() })
    }
}

impl PrefixTable {
    pub fn new(pairs: impl IntoIterator<Item = PrefixPair>) -> PrefixTable {
        let mut pairs: Vec<PrefixPair> = pairs.into_iter().collect();
        pairs.sort_by_key(|pair| std::cmp::Reverse(pair.inside.prefix_len()));
        PrefixTable { pairs }
    }

    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// Returns the address under which other sites see a host of this site.
    pub fn to_outside(&self, address: IpAddr) -> IpAddr {
        let pair = self.pairs.iter().find(|pair| pair.inside.contains(&address));
        pair.map_or(address, |pair| moved(address, pair.outside))
    }

    /// Returns the real address of a host that other sites see under `address`.
    pub fn to_inside(&self, address: IpAddr) -> IpAddr {
        let pair = self.pairs.iter().find(|pair| pair.outside.contains(&address));
        pair.map_or(address, |pair| moved(address, pair.inside))
    }

    /// Replaces the address of the host of this site. Returns whether the packet changed; `packet` is then out of
    /// date in that address alone.
    pub fn translate(
        &self,
        bytes: &mut [u8],
        packet: &ParsedPacket,
        direction: Direction,
        state: ChecksumState,
    ) -> bool {
        if self.pairs.is_empty() {
            return false;
        }
        let (old, place) = match direction {
            Direction::Outbound => (packet.source, HeaderAddress::Source),
            Direction::Inbound => (packet.destination, HeaderAddress::Destination),
        };
        let new = self.replacement(old, direction);
        let quoted = match packet.transport {
            TransportHeader::IcmpError { .. } => self.translate_quoted(bytes, packet, direction),
            _ => 0,
        };
        if let Some(new) = new {
            let delta = checksum::delta(checksum::sum_of_address(old), checksum::sum_of_address(new));
            replace_address(bytes, place, new, delta);
            if !matches!(packet.fragment, Fragment::Later { .. }) {
                update_transport(bytes, packet.protocol, packet.transport_at, delta, state);
            }
        }
        if quoted != 0 && state == ChecksumState::Full {
            add_to_field(bytes, packet.transport_at + 2, quoted);
        }
        new.is_some() || quoted != 0
    }

    fn replacement(&self, old: IpAddr, direction: Direction) -> Option<IpAddr> {
        let new = match direction {
            Direction::Outbound => self.to_outside(old),
            Direction::Inbound => self.to_inside(old),
        };
        (new != old).then_some(new)
    }

    /// Translates the packet inside an ICMP error, and returns the change of the sum over its bytes. The quoted
    /// packet travelled in the other direction, so its other address is the one of this site.
    fn translate_quoted(&self, bytes: &mut [u8], packet: &ParsedPacket, direction: Direction) -> u16 {
        let Some(quoted) = bytes.get_mut(packet::quoted_at(packet)..packet.length) else { return 0 };
        let Ok(inner) = packet::parse_quoted(quoted) else { return 0 };
        let (old, place) = match direction {
            Direction::Outbound => (inner.destination, HeaderAddress::Destination),
            Direction::Inbound => (inner.source, HeaderAddress::Source),
        };
        let Some(new) = self.replacement(old, direction) else { return 0 };
        let before = checksum::sum(quoted);
        let delta = checksum::delta(checksum::sum_of_address(old), checksum::sum_of_address(new));
        replace_address(quoted, place, new, delta);
        if !matches!(inner.fragment, Fragment::Later { .. }) {
            update_transport(quoted, inner.protocol, inner.transport_at, delta, ChecksumState::Full);
        }
        checksum::delta(before, checksum::sum(quoted))
    }
}

/// The address of an IP header that is replaced.
#[derive(Clone, Copy)]
pub(super) enum HeaderAddress {
    Source,
    Destination,
}

/// Moves an address into a network of the same family; its host bits stay.
fn moved(address: IpAddr, network: IpNet) -> IpAddr {
    match (address, network) {
        (IpAddr::V4(address), IpNet::V4(network)) => {
            let host = u32::from(address) & u32::from(network.hostmask());
            Ipv4Addr::from(u32::from(network.network()) | host).into()
        }
        (IpAddr::V6(address), IpNet::V6(network)) => {
            let host = u128::from(address) & u128::from(network.hostmask());
            Ipv6Addr::from(u128::from(network.network()) | host).into()
        }
        _ => address,
    }
}

/// Writes an address into an IP header, and updates the header's checksum where it has one.
pub(super) fn replace_address(bytes: &mut [u8], place: HeaderAddress, new: IpAddr, delta: u16) {
    match new {
        IpAddr::V4(new) => {
            let at = if matches!(place, HeaderAddress::Source) { 12 } else { 16 };
            if let Some(field) = bytes.get_mut(at..at + 4) {
                field.copy_from_slice(&new.octets());
                let checksum = u16::from_be_bytes([bytes[10], bytes[11]]);
                bytes[10..12].copy_from_slice(&checksum::update_full(checksum, delta).to_be_bytes());
            }
        }
        IpAddr::V6(new) => {
            let at = if matches!(place, HeaderAddress::Source) { 8 } else { 24 };
            if let Some(field) = bytes.get_mut(at..at + 16) {
                field.copy_from_slice(&new.octets());
            }
        }
    }
}

/// Updates the checksum of a transport whose pseudo-header has changed. A quoted packet may end before it.
pub(super) fn update_transport(
    bytes: &mut [u8],
    protocol: u8,
    transport_at: usize,
    delta: u16,
    state: ChecksumState,
) {
    let Some(offset) = packet::checksum_offset(protocol) else { return };
    let at = transport_at + offset;
    let Some(field) = bytes.get_mut(at..at + 2) else { return };
    let checksum = u16::from_be_bytes([field[0], field[1]]);
    let updated = match (state, protocol) {
        (ChecksumState::Partial, _) => checksum::update_partial(checksum, delta),
        (ChecksumState::Full, packet::UDP) => checksum::update_udp(checksum, delta),
        (ChecksumState::Full, _) => checksum::update_full(checksum, delta),
    };
    field.copy_from_slice(&updated.to_be_bytes());
}

fn add_to_field(bytes: &mut [u8], at: usize, delta: u16) {
    if let Some(field) = bytes.get_mut(at..at + 2) {
        let checksum = u16::from_be_bytes([field[0], field[1]]);
        field.copy_from_slice(&checksum::update_full(checksum, delta).to_be_bytes());
    }
}

#[cfg(test)]
mod tests;
