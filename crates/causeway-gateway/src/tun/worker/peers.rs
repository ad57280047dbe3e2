//! The peers of the worker: sessions, paths, and the tables by which packets find them.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use causeway_netmap::GatewayName;

use super::inbound::Origin;
use crate::limits::bucket::{BucketRate, TokenBucket};
use crate::tun::counters::PacketCount;
use crate::tun::noise::PublicKey;
use crate::tun::path_monitor::{PathMonitor, USED_FOR};
use crate::tun::path_selector::{CandidateSource, PathSelector, PathTarget, RELAYS_MAX};
use crate::tun::peer_message::AddressList;
use crate::tun::plan::{ForwardPlan, PlannedPeer};
use crate::tun::relay_frame::{RELAY_OVERHEAD, RelayId};
use crate::tun::relay_permit::{RelayBudget, RelayEnd, SENDER_BYTES_PER_SECOND};
use crate::tun::route_table::RouteTable;
use crate::tun::session::PeerSession;

/// Packets that wait for a handshake; the oldest is dropped.
pub const STAGED_MAX: usize = 64;
/// NATs forget a UDP mapping after 30 seconds or more; WireGuard's documentation recommends 25.
const PERSISTENT_KEEPALIVE: Duration = Duration::from_secs(25);
/// A path is held open for this time after the last packet. Later the first packet takes the channel as well.
const HOLD_FOR: Duration = Duration::from_secs(300);
/// A relay is asked again for this gateway's address after this time, while it is needed.
const REFLEXIVE_FRESH: Duration = Duration::from_secs(20);
/// The peers are told an address that a relay has changed at most once in this time. They are also told in every round of
/// a search.
const REFLEXIVE_TOLD_PERIOD: Duration = Duration::from_secs(1);
/// Initiations and responses through one relay: two per cent of a core. Peers repeat theirs, and use the channel at the same time.
const RELAYED_HANDSHAKES_PER_SECOND: u64 = 100;
/// Those that it has forwarded of one peer: a peer that floods a relay leaves its handshakes to the other peers.
const RELAYED_HANDSHAKES_OF_ONE_PEER: u64 = 10;

pub struct Peer {
    pub planned: PlannedPeer,
    pub session: PeerSession,
    pub selector: PathSelector,
    pub monitor: PathMonitor,
    /// The address from which the last authentic message came.
    pub endpoint: Option<SocketAddr>,
    /// The address of this gateway as the peer sees it, and the time of the reply that says so.
    pub reflexive: Option<(SocketAddr, Instant)>,
    /// The time of the last change of `reflexive` that the other peers were told.
    reflexive_told: Option<Instant>,
    pub carried: CarriedProbe,
    /// The planned endpoint that is tried next.
    pub next_endpoint: usize,
    pub staged: Vec<Vec<u8>>,
    pub sent: PacketCount,
    pub received: PacketCount,
    /// The time of the last packet in either direction.
    pub used: Option<Instant>,
    /// The time since which the peer is silent, when there was no packet yet.
    pub since: Instant,
    /// The groups of sites in which this gateway forwards packets of the peer, and the rate at which it does.
    pub relay_groups: Vec<u32>,
    pub relay_budget: RelayBudget,
    /// Initiations and responses of other peers that this relay has forwarded.
    relayed_handshakes: TokenBucket,
    /// The same by the slot of the peer that the relay names. At most one entry per peer.
    relayed_of_peer: HashMap<usize, TokenBucket>,
    /// The longest packet that crosses by a direct path.
    mtu_max: usize,
}

/// A probe over the channel.
#[derive(Clone, Copy, Default, Debug)]
pub struct CarriedProbe {
    pub sent: Option<Instant>,
    pub round_trip: Option<Duration>,
}

impl CarriedProbe {
    /// Probes over the channel have an identifier of their own.
    pub const ID: u32 = 0;
    const PERIOD: Duration = Duration::from_secs(1);

    pub fn is_due(&self, now: Instant) -> bool {
        self.sent.is_none_or(|sent| now.duration_since(sent) >= CarriedProbe::PERIOD)
    }
}

/// The way that sealed packets take.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PeerPath {
    /// No session yet.
    #[default]
    None,
    Direct,
    /// Over UDP through a relay, which cannot read the packets.
    Relayed,
    /// Over the channel: between two edges the cloud forwards the packets, and cannot read them.
    Channel,
}

impl PeerPath {
    pub fn word(self) -> &'static str {
        match self {
            PeerPath::None => "none",
            PeerPath::Direct => "direct",
            PeerPath::Relayed => "relayed",
            PeerPath::Channel => "channel",
        }
    }
}

#[derive(Default)]
pub struct PeerTable {
    slots: Vec<Option<Peer>>,
    by_key: HashMap<PublicKey, usize>,
    by_name: HashMap<GatewayName, usize>,
    by_index: HashMap<u32, usize>,
    /// Identifiers that one peer has.
    by_relay_id: HashMap<RelayId, usize>,
    routes: RouteTable,
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

    pub fn by_relay_id(&self, id: RelayId) -> Option<usize> {
        self.by_relay_id.get(&id).copied()
    }

    /// Returns a peer as one end of a frame that this gateway forwards.
    pub fn relay_end(&self, slot: usize, now: Instant) -> Option<RelayEnd<'_>> {
        let peer = self.get(slot)?;
        Some(RelayEnd { slot, groups: &peer.relay_groups, is_reachable: peer.is_reachable(now) })
    }

    /// Returns the name of a relay.
    pub fn relay_name(&self, id: RelayId) -> Option<&GatewayName> {
        Some(&self.get(self.by_relay_id(id)?)?.planned.entry.gateway)
    }

    pub fn are_of_one_site(&self, one: usize, other: usize) -> bool {
        let site = |slot| self.get(slot).map(|peer| &peer.planned.entry.site);
        one == other || (site(one).is_some() && site(one) == site(other))
    }

    /// Returns the peer behind which an address is.
    pub fn towards(&self, address: IpAddr) -> Option<usize> {
        self.routes.find(address)
    }

    /// Tells whether an initiation may be read, which costs scalar multiplications. It is charged to the gateway that is known to
    /// have sent it: over the channel the peer, and through a relay the relay, which can invent initiations of every peer.
    /// Those from an address are held back by cookies.
    pub fn admits_initiation(&mut self, origin: Origin, now: Instant) -> bool {
        match origin {
            Origin::Address(_) => true,
            Origin::Channel(slot) => {
                self.get_mut(slot).is_none_or(|peer| peer.session.admits_initiation(now))
            }
            Origin::Relay { relay, from } => self.charge_relay((relay, from), now),
        }
    }

    /// Charges a relay for a message of a handshake of a peer. False: it has forwarded too many, of this peer or of all.
    pub fn charge_relay(&mut self, (relay, from): (RelayId, usize), now: Instant) -> bool {
        let relay = self.by_relay_id(relay).and_then(|slot| self.get_mut(slot));
        let Some(relay) = relay else { return false };
        let rate = |per_second| BucketRate::new(per_second, Duration::from_secs(1));
        let of_peer = relay.relayed_of_peer.entry(from).or_default();
        of_peer.try_take(1, rate(RELAYED_HANDSHAKES_OF_ONE_PEER), now).is_ok()
            && relay.relayed_handshakes.try_take(1, rate(RELAYED_HANDSHAKES_PER_SECOND), now).is_ok()
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
        // The slots that are free, the lowest last.
        let free = self.slots.iter().enumerate().filter(|(_, peer)| peer.is_none()).map(|(slot, _)| slot);
        let mut free: Vec<usize> = free.rev().collect();
        for planned in &plan.peers {
            match known.get(&planned.entry.gateway).and_then(|slot| self.get_mut(*slot)) {
                Some(peer) => {
                    peer.planned = planned.clone();
                    // The peer may have got its netmap at the same time.
                    peer.session.retry_soon();
                }
                None => {
                    let slot = free.pop().unwrap_or(self.slots.len());
                    if slot == self.slots.len() {
                        self.slots.push(None);
                    }
                    self.slots[slot] = Some(Peer::new(planned.clone(), mtu_max, now));
                    known.insert(planned.entry.gateway.clone(), slot);
                }
            }
        }
        self.index();
        let relays = self.relays();
        for peer in self.slots.iter_mut().flatten() {
            peer.relay_groups = plan.relay_groups.of(&peer.planned.entry.site).to_vec();
            // A relay is reached directly, or not at all: no relay behind a relay.
            let is_relayed = !peer.is_plain() && !peer.planned.entry.relay;
            let relays = relays.iter().copied().filter(|_| is_relayed);
            let before = peer.selector.selected();
            peer.selector.follow(CandidateSource::Relay, relays, now);
            if peer.selector.selected() != before {
                peer.measure(now);
            }
            // An address behind the tunnel itself would lead sealed packets back into it.
            peer.planned.endpoints.retain(|endpoint| {
                self.routes.find(endpoint.ip()).is_none() && !plan.is_on_demand(endpoint.ip())
            });
            let endpoints = peer.planned.endpoints.iter().copied();
            peer.selector.follow(CandidateSource::Planned, endpoints, now);
        }
    }

    /// Returns the peers that forward packets, in the order of their names.
    fn relays(&self) -> Vec<RelayId> {
        let mut relays: Vec<&Peer> =
            self.iter().filter(|peer| peer.planned.entry.relay && !peer.is_plain()).collect();
        relays.sort_by(|one, other| one.planned.entry.gateway.cmp(&other.planned.entry.gateway));
        relays.into_iter().take(RELAYS_MAX).map(|peer| RelayId::of(peer.session.peer())).collect()
    }

    /// Returns the addresses of this gateway as relays see them.
    pub fn reflexive(&self, now: Instant) -> AddressList {
        let mut found: Vec<SocketAddr> = Vec::new();
        for peer in self.iter().filter(|peer| peer.planned.entry.relay) {
            if let Some((address, _)) =
                peer.reflexive.filter(|(_, heard)| now.duration_since(*heard) < HOLD_FOR)
                && !found.contains(&address)
            {
                found.push(address);
            }
        }
        AddressList::new(found)
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
        let routes = RouteTable::new(slots().flat_map(networks));
        let mut by_relay_id: HashMap<RelayId, usize> = HashMap::new();
        let mut shared: Vec<RelayId> = Vec::new();
        for (slot, peer) in slots() {
            let id = RelayId::of(peer.session.peer());
            if by_relay_id.insert(id, slot).is_some() {
                shared.push(id);
            }
        }
        by_relay_id.retain(|id, _| !shared.contains(id));
        (self.by_key, self.by_name, self.by_index, self.routes) = (by_key, by_name, by_index, routes);
        self.by_relay_id = by_relay_id;
    }
}

impl Peer {
    fn new(planned: PlannedPeer, mtu_max: usize, now: Instant) -> Peer {
        let session = match planned.entry.plain_wireguard {
            true => PeerSession::plain(planned.entry.public_key.0),
            false => PeerSession::new(planned.entry.public_key.0, planned.cipher()),
        };
        Peer {
            session,
            selector: PathSelector::new(now),
            monitor: PathMonitor::new(mtu_max, now),
            planned,
            endpoint: None,
            reflexive: None,
            reflexive_told: None,
            carried: CarriedProbe::default(),
            next_endpoint: 0,
            staged: Vec::new(),
            sent: PacketCount::default(),
            received: PacketCount::default(),
            used: None,
            since: now,
            relay_groups: Vec::new(),
            relay_budget: RelayBudget::new(SENDER_BYTES_PER_SECOND),
            relayed_handshakes: TokenBucket::default(),
            relayed_of_peer: HashMap::new(),
            mtu_max,
        }
    }

    pub fn is_plain(&self) -> bool {
        self.planned.entry.plain_wireguard
    }

    /// Tells whether packets were exchanged lately.
    pub fn is_used(&self, now: Instant) -> bool {
        self.used.is_some_and(|used| now.duration_since(used) < USED_FOR)
    }

    /// Returns the path of packets. None: the channel.
    pub fn target(&self) -> Option<PathTarget> {
        if self.is_plain() { self.endpoint.map(PathTarget::Direct) } else { self.selector.selected() }
    }

    /// Returns the address to which packets go directly.
    pub fn direct(&self) -> Option<SocketAddr> {
        match self.target() {
            Some(PathTarget::Direct(address)) => Some(address),
            _ => None,
        }
    }

    pub fn path(&self, now: Instant) -> PeerPath {
        match self.target() {
            _ if !self.session.is_open(now) => PeerPath::None,
            Some(PathTarget::Direct(_)) => PeerPath::Direct,
            Some(PathTarget::Relay(_)) => PeerPath::Relayed,
            None => PeerPath::Channel,
        }
    }

    /// Tells whether frames of a relay can be exchanged with the peer.
    pub fn is_reachable(&self, now: Instant) -> bool {
        !self.is_plain() && self.selector.is_direct() && self.session.is_open(now)
    }

    /// Tells whether packets take the channel too, because there is no other path or it is in doubt. Of two copies the
    /// peer takes the first one.
    pub fn needs_channel(&self, now: Instant) -> bool {
        !self.is_plain()
            && (self.selector.selected().is_none()
                || self.monitor.is_doubtful()
                || self.selector.is_stale(now))
    }

    /// Tells whether a direct path is wanted and not there.
    pub fn is_searching(&self, now: Instant) -> bool {
        !self.is_plain()
            && !self.planned.entry.relay
            && self.is_used(now)
            && self.session.is_open(now)
            && !self.selector.is_direct()
    }

    /// Tells whether a relay should be asked for this gateway's address.
    pub fn is_reflexive_due(&self, now: Instant) -> bool {
        self.planned.entry.relay
            && self.reflexive.is_none_or(|(_, heard)| now.duration_since(heard) >= REFLEXIVE_FRESH)
    }

    /// Returns the period of keepalives. Another gateway can always be woken over the channel, so that only a path in
    /// use is held open; a plain WireGuard peer has no other way to begin.
    pub fn keepalive(&self, now: Instant) -> Option<Duration> {
        let is_held = || self.used.is_some_and(|used| now.duration_since(used) < HOLD_FOR);
        let holds = match self.is_plain() {
            true => !self.planned.endpoints.is_empty(),
            false => self.selector.selected().is_some() && self.session.is_open(now) && is_held(),
        };
        holds.then_some(PERSISTENT_KEEPALIVE)
    }

    /// Takes note of an authentic message. `is_packet`: of a host, which shows the path that the peer chose.
    pub fn note_path(&mut self, from: PathTarget, is_packet: bool, now: Instant) {
        if let PathTarget::Direct(address) = from {
            self.endpoint = Some(address);
        }
        if self.is_plain() {
            return;
        }
        if is_packet && self.selector.selected().is_some_and(|selected| selected != from) {
            self.monitor.suspect(now);
        }
        self.selector.handle_seen(from, now);
    }

    /// Takes note that a packet of a host came over the channel: the peer may have lost the path.
    pub fn note_carried(&mut self, now: Instant) {
        if self.selector.selected().is_some() {
            self.monitor.suspect(now);
        }
    }

    /// Takes note that a handshake went there and back by this path.
    pub fn note_confirmed(&mut self, from: PathTarget, now: Instant) {
        if !self.is_plain() && self.selector.handle_confirmed(from, now) {
            self.measure(now);
        }
    }

    /// Takes note of the reply to a probe of a path.
    pub fn note_reply(&mut self, id: u32, now: Instant) {
        if self.selector.handle_reply(id, now) {
            self.measure(now);
        }
    }

    /// Takes note of the address of this gateway as the peer sees it. True: other peers are to be told, because the address is
    /// another one. Only a relay is believed, and a relay that was taken over causes no more than one message to each peer
    /// per `REFLEXIVE_TOLD_PERIOD`.
    pub fn note_reflexive(&mut self, address: SocketAddr, now: Instant) -> bool {
        let before = self.reflexive.replace((address, now)).map(|(address, _)| address);
        let is_early = self
            .reflexive_told
            .is_some_and(|told| now.saturating_duration_since(told) < REFLEXIVE_TOLD_PERIOD);
        if !self.planned.entry.relay || before == Some(address) || is_early {
            return false;
        }
        self.reflexive_told = Some(now);
        true
    }

    /// Takes note that the selected path carries nothing any more.
    pub fn note_lost(&mut self, now: Instant) {
        self.selector.handle_lost(now);
        self.measure(now);
    }

    /// Measures the path that is selected now. A relay carries smaller packets.
    fn measure(&mut self, now: Instant) {
        let overhead =
            if self.selector.selected().is_none_or(PathTarget::is_direct) { 0 } else { RELAY_OVERHEAD };
        self.monitor.handle_new_path(self.mtu_max.saturating_sub(overhead), now);
    }

    /// Returns the address for an initiation: the last one that worked, then the planned ones in turn.
    pub fn initiation_target(&mut self) -> Option<SocketAddr> {
        let planned =
            self.planned.endpoints.get(self.next_endpoint % self.planned.endpoints.len().max(1)).copied();
        self.next_endpoint = self.next_endpoint.wrapping_add(1);
        match (self.direct().or(self.endpoint), planned) {
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

#[cfg(test)]
mod tests;
