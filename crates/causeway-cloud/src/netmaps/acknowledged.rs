//! The netmaps that gateways acknowledged last, so that a gateway that comes back is sent only the
//! difference.
//!
//! Bounded by number and by bytes: the one remembered longest goes first, and then gets its netmap whole.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use causeway_netmap::Netmap;

/// More than the gateways one replica is made for.
const GATEWAYS_MAX: usize = 50_000;
/// Netmaps of attached gateways are shared with what is published, so this is paid for those that are away.
const BYTES_MAX: usize = 128 << 20;

#[derive(Default)]
pub struct AcknowledgedNetmaps {
    netmaps: HashMap<String, Arc<Netmap>>,
    order: VecDeque<String>,
    bytes: usize,
}

impl AcknowledgedNetmaps {
    pub fn get(&self, gateway: &str) -> Option<Arc<Netmap>> {
        self.netmaps.get(gateway).cloned()
    }

    pub fn put(&mut self, gateway: &str, netmap: Arc<Netmap>) {
        self.bytes += netmap.size_bytes();
        match self.netmaps.insert(gateway.to_owned(), netmap) {
            Some(old) => self.bytes -= old.size_bytes(),
            None => self.order.push_back(gateway.to_owned()),
        }
        while self.netmaps.len() > GATEWAYS_MAX || self.bytes > BYTES_MAX {
            let Some(first) = self.order.pop_front() else { return };
            if let Some(gone) = self.netmaps.remove(&first) {
                self.bytes -= gone.size_bytes();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use causeway_netmap::{EntryKey, Generation};

    use super::*;

    fn netmap(bytes: usize) -> Arc<Netmap> {
        let entries = vec![(EntryKey::new("k"), Bytes::from(vec![0; bytes - 1]))];
        Arc::new(Netmap::build(Generation::default(), entries, None).unwrap())
    }

    #[test]
    fn the_oldest_goes_when_there_is_no_room() {
        let mut remembered = AcknowledgedNetmaps::default();
        let large = netmap(BYTES_MAX / 4);
        for gateway in ["a", "b", "c", "d", "a", "e"] {
            remembered.put(gateway, large.clone());
        }
        let there = |gateway| remembered.get(gateway).is_some();
        assert_eq!(["a", "b", "c", "d", "e"].map(there), [false, true, true, true, true]);
        assert_eq!(remembered.bytes, BYTES_MAX / 4 * 4);
    }
}
