//! Ethernet frames of a LAN, at the port of a bridge, and the hosts that are learnt from them.
//!
//! The first byte decides whether the frame is made one for this port; the rest is the frame. Invariants: a packet is for this
//! port and of the host that sent it; a packet that waited for a host comes out when the host is learnt, and only then.
#![no_main]

use std::time::Instant;

use causeway_gateway::neighbour_proxy::message::answer;
use causeway_gateway::tun::lan_frame::{ETHERNET_BYTES, LanFrame, ends, read_lan};
use causeway_gateway::tun::lan_neighbours::LanNeighbours;
use causeway_gateway::tun::packet::parse;
use libfuzzer_sys::fuzz_target;

const OWN: [u8; 6] = [2, 0xca, 5, 0, 0, 1];

fuzz_target!(|data: &[u8]| {
    let Some((mode, frame)) = data.split_first() else { return };
    let mut frame = frame.to_vec();
    if let Some(to) = frame.first_chunk_mut().filter(|_| mode & 1 == 0) {
        *to = OWN;
    }
    let (source, hardware) = match read_lan(&frame, OWN) {
        LanFrame::Foreign => return,
        LanFrame::Neighbour(message) => {
            let _ = message.question.map(|question| answer(&question, OWN));
            let Some(claim) = message.claim else { return };
            claim
        }
        LanFrame::Packet(source, hardware) => {
            let packet = &frame[ETHERNET_BYTES..];
            assert_eq!((&frame[..6], &frame[6..12]), (&OWN[..], &hardware[..]));
            let (from, to) = ends(packet).expect("a packet has two ends");
            assert_eq!(from, source);
            assert!(parse(packet).is_err() || parse(packet).is_ok_and(|parsed| parsed.destination == to));
            (source, hardware)
        }
    };
    let (mut neighbours, now) = (LanNeighbours::new(OWN), Instant::now());
    assert_eq!(neighbours.deliver(source, &frame, now).to, None);
    let waited = neighbours.learn(source, hardware, now);
    let to = neighbours.deliver(source, &frame, now).to;
    match waited.is_empty() {
        true => assert_eq!(to, None),
        false => assert_eq!((waited, to), (vec![frame], Some(hardware))),
    }
});
