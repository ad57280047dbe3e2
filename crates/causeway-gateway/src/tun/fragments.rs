//! The flows of fragmented packets, known by their first fragments.
//!
//! Input: first fragments of packets that were admitted, keys of later ones, the time. Output: the flow of a later fragment.
//! Later fragments have no ports. Bounded: when the table is full, the sender with more than its part gives up its oldest entry,
//! so that a gateway that was taken over loses its own packets first.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use super::flow::{FlowKey, FragmentKey};

/// Fragmented packets whose first fragment was seen.
const FRAGMENTS_MAX: usize = 4096;
/// RFC 8200, 4.5: reassembly is given up after 60 seconds.
const FRAGMENT_LIFETIME: Duration = Duration::from_secs(60);

/// The slot of the peer that sent a fragment. None: a host of this site.
type Sender = Option<usize>;

#[derive(Default)]
pub struct FragmentTable {
    /// Peers may use the same addresses for different hosts, so that the sender is a part of the key.
    entries: HashMap<(Sender, FragmentKey), (FlowKey, Instant)>,
    /// The fragments that each sender has entered, the oldest first. One that was entered again is here twice, and counts twice.
    entered: HashMap<Sender, VecDeque<(FragmentKey, Instant)>>,
    count: usize,
}

impl FragmentTable {
    /// Remembers the flow of a packet by its first fragment, which was admitted.
    pub fn note(&mut self, sender: Sender, fragment: FragmentKey, flow: FlowKey, now: Instant) {
        if self.count >= FRAGMENTS_MAX
            && let Some(crowded) = self.crowded(sender)
        {
            self.drop_oldest(crowded);
        }
        self.entries.insert((sender, fragment), (flow, now));
        self.entered.entry(sender).or_default().push_back((fragment, now));
        self.count += 1;
    }

    /// Returns the flow of a later fragment.
    pub fn find(&self, sender: Sender, fragment: &FragmentKey) -> Option<FlowKey> {
        self.entries.get(&(sender, *fragment)).map(|(flow, _)| *flow)
    }

    /// Forgets packets that no host assembles any more.
    pub fn expire(&mut self, now: Instant) {
        let is_old = |entered: &VecDeque<(FragmentKey, Instant)>| {
            entered.front().is_some_and(|(_, at)| now.duration_since(*at) >= FRAGMENT_LIFETIME)
        };
        let senders: Vec<Sender> =
            self.entered.iter().filter(|(_, entered)| is_old(entered)).map(|(sender, _)| *sender).collect();
        for sender in senders {
            while self.entered.get(&sender).is_some_and(is_old) {
                self.drop_oldest(sender);
            }
        }
    }

    /// Returns the sender that makes room in a full table: this one if it has its part, else the one with most.
    fn crowded(&self, sender: Sender) -> Option<Sender> {
        let part = FRAGMENTS_MAX / self.entered.len().max(1);
        if self.entered.get(&sender).is_some_and(|entered| entered.len() >= part) {
            return Some(sender);
        }
        self.entered.iter().max_by_key(|(_, entered)| entered.len()).map(|(sender, _)| *sender)
    }

    fn drop_oldest(&mut self, sender: Sender) {
        let Some(entered) = self.entered.get_mut(&sender) else { return };
        if let Some((fragment, at)) = entered.pop_front() {
            self.count -= 1;
            // One that was entered again stays.
            let key = (sender, fragment);
            if self.entries.get(&key).is_some_and(|(_, seen)| *seen == at) {
                self.entries.remove(&key);
            }
        }
        if entered.is_empty() {
            self.entered.remove(&sender);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::packet;
    use super::super::translate::Direction;
    use super::*;

    fn flow(host: u32) -> FlowKey {
        let (local, remote) = ([10, 1, 0, 5].into(), (0x0a02_0000 + host).to_be_bytes().into());
        FlowKey { protocol: packet::UDP, local, remote, local_port: 53, remote_port: 7 }
    }

    fn fragment(host: u32, id: u32) -> FragmentKey {
        FragmentKey::new(Direction::Inbound, &flow(host), id)
    }

    #[test]
    fn a_sender_that_floods_the_table_gives_up_its_own_packets() {
        let (mut table, now) = (FragmentTable::default(), Instant::now());
        table.note(Some(1), fragment(1, 0), flow(1), now);
        let flood = FRAGMENTS_MAX as u32 * 2;
        (0..flood).for_each(|id| table.note(Some(2), fragment(2, id), flow(2), now));
        assert_eq!(table.find(Some(1), &fragment(1, 0)), Some(flow(1)), "the packet of another peer");
        assert_eq!(table.find(Some(2), &fragment(2, flood - 1)), Some(flow(2)), "the newest of the flood");
        assert_eq!(table.find(Some(2), &fragment(2, 0)), None, "the oldest of the flood");
        // Another peer gets its part of a full table.
        (1..1000).for_each(|id| table.note(Some(1), fragment(1, id), flow(1), now));
        assert!((0..1000).all(|id| table.find(Some(1), &fragment(1, id)).is_some()));
        assert_eq!((table.count, table.entries.len()), (FRAGMENTS_MAX, FRAGMENTS_MAX));
        table.expire(now + FRAGMENT_LIFETIME);
        assert_eq!((table.count, table.entries.len(), table.entered.len()), (0, 0, 0));
    }

    #[test]
    fn peers_with_the_same_addresses_have_packets_of_their_own() {
        let (mut table, now) = (FragmentTable::default(), Instant::now());
        table.note(Some(1), fragment(1, 9), flow(1), now);
        table.note(Some(2), fragment(1, 9), flow(2), now);
        assert_eq!(table.find(Some(1), &fragment(1, 9)), Some(flow(1)));
        assert_eq!(table.find(Some(2), &fragment(1, 9)), Some(flow(2)));
        assert_eq!(table.find(None, &fragment(1, 9)), None);
    }

    #[test]
    fn an_identifier_that_is_used_again_lives_anew() {
        let (mut table, now) = (FragmentTable::default(), Instant::now());
        table.note(None, fragment(1, 9), flow(1), now);
        table.note(None, fragment(1, 9), flow(2), now + FRAGMENT_LIFETIME / 2);
        table.expire(now + FRAGMENT_LIFETIME);
        assert_eq!(table.find(None, &fragment(1, 9)), Some(flow(2)));
        table.expire(now + FRAGMENT_LIFETIME * 2);
        assert_eq!((table.find(None, &fragment(1, 9)), table.count), (None, 0));
    }
}
