//! Replaces both ends of a packet: addresses and ports, with the checksums that cover them.
//!
//! Input: a packet parsed by `packet` and the ends it must have. Output: the same packet with these ends. An ICMP error
//! also quotes a packet of the other direction, whose ends are replaced as well. Stateless: `flow` remembers which ends
//! belong to a flow.

use std::net::IpAddr;

use super::checksum::{self, ChecksumState};
use super::packet::{self, Fragment, ParsedPacket, TransportHeader};
use super::translate::{HeaderAddress, replace_address, update_transport};

/// The ends of a packet. Ports of a protocol without ports are ignored. An echo message has its identifier in place of
/// the port of the end that asks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PacketEnds {
    pub source: IpAddr,
    pub destination: IpAddr,
    pub source_port: u16,
    pub destination_port: u16,
}

impl PacketEnds {
    /// Returns the ends of a packet that goes the other way.
    pub fn reversed(self) -> PacketEnds {
        PacketEnds {
            source: self.destination,
            destination: self.source,
            source_port: self.destination_port,
            destination_port: self.source_port,
        }
    }
}

/// Gives a packet other ends. An ICMP error gets the addresses of `ends`, and the packet that it quotes the reversed
/// ends. The addresses must be of the packet's family; a packet of another family is left as it is.
pub fn rewrite(bytes: &mut [u8], packet: &ParsedPacket, ends: &PacketEnds, state: ChecksumState) {
    if packet.source.is_ipv4() != ends.source.is_ipv4()
        || packet.destination.is_ipv4() != ends.destination.is_ipv4()
    {
        return;
    }
    let quoted = match packet.transport {
        TransportHeader::IcmpError { .. } => rewrite_quoted(bytes, packet, &ends.reversed()),
        _ => 0,
    };
    rewrite_one(bytes, packet, ends, state);
    if quoted != 0 && state == ChecksumState::Full {
        add_to_checksum(bytes, packet, quoted);
    }
}

/// Rewrites the packet inside an ICMP error, and returns the change of the sum over its bytes.
fn rewrite_quoted(bytes: &mut [u8], packet: &ParsedPacket, ends: &PacketEnds) -> u16 {
    let Some(quoted) = bytes.get_mut(packet::quoted_at(packet)..packet.length) else { return 0 };
    let Ok(inner) = packet::parse_quoted(quoted) else { return 0 };
    let before = checksum::sum(quoted);
    rewrite_one(quoted, &inner, ends, ChecksumState::Full);
    checksum::delta(before, checksum::sum(quoted))
}

fn rewrite_one(bytes: &mut [u8], packet: &ParsedPacket, ends: &PacketEnds, state: ChecksumState) {
    let change = |old: IpAddr, new: IpAddr| {
        checksum::delta(checksum::sum_of_address(old), checksum::sum_of_address(new))
    };
    let source = change(packet.source, ends.source);
    let destination = change(packet.destination, ends.destination);
    if packet.source != ends.source {
        replace_address(bytes, HeaderAddress::Source, ends.source, source);
    }
    if packet.destination != ends.destination {
        replace_address(bytes, HeaderAddress::Destination, ends.destination, destination);
    }
    if matches!(packet.fragment, Fragment::Later { .. }) {
        return;
    }
    if packet.source != ends.source || packet.destination != ends.destination {
        let delta = checksum::add(source, destination);
        update_transport(bytes, packet.protocol, packet.transport_at, delta, state);
    }
    let at = packet.transport_at;
    let ports = match packet.transport {
        TransportHeader::Tcp(tcp) => {
            [Some((at, tcp.source, ends.source_port)), Some((at + 2, tcp.destination, ends.destination_port))]
        }
        TransportHeader::Udp { source, destination } => {
            [Some((at, source, ends.source_port)), Some((at + 2, destination, ends.destination_port))]
        }
        TransportHeader::Echo { request: true, id } => [Some((at + 4, id, ends.source_port)), None],
        TransportHeader::Echo { request: false, id } => [Some((at + 4, id, ends.destination_port)), None],
        _ => [None, None],
    };
    for (at, old, new) in ports.into_iter().flatten().filter(|(_, old, new)| old != new) {
        let Some(field) = bytes.get_mut(at..at + 2) else { continue };
        field.copy_from_slice(&new.to_be_bytes());
        // A partial checksum is the sum of the pseudo-header, which has no ports.
        if state == ChecksumState::Full {
            add_to_checksum(bytes, packet, checksum::delta(old, new));
        }
    }
}

/// Updates a full checksum after a change of bytes that it covers. A quoted packet may end before it.
fn add_to_checksum(bytes: &mut [u8], packet: &ParsedPacket, delta: u16) {
    let offset = match packet.protocol {
        packet::ICMP => Some(2),
        protocol => packet::checksum_offset(protocol),
    };
    let Some(at) = offset.map(|offset| packet.transport_at + offset) else { return };
    let Some(field) = bytes.get_mut(at..at + 2) else { return };
    let checksum = u16::from_be_bytes([field[0], field[1]]);
    let updated = match packet.protocol {
        packet::UDP => checksum::update_udp(checksum, delta),
        _ => checksum::update_full(checksum, delta),
    };
    field.copy_from_slice(&updated.to_be_bytes());
}

#[cfg(test)]
mod tests;
