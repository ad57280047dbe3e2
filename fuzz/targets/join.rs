//! Packets of several flows, as other gateways send them, joined into frames for the device.
//!
//! Each eight bytes are a packet: flow, flags, length, number, content. Invariant: the frames, cut again, are exactly the packets
//! that went in, and each flow is in its order.
#![no_main]

use std::collections::BTreeMap;

use causeway_gateway::tun::checksum;
use causeway_gateway::tun::join::{FrameSink, Joiner};
use causeway_gateway::tun::offload::{FrameHeader, split};
use causeway_gateway::tun::packet::{TCP, UDP, parse};
use libfuzzer_sys::fuzz_target;

#[derive(Default)]
struct Cut(Vec<Vec<u8>>);

impl FrameSink for Cut {
    fn write_frame(&mut self, frame: &[u8]) {
        let header = FrameHeader::read(frame).expect("a frame has a header");
        let mut bytes = frame[FrameHeader::BYTES..].to_vec();
        let packet = parse(&bytes).expect("a frame is a packet");
        split(&mut bytes, &header, &packet, usize::from(u16::MAX), |piece| self.0.push(piece.to_vec()))
            .expect("a frame can be cut");
    }
}

/// The next numbers of a flow.
#[derive(Clone, Copy, Default)]
struct Numbers {
    sequence: u32,
    id: u16,
}

fn packet(op: &[u8; 8], numbers: &mut Numbers) -> Vec<u8> {
    let [kind, flags, length, shift, id, class, fragment, content] = *op;
    let (is_v4, is_tcp) = (kind & 1 == 0, kind & 2 == 0);
    let payload = [1448, 600, 100, 7][usize::from(length & 3)] + usize::from(length >> 4);
    numbers.sequence = numbers.sequence.wrapping_add(u32::from(shift & 3 == 3));
    numbers.id = numbers.id.wrapping_add(u16::from(id & 3 == 3));
    let mut transport = match is_tcp {
        true => {
            let mut head = vec![0; 20];
            head[..4].copy_from_slice(&[0, 80, 0, kind >> 2 & 3]);
            head[4..8].copy_from_slice(&numbers.sequence.to_be_bytes());
            (head[12], head[13], head[15]) = (0x50, flags, shift >> 4);
            numbers.sequence = numbers.sequence.wrapping_add(payload as u32);
            head
        }
        false => {
            let [high, low] = (payload as u16 + 8).to_be_bytes();
            vec![0, 80, 0, kind >> 2 & 3, high, low, 0, 0]
        }
    };
    transport.resize(transport.len() + payload, content);
    let mut bytes = match is_v4 {
        true => {
            let [high, low] = (transport.len() as u16 + 20).to_be_bytes();
            let [id_high, id_low] = numbers.id.to_be_bytes();
            numbers.id = numbers.id.wrapping_add(1);
            let more = if fragment & 7 == 7 { 0x20 } else { fragment & 0x40 };
            let protocol = if is_tcp { TCP } else { UDP };
            vec![
                0x45, class, high, low, id_high, id_low, more, 0, 60, protocol, 0, 0, 10, 1, 0, 2, 10, 2, 0,
                2,
            ]
        }
        false => {
            let [high, low] = (transport.len() as u16).to_be_bytes();
            let mut head =
                vec![0x60 | class >> 4, class << 4, 0, 0, high, low, if is_tcp { TCP } else { UDP }, 60];
            head.extend([0xfd; 31]);
            head.push(1);
            head
        }
    };
    if is_v4 {
        let sum = !checksum::sum(&bytes);
        bytes[10..12].copy_from_slice(&sum.to_be_bytes());
    }
    let at = bytes.len();
    bytes.extend(transport);
    let parsed = parse(&bytes).expect("it is built as a packet");
    let pseudo =
        checksum::sum_of_pseudo_header(parsed.source, parsed.destination, parsed.protocol, bytes.len() - at);
    let mut sum = !checksum::add(pseudo, checksum::sum(&bytes[at..]));
    if sum == 0 && !is_tcp {
        sum = 0xffff;
    }
    // Wrong now and then: such a packet is passed on as it is.
    let sum = if flags == 0xff { sum ^ 0x0101 } else { sum };
    let field = at + if is_tcp { 16 } else { 6 };
    bytes[field..field + 2].copy_from_slice(&sum.to_be_bytes());
    bytes
}

/// The packets of each flow, in their order.
fn by_flow(packets: &[Vec<u8>]) -> BTreeMap<(bool, u8, u16), Vec<&[u8]>> {
    let mut flows: BTreeMap<_, Vec<&[u8]>> = BTreeMap::new();
    for bytes in packets {
        let packet = parse(bytes).expect("it was parsed before");
        let at = packet.transport_at;
        let port = u16::from_be_bytes([bytes[at + 2], bytes[at + 3]]);
        flows.entry((packet.source.is_ipv4(), packet.protocol, port)).or_default().push(bytes);
    }
    flows
}

fuzz_target!(|data: &[u8]| {
    let (mut joiner, mut cut, mut numbers) =
        (Joiner::new(true, true), Cut::default(), [Numbers::default(); 16]);
    let mut packets = Vec::new();
    for op in data.as_chunks::<8>().0 {
        let bytes = packet(op, &mut numbers[usize::from(op[0] & 15)]);
        let mut buffer = vec![0; FrameHeader::BYTES];
        buffer.extend(&bytes);
        joiner.push(&mut buffer, &parse(&bytes).expect("it was parsed before"), &mut cut);
        packets.push(bytes);
    }
    joiner.flush(&mut cut);
    assert_eq!(cut.0.len(), packets.len());
    assert_eq!(by_flow(&cut.0), by_flow(&packets));
});
