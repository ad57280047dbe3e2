//! Frames of a relay: what a peer has sealed for it, and what a relay has sealed for a peer.
//!
//! Invariants: a frame is no packet and no message of another kind; the head that is read is written as it was, and the
//! sealed packet behind it stays; only messages of WireGuard are forwarded.
#![no_main]

use causeway_gateway::tun::noise::receiver_index;
use causeway_gateway::tun::packet;
use causeway_gateway::tun::peer_message::PeerMessage;
use causeway_gateway::tun::relay_frame::{RELAY_HEAD_BYTES, is_forwarded, read, write};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some(hop) = read(data) else { return };
    assert!(PeerMessage::read(data).is_none() && packet::parse(data).is_err());
    let mut copy = data.to_vec();
    assert!(write(hop, &mut copy) && copy == data);
    let sealed = &data[RELAY_HEAD_BYTES..];
    if is_forwarded(sealed) {
        assert!(sealed.len() >= 32 && (sealed[0] == 1 || receiver_index(sealed).is_some()));
    }
});
