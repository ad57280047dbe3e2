//! The translation against a slow model, which takes a packet apart, replaces its addresses and computes every
//! checksum anew.

use etherparse::PacketBuilder;
use proptest::prelude::*;

use super::*;
use crate::tun::packet::{ICMP, ICMPV6, TCP, UDP, parse};

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn table() -> PrefixTable {
    let pair = |inside, outside| PrefixPair::new(net(inside), net(outside)).unwrap();
    PrefixTable::new([
        pair("10.0.0.0/24", "100.64.7.0/24"),
        pair("10.0.0.64/27", "100.65.9.32/27"),
        pair("fd00:1::/64", "fd99:7:8:9::/64"),
    ])
}

/// The bodies of the packets of a test.
#[derive(Clone, Debug)]
struct Parts {
    source: IpAddr,
    destination: IpAddr,
    body: Body,
}

#[derive(Clone, Debug)]
enum Body {
    Tcp(Vec<u8>),
    Udp(Vec<u8>),
    UdpWithoutChecksum(Vec<u8>),
    Echo(Vec<u8>),
    /// An ICMP error that quotes a packet, cut off after this number of bytes. An even number: half a checksum is left
    /// as it is, and has no meaning.
    Error(Box<Parts>, usize),
}

fn write(parts: &Parts) -> Vec<u8> {
    let (v4, mut bytes) = (parts.source.is_ipv4(), Vec::new());
    let builder = match (parts.source, parts.destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            PacketBuilder::ipv4(source.octets(), destination.octets(), 9)
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            PacketBuilder::ipv6(source.octets(), destination.octets(), 9)
        }
        _ => panic!("mixed families"),
    };
    match &parts.body {
        Body::Tcp(payload) => builder.tcp(1, 2, 3, 4).write(&mut bytes, payload).unwrap(),
        Body::Udp(payload) => builder.udp(1, 2).write(&mut bytes, payload).unwrap(),
        Body::UdpWithoutChecksum(payload) => {
            builder.udp(1, 2).write(&mut bytes, payload).unwrap();
            let at = if v4 { 26 } else { 46 };
            bytes[at..at + 2].fill(0);
        }
        Body::Echo(payload) if v4 => builder.icmpv4_echo_request(5, 6).write(&mut bytes, payload).unwrap(),
        Body::Echo(payload) => builder.icmpv6_echo_request(5, 6).write(&mut bytes, payload).unwrap(),
        Body::Error(quoted, keep) => {
            let mut quoted = write(quoted);
            quoted.truncate((*keep & !1).max(if v4 { 28 } else { 48 }));
            match v4 {
                true => builder.icmpv4_raw(3, 4, [0, 0, 5, 0]).write(&mut bytes, &quoted).unwrap(),
                false => builder.icmpv6_raw(2, 0, [0, 0, 5, 0]).write(&mut bytes, &quoted).unwrap(),
            }
        }
    }
    bytes
}

/// The model: the packet that would have been written with the other address.
fn model(parts: &Parts, direction: Direction) -> Parts {
    let inside_outside = [
        ("10.0.0.64/27", "100.65.9.32/27"),
        ("10.0.0.0/24", "100.64.7.0/24"),
        ("fd00:1::/64", "fd99:7:8:9::/64"),
    ];
    let replace = |address: IpAddr| {
        for (inside, outside) in inside_outside {
            let (from, to) = match direction {
                Direction::Outbound => (net(inside), net(outside)),
                Direction::Inbound => (net(outside), net(inside)),
            };
            if from.contains(&address) {
                let position = from.hosts().position(|host| host == address);
                // `hosts` leaves out the network and broadcast addresses of IPv4; tests use neither.
                return to.hosts().nth(position.unwrap()).unwrap();
            }
        }
        address
    };
    let mut changed = parts.clone();
    match direction {
        Direction::Outbound => changed.source = replace(parts.source),
        Direction::Inbound => changed.destination = replace(parts.destination),
    }
    if let Body::Error(quoted, _) = &mut changed.body {
        match direction {
            Direction::Outbound => quoted.destination = replace(quoted.destination),
            Direction::Inbound => quoted.source = replace(quoted.source),
        }
    }
    changed
}

fn addresses(v4: bool) -> BoxedStrategy<IpAddr> {
    match v4 {
        true => prop_oneof![
            (1_u8..255).prop_map(|host| IpAddr::from([10, 0, 0, host])),
            (1_u8..255).prop_map(|host| IpAddr::from([100, 64, 7, host])),
            (33_u8..62).prop_map(|host| IpAddr::from([100, 65, 9, host])),
            any::<[u8; 4]>().prop_map(|[a, b, c, _]| IpAddr::from([a, b, c, 9])),
        ]
        .prop_filter("hosts of the /27", |address| match address {
            IpAddr::V4(address) => !matches!(address.octets(), [10, 0, 0, 64 | 95]),
            _ => true,
        })
        .boxed(),
        false => prop_oneof![
            (1_u16..500).prop_map(|host| IpAddr::from([0xfd00, 1, 0, 0, 0, 0, 0, host])),
            (1_u16..500).prop_map(|host| IpAddr::from([0xfd99, 7, 8, 9, 0, 0, 0, host])),
            Just("2001:db8::9".parse().unwrap()),
        ]
        .boxed(),
    }
}

fn bodies(v4: bool) -> BoxedStrategy<Body> {
    let payload = || proptest::collection::vec(any::<u8>(), 0..64);
    let plain = move || {
        prop_oneof![
            payload().prop_map(Body::Tcp),
            payload().prop_map(Body::Udp),
            payload().prop_map(Body::UdpWithoutChecksum),
            payload().prop_map(Body::Echo),
        ]
    };
    let quoted = (addresses(v4), addresses(v4), plain())
        .prop_map(|(source, destination, body)| Box::new(Parts { source, destination, body }));
    prop_oneof![3 => plain(), 2 => (quoted, 0_usize..120).prop_map(|(quoted, keep)| Body::Error(quoted, keep))].boxed()
}

fn packets() -> impl Strategy<Value = Parts> {
    any::<bool>().prop_flat_map(|v4| {
        (addresses(v4), addresses(v4), bodies(v4)).prop_map(|(source, destination, body)| Parts {
            source,
            destination,
            body,
        })
    })
}

/// Checksums that mean the same: 0 and 0xffff are equal in one's complement, except in UDP.
fn same_but_for_negative_zero(one: &[u8], other: &[u8]) -> bool {
    one.len() == other.len()
        && one.chunks(2).zip(other.chunks(2)).all(|(one, other)| {
            one == other || [one, other].iter().all(|word| *word == [0, 0] || *word == [0xff, 0xff])
        })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn a_translated_packet_is_the_packet_written_with_the_other_address(parts in packets(), out in any::<bool>()) {
        let direction = if out { Direction::Outbound } else { Direction::Inbound };
        let mut bytes = write(&parts);
        let packet = parse(&bytes).unwrap();
        let expected = write(&model(&parts, direction));
        let changed = table().translate(&mut bytes, &packet, direction, ChecksumState::Full);
        prop_assert_eq!(changed, write(&parts) != expected);
        prop_assert!(same_but_for_negative_zero(&bytes, &expected), "{:?}\n{:?}", bytes, expected);
    }

    #[test]
    fn a_partial_checksum_becomes_that_of_the_new_pseudo_header(parts in packets(), out in any::<bool>()) {
        let direction = if out { Direction::Outbound } else { Direction::Inbound };
        let (mut bytes, changed) = (write(&parts), model(&parts, direction));
        let packet = parse(&bytes).unwrap();
        let Some(offset) = packet::checksum_offset(packet.protocol) else { return Ok(()) };
        let at = packet.transport_at + offset;
        let length = packet.length - packet.transport_at;
        let pseudo = |parts: &Parts| {
            checksum::sum_of_pseudo_header(parts.source, parts.destination, packet.protocol, length)
        };
        bytes[at..at + 2].copy_from_slice(&pseudo(&parts).to_be_bytes());
        table().translate(&mut bytes, &packet, direction, ChecksumState::Partial);
        let field = u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        prop_assert!(field % 0xffff == pseudo(&changed) % 0xffff);
    }

    #[test]
    fn a_fragment_after_the_first_changes_in_its_header_only(parts in packets()) {
        let mut bytes = write(&parts);
        if parts.source.is_ipv6() {
            return Ok(());
        }
        bytes[7] = 3;
        let packet = parse(&bytes).unwrap();
        let payload = bytes[20..].to_vec();
        table().translate(&mut bytes, &packet, Direction::Outbound, ChecksumState::Full);
        prop_assert_eq!(&bytes[20..], payload);
    }

    #[test]
    fn no_bytes_panic(mut bytes in proptest::collection::vec(any::<u8>(), 20..200), protocol in prop_oneof![Just(ICMP), Just(TCP), Just(UDP), Just(ICMPV6)], v6 in any::<bool>()) {
        let length = (bytes.len() as u16).to_be_bytes();
        if v6 && bytes.len() >= 40 {
            bytes[0] = 0x60;
            bytes[4..6].copy_from_slice(&((length[1] as u16) - 40).to_be_bytes());
            bytes[6] = protocol;
            bytes[8..16].copy_from_slice(&[0xfd, 0, 0, 1, 0, 0, 0, 0]);
        } else {
            (bytes[0], bytes[9]) = (0x45, protocol);
            bytes[2..4].copy_from_slice(&length);
            bytes[12..15].copy_from_slice(&[10, 0, 0]);
        }
        for direction in [Direction::Outbound, Direction::Inbound] {
            let Ok(packet) = parse(&bytes) else { return Ok(()) };
            table().translate(&mut bytes, &packet, direction, ChecksumState::Full);
        }
    }
}

#[test]
fn networks_of_different_size_are_no_pair() {
    assert!(PrefixPair::new(net("10.0.0.0/24"), net("100.64.0.0/25")).is_none());
    assert!(PrefixPair::new(net("10.0.0.0/24"), net("fd00::/24")).is_none());
}

#[test]
fn there_and_back_is_the_same_address() {
    let table = table();
    let real: IpAddr = "10.0.0.7".parse().unwrap();
    assert_eq!(table.to_outside(real), "100.64.7.7".parse::<IpAddr>().unwrap());
    assert_eq!(table.to_inside(table.to_outside(real)), real);
    let narrow: IpAddr = "10.0.0.70".parse().unwrap();
    assert_eq!(table.to_outside(narrow), "100.65.9.38".parse::<IpAddr>().unwrap());
}
