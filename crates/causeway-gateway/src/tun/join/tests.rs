//! Segments that are joined, and each condition that ends a frame.

use proptest::prelude::*;

use super::*;
use crate::tun::offload::split;
use crate::tun::packet::parse;

#[derive(Default)]
struct Frames(Vec<(FrameHeader, Vec<u8>)>);

impl FrameSink for Frames {
    fn write_frame(&mut self, frame: &[u8]) {
        let header = FrameHeader::read(frame).unwrap();
        self.0.push((header, frame[FrameHeader::BYTES..].to_vec()));
    }
}

fn join(packets: &[Vec<u8>]) -> Vec<(FrameHeader, Vec<u8>)> {
    let (mut joiner, mut frames) = (Joiner::new(true, true), Frames::default());
    for bytes in packets {
        let mut buffer = vec![0; FrameHeader::BYTES];
        buffer.extend_from_slice(bytes);
        joiner.push(&mut buffer, &parse(bytes).unwrap(), &mut frames);
    }
    joiner.flush(&mut frames);
    frames.0
}

fn cut(frames: &[(FrameHeader, Vec<u8>)]) -> Vec<Vec<u8>> {
    let mut pieces = Vec::new();
    for (header, bytes) in frames {
        let (packet, mut bytes) = (parse(bytes).unwrap(), bytes.clone());
        split(&mut bytes, header, &packet, 65_535, |piece| pieces.push(piece.to_vec())).unwrap();
    }
    pieces
}

/// A segment of a flow: the change makes it differ from its neighbours.
fn segment(v6: bool, index: usize, bytes: usize, change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let builder = match v6 {
        true => etherparse::PacketBuilder::ipv6([0xfd; 16], [0xfc; 16], 64),
        false => etherparse::PacketBuilder::ipv4([10, 0, 0, 7], [10, 1, 0, 9], 64),
    };
    let mut packet = Vec::new();
    let tcp = builder.tcp(4000, 5201, 1000 * index as u32, 512).ack(9);
    tcp.options_raw(&[1, 1, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8])
        .unwrap()
        .write(&mut packet, &vec![index as u8; bytes])
        .unwrap();
    if !v6 {
        packet[4..6].copy_from_slice(&(index as u16).to_be_bytes());
    }
    change(&mut packet);
    seal(&mut packet);
    packet
}

fn seal(packet: &mut [u8]) {
    let v4 = packet[0] >> 4 == 4;
    if v4 {
        packet[10..12].fill(0);
        let sum = !checksum::sum(&packet[..20]);
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
    }
    let parsed = parse(packet).unwrap();
    let at = parsed.transport_at;
    let field = at + if parsed.protocol == 6 { 16 } else { 6 };
    packet[field..field + 2].fill(0);
    let pseudo =
        checksum::sum_of_pseudo_header(parsed.source, parsed.destination, parsed.protocol, packet.len() - at);
    let sum = !checksum::add(pseudo, checksum::sum(&packet[at..]));
    packet[field..field + 2].copy_from_slice(&sum.to_be_bytes());
}

fn check(why: &str, frames_expected: usize, packets: Vec<Vec<u8>>) {
    let frames = join(&packets);
    assert_eq!(frames.len(), frames_expected, "{why}");
    let cut = cut(&frames);
    assert_eq!(cut.len(), packets.len(), "{why}");
    for packet in &packets {
        assert!(cut.contains(packet), "{why}: every packet comes out as it went in");
    }
}

fn run(v6: bool, second: Vec<u8>) -> Vec<Vec<u8>> {
    vec![segment(v6, 1, 1000, |_| {}), second, segment(v6, 3, 1000, |_| {})]
}

#[test]
fn segments_of_one_flow_are_joined_and_each_difference_ends_the_frame() {
    for v6 in [false, true] {
        let at = if v6 { 40 } else { 20 };
        let plain = |change: fn(&mut Vec<u8>)| run(v6, segment(v6, 2, 1000, change));
        check("equal", 1, plain(|_| {}));
        check(
            "hop limit",
            3,
            plain(|bytes| {
                let at = if bytes[0] == 0x45 { 8 } else { 7 };
                bytes[at] = 9;
            }),
        );
        check("traffic class", 3, plain(|bytes| bytes[1] ^= 0x20));
        let change =
            |index: usize, value: u8| run(v6, segment(v6, 2, 1000, |bytes| bytes[at + index] ^= value));
        check("acknowledgement", 3, change(11, 1));
        check("window", 3, change(15, 1));
        check("options", 3, change(31, 1));
        check("sequence", 3, change(5, 1));
        check("PSH ends it and belongs to it", 2, change(13, TcpHeader::PSH));
        check("FIN", 3, change(13, TcpHeader::FIN));
        check("RST", 3, change(13, TcpHeader::RST));
        check("CWR", 3, change(13, TcpHeader::CWR));
        check("URG", 3, change(13, 0x20));
        check("another flow", 3, change(0, 1));
        check("a short segment ends it", 2, run(v6, segment(v6, 2, 900, |_| {})));
        check("a long segment", 3, run(v6, segment(v6, 2, 1001, |_| {})));
        check("no payload", 3, run(v6, segment(v6, 2, 0, |_| {})));
    }
    check("DF", 3, run(false, segment(false, 2, 1000, |bytes| bytes[6] ^= 0x40)));
    check("number", 3, run(false, segment(false, 2, 1000, |bytes| bytes[5] ^= 0x40)));
    let wrong = {
        let mut wrong = segment(false, 2, 1000, |_| {});
        wrong[100] ^= 1;
        wrong
    };
    let frames = join(&run(false, wrong.clone()));
    assert_eq!((frames.len(), &frames[1].1), (3, &wrong), "a wrong checksum is not repaired");
    let fragment = segment(false, 2, 1000, |bytes| bytes[6] |= 0x20);
    assert_eq!(join(&run(false, fragment)).len(), 3, "fragment");
}

#[test]
fn a_frame_ends_at_65535_bytes() {
    let packets: Vec<_> = (0..70).map(|index| segment(false, index, 1000, |_| {})).collect();
    let frames = join(&packets);
    assert_eq!((frames.len(), frames[0].1.len()), (2, 65_052));
    assert_eq!(cut(&frames), packets);
}

#[test]
fn the_order_of_a_flow_is_kept_beside_others() {
    let other = |index: usize| segment(true, index, 1000, |_| {});
    let one = |index: usize| segment(false, index, 1000, |_| {});
    let packets = vec![one(1), other(1), one(2), other(2), one(3), other(3)];
    assert_eq!(cut(&join(&packets)), vec![one(1), one(2), one(3), other(1), other(2), other(3)]);
    // A packet whose flow is not known goes after all that came before it.
    let mut fragment = segment(false, 9, 1000, |_| {});
    fragment[7] = 7;
    let packets = vec![one(1), other(1), fragment.clone(), one(2)];
    assert_eq!(cut(&join(&packets)), vec![one(1), other(1), fragment, one(2)]);
}

#[test]
fn a_device_without_offloads_gets_every_packet_alone() {
    let (mut joiner, mut frames) = (Joiner::new(true, true), Frames::default());
    joiner.disable();
    for index in 1..4 {
        let mut buffer = vec![0; FrameHeader::BYTES];
        buffer.extend_from_slice(&segment(false, index, 1000, |_| {}));
        let packet = parse(&buffer[FrameHeader::BYTES..]).unwrap();
        joiner.push(&mut buffer, &packet, &mut frames);
    }
    assert_eq!(frames.0.len(), 3);
}

fn datagram(index: u16, bytes: usize) -> Vec<u8> {
    let mut packet = Vec::new();
    let builder = etherparse::PacketBuilder::ipv4([10, 0, 0, 7], [10, 1, 0, 9], 64).udp(5, 6);
    builder.write(&mut packet, &vec![index as u8; bytes]).unwrap();
    packet[4..6].copy_from_slice(&index.to_be_bytes());
    seal(&mut packet);
    packet
}

#[test]
fn datagrams_are_joined_unless_one_has_no_checksum() {
    let packets: Vec<_> = (1..5).map(|index| datagram(index, 800)).collect();
    let frames = join(&packets);
    assert_eq!((frames.len(), cut(&frames)), (1, packets));
    let mut without = datagram(2, 800);
    without[26..28].fill(0);
    let frames = join(&[datagram(1, 800), without.clone(), datagram(3, 800)]);
    assert_eq!((frames.len(), &frames[1].1), (3, &without));
    let many: Vec<_> = (0..65).map(|index| datagram(index, 100)).collect();
    assert_eq!(join(&many).len(), 2, "no more than the kernel takes");
}

proptest! {
    #[test]
    fn cutting_a_joined_frame_gives_the_packets_back(
        sizes in proptest::collection::vec(prop_oneof![4 => Just(1000_usize), 1 => 1_usize..1000], 1..90), v6 in any::<bool>(),
    ) {
        let packets: Vec<_> = sizes.iter().enumerate().map(|(index, size)| segment(v6, index, *size, |_| {})).collect();
        prop_assert_eq!(cut(&join(&packets)), packets);
    }
}
