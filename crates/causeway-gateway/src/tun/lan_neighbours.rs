//! The hardware addresses of the hosts of a LAN to which packets of the tunnel are delivered. Pure.
//!
//! Input: addresses seen in frames, packets to be delivered, and the time. Output: hardware addresses, questions for unknown
//! ones, and packets whose destination has become known. A host behind a router of the LAN is known by the hardware address
//! of that router, from which its own packets come. Frames are read and written by `tap_device`.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use crate::neighbour_proxy::message::{self, HardwareAddress, NeighbourFrame};

/// Hosts that are remembered. A LAN is seldom larger; an arbitrary host is forgotten when there are more.
const KNOWN_MAX: usize = 16_384;
/// Addresses that are asked for at the same time, and packets that wait for one of them. Further packets are dropped.
const ASKED_MAX: usize = 256;
const PACKETS_MAX: usize = 4;
/// A host that was not heard for this long is asked again, while packets still go to it.
const FRESH: Duration = Duration::from_secs(30);
/// A host that was not heard for this long is not known any more.
const LIFETIME: Duration = Duration::from_secs(120);
/// Time between questions, and their number, as RFC 4861 has them (section 10).
const RETRY: Duration = Duration::from_secs(1);
const QUESTIONS_MAX: u32 = 3;

pub struct LanNeighbours {
    own: HardwareAddress,
    known: HashMap<IpAddr, KnownHost>,
    asked: HashMap<IpAddr, AskedHost>,
    dropped: u64,
}

struct KnownHost {
    hardware: HardwareAddress,
    heard: Instant,
    asked: Instant,
}

struct AskedHost {
    packets: Vec<Vec<u8>>,
    asked: Instant,
    questions: u32,
}

/// The answer to the wish to deliver a packet.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Delivery {
    /// None: the packet is kept until the host has answered, or dropped.
    pub to: Option<HardwareAddress>,
    pub question: Option<NeighbourFrame>,
}

impl LanNeighbours {
    pub fn new(own: HardwareAddress) -> LanNeighbours {
        LanNeighbours { own, known: HashMap::new(), asked: HashMap::new(), dropped: 0 }
    }

    pub fn own(&self) -> HardwareAddress {
        self.own
    }

    /// Returns the number of packets that were dropped since the last call.
    pub fn take_dropped(&mut self) -> u64 {
        std::mem::take(&mut self.dropped)
    }

    /// Tells whether an answer of a host with this address is of use.
    pub fn expects(&self, address: IpAddr) -> bool {
        self.asked.contains_key(&address) || self.known.contains_key(&address)
    }

    /// Remembers a host. Returns the packets that have waited for it, in their order.
    pub fn learn(&mut self, address: IpAddr, hardware: HardwareAddress, now: Instant) -> Vec<Vec<u8>> {
        let is_host = hardware[0] & 1 == 0 && hardware != [0; 6] && hardware != self.own;
        if !is_host || address.is_unspecified() || address.is_multicast() {
            return Vec::new();
        }
        if self.known.len() >= KNOWN_MAX && !self.known.contains_key(&address) {
            let surplus = self.known.keys().next().copied();
            surplus.map(|surplus| self.known.remove(&surplus));
        }
        self.known.insert(address, KnownHost { hardware, heard: now, asked: now });
        self.asked.remove(&address).map(|asked| asked.packets).unwrap_or_default()
    }

    /// Finds the hardware address for a packet. A packet for an unknown host is kept.
    pub fn deliver(&mut self, address: IpAddr, packet: &[u8], now: Instant) -> Delivery {
        let own = self.own;
        if let Some(known) = self.known.get_mut(&address) {
            let silence = now.saturating_duration_since(known.heard);
            if silence < LIFETIME {
                let is_due = silence >= FRESH && now.saturating_duration_since(known.asked) >= RETRY;
                if is_due {
                    known.asked = now;
                }
                let question = is_due.then(|| message::question(address, own)).flatten();
                return Delivery { to: Some(known.hardware), question };
            }
            self.known.remove(&address);
        }
        if let Some(asked) = self.asked.get_mut(&address) {
            match asked.packets.len() < PACKETS_MAX {
                true => asked.packets.push(packet.to_vec()),
                false => self.dropped += 1,
            }
            return Delivery::default();
        }
        if self.asked.len() >= ASKED_MAX {
            self.dropped += 1;
            return Delivery::default();
        }
        let asked = AskedHost { packets: vec![packet.to_vec()], asked: now, questions: 1 };
        self.asked.insert(address, asked);
        Delivery { to: None, question: message::question(address, own) }
    }

    /// Returns the questions that are due. Packets for hosts that do not answer are dropped.
    pub fn handle_time(&mut self, now: Instant) -> Vec<NeighbourFrame> {
        let (own, mut questions, mut dropped) = (self.own, Vec::new(), 0);
        self.asked.retain(|address, asked| {
            if now.saturating_duration_since(asked.asked) < RETRY {
                return true;
            }
            if asked.questions >= QUESTIONS_MAX {
                dropped += asked.packets.len() as u64;
                return false;
            }
            (asked.asked, asked.questions) = (now, asked.questions + 1);
            questions.extend(message::question(*address, own));
            true
        });
        self.dropped += dropped;
        questions
    }
}

#[cfg(test)]
mod tests;
