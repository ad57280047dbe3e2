//! Identity of one state of a netmap: generation and digest.
//!
//! The generation orders two states; the digest tells whether two states are equal. Both are checked.

use std::fmt;

use aws_lc_rs::digest::{Context, SHA256, digest};

/// Epoch and revision of the store. Restoring a backup raises the epoch, so that edges follow a restored
/// cloud whatever its revisions are.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Generation {
    // The order of the fields is the order of generations.
    pub epoch: u64,
    pub revision: u64,
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.epoch, self.revision)
    }
}

/// SHA-256 over the sorted keys and the hashes of their values.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(pub [u8; 32]);

impl Digest {
    pub fn from_slice(bytes: &[u8]) -> Option<Digest> {
        bytes.try_into().ok().map(Digest)
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

// Eight digits are enough to tell two digests apart; sixty-four would fill a log line.
impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().take(4).try_for_each(|byte| write!(f, "{byte:02x}"))?;
        f.write_str("…")
    }
}

/// Identifies one state.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct NetmapStamp {
    pub generation: Generation,
    pub digest: Digest,
    /// Orders netmaps of one generation: it rises when the gateway asks for other neighbours while the store stays as
    /// it is. 0 for a gateway that does not ask.
    pub turn: u64,
}

impl NetmapStamp {
    /// Returns the part by which states are ordered.
    pub fn order(&self) -> (Generation, u64) {
        (self.generation, self.turn)
    }
}

pub(crate) fn hash(bytes: &[u8]) -> [u8; 32] {
    let mut hash = [0; 32];
    hash.copy_from_slice(digest(&SHA256, bytes).as_ref());
    hash
}

/// Hashes keys and value hashes, in the order of keys. Each key is preceded by its length, so that no two
/// lists of keys give the same input.
pub(crate) struct DigestSum(Context);

impl DigestSum {
    pub fn new() -> DigestSum {
        DigestSum(Context::new(&SHA256))
    }

    pub fn add(&mut self, key: &str, value_hash: &[u8; 32]) {
        self.0.update(&(key.len() as u64).to_be_bytes());
        self.0.update(key.as_bytes());
        self.0.update(value_hash);
    }

    pub fn finish(self) -> Digest {
        let mut sum = [0; 32];
        sum.copy_from_slice(self.0.finish().as_ref());
        Digest(sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_higher_epoch_is_newer_whatever_the_revision() {
        let generation = |epoch, revision| Generation { epoch, revision };
        assert!(generation(2, 1) > generation(1, 900));
        assert!(generation(1, 901) > generation(1, 900));
        assert_eq!(generation(3, 70).to_string(), "3.70");
    }

    #[test]
    fn what_belongs_to_a_key_cannot_move_to_the_next() {
        let sum = |pairs: &[(&str, u8)]| {
            let mut sum = DigestSum::new();
            pairs.iter().for_each(|(key, byte)| sum.add(key, &[*byte; 32]));
            sum.finish()
        };
        assert_eq!(sum(&[("a", 1), ("b", 2)]), sum(&[("a", 1), ("b", 2)]));
        assert_ne!(sum(&[("a", 1), ("b", 2)]), sum(&[("a", 2), ("b", 1)]));
        assert_ne!(sum(&[("a", 1)]), sum(&[]));
        assert_ne!(sum(&[("ab", 1), ("c", 1)]), sum(&[("a", 1), ("bc", 1)]));
    }
}
