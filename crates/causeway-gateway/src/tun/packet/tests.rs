//! The reader against `etherparse`, which writes the packets.

use etherparse::{IpFragOffset, IpNumber, Ipv4Header, Ipv6FragmentHeader, PacketBuilder};
use proptest::prelude::*;

use super::*;

fn tcp_v4(payload: &[u8]) -> Vec<u8> {
    let builder = PacketBuilder::ipv4([10, 0, 0, 7], [10, 1, 0, 9], 61).tcp(4000, 443, 77, 1024);
    let mut bytes = Vec::new();
    builder.fin().ack(5).write(&mut bytes, payload).unwrap();
    bytes
}

#[test]
fn a_tcp_segment_has_addresses_ports_and_flags() {
    let mut bytes = tcp_v4(b"payload");
    bytes.extend_from_slice(&[0; 9]);
    let packet = parse(&bytes).unwrap();
    assert_eq!((packet.source, packet.length), ("10.0.0.7".parse().unwrap(), 47));
    assert_eq!((packet.destination, packet.transport_at), ("10.1.0.9".parse().unwrap(), 20));
    assert_eq!((packet.hop_limit, packet.fragment), (61, Fragment::Whole));
    let TransportHeader::Tcp(tcp) = packet.transport else { panic!("{packet:?}") };
    assert_eq!((tcp.source, tcp.destination, tcp.sequence, tcp.header_bytes), (4000, 443, 77, 20));
    assert_eq!(tcp.flags, TcpHeader::FIN | TcpHeader::ACK);
}

#[test]
fn a_first_fragment_must_hold_its_whole_transport_header() {
    let header = |more: bool, offset: u16, payload: &[u8]| {
        let mut header =
            Ipv4Header::new(payload.len() as u16, 64, IpNumber::TCP, [10, 0, 0, 1], [10, 0, 0, 2]).unwrap();
        header.more_fragments = more;
        header.fragment_offset = IpFragOffset::try_new(offset).unwrap();
        header.identification = 99;
        let mut bytes = header.to_bytes().to_vec();
        bytes.extend_from_slice(payload);
        bytes
    };
    assert_eq!(parse(&header(true, 0, &[0; 16])), Err(PacketError::Truncated));
    let mut whole = [0; 24];
    whole[12] = 0x50;
    assert_eq!(parse(&header(true, 0, &whole)).unwrap().fragment, Fragment::First { id: 99 });
    // The bytes of a later fragment are not a header, whatever they look like.
    let later = parse(&header(false, 3, &[1; 3])).unwrap();
    assert_eq!((later.fragment, later.transport), (Fragment::Later { id: 99 }, TransportHeader::Opaque));
    assert_eq!(parse(&header(false, 0x1fff, &[0; 100])), Err(PacketError::Length), "ping of death");
}

#[test]
fn extension_headers_are_walked_and_source_routes_refused() {
    let mut bytes = Vec::new();
    PacketBuilder::ipv6([1; 16], [2; 16], 64).udp(5, 6).write(&mut bytes, b"abc").unwrap();
    let insert = |next: u8, header: &[u8]| {
        let mut changed = bytes.clone();
        changed[6] = next;
        changed.splice(40..40, header.iter().copied());
        let length = (changed.len() - 40) as u16;
        changed[4..6].copy_from_slice(&length.to_be_bytes());
        changed
    };
    let udp = TransportHeader::Udp { source: 5, destination: 6 };
    assert_eq!(parse(&bytes).unwrap().transport, udp);
    let hop_by_hop = parse(&insert(0, &[UDP, 0, 1, 4, 0, 0, 0, 0])).unwrap();
    assert_eq!((hop_by_hop.transport, hop_by_hop.transport_at), (udp, 48));
    assert_eq!(parse(&insert(43, &[UDP, 0, 0, 1, 0, 0, 0, 0])), Err(PacketError::SourceRoute));
    assert_eq!(parse(&insert(43, &[UDP, 0, 0, 0, 0, 0, 0, 0])).unwrap().transport, udp);
    let fragment =
        Ipv6FragmentHeader::new(IpNumber::UDP, IpFragOffset::try_new(4).unwrap(), true, 8).to_bytes();
    assert_eq!(parse(&insert(44, &fragment)).unwrap().fragment, Fragment::Later { id: 8 });
    let chain: Vec<u8> = [0, 0, 1, 4, 0, 0, 0, 0].repeat(9);
    assert_eq!(parse(&insert(0, &chain)), Err(PacketError::ExtensionHeaders));
    let mut routed = tcp_v4(b"");
    routed[0] = 0x46;
    routed.splice(20..20, [131, 3, 4, 0]);
    routed[3] += 4;
    assert_eq!(parse(&routed), Err(PacketError::SourceRoute));
}

#[test]
fn a_later_fragment_replaces_no_part_of_a_tcp_header() {
    let v4 = |protocol: IpNumber, offset: u16| {
        let mut header = Ipv4Header::new(64, 64, protocol, [10, 0, 0, 1], [10, 0, 0, 2]).unwrap();
        header.fragment_offset = IpFragOffset::try_new(offset).unwrap();
        let mut bytes = header.to_bytes().to_vec();
        bytes.extend_from_slice(&[0; 64]);
        bytes
    };
    let v6 = |protocol: IpNumber, offset: u16| {
        let offset = IpFragOffset::try_new(offset).unwrap();
        let fragment = Ipv6FragmentHeader::new(protocol, offset, true, 8).to_bytes();
        let mut bytes = Vec::new();
        PacketBuilder::ipv6([1; 16], [2; 16], 64).udp(5, 6).write(&mut bytes, &[0; 56]).unwrap();
        bytes[6] = 44;
        bytes.splice(40..40, fragment);
        let length = (bytes.len() - 40) as u16;
        bytes[4..6].copy_from_slice(&length.to_be_bytes());
        bytes
    };
    let packets: [&dyn Fn(IpNumber, u16) -> Vec<u8>; 2] = [&v4, &v6];
    for packet in packets {
        for offset in [1, 2] {
            assert_eq!(parse(&packet(IpNumber::TCP, offset)), Err(PacketError::FragmentOverlap), "{offset}");
        }
        assert!(matches!(parse(&packet(IpNumber::TCP, 3)).unwrap().fragment, Fragment::Later { .. }));
        assert!(matches!(parse(&packet(IpNumber::UDP, 1)).unwrap().fragment, Fragment::Later { .. }));
    }
}

#[test]
fn a_packet_has_one_fragment_header() {
    let header = |next: u8, offset: u16, more: bool| {
        let offset = IpFragOffset::try_new(offset).unwrap();
        Ipv6FragmentHeader::new(IpNumber(next), offset, more, 8).to_bytes()
    };
    let packet = |headers: &[u8]| {
        let mut bytes = Vec::new();
        PacketBuilder::ipv6([1; 16], [2; 16], 64).udp(5, 6).write(&mut bytes, b"abc").unwrap();
        bytes[6] = 44;
        bytes.splice(40..40, headers.iter().copied());
        let length = (bytes.len() - 40) as u16;
        bytes[4..6].copy_from_slice(&length.to_be_bytes());
        bytes
    };
    assert_eq!(parse(&packet(&header(UDP, 0, true))).unwrap().fragment, Fragment::First { id: 8 });
    assert_eq!(parse(&packet(&header(UDP, 0, false))).unwrap().fragment, Fragment::Whole);
    for (first, second) in [((0, true), (0, false)), ((0, false), (0, true)), ((0, false), (4, false))] {
        let both = [header(44, first.0, first.1), header(UDP, second.0, second.1)].concat();
        assert_eq!(parse(&packet(&both)), Err(PacketError::FragmentHeaders), "{first:?} {second:?}");
    }
}

#[test]
fn icmp_of_both_versions_is_told_apart() {
    let mut bytes = Vec::new();
    let builder = PacketBuilder::ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64);
    builder.icmpv4_echo_request(7, 1).write(&mut bytes, b"ping").unwrap();
    assert_eq!(parse(&bytes).unwrap().transport, TransportHeader::Echo { request: true, id: 7 });
    bytes[20] = 11;
    assert_eq!(parse(&bytes).unwrap().transport, TransportHeader::IcmpError { kind: 11, code: 0 });
    let mut bytes = Vec::new();
    PacketBuilder::ipv6([1; 16], [2; 16], 64).icmpv6_echo_reply(7, 1).write(&mut bytes, b"ping").unwrap();
    assert_eq!(parse(&bytes).unwrap().transport, TransportHeader::Echo { request: false, id: 7 });
    bytes[40] = 2;
    assert_eq!(parse(&bytes).unwrap().transport, TransportHeader::IcmpError { kind: 2, code: 0 });
}

#[test]
fn a_quoted_packet_may_be_cut_off() {
    let bytes = tcp_v4(&[0; 100]);
    assert_eq!(parse(&bytes[..28]), Err(PacketError::Length));
    let quoted = parse_quoted(&bytes[..28]).unwrap();
    assert!(matches!(
        quoted.transport,
        TransportHeader::Tcp(TcpHeader { source: 4000, destination: 443, .. })
    ));
    assert_eq!(parse_quoted(&bytes[..27]), Err(PacketError::Truncated));
}

proptest! {
    #[test]
    fn no_bytes_panic_and_offsets_are_inside(
        mut bytes in proptest::collection::vec(any::<u8>(), 0..200), version in prop_oneof![Just(0x45_u8), Just(0x60), any::<u8>()],
        next in prop_oneof![Just(6_u8), Just(0), Just(43), Just(44), Just(51), Just(58), any::<u8>()], fits in any::<bool>(),
    ) {
        if bytes.len() > 40 {
            bytes[0] = version;
            bytes[6 + 3 * usize::from(version == 0x45)] = next;
            let length = (bytes.len() - if version == 0x45 { 0 } else { 40 }) as u16;
            let at = if version == 0x45 { 2 } else { 4 };
            if fits {
                bytes[at..at + 2].copy_from_slice(&length.to_be_bytes());
            }
        }
        let _ = parse_quoted(&bytes);
        if let Ok(packet) = parse(&bytes) {
            prop_assert!(packet.transport_at <= packet.length && packet.length <= bytes.len());
        }
    }

    #[test]
    fn packets_are_read_as_etherparse_reads_them(
        v6 in any::<bool>(), tcp in any::<bool>(), source in any::<u16>(), destination in any::<u16>(),
        sequence in any::<u32>(), payload in proptest::collection::vec(any::<u8>(), 0..100), ttl in any::<u8>(),
    ) {
        let builder = match v6 {
            true => PacketBuilder::ipv6([3; 16], [4; 16], ttl),
            false => PacketBuilder::ipv4([1, 2, 3, 4], [5, 6, 7, 8], ttl),
        };
        let mut bytes = Vec::new();
        match tcp {
            true => builder.tcp(source, destination, sequence, 9).syn().write(&mut bytes, &payload).unwrap(),
            false => builder.udp(source, destination).write(&mut bytes, &payload).unwrap(),
        }
        let packet = parse(&bytes).unwrap();
        let read = etherparse::SlicedPacket::from_ip(&bytes).unwrap();
        match (read.transport.unwrap(), packet.transport) {
            (etherparse::TransportSlice::Tcp(known), TransportHeader::Tcp(found)) => {
                prop_assert_eq!((known.source_port(), known.destination_port()), (found.source, found.destination));
                prop_assert_eq!(known.sequence_number(), found.sequence);
                prop_assert_eq!((found.flags, found.header_bytes), (TcpHeader::SYN, known.header_len()));
            }
            (etherparse::TransportSlice::Udp(known), TransportHeader::Udp { source, destination }) => {
                prop_assert_eq!((known.source_port(), known.destination_port()), (source, destination));
            }
            other => prop_assert!(false, "{:?}", other),
        }
        prop_assert_eq!((packet.hop_limit, packet.length), (ttl, bytes.len()));
    }
}
