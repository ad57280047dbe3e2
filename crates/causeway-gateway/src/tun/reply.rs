//! Packets that a gateway sends in the name of an unreachable destination: TCP resets and ICMP errors.
//!
//! Input: the packet that is not forwarded. Output: the answer to its sender, or none where RFC 1122, 3.2.2 and RFC
//! 4443, 2.4 forbid one. The source is the destination of the packet, so that the answer has a route back.

use std::net::IpAddr;

use super::checksum;
use super::packet::{self, Fragment, ParsedPacket, TcpHeader, TransportHeader};

/// The longest answer: IPv6 allows as much as its minimum MTU.
pub const REPLY_MAX: usize = 1280;
/// RFC 1812, 4.3.2.3: an ICMP error has at most 576 bytes.
const REPLY_V4_MAX: usize = 576;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReplyReason {
    /// A policy does not allow it.
    Prohibited,
    /// No gateway leads there now.
    Unreachable,
    TooBig {
        mtu: u16,
    },
}

/// Writes the answer, and returns its length.
pub fn reply(
    out: &mut [u8; REPLY_MAX],
    bytes: &[u8],
    packet: &ParsedPacket,
    reason: ReplyReason,
) -> Option<usize> {
    let answerable = !matches!(packet.fragment, Fragment::Later { .. })
        && !matches!(packet.transport, TransportHeader::IcmpError { .. })
        && !is_group(packet.destination)
        && !is_group(packet.source)
        && !packet.source.is_unspecified();
    if !answerable {
        return None;
    }
    match (packet.transport, reason) {
        (TransportHeader::Tcp(tcp), ReplyReason::Prohibited) => reset(out, bytes, packet, tcp),
        _ => icmp_error(out, bytes, packet, reason),
    }
}

fn is_group(address: IpAddr) -> bool {
    address.is_multicast() || matches!(address, IpAddr::V4(v4) if v4.is_broadcast())
}

/// RFC 9293, 3.10.7.1: the reset of a segment for which there is no connection.
fn reset(out: &mut [u8; REPLY_MAX], bytes: &[u8], packet: &ParsedPacket, tcp: TcpHeader) -> Option<usize> {
    if tcp.flags & TcpHeader::RST != 0 {
        return None;
    }
    let at = packet.transport_at;
    let header = bytes.get(at..at + 20)?;
    let payload = packet.length.checked_sub(at + tcp.header_bytes)?;
    let counted = [TcpHeader::SYN, TcpHeader::FIN].iter().filter(|flag| tcp.flags & **flag != 0).count();
    let next = tcp.sequence.wrapping_add((payload + counted) as u32);
    let (sequence, acknowledged, flags) = match tcp.flags & TcpHeader::ACK != 0 {
        true => (u32::from_be_bytes([header[8], header[9], header[10], header[11]]), 0, TcpHeader::RST),
        false => (0, next, TcpHeader::RST | TcpHeader::ACK),
    };
    let start = ip_header(out, packet, packet::TCP, 20)?;
    let segment = out.get_mut(start..start + 20)?;
    segment.fill(0);
    segment[..2].copy_from_slice(&tcp.destination.to_be_bytes());
    segment[2..4].copy_from_slice(&tcp.source.to_be_bytes());
    segment[4..8].copy_from_slice(&sequence.to_be_bytes());
    segment[8..12].copy_from_slice(&acknowledged.to_be_bytes());
    segment[12] = 5 << 4;
    segment[13] = flags;
    let pseudo = checksum::sum_of_pseudo_header(packet.destination, packet.source, packet::TCP, 20);
    let sum = !checksum::add(pseudo, checksum::sum(segment));
    segment[16..18].copy_from_slice(&sum.to_be_bytes());
    Some(start + 20)
}

fn icmp_error(
    out: &mut [u8; REPLY_MAX],
    bytes: &[u8],
    packet: &ParsedPacket,
    reason: ReplyReason,
) -> Option<usize> {
    let v4 = packet.source.is_ipv4();
    let (kind, code, mtu) = match (v4, reason) {
        (true, ReplyReason::Prohibited) => (3, 13, 0),
        (true, ReplyReason::Unreachable) => (3, 1, 0),
        (true, ReplyReason::TooBig { mtu }) => (3, 4, mtu),
        (false, ReplyReason::Prohibited) => (1, 1, 0),
        (false, ReplyReason::Unreachable) => (1, 3, 0),
        (false, ReplyReason::TooBig { mtu }) => (2, 0, mtu),
    };
    let (head, longest) = if v4 { (20, REPLY_V4_MAX) } else { (40, REPLY_MAX) };
    let quoted = packet.length.min(bytes.len()).min(longest - head - 8);
    let protocol = if v4 { packet::ICMP } else { packet::ICMPV6 };
    let start = ip_header(out, packet, protocol, 8 + quoted)?;
    let message = out.get_mut(start..start + 8 + quoted)?;
    message[..8].copy_from_slice(&[kind, code, 0, 0, 0, 0, (mtu >> 8) as u8, mtu as u8]);
    message[8..].copy_from_slice(&bytes[..quoted]);
    let pseudo = match v4 {
        true => 0,
        false => checksum::sum_of_pseudo_header(packet.destination, packet.source, protocol, 8 + quoted),
    };
    let sum = !checksum::add(pseudo, checksum::sum(message));
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    Some(start + 8 + quoted)
}

/// Writes the IP header of an answer, and returns its length.
fn ip_header(
    out: &mut [u8; REPLY_MAX],
    packet: &ParsedPacket,
    protocol: u8,
    payload: usize,
) -> Option<usize> {
    match (packet.source, packet.destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let header = &mut out[..20];
            header.fill(0);
            (header[0], header[6], header[8], header[9]) = (0x45, 0x40, 64, protocol);
            header[2..4].copy_from_slice(&((20 + payload) as u16).to_be_bytes());
            header[12..16].copy_from_slice(&destination.octets());
            header[16..20].copy_from_slice(&source.octets());
            let sum = !checksum::sum(header);
            header[10..12].copy_from_slice(&sum.to_be_bytes());
            Some(20)
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let header = &mut out[..40];
            header.fill(0);
            (header[0], header[6], header[7]) = (0x60, protocol, 64);
            header[4..6].copy_from_slice(&(payload as u16).to_be_bytes());
            header[8..24].copy_from_slice(&destination.octets());
            header[24..40].copy_from_slice(&source.octets());
            Some(40)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use etherparse::{NetHeaders, PacketBuilder, PacketHeaders, TransportHeader};

    use super::*;
    use crate::tun::packet::parse;

    fn answer(bytes: &[u8], reason: ReplyReason) -> Option<Vec<u8>> {
        let mut out = [0; REPLY_MAX];
        let length = reply(&mut out, bytes, &parse(bytes).unwrap(), reason)?;
        Some(out[..length].to_vec())
    }

    #[test]
    fn a_syn_is_reset_and_a_reset_is_not_answered() {
        let mut bytes = Vec::new();
        PacketBuilder::ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64)
            .tcp(7, 8, 100, 9)
            .syn()
            .write(&mut bytes, &[])
            .unwrap();
        let answer_bytes = answer(&bytes, ReplyReason::Prohibited).unwrap();
        let read = PacketHeaders::from_ip_slice(&answer_bytes).unwrap();
        let (Some(NetHeaders::Ipv4(ip, _)), Some(TransportHeader::Tcp(tcp))) = (read.net, read.transport)
        else {
            panic!("a TCP segment")
        };
        assert_eq!((ip.source, ip.destination), ([10, 0, 0, 2], [10, 0, 0, 1]));
        assert_eq!(ip.header_checksum, ip.calc_header_checksum());
        assert_eq!(tcp.checksum, tcp.calc_checksum_ipv4(&ip, &[]).unwrap());
        assert_eq!((tcp.source_port, tcp.destination_port, tcp.rst, tcp.ack), (8, 7, true, true));
        assert_eq!(tcp.acknowledgment_number, 101);
        assert_eq!(answer(&answer_bytes, ReplyReason::Prohibited), None);
    }

    #[test]
    fn a_large_packet_is_answered_with_the_mtu_and_quoted() {
        for v6 in [false, true] {
            let mut bytes = Vec::new();
            let builder = match v6 {
                true => PacketBuilder::ipv6([1; 16], [2; 16], 64),
                false => PacketBuilder::ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64),
            };
            builder.udp(7, 8).write(&mut bytes, &[5; 1400]).unwrap();
            let error = answer(&bytes, ReplyReason::TooBig { mtu: 1280 }).unwrap();
            assert_eq!(error.len(), if v6 { 1280 } else { 576 });
            let packet = parse(&error).unwrap();
            assert!(matches!(packet.transport, packet::TransportHeader::IcmpError { .. }));
            let at = packet::quoted_at(&packet);
            assert_eq!(u16::from_be_bytes([error[at - 2], error[at - 1]]), 1280);
            assert_eq!(packet::parse_quoted(&error[at..]).unwrap().source, parse(&bytes).unwrap().source);
            let pseudo = checksum::sum_of_pseudo_header(
                packet.source,
                packet.destination,
                packet.protocol,
                error.len() - 40,
            );
            let sum = checksum::sum(&error[packet.transport_at..]);
            assert_eq!(if v6 { checksum::add(pseudo, sum) } else { sum }, 0xffff);
            assert_eq!(answer(&error, ReplyReason::Prohibited), None, "no error about an error");
        }
    }
}
