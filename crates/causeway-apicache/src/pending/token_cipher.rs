//! Seals the bearer tokens of pending writes on disk.
//!
//! The key is in a file beside the log. A damaged log cannot be searched for its tokens, so it is put aside without the key, and its tokens
//! stay sealed. AES-256-GCM.

use std::io;
use std::path::{Path, PathBuf};

use aws_lc_rs::aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};
use aws_lc_rs::rand::{SecureRandom, SystemRandom};
use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use causeway_daemon::data_dir::write_atomic;

const KEY_BYTES: usize = 32;
// No token begins so: the colon is in no alphabet of bearer tokens (RFC 6750, section 2.1).
const SEALED: &str = "sealed:";

pub struct TokenCipher([u8; KEY_BYTES]);

impl TokenCipher {
    /// The file of the key of a log.
    pub fn key_path(log: &Path) -> PathBuf {
        PathBuf::from(format!("{}.key", log.display()))
    }

    /// Reads the key of a log, and makes one when there is none.
    pub fn open(log: &Path) -> io::Result<TokenCipher> {
        let path = TokenCipher::key_path(log);
        match std::fs::read(&path) {
            Ok(bytes) if bytes.len() == KEY_BYTES => {
                let mut key = [0; KEY_BYTES];
                key.copy_from_slice(&bytes);
                return Ok(TokenCipher(key));
            }
            // A file of another length is no key.
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let mut key = [0; KEY_BYTES];
        SystemRandom::new().fill(&mut key).map_err(|_| io::Error::other("no random bytes"))?;
        write_atomic(&path, &key)?;
        Ok(TokenCipher(key))
    }

    /// The text that stands for a token on disk. No token stays none.
    pub fn seal(&self, token: &str) -> String {
        if token.is_empty() {
            return String::new();
        }
        let mut sealed = token.as_bytes().to_vec();
        let nonce = self.cipher().seal_in_place_append_tag(Aad::empty(), &mut sealed);
        let nonce = nonce.expect("a token is far below the limit of AES-GCM");
        format!("{SEALED}{}", STANDARD_NO_PAD.encode([nonce.as_ref().as_slice(), &sealed].concat()))
    }

    /// The token of a text; empty when it was sealed with another key. A log of an earlier version has tokens as they are.
    pub fn unseal(&self, text: &str) -> String {
        match text.strip_prefix(SEALED) {
            Some(sealed) => self.open_sealed(sealed).unwrap_or_default(),
            None => text.to_owned(),
        }
    }

    fn open_sealed(&self, sealed: &str) -> Option<String> {
        let sealed = STANDARD_NO_PAD.decode(sealed).ok()?;
        let (nonce, body) = sealed.split_at_checked(NONCE_LEN)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let mut body = body.to_vec();
        let plain = self.cipher().open_in_place(nonce, Aad::empty(), &mut body).ok()?;
        String::from_utf8(plain.to_vec()).ok()
    }

    fn cipher(&self) -> RandomizedNonceKey {
        RandomizedNonceKey::new(&AES_256_GCM, &self.0).expect("the key has 32 bytes")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_read_with_the_key_of_its_log_only() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("pending.db");
        let first = TokenCipher::open(&log).unwrap();
        let sealed = first.seal("secret");
        assert!(!sealed.contains("secret") && sealed != first.seal("secret"));
        assert_eq!(TokenCipher::open(&log).unwrap().unseal(&sealed), "secret", "the key is kept");
        assert_eq!((first.seal("").as_str(), first.unseal("")), ("", String::new()));
        assert_eq!(first.unseal("of.an.earlier-version"), "of.an.earlier-version");
        assert_eq!(first.unseal("sealed:AAAA"), "");
        std::fs::remove_file(TokenCipher::key_path(&log)).unwrap();
        assert_eq!(TokenCipher::open(&log).unwrap().unseal(&sealed), "");
    }
}
