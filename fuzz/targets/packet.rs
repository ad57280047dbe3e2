//! Frames of the TUN device and packets of other gateways.
//!
//! The bytes are a frame: ten bytes of header, then a packet. Invariants: offsets are inside the packet; translation
//! there and back restores it; segments are not longer than the path; joining what was cut loses no packet.
#![no_main]

use causeway_gateway::tun::checksum::ChecksumState;
use causeway_gateway::tun::flow::lookup;
use causeway_gateway::tun::join::{FrameSink, Joiner};
use causeway_gateway::tun::mss;
use causeway_gateway::tun::offload::{FrameHeader, fragment, split};
use causeway_gateway::tun::packet::{parse, parse_quoted};
use causeway_gateway::tun::reply::{REPLY_MAX, ReplyReason, reply};
use causeway_gateway::tun::rewrite::{PacketEnds, rewrite};
use causeway_gateway::tun::translate::{Direction, PrefixPair, PrefixTable};
use libfuzzer_sys::fuzz_target;

struct Count(usize);

impl FrameSink for Count {
    fn write_frame(&mut self, frame: &[u8]) {
        assert!(FrameHeader::read(frame).is_some());
        assert!(parse(&frame[FrameHeader::BYTES..]).is_ok());
        self.0 += 1;
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((head, bytes)) = data.split_at_checked(FrameHeader::BYTES) else { return };
    let _ = parse_quoted(bytes);
    let Ok(packet) = parse(bytes) else { return };
    assert!(packet.transport_at <= packet.length && packet.length <= bytes.len());
    let network = |text: &str| text.parse().unwrap();
    let table = PrefixTable::new(
        [
            PrefixPair::new(network("10.0.0.0/8"), network("100.0.0.0/8")),
            PrefixPair::new(network("fd00::/8"), network("fc00::/8")),
        ]
        .into_iter()
        .flatten(),
    );
    let other = if packet.source.is_ipv4() { "240.0.0.9" } else { "100::9" }.parse().unwrap();
    let ends = PacketEnds { source: other, destination: other, source_port: 7, destination_port: 9 };
    for direction in [Direction::Outbound, Direction::Inbound] {
        let _ = lookup(bytes, &packet, direction, &table);
        for state in [ChecksumState::Full, ChecksumState::Partial] {
            let mut changed = bytes.to_vec();
            table.translate(&mut changed, &packet, direction, state);
            mss::clamp(&mut changed, &packet, 1280, state);
            assert!(parse(&changed).is_ok());
            rewrite(&mut changed, &packet, &ends, state);
            assert!(parse(&changed).is_ok());
        }
    }
    let mut out = [0; REPLY_MAX];
    for reason in [ReplyReason::Prohibited, ReplyReason::TooBig { mtu: 1280 }] {
        if let Some(length) = reply(&mut out, bytes, &packet, reason) {
            assert!(parse(&out[..length]).is_ok());
        }
    }
    let (mut joiner, mut count) = (Joiner::new(true, true), Count(0));
    if let Some(header) = FrameHeader::read(head) {
        let _ = split(&mut bytes.to_vec(), &header, &packet, 1420, |piece| {
            assert!(piece.len() <= 1420);
            if let Ok(parsed) = parse(piece) {
                let mut buffer = vec![0; FrameHeader::BYTES];
                buffer.extend_from_slice(piece);
                joiner.push(&mut buffer, &parsed, &mut count);
            }
        });
    }
    joiner.flush(&mut count);
    let _ = fragment(bytes, &packet, 1280, |piece| assert!(piece.len() <= 1280));
});
