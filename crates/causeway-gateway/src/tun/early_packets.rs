//! Packets over the channel of gateways that the plan does not have yet: they are peers of the netmap already.
//!
//! Pure: the time is an argument. Bounded by number and time; a gateway that sends many does not take the room of other ones.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::Bytes;
use causeway_netmap::GatewayName;

use crate::fair_share::crowded_place;

const PACKETS_MAX: usize = 64;
const WAIT_MAX: Duration = Duration::from_secs(2);

#[derive(Default, Debug)]
pub struct EarlyPackets {
    packets: VecDeque<(GatewayName, Bytes, Instant)>,
}

impl EarlyPackets {
    /// Keeps a packet. False: a packet is dropped, this one or the newest one of the gateway that has most.
    pub fn push(&mut self, gateway: GatewayName, packet: Bytes, now: Instant) -> bool {
        self.packets.retain(|(_, _, since)| now.duration_since(*since) < WAIT_MAX);
        let is_full = self.packets.len() >= PACKETS_MAX;
        if is_full {
            match crowded_place(self.packets.iter().map(|(gateway, ..)| gateway), &gateway) {
                Some(place) => drop(self.packets.remove(place)),
                None => return false,
            }
        }
        self.packets.push_back((gateway, packet, now));
        !is_full
    }

    /// Takes the packets of gateways that are peers now.
    pub fn take(&mut self, is_peer: impl Fn(&GatewayName) -> bool) -> Vec<(GatewayName, Bytes)> {
        let (ready, waiting) = std::mem::take(&mut self.packets)
            .into_iter()
            .partition::<VecDeque<_>, _>(|(gateway, ..)| is_peer(gateway));
        self.packets = waiting;
        ready.into_iter().map(|(gateway, packet, _)| (gateway, packet)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gateway_with_many_packets_gives_up_room_for_one_with_few() {
        let (mut early, now) = (EarlyPackets::default(), Instant::now());
        for _ in 0..1000 {
            early.push("greedy".into(), Bytes::new(), now);
        }
        let packet = Bytes::from_static(b"initiation");
        early.push("oslo".into(), packet.clone(), now);
        assert_eq!(early.packets.len(), PACKETS_MAX);
        assert_eq!(early.take(|gateway| gateway.as_str() == "oslo"), [("oslo".into(), packet)]);
        assert_eq!(early.take(|_| true).len(), PACKETS_MAX - 1);
        assert!(early.push("oslo".into(), Bytes::new(), now));
        assert!(early.push("rome".into(), Bytes::new(), now + WAIT_MAX));
        assert_eq!(early.take(|_| true).len(), 1, "an old one is forgotten");
    }
}
