//! The peers of the worker: sessions, paths, and the tables by which packets find them.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use causeway_netmap::GatewayName;
use ipnet::IpNet;

use crate::tun::counters::PacketCount;
use crate::tun::noise::PublicKey;
use crate::tun::path_monitor::PathMonitor;
use crate::tun::plan::{ForwardPlan, PlannedPeer};
use crate::tun::session::PeerSession;

/// Packets that wait for a handshake; the oldest is dropped.
pub const STAGED_MAX: usize = 64;
/// NATs forget a UDP mapping after 30 seconds or more; WireGuard's documentation recommends 25.
const PERSISTENT_KEEPALIVE: Duration = Duration::from_secs(25);

pub struct Peer {
    pub planned: PlannedPeer,
    pub session: PeerSession,
    pub monitor: PathMonitor,
    /// The address from which the last authentic message came.
    pub endpoint: Option<SocketAddr>,
    /// The planned endpoint that is tried next.
    pub next_endpoint: usize,
    pub path: PeerPath,
    pub staged: Vec<Vec<u8>>,
    pub sent: PacketCount,
    pub received: PacketCount,
    /// The time of the last packet in either direction.
    pub used: Option<Instant>,
    pub heard: Option<Instant>,
}

/// The way that sealed packets take.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PeerPath {
    /// No session yet.
    #[default]
    None,
    Direct,
    Channel,
}

#[derive(Default)]
pub struct PeerTable {
    slots: Vec<Option<Peer>>,
    by_key: HashMap<PublicKey, usize>,
    by_name: HashMap<GatewayName, usize>,
    by_index: HashMap<u32, usize>,
    /// Longest prefix first.
    routes: Vec<(IpNet, usize)>,
}

impl PeerTable {
    pub fn get_mut(&mut self, slot: usize) -> Option<&mut Peer> {
        self.slots.get_mut(slot)?.as_mut()
    }

    pub fn get(&self, slot: usize) -> Option<&Peer> {
        self.slots.get(slot)?.as_ref()
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = (usize, &mut Peer)> {
        self.slots.iter_mut().enumerate().filter_map(|(slot, peer)| Some((slot, peer.as_mut()?)))
    }

    pub fn iter(&self) -> impl Iterator<Item = &Peer> {
        self.slots.iter().flatten()
    }

    pub fn slots(&self) -> usize {
        self.slots.len()
    }

    pub fn by_key(&self, key: &PublicKey) -> Option<usize> {
        self.by_key.get(key).copied()
    }

    pub fn by_name(&self, name: &GatewayName) -> Option<usize> {
        self.by_name.get(name).copied()
    }

    pub fn by_index(&self, index: u32) -> Option<usize> {
        self.by_index.get(&index).copied()
    }

    /// Returns the peer behind which an address is.
    pub fn towards(&self, address: IpAddr) -> Option<usize> {
        self.routes.iter().find(|(network, _)| network.contains(&address)).map(|(_, slot)| *slot)
    }

    /// Enters a new index of a session, and forgets those that the session no longer has.
    pub fn note_index(&mut self, slot: usize, index: u32) {
        let valid: Vec<u32> = self.get(slot).map(|peer| peer.session.indexes().collect()).unwrap_or_default();
        self.by_index.retain(|known, owner| *owner != slot || valid.contains(known));
        self.by_index.insert(index, slot);
    }

    /// Brings the peers in step with a plan. A peer keeps its session as long as its key and cipher stay.
    pub fn follow(&mut self, plan: &ForwardPlan, mtu_max: usize, now: Instant) {
        let wanted: HashMap<&GatewayName, &PlannedPeer> =
            plan.peers.iter().map(|planned| (&planned.entry.gateway, planned)).collect();
        for slot in &mut self.slots {
            let stays = slot.as_ref().is_some_and(|peer| {
                wanted.get(&peer.planned.entry.gateway).is_some_and(|planned| {
                    planned.entry.public_key.0 == *peer.session.peer()
                        && planned.cipher() == peer.session.cipher()
                })
            });
            if !stays {
                *slot = None;
            }
        }
        let mut known: HashMap<GatewayName, usize> =
            self.iter_mut().map(|(slot, peer)| (peer.planned.entry.gateway.clone(), slot)).collect();
        for planned in &plan.peers {
            match known.get(&planned.entry.gateway).and_then(|slot| self.get_mut(*slot)) {
                Some(peer) => peer.planned = planned.clone(),
                None => {
                    let free = self.slots.iter().position(Option::is_none).unwrap_or(self.slots.len());
                    if free == self.slots.len() {
                        self.slots.push(None);
                    }
                    self.slots[free] = Some(Peer::new(planned.clone(), mtu_max, now));
                    known.insert(planned.entry.gateway.clone(), free);
                }
            }
        }
        self.index();
    }

    fn index(&mut self) {
        let slots = || self.slots.iter().enumerate().filter_map(|(slot, peer)| Some((slot, peer.as_ref()?)));
        let by_key = slots().map(|(slot, peer)| (*peer.session.peer(), slot)).collect();
        let by_name = slots().map(|(slot, peer)| (peer.planned.entry.gateway.clone(), slot)).collect();
        let by_index =
            slots().flat_map(|(slot, peer)| peer.session.indexes().map(move |index| (index, slot))).collect();
        let networks = |(slot, peer): (usize, &Peer)| {
            peer.planned.entry.networks.clone().into_iter().map(move |network| (network, slot))
        };
        let mut routes: Vec<(IpNet, usize)> = slots().flat_map(networks).collect();
        routes.sort_by_key(|(network, slot)| (std::cmp::Reverse(network.prefix_len()), *slot));
        (self.by_key, self.by_name, self.by_index, self.routes) = (by_key, by_name, by_index, routes);
    }
}

impl Peer {
    fn new(planned: PlannedPeer, mtu_max: usize, now: Instant) -> Peer {
        // Only the end that knows no address of the other must keep its own NAT mapping open.
        let keepalive = (!planned.endpoints.is_empty()).then_some(PERSISTENT_KEEPALIVE);
        let session = PeerSession::new(planned.entry.public_key.0, planned.cipher(), keepalive);
        Peer {
            session,
            monitor: PathMonitor::new(mtu_max, now),
            planned,
            endpoint: None,
            next_endpoint: 0,
            path: PeerPath::None,
            staged: Vec::new(),
            sent: PacketCount::default(),
            received: PacketCount::default(),
            used: None,
            heard: None,
        }
    }

    /// Returns the address for an initiation: the last one that worked, then the planned ones in turn.
    pub fn initiation_target(&mut self) -> Option<SocketAddr> {
        let planned =
            self.planned.endpoints.get(self.next_endpoint % self.planned.endpoints.len().max(1)).copied();
        self.next_endpoint = self.next_endpoint.wrapping_add(1);
        match (self.endpoint, planned) {
            (Some(endpoint), Some(_)) if self.next_endpoint % 2 == 1 => Some(endpoint),
            (endpoint, planned) => planned.or(endpoint),
        }
    }

    /// Keeps a packet until the handshake is done. False: an older one was dropped for it.
    pub fn stage(&mut self, packet: &[u8]) -> bool {
        let is_full = self.staged.len() >= STAGED_MAX;
        if is_full {
            self.staged.remove(0);
        }
        self.staged.push(packet.to_vec());
        !is_full
    }

    pub fn mtu(&self) -> usize {
        self.monitor.mtu()
    }
}
