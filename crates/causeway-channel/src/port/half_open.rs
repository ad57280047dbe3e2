//! Table of handshakes in progress, and the choice of which one to cancel when there are too many.
//!
//! The new handshake stays and the oldest is cancelled: an honest handshake ends after a few round trips, so
//! the oldest one is the most likely to hold its slot on purpose. No clocks, no sockets.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use super::metrics::RejectReason;

/// `T` is the handle that cancels a handshake.
pub(super) struct HalfOpenHandshakes<T> {
    all_max: usize,
    address_max: usize,
    next: u64,
    /// Ordered by age.
    entries: BTreeMap<u64, (IpAddr, T)>,
    by_address: HashMap<IpAddr, BTreeSet<u64>>,
}

impl<T> HalfOpenHandshakes<T> {
    pub(super) fn new(all_max: usize, address_max: usize) -> HalfOpenHandshakes<T> {
        let (entries, by_address) = (BTreeMap::new(), HashMap::new());
        HalfOpenHandshakes {
            all_max: all_max.max(1),
            address_max: address_max.max(1),
            next: 0,
            entries,
            by_address,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Adds a handshake. Returns the handle of the one that is cancelled for it, with the reason.
    pub(super) fn enter(&mut self, address: IpAddr, handle: T) -> (u64, Option<(T, RejectReason)>) {
        let oldest_here = match self.by_address.get(&address) {
            Some(ids) if ids.len() >= self.address_max => ids.first().copied(),
            _ => None,
        };
        let gone = match oldest_here {
            Some(id) => self.remove(id).map(|handle| (handle, RejectReason::HalfOpenAddress)),
            None if self.entries.len() >= self.all_max => {
                let oldest = self.entries.keys().next().copied();
                oldest.and_then(|id| self.remove(id)).map(|handle| (handle, RejectReason::HalfOpenAll))
            }
            None => None,
        };
        let id = self.next;
        self.next += 1;
        self.entries.insert(id, (address, handle));
        self.by_address.entry(address).or_default().insert(id);
        (id, gone)
    }

    /// Returns `None` if the handshake was already cancelled.
    pub(super) fn remove(&mut self, id: u64) -> Option<T> {
        let (address, handle) = self.entries.remove(&id)?;
        if let Some(ids) = self.by_address.get_mut(&address) {
            ids.remove(&id);
            if ids.is_empty() {
                self.by_address.remove(&address);
            }
        }
        Some(handle)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> IpAddr {
        [192, 0, 2, last].into()
    }

    #[test]
    fn the_oldest_of_a_full_address_goes() {
        let mut half_open = HalfOpenHandshakes::new(10, 2);
        let (_, none) = half_open.enter(address(9), "other");
        assert!(none.is_none());
        half_open.enter(address(1), "first");
        half_open.enter(address(1), "second");
        let (_, gone) = half_open.enter(address(1), "third");
        assert_eq!(
            gone,
            Some(("first", RejectReason::HalfOpenAddress)),
            "and not the other address, which is older"
        );
        assert_eq!(half_open.len(), 3);
    }

    #[test]
    fn the_oldest_of_all_goes_when_all_is_full() {
        let mut half_open = HalfOpenHandshakes::new(2, 2);
        half_open.enter(address(1), "first");
        let (second, _) = half_open.enter(address(2), "second");
        let (_, gone) = half_open.enter(address(3), "third");
        assert_eq!(gone, Some(("first", RejectReason::HalfOpenAll)));
        assert_eq!(half_open.remove(second), Some("second"));
        assert_eq!(half_open.remove(second), None);
        let (_, gone) = half_open.enter(address(4), "fourth");
        assert_eq!((gone, half_open.len()), (None, 2), "a place that was left is free");
        assert_eq!(half_open.by_address.len(), 2, "nothing is kept of those who left");
    }
}
