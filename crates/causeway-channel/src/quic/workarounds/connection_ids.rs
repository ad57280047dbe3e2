//! Generates connection IDs for the port: random, and recognised as our own, also after a restart.
//!
//! A packet for an unknown link is answered with a stateless reset only if its ID could be ours.
//!
//! Works around: the IDs of quinn's `HashedConnectionIdGenerator` have 24 random bits (quinn-rs/quinn#2883).
//! With 20,000 links of five IDs each, every 170th generated ID is in use. quinn checks for that before it
//! gives an ID to a link, but not before it puts one into a Retry packet; the peer's next packet then went to
//! another link and was lost. These IDs have 40 random bits in the same eight bytes.
//!
//! Delete when quinn's generator has at least 40 random bits, or when Retry checks for IDs in use.

use aws_lc_rs::hmac;
use quinn::ConnectionId;
use quinn_proto::{ConnectionIdGenerator, InvalidCid};

const RANDOM_BYTES: usize = 5;
const TAG_BYTES: usize = 3;

pub(in crate::quic) struct ConnectionIds {
    key: hmac::Key,
}

impl ConnectionIds {
    pub(in crate::quic) fn new(key: hmac::Key) -> ConnectionIds {
        ConnectionIds { key }
    }

    fn tag(&self, random: &[u8]) -> [u8; TAG_BYTES] {
        let tag = hmac::sign(&self.key, random);
        let mut short = [0; TAG_BYTES];
        short.copy_from_slice(&tag.as_ref()[..TAG_BYTES]);
        short
    }
}

impl ConnectionIdGenerator for ConnectionIds {
    fn generate_cid(&mut self) -> ConnectionId {
        let mut bytes = [0; RANDOM_BYTES + TAG_BYTES];
        let (random, tag) = bytes.split_at_mut(RANDOM_BYTES);
        aws_lc_rs::rand::fill(random).expect("the system gives random bytes");
        tag.copy_from_slice(&self.tag(random));
        ConnectionId::new(&bytes)
    }

    fn validate(&self, id: &ConnectionId) -> Result<(), InvalidCid> {
        match id.split_at_checked(RANDOM_BYTES) {
            Some((random, tag)) if tag == self.tag(random) => Ok(()),
            _ => Err(InvalidCid),
        }
    }

    fn cid_len(&self) -> usize {
        RANDOM_BYTES + TAG_BYTES
    }

    fn cid_lifetime(&self) -> Option<std::time::Duration> {
        None
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn ids(secret: &[u8]) -> ConnectionIds {
        ConnectionIds::new(hmac::Key::new(hmac::HMAC_SHA256, secret))
    }

    #[test]
    fn ours_are_recognised_by_who_has_the_key_and_nothing_else_is() {
        let (mut ours, again, other) = (ids(b"ours"), ids(b"ours"), ids(b"other"));
        for _ in 0..100 {
            let id = ours.generate_cid();
            assert_eq!(id.len(), ours.cid_len());
            assert!(again.validate(&id).is_ok(), "after a restart");
            assert!(other.validate(&id).is_err());
        }
        for foreign in [&[][..], &[0; 3], &[0; 5], &[0; 7], &[0; 8], &[0; 9], &[0; 20]] {
            assert!(ours.validate(&ConnectionId::new(foreign)).is_err(), "{foreign:?}");
        }
    }

    #[test]
    fn as_many_as_a_fleet_needs_are_hardly_ever_drawn_twice() {
        let mut ours = ids(b"ours");
        let drawn: HashSet<ConnectionId> = (0..20_000).map(|_| ours.generate_cid()).collect();
        // One duplicate is expected in 5,000 runs; with 24 bits, twelve in each run.
        assert!(drawn.len() >= 19_999, "{}", drawn.len());
    }
}
