//! Parsers of layer 3 over random bytes: a short form of the fuzz targets `packet` and `wireguard`.

use std::time::Instant;

use causeway_gateway::tun::checksum::ChecksumState;
use causeway_gateway::tun::cipher::TransportCipher;
use causeway_gateway::tun::flow::lookup;
use causeway_gateway::tun::join::{FrameSink, Joiner};
use causeway_gateway::tun::mss;
use causeway_gateway::tun::noise::{MacKeys, StaticKeys, read_initiation, receiver_index};
use causeway_gateway::tun::offload::{FrameHeader, fragment, split};
use causeway_gateway::tun::packet::{parse, parse_quoted};
use causeway_gateway::tun::peer_message::PeerMessage;
use causeway_gateway::tun::reply::{REPLY_MAX, ReplyReason, reply};
use causeway_gateway::tun::rewrite::{PacketEnds, rewrite};
use causeway_gateway::tun::session::PeerSession;
use causeway_gateway::tun::translate::{Direction, PrefixPair, PrefixTable};
use proptest::prelude::*;

struct CheckedFrames;

impl FrameSink for CheckedFrames {
    fn write_frame(&mut self, frame: &[u8]) {
        assert!(FrameHeader::read(frame).is_some());
        assert!(parse(&frame[FrameHeader::BYTES..]).is_ok());
    }
}

/// A frame whose first bytes are often those of a packet, so that parsers get beyond them.
fn frames() -> impl Strategy<Value = Vec<u8>> {
    let body = proptest::collection::vec(any::<u8>(), 0..400);
    let protocol = prop_oneof![Just(1_u8), Just(6), Just(17), Just(44), Just(58), Just(132), any::<u8>()];
    (0_u8..4, protocol, body).prop_map(|(kind, protocol, mut bytes)| {
        let at = FrameHeader::BYTES;
        let length = bytes.len().saturating_sub(at);
        if kind < 3
            && let Some(packet) = bytes.get_mut(at..).filter(|packet| packet.len() >= 40)
        {
            match kind {
                0 | 1 => {
                    packet[0] = 0x45;
                    packet[2..4].copy_from_slice(&(length as u16).to_be_bytes());
                    packet[6] &= if kind == 0 { 0 } else { 0x20 };
                    packet[7] &= if kind == 0 { 0 } else { 3 };
                    packet[9] = protocol;
                }
                _ => {
                    packet[0] = 0x60;
                    packet[4..6].copy_from_slice(&(length as u16 - 40).to_be_bytes());
                    packet[6] = protocol;
                }
            }
        }
        bytes
    })
}

fn check_packet(data: &[u8]) {
    let Some((head, bytes)) = data.split_at_checked(FrameHeader::BYTES) else { return };
    let _ = parse_quoted(bytes);
    let Ok(packet) = parse(bytes) else { return };
    assert!(packet.transport_at <= packet.length && packet.length <= bytes.len());
    let pair =
        |one: &str, other: &str| PrefixPair::new(one.parse().unwrap(), other.parse().unwrap()).unwrap();
    let table = PrefixTable::new([pair("0.0.0.0/1", "128.0.0.0/1"), pair("fd00::/8", "fc00::/8")]);
    let other = if packet.source.is_ipv4() { "240.0.0.9" } else { "100::9" };
    let other = other.parse().unwrap();
    let ends = PacketEnds { source: other, destination: other, source_port: 7, destination_port: 9 };
    for direction in [Direction::Outbound, Direction::Inbound] {
        let _ = lookup(bytes, &packet, direction, &table);
        for state in [ChecksumState::Full, ChecksumState::Partial] {
            let mut changed = bytes.to_vec();
            table.translate(&mut changed, &packet, direction, state);
            mss::clamp(&mut changed, &packet, 1280, state);
            assert!(parse(&changed).is_ok());
            rewrite(&mut changed, &packet, &ends, state);
            let rewritten = parse(&changed).unwrap();
            assert_eq!((rewritten.source, rewritten.destination), (other, other));
        }
    }
    let mut out = [0; REPLY_MAX];
    for reason in [ReplyReason::Prohibited, ReplyReason::TooBig { mtu: 1280 }] {
        if let Some(length) = reply(&mut out, bytes, &packet, reason) {
            assert!(parse(&out[..length]).is_ok());
        }
    }
    let (mut joiner, mut sink) = (Joiner::new(true, true), CheckedFrames);
    if let Some(header) = FrameHeader::read(head) {
        let _ = split(&mut bytes.to_vec(), &header, &packet, 1420, |piece| {
            assert!(piece.len() <= 1420);
            if let Ok(parsed) = parse(piece) {
                let mut buffer = vec![0; FrameHeader::BYTES];
                buffer.extend_from_slice(piece);
                joiner.push(&mut buffer, &parsed, &mut sink);
            }
        });
    }
    joiner.flush(&mut sink);
    let _ = fragment(bytes, &packet, 1280, |piece| assert!(piece.len() <= 1280));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn no_frame_panics(data in frames()) {
        check_packet(&data);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn no_message_of_a_stranger_opens_anything(
        kind in 0_u8..6, mut data in proptest::collection::vec(any::<u8>(), 0..200), length in any::<prop::sample::Index>(),
    ) {
        data.resize([148, 92, 64, 32, data.len()][length.index(5)], 0);
        if let Some(first) = data.first_mut() {
            *first = kind;
        }
        let (now, keys) = (Instant::now(), StaticKeys::from_private([7; 32]));
        let macs = MacKeys::of(keys.public());
        let _ = (macs.check(&data), macs.check_cookie(&data, &[1; 16]), receiver_index(&data), PeerMessage::read(&data));
        prop_assert!(macs.read_cookie(&data, &[1; 16]).is_none());
        prop_assert!(read_initiation(&keys, &data).is_err());
        let mut session = PeerSession::new([9; 32], TransportCipher::ChaCha20Poly1305);
        session.handle_cookie(&data, now);
        prop_assert!(!session.handle_response(&data, now));
        prop_assert!(session.open(&mut data, now).is_err());
    }
}
