//! Seals the CA's private key before it goes into the store.
//!
//! A reader of the store (an etcd, a backup) must not be able to sign certificates. So the key is
//! encrypted with AES-256-GCM under a key that stays in a file of the cloud's hosts, `seal.key`.

use std::fmt;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use aws_lc_rs::aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};
use causeway_channel::peer::sha256;
use causeway_channel::token::TokenSecret;
use causeway_daemon::data_dir::create_atomic;

/// The content of a `seal.key`. `Debug` shows only its id.
pub struct SealKey {
    key: TokenSecret,
    path: PathBuf,
}

#[derive(Debug, thiserror::Error)]
pub enum SealError {
    #[error("the seal key {} cannot be {action}", path.display())]
    File { path: PathBuf, action: &'static str, source: io::Error },
    #[error("the seal key {} is damaged: it must hold 64 hexadecimal digits; restore it from another replica or a backup of the data dir", path.display())]
    Damaged { path: PathBuf },
    #[error("the sealed key of the CA is damaged")]
    Sealed,
}

impl SealKey {
    pub fn load(path: &Path) -> Result<Option<SealKey>, SealError> {
        let failed = |source| SealError::File { path: path.to_owned(), action: "read", source };
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                return Err(SealError::Damaged { path: path.to_owned() });
            }
            Err(error) => return Err(failed(error)),
        };
        let mode = std::fs::metadata(path).map_err(failed)?.permissions().mode() & 0o777;
        if mode & 0o077 != 0 {
            tracing::warn!(path = %path.display(), mode = format!("{mode:o}"), "the seal key is readable by other users of this host: chmod 600");
        }
        // The same reader as for hashes of keys: 32 bytes in hexadecimal digits.
        let bytes = causeway_channel::KeyHash::from_hex(text.trim())
            .ok_or_else(|| SealError::Damaged { path: path.to_owned() })?;
        let key = TokenSecret::from_bytes(bytes.as_bytes()).expect("a hash has 32 bytes");
        Ok(Some(SealKey { key, path: path.to_owned() }))
    }

    /// Makes a new key and saves it before anything is sealed with it. Replicas may share the file: the first
    /// replica makes the key, and later ones read it.
    pub fn generate(path: &Path) -> Result<SealKey, SealError> {
        let failed = |source| SealError::File { path: path.to_owned(), action: "written", source };
        let key = TokenSecret::generate();
        let text: String = key.expose().iter().map(|byte| format!("{byte:02x}")).collect();
        match create_atomic(path, format!("{text}\n").as_bytes()) {
            Ok(()) => Ok(SealKey { key, path: path.to_owned() }),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                SealKey::load(path)?.ok_or_else(|| failed(error))
            }
            Err(error) => Err(failed(error)),
        }
    }

    /// Names the key without telling it, so that a wrong file can be told from a damaged store.
    pub fn id(&self) -> String {
        let labelled = [b"causeway seal key id:".as_slice(), self.key.expose()].concat();
        sha256(&labelled)[..8].iter().map(|byte| format!("{byte:02x}")).collect()
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// `context` names the sealed data; the same context is needed to open it.
    pub fn seal(&self, context: &str, secret: &[u8]) -> Vec<u8> {
        let mut sealed = secret.to_vec();
        let nonce = self
            .cipher()
            .seal_in_place_append_tag(Aad::from(context), &mut sealed)
            .expect("a few hundred bytes are far below the limit of AES-GCM");
        [nonce.as_ref().as_slice(), &sealed].concat()
    }

    pub fn open(&self, context: &str, sealed: &[u8]) -> Result<Vec<u8>, SealError> {
        let (nonce, body) = sealed.split_at_checked(NONCE_LEN).ok_or(SealError::Sealed)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| SealError::Sealed)?;
        let mut body = body.to_vec();
        let plain = self
            .cipher()
            .open_in_place(nonce, Aad::from(context), &mut body)
            .map_err(|_| SealError::Sealed)?;
        Ok(plain.to_vec())
    }

    fn cipher(&self) -> RandomizedNonceKey {
        RandomizedNonceKey::new(&AES_256_GCM, self.key.expose()).expect("the key has 32 bytes")
    }
}

impl fmt::Debug for SealKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "SealKey({} at {})", self.id(), self.path.display())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_comes_back_only_with_its_key_and_context() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("seal.key");
        assert!(SealKey::load(&path).unwrap().is_none());
        let key = SealKey::generate(&path).unwrap();
        let sealed = key.seal("ca 1", b"secret");
        let again = SealKey::load(&path).unwrap().unwrap();
        assert_eq!(again.id(), key.id());
        assert_eq!(again.open("ca 1", &sealed).unwrap(), b"secret");
        assert!(again.open("ca 2", &sealed).is_err());
        assert!(again.open("ca 1", &sealed[..20]).is_err());
        assert!(again.open("ca 1", b"").is_err());
        let other = SealKey::generate(&folder.path().join("other")).unwrap();
        assert_ne!(other.id(), key.id());
        assert!(other.open("ca 1", &sealed).is_err());
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_damaged_file_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("seal.key");
        for text in [&b""[..], b"abc", &[0xff; 64]] {
            std::fs::write(&path, text).unwrap();
            let error = SealKey::load(&path).unwrap_err();
            assert!(matches!(error, SealError::Damaged { .. }) && error.to_string().contains("seal.key"));
        }
        std::fs::remove_file(&path).unwrap();
        let shown = format!("{:?}", SealKey::generate(&path).unwrap());
        assert!(!shown.contains(std::fs::read_to_string(&path).unwrap().trim()), "{shown}");
    }
}
