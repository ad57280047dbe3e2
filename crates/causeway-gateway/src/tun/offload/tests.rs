//! Frames as the kernel makes them, cut into packets whose checksums `etherparse` confirms.

use etherparse::{NetHeaders, PacketBuilder, PacketHeaders, TransportHeader};
use proptest::prelude::*;

use super::*;
use crate::tun::packet::parse;

/// Returns a frame as the kernel passes it: lengths of the whole, the sum of the pseudo-header in the field.
pub fn frame(v6: bool, tcp: bool, payload: &[u8], segment: u16) -> (FrameHeader, Vec<u8>) {
    let builder = match v6 {
        true => PacketBuilder::ipv6([0xfd; 16], [0xfc; 16], 64),
        false => PacketBuilder::ipv4([10, 0, 0, 7], [10, 1, 0, 9], 64),
    };
    let mut bytes = Vec::new();
    match tcp {
        true => {
            let mut tcp = builder.tcp(4000, 5201, 0xffff_ff00, 512).ack(9).psh().fin();
            tcp = tcp.options_raw(&[1, 1, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8]).unwrap();
            tcp.write(&mut bytes, payload).unwrap();
        }
        false => builder.udp(4000, 5201).write(&mut bytes, payload).unwrap(),
    }
    let packet = parse(&bytes).unwrap();
    let at = packet.transport_at;
    let offset = if tcp { 16 } else { 6 };
    if tcp {
        bytes[at + 13] |= TcpHeader::CWR;
    }
    let pseudo =
        checksum::sum_of_pseudo_header(packet.source, packet.destination, packet.protocol, bytes.len() - at);
    bytes[at + offset..at + offset + 2].copy_from_slice(&pseudo.to_be_bytes());
    let kind = match (payload.len() > usize::from(segment), tcp, v6) {
        (false, ..) => SegmentKind::One,
        (_, true, false) => SegmentKind::Tcp4,
        (_, true, true) => SegmentKind::Tcp6,
        (_, false, _) => SegmentKind::Udp,
    };
    let header = FrameHeader {
        needs_checksum: true,
        kind,
        header_bytes: (at + if tcp { 32 } else { 8 }) as u16,
        segment_bytes: segment,
        checksum_start: at as u16,
        checksum_offset: offset as u16,
    };
    (header, bytes)
}

pub fn pieces(header: &FrameHeader, bytes: &mut [u8], mtu: usize) -> Result<Vec<Vec<u8>>, SplitError> {
    let packet = parse(bytes).unwrap();
    let mut pieces = Vec::new();
    let count = split(bytes, header, &packet, mtu, |piece| pieces.push(piece.to_vec()))?;
    assert_eq!(count, pieces.len());
    Ok(pieces)
}

/// Checks lengths and checksums with an independent implementation, and returns the payload.
fn check(piece: &[u8]) -> (TransportHeader, Vec<u8>) {
    let read = PacketHeaders::from_ip_slice(piece).unwrap();
    let payload = read.payload.slice().to_vec();
    let transport = read.transport.unwrap();
    match (&read.net.unwrap(), &transport) {
        (NetHeaders::Ipv4(ip, _), TransportHeader::Tcp(tcp)) => {
            assert_eq!(ip.header_checksum, ip.calc_header_checksum());
            assert_eq!(tcp.checksum, tcp.calc_checksum_ipv4(ip, &payload).unwrap());
        }
        (NetHeaders::Ipv6(ip, _), TransportHeader::Tcp(tcp)) => {
            assert_eq!(tcp.checksum, tcp.calc_checksum_ipv6(ip, &payload).unwrap());
        }
        (NetHeaders::Ipv4(ip, _), TransportHeader::Udp(udp)) => {
            assert_eq!(ip.header_checksum, ip.calc_header_checksum());
            assert_eq!(udp.checksum, udp.calc_checksum_ipv4(ip, &payload).unwrap());
        }
        (NetHeaders::Ipv6(ip, _), TransportHeader::Udp(udp)) => {
            assert_eq!(udp.checksum, udp.calc_checksum_ipv6(ip, &payload).unwrap());
        }
        other => panic!("{other:?}"),
    }
    (transport, payload)
}

proptest! {
    #[test]
    fn the_packets_of_a_frame_are_valid_and_hold_its_payload(
        v6 in any::<bool>(), tcp in any::<bool>(), payload in proptest::collection::vec(any::<u8>(), 1..9000),
        segment in 500_u16..1400, mtu in 600_usize..1500,
    ) {
        let (header, mut bytes) = frame(v6, tcp, &payload, segment);
        let before = bytes.clone();
        match pieces(&header, &mut bytes, mtu) {
            Err(error) => {
                let headers = usize::from(header.header_bytes);
                prop_assert_eq!(error, SplitError::TooBig);
                let longest = if header.kind == SegmentKind::One { payload.len() } else { usize::from(segment) };
                prop_assert!((!tcp || header.kind == SegmentKind::One) && longest + headers > mtu);
            }
            Ok(pieces) => {
                let mut found = Vec::new();
                for (index, piece) in pieces.iter().enumerate() {
                    prop_assert!(piece.len() <= mtu);
                    let (transport, payload) = check(piece);
                    if let TransportHeader::Tcp(tcp) = &transport {
                        let is_last = index + 1 == pieces.len();
                        prop_assert_eq!((tcp.fin, tcp.psh, tcp.cwr), (is_last, is_last, index == 0));
                        prop_assert_eq!(tcp.sequence_number, 0xffff_ff00_u32.wrapping_add(found.len() as u32));
                    }
                    if !v6 && index > 0 {
                        let number = |piece: &[u8]| u16::from_be_bytes([piece[4], piece[5]]);
                        prop_assert_eq!(number(piece), number(&before).wrapping_add(index as u16));
                    }
                    found.extend(payload);
                }
                prop_assert_eq!(found, payload);
            }
        }
    }

    #[test]
    fn no_frame_panics(mut bytes in proptest::collection::vec(any::<u8>(), 0..300), head in any::<[u8; 10]>(), tcp in any::<bool>()) {
        if bytes.len() > 60 {
            bytes[0] = 0x45;
            bytes[6..8].fill(0);
            bytes[9] = if tcp { 6 } else { 17 };
            let length = bytes.len() as u16;
            bytes[2..4].copy_from_slice(&length.to_be_bytes());
        }
        if let (Some(header), Ok(packet)) = (FrameHeader::read(&head), parse(&bytes)) {
            let _ = split(&mut bytes, &header, &packet, 1420, |_| {});
        }
    }
}

#[test]
fn a_frame_header_is_read_as_it_is_written() {
    let (header, _) = frame(false, true, &[0; 3000], 1000);
    let mut bytes = [0; FrameHeader::BYTES];
    header.write(&mut bytes);
    assert_eq!(FrameHeader::read(&bytes), Some(header));
    bytes[1] = 3;
    assert_eq!(FrameHeader::read(&bytes), None, "fragmentation offload was not asked for");
    assert_eq!(FrameHeader::read(&bytes[..9]), None);
}

#[test]
fn a_whole_frame_at_mtu_1420_has_48_segments() {
    let (header, mut bytes) = frame(false, true, &[7; 65_535 - 52], 1368);
    assert_eq!(pieces(&header, &mut bytes, 1420).unwrap().len(), 48);
}

#[test]
fn fragments_hold_the_packet_and_have_valid_headers() {
    let (header, mut bytes) = frame(false, false, &[7; 3001], 9000);
    complete_checksum(&mut bytes, &header).unwrap();
    let packet = parse(&bytes).unwrap();
    let mut found = vec![0; packet.length - 20];
    let mut ends = Vec::new();
    let cut = fragment(&bytes, &packet, 1281, |piece| {
        assert!(piece.len() <= 1281 && checksum::sum(&piece[..20]) == 0xffff);
        let flags = u16::from_be_bytes([piece[6], piece[7]]);
        let at = usize::from(flags & 0x1fff) * 8;
        found[at..at + piece.len() - 20].copy_from_slice(&piece[20..]);
        ends.push(flags & 0x2000 != 0);
        assert!(parse(piece).is_ok());
    });
    assert_eq!((cut, ends), (Some(()), vec![true, true, false]));
    assert_eq!(found, bytes[20..]);
}
