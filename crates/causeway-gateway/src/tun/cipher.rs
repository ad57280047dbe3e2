//! Seals and opens transport packets with the keys of one direction of a session.
//!
//! ChaCha20-Poly1305 is the cipher of WireGuard. AES-256-GCM is used between our own gateways when the netmap says
//! so for both; its keys are derived from those of the handshake, so that no key is used with two ciphers.

use aws_lc_rs::aead::{AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use blake2::Blake2sMac256;
use blake2::digest::{KeyInit, Mac};

/// The cipher of transport packets. The netmap decides; the wire never negotiates it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TransportCipher {
    ChaCha20Poly1305,
    Aes256Gcm,
}

/// The bytes by which a sealed packet is longer than its content.
pub const TAG_BYTES: usize = 16;

const AES_LABEL: &[u8] = b"causeway tunnel aes-256-gcm v1";

/// The key of one direction.
pub struct TransportKey {
    key: LessSafeKey,
}

/// A packet is not from the peer, or was changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the packet is not authentic")]
pub struct NotAuthentic;

impl TransportKey {
    /// Makes the key of a cipher from a key of the handshake.
    pub fn new(cipher: TransportCipher, secret: &[u8; 32]) -> TransportKey {
        let (algorithm, key) = match cipher {
            TransportCipher::ChaCha20Poly1305 => (&CHACHA20_POLY1305, *secret),
            TransportCipher::Aes256Gcm => (&AES_256_GCM, derive_aes(secret)),
        };
        let key = UnboundKey::new(algorithm, &key).expect("both ciphers have keys of 32 bytes");
        TransportKey { key: LessSafeKey::new(key) }
    }

    /// Seals `packet` into `sealed`, which is `TAG_BYTES` longer. A counter must not be used twice.
    pub fn seal(&self, counter: u64, packet: &[u8], sealed: &mut [u8]) {
        let (ciphertext, tag) = sealed.split_at_mut(packet.len());
        let tag = &mut tag[..TAG_BYTES];
        self.key
            .seal_out_of_place_scatter(nonce(counter), Aad::empty(), packet, ciphertext, &[], tag)
            .expect("lengths fit: the ciphertext is as long as the packet, the tag has 16 bytes");
    }

    /// Opens a sealed packet in its place, and returns the content.
    pub fn open<'packet>(
        &self,
        counter: u64,
        sealed: &'packet mut [u8],
    ) -> Result<&'packet mut [u8], NotAuthentic> {
        self.key.open_in_place(nonce(counter), Aad::empty(), sealed).map_err(|_| NotAuthentic)
    }
}

/// Tells whether this processor has instructions for AES and GCM. Without them AES is slow.
pub fn has_aes() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("aes") && std::arch::is_x86_feature_detected!("pclmulqdq");
    #[cfg(target_arch = "aarch64")]
    return std::arch::is_aarch64_feature_detected!("aes")
        && std::arch::is_aarch64_feature_detected!("pmull");
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    return false;
}

fn derive_aes(secret: &[u8; 32]) -> [u8; 32] {
    let mut mac = <Blake2sMac256 as KeyInit>::new(secret.into());
    mac.update(AES_LABEL);
    mac.finalize().into_bytes().into()
}

/// Four zero bytes and the counter (WireGuard, 5.4.6).
fn nonce(counter: u64) -> Nonce {
    let mut nonce = [0; 12];
    nonce[4..].copy_from_slice(&counter.to_le_bytes());
    Nonce::assume_unique_for_key(nonce)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sealed_is_opened_with_the_same_cipher_key_and_counter_only() {
        for cipher in [TransportCipher::ChaCha20Poly1305, TransportCipher::Aes256Gcm] {
            let (key, other) = (TransportKey::new(cipher, &[7; 32]), TransportKey::new(cipher, &[8; 32]));
            let mut sealed = [0; 9 + TAG_BYTES];
            key.seal(3, b"a packet!", &mut sealed);
            assert_eq!(key.open(3, &mut sealed.clone()).as_deref(), Ok(&b"a packet!"[..]));
            assert_eq!(key.open(4, &mut sealed.clone()), Err(NotAuthentic));
            assert_eq!(other.open(3, &mut sealed.clone()), Err(NotAuthentic));
            let mut changed = sealed;
            changed[0] ^= 1;
            assert_eq!(key.open(3, &mut changed), Err(NotAuthentic));
            assert_eq!(key.open(3, &mut sealed[..5]), Err(NotAuthentic));
        }
    }

    #[test]
    fn the_two_ciphers_do_not_share_a_key() {
        assert_ne!(derive_aes(&[7; 32]), [7; 32]);
    }
}
