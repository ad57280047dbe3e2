//! The messages of WireGuard's handshake: what is put on the wire, and what is believed.
//!
//! The Noise pattern IKpsk2 itself is snow's. This module adds the headers, the two MACs over each message, and
//! the cookies that a gateway under load asks for. It holds no state over time; `session` does.
//! A message whose first MAC is wrong is from a sender that does not know this gateway's key, and is not answered.

use std::time::{Duration, SystemTime};

use blake2::digest::consts::U16;
use blake2::digest::{Digest, KeyInit, Mac};
use blake2::{Blake2s256, Blake2sMac};
use chacha20poly1305::{AeadInPlace, Tag, XChaCha20Poly1305, XNonce};
use snow::{Builder, HandshakeState};

pub const INITIATION: u8 = 1;
pub const RESPONSE: u8 = 2;
pub const COOKIE_REPLY: u8 = 3;
pub const DATA: u8 = 4;

pub const INITIATION_BYTES: usize = 148;
pub const RESPONSE_BYTES: usize = 92;
pub const COOKIE_REPLY_BYTES: usize = 64;
/// Type, receiver index and counter.
pub const DATA_HEADER_BYTES: usize = 16;
const MACS_BYTES: usize = 32;
const COOKIE_BYTES: usize = 16;

const PATTERN: &str = "Noise_IKpsk2_25519_ChaChaPoly_BLAKE2s";
const PROLOGUE: &[u8] = b"WireGuard v1 zx2c4 Jason@zx2c4.com";
/// No pre-shared key: WireGuard then uses zeros.
const NO_PRE_SHARED_KEY: [u8; 32] = [0; 32];

pub type PublicKey = [u8; 32];

/// A time of TAI64N (WireGuard, 5.1): a responder takes an initiation only if it is greater than the last one.
pub type Timestamp = [u8; 12];

/// The key pair of a gateway.
#[derive(Clone)]
pub struct StaticKeys {
    private: [u8; 32],
    public: PublicKey,
}

/// The keys in which a handshake ends.
pub struct HandshakeKeys {
    pub send: [u8; 32],
    pub receive: [u8; 32],
}

/// An initiation that was sent and has no response yet.
pub struct PendingInitiation {
    state: Box<HandshakeState>,
    pub local_index: u32,
}

/// An authentic initiation of a peer.
pub struct ReceivedInitiation {
    state: Box<HandshakeState>,
    pub peer: PublicKey,
    pub timestamp: Timestamp,
    pub remote_index: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NoiseError {
    #[error("the message has another length")]
    Length,
    #[error("the first MAC is wrong")]
    Mac,
    #[error("the handshake failed")]
    Noise,
}

impl StaticKeys {
    /// Makes a new pair.
    pub fn generate() -> Result<StaticKeys, NoiseError> {
        let pair = builder().generate_keypair().map_err(|_| NoiseError::Noise)?;
        let private: [u8; 32] = pair.private.try_into().map_err(|_| NoiseError::Noise)?;
        Ok(StaticKeys::from_private(private))
    }

    pub fn from_private(private: [u8; 32]) -> StaticKeys {
        let public = public_key(&private);
        StaticKeys { private, public }
    }

    pub fn public(&self) -> &PublicKey {
        &self.public
    }

    pub fn private(&self) -> &[u8; 32] {
        &self.private
    }

    /// Derives a secret for another purpose, the same after a restart.
    pub fn secret_for(&self, purpose: &str) -> [u8; 32] {
        let key = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, &self.private);
        let mut secret = [0; 32];
        secret.copy_from_slice(aws_lc_rs::hmac::sign(&key, purpose.as_bytes()).as_ref());
        secret
    }
}

fn builder() -> Builder<'static> {
    // Parsed at each handshake: it is a constant, and a handshake takes three scalar multiplications.
    Builder::new(PATTERN.parse().expect("the pattern is a constant that snow knows"))
}

fn public_key(private: &[u8; 32]) -> PublicKey {
    use snow::params::DHChoice;
    use snow::resolvers::{CryptoResolver, DefaultResolver};
    let mut exchange = DefaultResolver.resolve_dh(&DHChoice::Curve25519).expect("built with Curve25519");
    exchange.set(private);
    let mut public = [0; 32];
    public.copy_from_slice(exchange.pubkey());
    public
}

/// Begins a handshake. The MACs of the message are still empty; see `MacKeys::sign`.
pub fn initiate(
    keys: &StaticKeys,
    peer: &PublicKey,
    timestamp: &Timestamp,
    local_index: u32,
) -> Result<(PendingInitiation, [u8; INITIATION_BYTES]), NoiseError> {
    let builder = builder().prologue(PROLOGUE).and_then(|builder| builder.local_private_key(&keys.private));
    let builder = builder.and_then(|builder| builder.remote_public_key(peer));
    let mut state = builder
        .and_then(|builder| builder.psk(2, &NO_PRE_SHARED_KEY))
        .and_then(|builder| builder.build_initiator())
        .map_err(|_| NoiseError::Noise)?;
    let mut message = [0; INITIATION_BYTES];
    message[0] = INITIATION;
    message[4..8].copy_from_slice(&local_index.to_le_bytes());
    let end = INITIATION_BYTES - MACS_BYTES;
    state.write_message(timestamp, &mut message[8..end]).map_err(|_| NoiseError::Noise)?;
    Ok((PendingInitiation { state: Box::new(state), local_index }, message))
}

/// Reads an initiation whose first MAC was checked.
pub fn read_initiation(keys: &StaticKeys, message: &[u8]) -> Result<ReceivedInitiation, NoiseError> {
    let message: &[u8; INITIATION_BYTES] = message.try_into().map_err(|_| NoiseError::Length)?;
    let builder = builder().prologue(PROLOGUE).and_then(|builder| builder.local_private_key(&keys.private));
    let mut state = builder
        .and_then(|builder| builder.psk(2, &NO_PRE_SHARED_KEY))
        .and_then(|builder| builder.build_responder())
        .map_err(|_| NoiseError::Noise)?;
    let mut timestamp = Timestamp::default();
    let end = INITIATION_BYTES - MACS_BYTES;
    let read = state.read_message(&message[8..end], &mut timestamp).map_err(|_| NoiseError::Noise)?;
    let peer = state.get_remote_static().and_then(|key| PublicKey::try_from(key).ok());
    let peer = peer.filter(|_| read == timestamp.len()).ok_or(NoiseError::Noise)?;
    Ok(ReceivedInitiation { state: Box::new(state), peer, timestamp, remote_index: word(message, 4) })
}

impl ReceivedInitiation {
    /// Answers it, which ends the handshake at this side. The MACs of the message are still empty.
    pub fn respond(mut self, local_index: u32) -> Result<([u8; RESPONSE_BYTES], HandshakeKeys), NoiseError> {
        let mut message = [0; RESPONSE_BYTES];
        message[0] = RESPONSE;
        message[4..8].copy_from_slice(&local_index.to_le_bytes());
        message[8..12].copy_from_slice(&self.remote_index.to_le_bytes());
        let end = RESPONSE_BYTES - MACS_BYTES;
        self.state.write_message(&[], &mut message[12..end]).map_err(|_| NoiseError::Noise)?;
        let (receive, send) = self.state.dangerously_get_raw_split();
        Ok((message, HandshakeKeys { send, receive }))
    }
}

impl PendingInitiation {
    /// Reads the response, which ends the handshake at this side, and returns the keys and the peer's index. After an
    /// error the state is of no use: a forged response must pass `MacKeys::check` first.
    pub fn finish(mut self, message: &[u8]) -> Result<(HandshakeKeys, u32), (NoiseError, PendingInitiation)> {
        let Ok(message) = <&[u8; RESPONSE_BYTES]>::try_from(message) else {
            return Err((NoiseError::Length, self));
        };
        let end = RESPONSE_BYTES - MACS_BYTES;
        if self.state.read_message(&message[12..end], &mut []).is_err() {
            return Err((NoiseError::Noise, self));
        }
        let (send, receive) = self.state.dangerously_get_raw_split();
        Ok((HandshakeKeys { send, receive }, word(message, 4)))
    }
}

/// Returns the receiver index of a response or cookie reply.
pub fn receiver_index(message: &[u8]) -> Option<u32> {
    match *message.first()? {
        RESPONSE if message.len() == RESPONSE_BYTES => Some(word(message, 8)),
        COOKIE_REPLY if message.len() == COOKIE_REPLY_BYTES => Some(word(message, 4)),
        DATA if message.len() >= DATA_HEADER_BYTES => Some(word(message, 4)),
        _ => None,
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Writes the time as TAI64N. Nanoseconds are rounded down, so that the clock's precision does not leak.
pub fn timestamp(now: SystemTime) -> Timestamp {
    let since_1970 = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
    let mut stamp = Timestamp::default();
    stamp[..8].copy_from_slice(&(0x4000_0000_0000_000a + since_1970.as_secs()).to_be_bytes());
    stamp[8..].copy_from_slice(&(since_1970.subsec_nanos() & !0x00ff_ffff).to_be_bytes());
    stamp
}

type Mac16 = Blake2sMac<U16>;

fn keyed(key: &[u8], parts: &[&[u8]]) -> [u8; COOKIE_BYTES] {
    let mut mac = <Mac16 as KeyInit>::new_from_slice(key).expect("keys of BLAKE2s have at most 32 bytes");
    parts.iter().for_each(|part| Mac::update(&mut mac, part));
    mac.finalize().into_bytes().into()
}

fn labelled(label: &[u8], key: &PublicKey) -> [u8; 32] {
    Blake2s256::new().chain_update(label).chain_update(key).finalize().into()
}

/// The keys that protect messages to the owner of a public key.
#[derive(Clone)]
pub struct MacKeys {
    mac1: [u8; 32],
    cookie: [u8; 32],
}

impl MacKeys {
    pub fn of(receiver: &PublicKey) -> MacKeys {
        MacKeys { mac1: labelled(b"mac1----", receiver), cookie: labelled(b"cookie--", receiver) }
    }

    /// Writes both MACs of a message to the owner, the second with its last cookie if there is one. Returns the first.
    pub fn sign(&self, message: &mut [u8], cookie: Option<&[u8; COOKIE_BYTES]>) -> [u8; COOKIE_BYTES] {
        let at = message.len() - MACS_BYTES;
        let first = keyed(&self.mac1, &[&message[..at]]);
        message[at..at + COOKIE_BYTES].copy_from_slice(&first);
        let second =
            cookie.map_or([0; COOKIE_BYTES], |cookie| keyed(cookie, &[&message[..at + COOKIE_BYTES]]));
        message[at + COOKIE_BYTES..].copy_from_slice(&second);
        first
    }

    /// Checks the first MAC of a message to the owner.
    pub fn check(&self, message: &[u8]) -> Result<(), NoiseError> {
        let at = message.len().checked_sub(MACS_BYTES).ok_or(NoiseError::Length)?;
        let expected = keyed(&self.mac1, &[&message[..at]]);
        let found = &message[at..at + COOKIE_BYTES];
        let same = aws_lc_rs::constant_time::verify_slices_are_equal(&expected, found).is_ok();
        if same { Ok(()) } else { Err(NoiseError::Mac) }
    }

    /// Checks the second MAC against the cookie of the sender's address.
    pub fn check_cookie(&self, message: &[u8], cookie: &[u8; COOKIE_BYTES]) -> bool {
        let Some(at) = message.len().checked_sub(COOKIE_BYTES) else { return false };
        let expected = keyed(cookie, &[&message[..at]]);
        aws_lc_rs::constant_time::verify_slices_are_equal(&expected, &message[at..]).is_ok()
    }

    /// Makes the answer of a gateway under load: a cookie, readable by the sender of `message` alone.
    pub fn cookie_reply(
        &self,
        message: &[u8],
        cookie: &[u8; COOKIE_BYTES],
        nonce: [u8; 24],
    ) -> Option<[u8; COOKIE_REPLY_BYTES]> {
        let at = message.len().checked_sub(MACS_BYTES)?;
        let cipher = XChaCha20Poly1305::new(&self.cookie.into());
        let mut sealed = *cookie;
        let mac1 = &message[at..at + COOKIE_BYTES];
        let tag = cipher.encrypt_in_place_detached(XNonce::from_slice(&nonce), mac1, &mut sealed).ok()?;
        let mut reply = [0; COOKIE_REPLY_BYTES];
        reply[0] = COOKIE_REPLY;
        reply[4..8].copy_from_slice(message.get(4..8)?);
        reply[8..32].copy_from_slice(&nonce);
        reply[32..48].copy_from_slice(&sealed);
        reply[48..].copy_from_slice(&tag);
        Some(reply)
    }

    /// Reads a cookie from the owner, an answer to the message with this first MAC.
    pub fn read_cookie(&self, reply: &[u8], mac1: &[u8; COOKIE_BYTES]) -> Option<[u8; COOKIE_BYTES]> {
        let reply: &[u8; COOKIE_REPLY_BYTES] = reply.try_into().ok()?;
        let cipher = XChaCha20Poly1305::new(&self.cookie.into());
        let (nonce, tag) = (XNonce::from_slice(&reply[8..32]), Tag::from_slice(&reply[48..]));
        let mut cookie: [u8; COOKIE_BYTES] = reply[32..48].try_into().ok()?;
        cipher.decrypt_in_place_detached(nonce, mac1, &mut cookie, tag).ok()?;
        Some(cookie)
    }
}

/// Makes the cookie of a sender's address from a secret that changes every two minutes.
pub fn cookie_of(secret: &[u8; 32], address: &[u8]) -> [u8; COOKIE_BYTES] {
    keyed(secret, &[address])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn handshake() -> (HandshakeKeys, HandshakeKeys) {
        let (one, other) = (StaticKeys::generate().unwrap(), StaticKeys::generate().unwrap());
        let stamp = timestamp(SystemTime::now());
        let (pending, message) = initiate(&one, other.public(), &stamp, 5).unwrap();
        let received = read_initiation(&other, &message).unwrap();
        assert_eq!((received.peer, received.timestamp, received.remote_index), (*one.public(), stamp, 5));
        let (response, theirs) = received.respond(6).unwrap();
        assert_eq!(receiver_index(&response), Some(5));
        let Ok((ours, index)) = pending.finish(&response) else { panic!("the response is good") };
        assert_eq!(index, 6);
        (ours, theirs)
    }

    #[test]
    fn both_ends_of_a_handshake_have_the_same_keys() {
        let (ours, theirs) = handshake();
        assert_eq!((ours.send, ours.receive), (theirs.receive, theirs.send));
        assert_ne!(ours.send, ours.receive);
        assert_ne!(handshake().0.send, ours.send);
    }

    #[test]
    fn the_public_key_is_the_one_that_other_implementations_compute() {
        // RFC 7748, 6.1: Alice's keys.
        let private: [u8; 32] = [
            0x77, 0x07, 0x6d, 0x0a, 0x73, 0x18, 0xa5, 0x7d, 0x3c, 0x16, 0xc1, 0x72, 0x51, 0xb2, 0x66, 0x45,
            0xdf, 0x4c, 0x2f, 0x87, 0xeb, 0xc0, 0x99, 0x2a, 0xb1, 0x77, 0xfb, 0xa5, 0x1d, 0xb9, 0x2c, 0x2a,
        ];
        let public: [u8; 32] = [
            0x85, 0x20, 0xf0, 0x09, 0x89, 0x30, 0xa7, 0x54, 0x74, 0x8b, 0x7d, 0xdc, 0xb4, 0x3e, 0xf7, 0x5a,
            0x0d, 0xbf, 0x3a, 0x0d, 0x26, 0x38, 0x1a, 0xf4, 0xeb, 0xa4, 0xa9, 0x8e, 0xaa, 0x9b, 0x4e, 0x6a,
        ];
        assert_eq!(*StaticKeys::from_private(private).public(), public);
    }

    #[test]
    fn a_message_to_another_gateway_or_with_a_changed_byte_is_not_answered() {
        let (one, other, third) = (
            StaticKeys::generate().unwrap(),
            StaticKeys::generate().unwrap(),
            StaticKeys::generate().unwrap(),
        );
        let (_, mut message) = initiate(&one, other.public(), &[1; 12], 5).unwrap();
        MacKeys::of(other.public()).sign(&mut message, None);
        assert_eq!(MacKeys::of(other.public()).check(&message), Ok(()));
        assert_eq!(MacKeys::of(third.public()).check(&message), Err(NoiseError::Mac));
        message[9] ^= 1;
        assert_eq!(MacKeys::of(other.public()).check(&message), Err(NoiseError::Mac));
        assert!(read_initiation(&other, &message).is_err());
    }

    #[test]
    fn a_cookie_is_read_by_the_sender_of_the_message_and_signs_the_next_one() {
        let keys = MacKeys::of(&[9; 32]);
        let mut message = [1; INITIATION_BYTES];
        let mac1 = keys.sign(&mut message, None);
        let cookie = cookie_of(&[3; 32], b"192.0.2.1:5");
        assert!(!keys.check_cookie(&message, &cookie));
        let reply = keys.cookie_reply(&message, &cookie, [4; 24]).unwrap();
        assert_eq!(keys.read_cookie(&reply, &mac1), Some(cookie));
        assert_eq!(keys.read_cookie(&reply, &[0; 16]), None);
        keys.sign(&mut message, Some(&cookie));
        assert!(keys.check_cookie(&message, &cookie));
        assert!(!keys.check_cookie(&message, &cookie_of(&[3; 32], b"192.0.2.2:5")));
    }

    #[test]
    fn later_times_are_greater_timestamps() {
        let at = |seconds| timestamp(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
        assert!(at(2) > at(1) && at(1 << 33) > at(1 << 31));
    }

    proptest! {
        #[test]
        fn no_message_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let keys = StaticKeys::from_private([5; 32]);
            let macs = MacKeys::of(keys.public());
            let _ = (macs.check(&bytes), macs.check_cookie(&bytes, &[1; 16]), macs.read_cookie(&bytes, &[1; 16]));
            let _ = (receiver_index(&bytes), read_initiation(&keys, &bytes).is_ok());
        }
    }
}
