//! The rewriting against a slow model, which writes the packet with the other ends and computes every checksum anew.

use etherparse::PacketBuilder;
use proptest::prelude::*;

use super::*;
use crate::tun::packet::{TCP, UDP, parse};

#[derive(Clone, Debug)]
enum Body {
    Tcp,
    Udp,
    UdpWithoutChecksum,
    Request,
    Reply,
    /// SCTP, whose checksum does not cover addresses.
    Other,
    /// An ICMP error that quotes a packet with reversed ends, cut off after this even number of bytes.
    Error(Box<Body>, usize),
}

fn write(ends: &PacketEnds, body: &Body, payload: &[u8]) -> Vec<u8> {
    let (v4, mut bytes) = (ends.source.is_ipv4(), Vec::new());
    let (source, destination) = (ends.source_port, ends.destination_port);
    let builder = match (ends.source, ends.destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            PacketBuilder::ipv4(source.octets(), destination.octets(), 9)
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            PacketBuilder::ipv6(source.octets(), destination.octets(), 9)
        }
        _ => panic!("mixed families"),
    };
    let written = match (body, v4) {
        (Body::Tcp, _) => builder.tcp(source, destination, 3, 4).write(&mut bytes, payload),
        (Body::Udp | Body::UdpWithoutChecksum, _) => {
            builder.udp(source, destination).write(&mut bytes, payload)
        }
        (Body::Request, true) => builder.icmpv4_echo_request(source, 6).write(&mut bytes, payload),
        (Body::Request, false) => builder.icmpv6_echo_request(source, 6).write(&mut bytes, payload),
        (Body::Reply, true) => builder.icmpv4_echo_reply(destination, 6).write(&mut bytes, payload),
        (Body::Reply, false) => builder.icmpv6_echo_reply(destination, 6).write(&mut bytes, payload),
        (Body::Other, _) => builder.write(&mut bytes, etherparse::IpNumber::SCTP, payload),
        (Body::Error(quoted, keep), _) => {
            let mut quoted = write(&ends.reversed(), quoted, payload);
            quoted.truncate((*keep & !1).max(if v4 { 28 } else { 48 }));
            match v4 {
                true => builder.icmpv4_raw(3, 4, [0, 0, 5, 0]).write(&mut bytes, &quoted),
                false => builder.icmpv6_raw(2, 0, [0, 0, 5, 0]).write(&mut bytes, &quoted),
            }
        }
    };
    written.unwrap();
    if let Body::UdpWithoutChecksum = body {
        let at = if v4 { 26 } else { 46 };
        bytes[at..at + 2].fill(0);
    }
    bytes
}

fn addresses(v4: bool) -> BoxedStrategy<IpAddr> {
    match v4 {
        true => any::<[u8; 4]>().prop_map(IpAddr::from).boxed(),
        false => any::<[u8; 16]>().prop_map(IpAddr::from).boxed(),
    }
}

fn ends(v4: bool) -> impl Strategy<Value = PacketEnds> {
    (addresses(v4), addresses(v4), any::<u16>(), any::<u16>()).prop_map(
        |(source, destination, source_port, destination_port)| PacketEnds {
            source,
            destination,
            source_port,
            destination_port,
        },
    )
}

fn bodies() -> impl Strategy<Value = Body> {
    let plain = prop_oneof![
        Just(Body::Tcp),
        Just(Body::Udp),
        Just(Body::UdpWithoutChecksum),
        Just(Body::Request),
        Just(Body::Reply),
        Just(Body::Other),
    ];
    let quoted = plain.clone();
    prop_oneof![
        3 => plain,
        2 => (quoted, 0_usize..120).prop_map(|(quoted, keep)| Body::Error(Box::new(quoted), keep)),
    ]
}

/// Replaces checksums of 0 by 0xffff, which is the same number, except in UDP where it has another meaning.
fn normal(mut bytes: Vec<u8>) -> Vec<u8> {
    let packet = parse(&bytes).unwrap();
    let mut places = vec![];
    if packet.source.is_ipv4() {
        places.push(10);
    }
    if packet.protocol != UDP {
        let offset =
            if packet.protocol == packet::ICMP { Some(2) } else { packet::checksum_offset(packet.protocol) };
        places.extend(offset.map(|offset| packet.transport_at + offset));
    }
    if let TransportHeader::IcmpError { .. } = packet.transport {
        let at = packet::quoted_at(&packet);
        let inner = packet::parse_quoted(&bytes[at..]).unwrap();
        if inner.source.is_ipv4() {
            places.push(at + 10);
        }
        let offset =
            if inner.protocol == packet::ICMP { Some(2) } else { packet::checksum_offset(inner.protocol) };
        places.extend(offset.map(|offset| at + inner.transport_at + offset));
    }
    for at in places {
        if let Some(field) = bytes.get_mut(at..at + 2)
            && field == [0, 0]
        {
            field.fill(0xff);
        }
    }
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn a_rewritten_packet_is_the_packet_with_the_other_ends(
        (old, new) in any::<bool>().prop_flat_map(|v4| (ends(v4), ends(v4))),
        body in bodies(),
        payload in proptest::collection::vec(any::<u8>(), 8..64),
    ) {
        let mut bytes = write(&old, &body, &payload);
        let Ok(packet) = parse(&bytes) else { return Ok(()) };
        rewrite(&mut bytes, &packet, &new, ChecksumState::Full);
        let expected = write(&new, &body, &payload);
        // The model computes the checksum of an error over a quoted packet whose own checksum may be the other zero.
        match body {
            Body::Error(..) => {
                let (found, expected) = (normal(bytes), normal(expected));
                let at = packet.transport_at + 2;
                let mut masked = (found.clone(), expected.clone());
                masked.0[at..at + 2].fill(0);
                masked.1[at..at + 2].fill(0);
                prop_assert_eq!(masked.0, masked.1);
                prop_assert!(has_valid_checksum(&found), "{:02x?}", found);
            }
            _ => prop_assert_eq!(normal(bytes), normal(expected)),
        }
    }

    #[test]
    fn a_later_fragment_has_no_ports(old in ends(true), new in ends(true), payload in any::<[u8; 24]>()) {
        let mut bytes = write(&old, &Body::Other, &payload);
        bytes[6..8].copy_from_slice(&[0, 9]);
        bytes[9] = TCP;
        let packet = parse(&bytes).unwrap();
        rewrite(&mut bytes, &packet, &new, ChecksumState::Full);
        prop_assert_eq!(&bytes[20..], &payload);
        prop_assert_eq!(parse(&bytes).unwrap().destination, new.destination);
    }

    #[test]
    fn a_partial_checksum_follows_the_addresses_alone(
        (old, new) in any::<bool>().prop_flat_map(|v4| (ends(v4), ends(v4))),
        payload in proptest::collection::vec(any::<u8>(), 0..64),
    ) {
        let mut bytes = write(&old, &Body::Tcp, &payload);
        let packet = parse(&bytes).unwrap();
        let (at, length) = (packet.transport_at + 16, packet.length - packet.transport_at);
        let sum = |ends: &PacketEnds| {
            checksum::sum_of_pseudo_header(ends.source, ends.destination, TCP, length)
        };
        bytes[at..at + 2].copy_from_slice(&sum(&old).to_be_bytes());
        rewrite(&mut bytes, &packet, &new, ChecksumState::Partial);
        let found = u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        let expected = sum(&new);
        prop_assert!(found == expected || found.is_multiple_of(0xffff) && expected.is_multiple_of(0xffff));
        let changed = parse(&bytes).unwrap();
        prop_assert!(matches!(changed.transport, TransportHeader::Tcp(tcp) if tcp.source == new.source_port));
    }

    #[test]
    fn no_bytes_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..200), new in ends(true), first in 0_usize..3) {
        if let Some(byte) = bytes.first_mut() {
            *byte = [0x45, 0x46, 0x60][first];
        }
        if let Ok(packet) = parse(&bytes) {
            rewrite(&mut bytes, &packet, &new, ChecksumState::Full);
        }
    }
}

/// Tells whether the checksum of an ICMP message is right.
fn has_valid_checksum(bytes: &[u8]) -> bool {
    let packet = parse(bytes).unwrap();
    let message = &bytes[packet.transport_at..packet.length];
    let pseudo = match packet.source.is_ipv4() {
        true => 0,
        false => {
            checksum::sum_of_pseudo_header(packet.source, packet.destination, packet.protocol, message.len())
        }
    };
    checksum::add(pseudo, checksum::sum(message)) == 0xffff
}
