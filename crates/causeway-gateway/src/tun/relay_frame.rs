//! The frame in which a sealed packet travels by a relay: first inside the sender's session with the relay, then inside
//! the relay's session with the destination.
//!
//! Kind, three zeros, the identifier of the other end, the sealed packet. The relay replaces the identifier of the
//! destination by that of the sender, which it knows from the session; the sealed packet stays as it is. The first byte
//! tells frames from IP packets and from the messages of `peer_message`. Pure.

use super::cipher::TAG_BYTES;
use super::noise::{
    DATA, DATA_HEADER_BYTES, INITIATION, INITIATION_BYTES, PublicKey, RESPONSE, RESPONSE_BYTES,
};

const TO: u8 = 4;
const FROM: u8 = 5;

/// Kind, zeros, identifier.
pub const RELAY_HEAD_BYTES: usize = 12;
/// The bytes by which a path over a relay carries less than a direct one: the head, and the session with the relay.
pub const RELAY_OVERHEAD: usize = RELAY_HEAD_BYTES + DATA_HEADER_BYTES + TAG_BYTES;

/// A gateway in a frame: the first bytes of its public key. A relay forwards nothing to an identifier that two of its
/// peers have.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RelayId([u8; 8]);

impl RelayId {
    pub fn of(key: &PublicKey) -> RelayId {
        let [a, b, c, d, e, f, g, h, ..] = *key;
        RelayId([a, b, c, d, e, f, g, h])
    }
}

/// The direction of a frame, with the gateway at the other end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RelayHop {
    /// To the relay: the destination.
    To(RelayId),
    /// From the relay: the sender.
    From(RelayId),
}

/// Reads the head of a frame. None: another message. The sealed packet follows the head.
pub fn read(bytes: &[u8]) -> Option<RelayHop> {
    let head = bytes.first_chunk::<RELAY_HEAD_BYTES>()?;
    let (kind, id) = head.split_first_chunk::<4>()?;
    let id = RelayId(id.try_into().ok()?);
    match kind {
        [TO, 0, 0, 0] => Some(RelayHop::To(id)),
        [FROM, 0, 0, 0] => Some(RelayHop::From(id)),
        _ => None,
    }
}

/// Writes the head of a frame. False: there is no room.
pub fn write(hop: RelayHop, out: &mut [u8]) -> bool {
    let (kind, RelayId(id)) = match hop {
        RelayHop::To(id) => (TO, id),
        RelayHop::From(id) => (FROM, id),
    };
    let Some(head) = out.first_chunk_mut::<RELAY_HEAD_BYTES>() else { return false };
    head[..4].copy_from_slice(&[kind, 0, 0, 0]);
    head[4..].copy_from_slice(&id);
    true
}

/// Tells whether bytes have the form of a message that a relay forwards: a sealed packet, or a handshake. Cookies are
/// for addresses, which a peer behind a relay has not.
pub fn is_forwarded(sealed: &[u8]) -> bool {
    match sealed {
        [DATA, 0, 0, 0, ..] => sealed.len() >= DATA_HEADER_BYTES + TAG_BYTES,
        [INITIATION, 0, 0, 0, ..] => sealed.len() == INITIATION_BYTES,
        [RESPONSE, 0, 0, 0, ..] => sealed.len() == RESPONSE_BYTES,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::peer_message::PeerMessage;
    use super::*;

    proptest! {
        #[test]
        fn a_frame_is_read_as_written_and_is_no_other_message(key in any::<[u8; 32]>(), rest in proptest::collection::vec(any::<u8>(), 0..100)) {
            let id = RelayId::of(&key);
            for hop in [RelayHop::To(id), RelayHop::From(id)] {
                let mut bytes = [&[0; RELAY_HEAD_BYTES][..], &rest].concat();
                prop_assert!(write(hop, &mut bytes));
                prop_assert_eq!(read(&bytes), Some(hop));
                prop_assert_eq!(PeerMessage::read(&bytes), None);
                prop_assert_eq!(&bytes[RELAY_HEAD_BYTES..], rest.as_slice());
            }
        }

        #[test]
        fn no_bytes_panic_and_packets_are_no_frames(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let read = read(&bytes);
            prop_assert!(read.is_none() || (bytes[0] < 0x40 && bytes.len() >= RELAY_HEAD_BYTES));
            let mut short = [0; RELAY_HEAD_BYTES - 1];
            prop_assert!(read.is_none_or(|hop| !write(hop, &mut short)));
        }
    }

    #[test]
    fn only_sealed_packets_and_handshakes_are_forwarded() {
        let check = |kind: u8, length: usize, expected: bool| {
            let mut bytes = vec![0; length];
            bytes[0] = kind;
            assert_eq!(is_forwarded(&bytes), expected, "{kind} {length}");
        };
        check(DATA, 32, true);
        check(DATA, 31, false);
        check(INITIATION, INITIATION_BYTES, true);
        check(INITIATION, INITIATION_BYTES + 1, false);
        check(RESPONSE, RESPONSE_BYTES, true);
        check(3, 64, false);
        check(0x45, 100, false);
        assert!(!is_forwarded(&[]) && !is_forwarded(&[DATA, 0, 0, 1, 0, 0, 0, 0]));
    }
}
