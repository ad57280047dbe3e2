//! The ICMP errors and resets that are sent to peers in one second. Pure.
//!
//! A peer gets no more than are left for all of them: one whose packets are refused all the time leaves answers to other peers.

use std::collections::HashMap;

use super::REPLIES_PER_SECOND;

#[derive(Default, Debug)]
pub struct ReplyShares {
    sent: u32,
    by_peer: HashMap<usize, u32>,
}

impl ReplyShares {
    /// Counts an answer to a peer, by its slot. False: it is one of too many.
    pub fn take(&mut self, peer: usize) -> bool {
        let of_peer = self.by_peer.entry(peer).or_default();
        let is_free = *of_peer < REPLIES_PER_SECOND.saturating_sub(self.sent);
        if is_free {
            *of_peer += 1;
            self.sent += 1;
        }
        is_free
    }

    pub fn begin_second(&mut self) {
        self.sent = 0;
        self.by_peer.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_is_refused_all_the_time_leaves_answers_to_other_peers() {
        let mut shares = ReplyShares::default();
        let taken = |shares: &mut ReplyShares, peer| (0..10_000).filter(|_| shares.take(peer)).count();
        assert_eq!(taken(&mut shares, 1), 500);
        assert_eq!(taken(&mut shares, 2), 250);
        assert!(shares.take(3));
        shares.begin_second();
        assert_eq!(taken(&mut shares, 1), 500);
    }
}
