//! Messages between two gateways inside their session: probes, their replies, and addresses.
//!
//! Invariants: a message is no packet and no frame of a relay; it is written as bytes that are read as the same, and not into
//! less room; every address of it can be sent to.
#![no_main]

use causeway_gateway::tun::packet;
use causeway_gateway::tun::peer_message::{MESSAGE_BYTES_MAX, PeerMessage};
use causeway_gateway::tun::relay_frame;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some(message) = PeerMessage::read(data) else { return };
    assert!(packet::parse(data).is_err() && relay_frame::read(data).is_none());
    let mut out = [0; MESSAGE_BYTES_MAX];
    let length = message.write(&mut out).expect("the buffer holds the longest message");
    assert_eq!(PeerMessage::read(&out[..length]), Some(message));
    assert!((0..length).all(|room| message.write(&mut out[..room]).is_none()));
    let addresses: Vec<_> = match message {
        PeerMessage::ProbeRequest { .. } => Vec::new(),
        PeerMessage::ProbeReply { seen, .. } => seen.into_iter().collect(),
        PeerMessage::Addresses(list) => list.iter().collect(),
    };
    for address in addresses {
        let ip = address.ip();
        assert!(address.port() != 0 && !ip.is_unspecified() && !ip.is_multicast() && !ip.is_loopback());
    }
});
