//! Counts links that have not said hello yet, by the key of their certificate.
//!
//! Such a link holds one of the places for handshakes until it is judged. Without a bound per key a single gateway could
//! hold all of them and keep the fleet out.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use causeway_api::sync::MutexExt;
use causeway_channel::{CertificateFacts, KeyHash};
use rustls_pki_types::CertificateDer;

/// An edge dials all addresses of all endpoints over both transports and drops all links but the first.
const PER_KEY_MAX: usize = 16;

/// Holds as many entries as there are keys with such a link; the channel port bounds the links.
#[derive(Debug, Clone, Default)]
pub struct PendingLinks(Arc<Mutex<HashMap<KeyHash, usize>>>);

/// One such link, until it is dropped.
#[derive(Debug)]
pub struct PendingLink {
    key: KeyHash,
    all: PendingLinks,
}

impl PendingLinks {
    /// `None` when too many links of this key wait already, or the certificate cannot be read.
    pub fn enter(&self, shown: &CertificateDer<'_>) -> Option<PendingLink> {
        self.enter_key(CertificateFacts::read(shown).ok()?.key)
    }

    fn enter_key(&self, key: KeyHash) -> Option<PendingLink> {
        let mut keys = self.0.lock_ignoring_poison();
        let count = keys.entry(key).or_default();
        if *count >= PER_KEY_MAX {
            return None;
        }
        *count += 1;
        Some(PendingLink { key, all: self.clone() })
    }
}

impl Drop for PendingLink {
    fn drop(&mut self) {
        let mut keys = self.all.0.lock_ignoring_poison();
        if let Some(count) = keys.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                keys.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_a_bound_of_its_own_and_nothing_is_kept_of_links_that_are_gone() {
        let (all, one, other) =
            (PendingLinks::default(), KeyHash::of_spki(b"one"), KeyHash::of_spki(b"other"));
        let mut waiting: Vec<_> = (0..PER_KEY_MAX).map(|_| all.enter_key(one).unwrap()).collect();
        assert!(all.enter_key(one).is_none());
        assert!(all.enter_key(other).is_some(), "another gateway is not kept out");
        waiting.pop();
        waiting.push(all.enter_key(one).unwrap());
        assert!(all.enter_key(one).is_none());
        drop(waiting);
        assert!(all.0.lock().unwrap().is_empty());
    }
}
