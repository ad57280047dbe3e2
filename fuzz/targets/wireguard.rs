//! Messages of the layer 3 tunnel, before and after a session is open.
//!
//! Invariants: no message that this gateway's peer did not make opens a session or a packet.
#![no_main]

use std::sync::LazyLock;
use std::time::Instant;

use causeway_gateway::tun::cipher::TransportCipher;
use causeway_gateway::tun::noise::{MacKeys, StaticKeys, read_initiation, receiver_index};
use causeway_gateway::tun::peer_message::PeerMessage;
use causeway_gateway::tun::session::PeerSession;
use libfuzzer_sys::fuzz_target;

static KEYS: LazyLock<StaticKeys> = LazyLock::new(|| StaticKeys::from_private([7; 32]));

fuzz_target!(|data: &[u8]| {
    let now = Instant::now();
    let macs = MacKeys::of(KEYS.public());
    let _ = (macs.check(data), macs.check_cookie(data, &[1; 16]), receiver_index(data), PeerMessage::read(data));
    assert!(macs.read_cookie(data, &[1; 16]).is_none());
    assert!(read_initiation(&KEYS, data).is_err());
    let mut session = PeerSession::new([9; 32], TransportCipher::ChaCha20Poly1305);
    session.handle_cookie(data, now);
    assert!(!session.handle_response(data, now));
    assert!(session.open(&mut data.to_vec(), now).is_err());
});
