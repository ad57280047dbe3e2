//! Packets that came over the channel and wait for the worker.
//!
//! Pure and bounded. A gateway has no more packets here than are free, so that one that floods the channel leaves half of the
//! queue to the other ones; its newest packets are dropped.

use std::collections::{HashMap, VecDeque};

use bytes::Bytes;
use causeway_netmap::GatewayName;

const CARRIED_MAX: usize = 2048;

#[derive(Default, Debug)]
pub struct CarriedQueue {
    packets: VecDeque<(GatewayName, Bytes)>,
    held: HashMap<GatewayName, usize>,
}

impl CarriedQueue {
    /// Keeps a packet. False: it is dropped.
    pub fn push(&mut self, from: &GatewayName, packet: Bytes) -> bool {
        let free = CARRIED_MAX - self.packets.len();
        match self.held.get_mut(from) {
            Some(held) if *held >= free => return false,
            Some(held) => *held += 1,
            None if free == 0 => return false,
            None => drop(self.held.insert(from.clone(), 1)),
        }
        self.packets.push_back((from.clone(), packet));
        true
    }

    pub fn pop(&mut self) -> Option<(GatewayName, Bytes)> {
        let (from, packet) = self.packets.pop_front()?;
        if let Some(held) = self.held.get_mut(&from) {
            *held -= 1;
            if *held == 0 {
                self.held.remove(&from);
            }
        }
        Some((from, packet))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gateway_that_floods_the_channel_leaves_room_to_other_gateways() {
        let mut queue = CarriedQueue::default();
        let push = |queue: &mut CarriedQueue, from: &str, count: usize| {
            (0..count).filter(|_| queue.push(&from.into(), Bytes::new())).count()
        };
        assert_eq!(push(&mut queue, "greedy", 10_000), CARRIED_MAX / 2);
        assert_eq!(push(&mut queue, "oslo", 300), 300);
        assert_eq!(push(&mut queue, "greedy", 10), 0);
        assert_eq!(push(&mut queue, "rome", 10), 10);
        let popped: Vec<GatewayName> = std::iter::from_fn(|| queue.pop()).map(|(from, _)| from).collect();
        assert_eq!(popped.len(), CARRIED_MAX / 2 + 310);
        assert!(queue.held.is_empty());
        assert_eq!(push(&mut queue, "greedy", 10_000), CARRIED_MAX / 2, "what was taken makes room");
    }
}
