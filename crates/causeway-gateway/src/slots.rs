//! A bounded number of slots, shared so that no client can hold all of them.
//!
//! A client may take one more slot while it holds fewer than are free (the dynamic threshold of Choudhury and
//! Hahne, 1998, with a factor of one). One client alone gets half of the slots, two get a third each, and
//! some are always left for the next client. Counts are kept only for clients that hold a slot, so the table
//! is bounded by the number of slots.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard};

use causeway_daemon::sync::MutexExt;

/// Slots of one kind. Clones share them.
#[derive(Clone, Debug)]
pub struct ClientSlots {
    max: usize,
    client_max: usize,
    held: Arc<Mutex<Held>>,
}

#[derive(Debug, Default)]
struct Held {
    total: usize,
    by_client: HashMap<Client, usize>,
}

/// A slot, held until it is dropped.
#[derive(Debug)]
pub struct ClientSlot {
    slots: ClientSlots,
    client: Client,
}

/// The key that identifies one client: an IPv4 address, or an IPv6 /64, since a single host can use any
/// address in its /64.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Client(IpAddr);

impl Client {
    fn at(address: IpAddr) -> Client {
        match address.to_canonical() {
            IpAddr::V6(ip) => {
                let [a, b, c, d, ..] = ip.segments();
                Client(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into())
            }
            ip => Client(ip),
        }
    }
}

impl ClientSlots {
    pub fn new(max: usize) -> ClientSlots {
        ClientSlots { max, client_max: usize::MAX, held: Arc::default() }
    }

    /// Slots without a common bound, of which one client has at most `client_max`.
    pub fn per_client(client_max: usize) -> ClientSlots {
        ClientSlots { max: usize::MAX, client_max, held: Arc::default() }
    }

    /// Takes a slot for the client at this address. None: it has used its share, or all slots are taken.
    pub fn take(&self, address: IpAddr) -> Option<ClientSlot> {
        let client = Client::at(address);
        let mut held = self.lock();
        let own = held.by_client.get(&client).copied().unwrap_or(0);
        if own >= self.client_max || !may_take(own, held.total, self.max) {
            return None;
        }
        held.total += 1;
        held.by_client.insert(client, own + 1);
        Some(ClientSlot { slots: self.clone(), client })
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock_ignoring_poison()
    }
}

impl Drop for ClientSlot {
    fn drop(&mut self) {
        let mut held = self.slots.lock();
        held.total = held.total.saturating_sub(1);
        if let Some(own) = held.by_client.get_mut(&self.client) {
            *own = own.saturating_sub(1);
            if *own == 0 {
                held.by_client.remove(&self.client);
            }
        }
    }
}

fn may_take(own: usize, total: usize, max: usize) -> bool {
    own < max.saturating_sub(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes as many slots as it can.
    fn fill(slots: &ClientSlots, client: &str) -> Vec<ClientSlot> {
        std::iter::from_fn(|| slots.take(client.parse().unwrap())).collect()
    }

    #[test]
    fn whoever_takes_all_it_can_leaves_slots_for_others() {
        let slots = ClientSlots::new(512);
        let one = fill(&slots, "10.0.0.1");
        assert_eq!(one.len(), 256, "half of them");
        let two = fill(&slots, "10.0.0.2");
        assert_eq!(two.len(), 128);
        assert!(slots.take("10.0.0.3".parse().unwrap()).is_some(), "one that comes late");
        // A client that gives slots back may not take them again while other clients need them.
        drop(one);
        let again = fill(&slots, "10.0.0.1");
        assert_eq!((again.len(), fill(&slots, "10.0.0.3").len()), (192, 96));
    }

    #[test]
    fn equal_clients_that_take_turns_have_equal_shares() {
        let slots = ClientSlots::new(400);
        let clients: Vec<IpAddr> = (1..=3).map(|last| IpAddr::from([10, 0, 0, last])).collect();
        let mut held: Vec<Vec<ClientSlot>> = vec![vec![], vec![], vec![]];
        for _ in 0..400 {
            for (client, held) in clients.iter().zip(&mut held) {
                held.extend(slots.take(*client));
            }
        }
        assert_eq!(held.iter().map(Vec::len).collect::<Vec<_>>(), [100, 100, 100]);
    }

    #[test]
    fn a_prefix_of_ipv6_and_both_forms_of_ipv4_are_one_client() {
        let slots = ClientSlots::new(8);
        let held = fill(&slots, "2001:db8::1");
        assert_eq!(held.len(), 4);
        assert!(slots.take("2001:db8::ffff:2".parse().unwrap()).is_none(), "the same /64");
        assert!(slots.take("2001:db8:0:1::1".parse().unwrap()).is_some(), "another one");
        let slots = ClientSlots::new(8);
        let held = (fill(&slots, "10.0.0.1"), slots.take("::ffff:10.0.0.1".parse().unwrap()));
        assert_eq!((held.0.len(), held.1.is_none()), (4, true));
    }

    #[test]
    fn the_table_holds_only_clients_with_slots() {
        let slots = ClientSlots::new(100);
        let held: Vec<ClientSlot> =
            (0..=255).filter_map(|last| slots.take(IpAddr::from([10, 0, 0, last]))).collect();
        let counts = || {
            let held = slots.lock();
            (held.total, held.by_client.len())
        };
        assert_eq!((held.len(), counts()), (100, (100, 100)));
        drop(held);
        assert_eq!(counts(), (0, 0));
        assert!(ClientSlots::new(0).take(IpAddr::from([10, 0, 0, 1])).is_none());
    }
}
