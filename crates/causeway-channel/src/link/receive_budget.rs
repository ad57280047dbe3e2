//! Bounds the unread bytes of all links of one peer together.
//!
//! A peer may have several links: a session, secondary ones, and older sessions that finish. A link over QUIC reserves its
//! whole window, because quinn does not tell how much of it is unread. A link over TCP counts the bytes that are unread.
//! Values only; the links act on them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The bound for one gateway at the cloud: the full window of a QUIC link, and `BESIDE_QUIC_BYTES`.
const PEER_BYTES_MAX: u64 = QUIC_WINDOW_BYTES_MAX + BESIDE_QUIC_BYTES;

/// The largest window of a QUIC link: 512 full windows of streams can be stuck without blocking other streams.
const QUIC_WINDOW_BYTES_MAX: u64 = 512 * 1024 * 1024;

/// Left for other links beside a QUIC link: the bytes that one client can leave unread over TCP (12,288 streams, each with
/// its initial credit of 32 KiB).
const BESIDE_QUIC_BYTES: u64 = 384 * 1024 * 1024;

/// A QUIC link gets this window even where the budget is used up: a gateway whose old links are full could not return
/// otherwise. At a round trip of 100 ms it carries 160 MB/s.
pub const QUIC_WINDOW_BYTES_MIN: u64 = 16 * 1024 * 1024;

/// The unread bytes that the links of one peer may hold. Clones share it.
#[derive(Debug, Clone)]
pub struct ReceiveBudget(Arc<BudgetState>);

#[derive(Debug)]
struct BudgetState {
    used: AtomicU64,
    bytes_max: u64,
}

impl Default for ReceiveBudget {
    fn default() -> ReceiveBudget {
        ReceiveBudget::new(PEER_BYTES_MAX)
    }
}

impl ReceiveBudget {
    pub fn new(bytes_max: u64) -> ReceiveBudget {
        ReceiveBudget(Arc::new(BudgetState { used: AtomicU64::new(0), bytes_max }))
    }

    /// Returns the bytes that are unread or reserved.
    pub fn used_bytes(&self) -> u64 {
        self.0.used.load(Ordering::Relaxed)
    }

    /// Returns the share of a new link.
    pub(crate) fn share(&self) -> BudgetShare {
        BudgetShare { budget: self.clone(), bytes: 0 }
    }

    fn left(&self) -> u64 {
        self.0.bytes_max.saturating_sub(self.used_bytes())
    }
}

/// The bytes of one link. Dropping it returns them.
#[derive(Debug)]
pub struct BudgetShare {
    budget: ReceiveBudget,
    bytes: u64,
}

impl BudgetShare {
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Counts bytes that arrived. False: the budget has no room for them, and nothing is counted.
    #[must_use]
    pub fn take(&mut self, bytes: u64) -> bool {
        let used = &self.budget.0.used;
        let max = self.budget.0.bytes_max;
        let grow = |used: u64| used.checked_add(bytes).filter(|used| *used <= max);
        let is_taken = used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, grow).is_ok();
        if is_taken {
            self.bytes += bytes;
        }
        is_taken
    }

    /// As `take`, whatever the budget has.
    pub fn take_always(&mut self, bytes: u64) {
        self.budget.0.used.fetch_add(bytes, Ordering::Relaxed);
        self.bytes += bytes;
    }

    /// Counts bytes that were read or dropped.
    pub fn give_back(&mut self, bytes: u64) {
        debug_assert!(bytes <= self.bytes, "{bytes} of {}", self.bytes);
        let bytes = bytes.min(self.bytes);
        self.budget.0.used.fetch_sub(bytes, Ordering::Relaxed);
        self.bytes -= bytes;
    }

    /// Reserves the window of a QUIC link, or raises it. A part of the budget is left, so that a link that comes later gets
    /// one too. Returns the window; it never becomes smaller.
    pub fn reserve_window(&mut self, link_max: u64) -> u64 {
        let left = self.budget.left();
        let wanted = self.bytes + left.saturating_sub(BESIDE_QUIC_BYTES).max(left / 2);
        let window = wanted.clamp(QUIC_WINDOW_BYTES_MIN, QUIC_WINDOW_BYTES_MAX).min(link_max);
        self.take_always(window.saturating_sub(self.bytes));
        self.bytes
    }
}

impl Drop for BudgetShare {
    fn drop(&mut self) {
        self.budget.0.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1024 * 1024;

    #[test]
    fn links_of_one_peer_share_one_bound() {
        let budget = ReceiveBudget::default();
        let mut windows: Vec<BudgetShare> = (0..5).map(|_| budget.share()).collect();
        let reserved: Vec<u64> =
            windows.iter_mut().map(|share| share.reserve_window(512 * MIB) / MIB).collect();
        assert_eq!(reserved, [512, 192, 96, 48, 24]);
        let mut tcp = budget.share();
        while tcp.take(MIB) {}
        assert_eq!(budget.used_bytes(), PEER_BYTES_MAX);
        // A session that comes now works all the same.
        let mut late = budget.share();
        assert_eq!(late.reserve_window(512 * MIB), QUIC_WINDOW_BYTES_MIN);
        assert_eq!(late.reserve_window(512 * MIB), QUIC_WINDOW_BYTES_MIN);
        // The links before it end, and it gets a full window.
        drop((windows, tcp));
        assert_eq!(late.reserve_window(512 * MIB), QUIC_WINDOW_BYTES_MAX);
        assert_eq!(late.reserve_window(512 * MIB), QUIC_WINDOW_BYTES_MAX);
        drop(late);
        assert_eq!(budget.used_bytes(), 0);
    }

    #[test]
    fn a_link_reserves_no_more_than_it_can_use() {
        let budget = ReceiveBudget::default();
        let mut share = budget.share();
        assert_eq!(share.reserve_window(3 * MIB), 3 * MIB);
        assert!(share.take(MIB));
        share.give_back(4 * MIB);
        assert_eq!(budget.used_bytes(), 0);
    }
}
