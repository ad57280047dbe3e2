//! The flows that cross this gateway: judged at their first packet, counted, and ended.
//!
//! Input: packets as keys, the time, netmaps. Output: where a packet goes, or why not. Addresses are those on the
//! wire, except where a name says `real`. A flow is one entry for both directions, because a key names the local
//! and the remote end, not source and destination. Bounded; records are made by `worker`.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::Hash;
use std::net::IpAddr;
use std::time::{Duration, Instant, SystemTime};

use causeway_netmap::{GatewayName, ServiceName};

use super::admission::{FlowRefusal, FlowRight, FlowStart};
use super::fragments::FragmentTable;
use super::packet::{self, Fragment, ParsedPacket, TcpHeader, TransportHeader};
use super::rewrite::PacketEnds;
use super::shares::{FlowShares, ShareId};
use super::translate::{Direction, PrefixTable};

/// Flows at the same time: an entry has about 200 bytes.
pub const FLOWS_MAX: usize = 65_536;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FlowKey {
    pub protocol: u8,
    pub local: IpAddr,
    pub remote: IpAddr,
    pub local_port: u16,
    pub remote_port: u16,
}

/// A flow that may cross.
#[derive(Debug)]
pub struct Flow {
    pub key: FlowKey,
    /// The slot of the peer behind which the remote end is.
    pub peer: usize,
    pub start: FlowStart,
    pub right: FlowRight,
    pub began: SystemTime,
    pub begun: Instant,
    pub last: Instant,
    pub outbound: Traffic,
    pub inbound: Traffic,
    closing: Closing,
    share: Option<ShareId>,
    begun_by: FlowSender,
    /// None: the flow is of no translated service.
    pub service: Option<Box<ServiceFlow>>,
}

/// A flow that is to begin.
#[derive(Clone, Debug)]
pub struct NewFlow {
    pub key: FlowKey,
    /// The slot of the peer behind which the remote end is.
    pub peer: usize,
    pub sender: FlowSender,
    pub start: FlowStart,
    pub right: FlowRight,
}

/// The sender of the packet with which an entry began. The entry is charged to it, also when the packet looks like a reply and
/// the flow is therefore taken to have begun at the other end.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FlowSender {
    /// The slot of the peer that sent it. None: a host of this site.
    pub peer: Option<usize>,
    /// The source of the packet as it came: on the wire for packets of peers.
    pub host: IpAddr,
}

/// The ends that a flow of a translated service has on the wire.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServiceFlow {
    pub service: ServiceName,
    /// The gateway at the other site.
    pub gateway: GatewayName,
    pub side: ServiceSide,
    /// As `Flow::key`, with the number of the client and the presence address.
    pub wire: FlowKey,
}

/// The part of this site in a flow of a translated service.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ServiceSide {
    Client,
    Server,
}

impl ServiceFlow {
    /// Returns the ends that a packet gets: outbound those on the wire, inbound those that hosts here see.
    pub fn ends(&self, key: &FlowKey, direction: Direction) -> PacketEnds {
        match direction {
            Direction::Outbound => PacketEnds {
                source: self.wire.local,
                destination: self.wire.remote,
                source_port: self.wire.local_port,
                destination_port: self.wire.remote_port,
            },
            Direction::Inbound => PacketEnds {
                source: key.remote,
                destination: key.local,
                source_port: key.remote_port,
                destination_port: key.local_port,
            },
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Traffic {
    pub packets: u64,
    pub bytes: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct Closing {
    fin_outbound: bool,
    fin_inbound: bool,
    reset: bool,
}

/// Why a flow ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FlowEnd {
    Done,
    Reset,
    Idle,
    Revoked,
    Stopped,
}

/// A packet as the table looks it up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lookup {
    Flow(FlowKey),
    /// A later fragment, known by the first one.
    Fragment(FragmentKey),
    /// An ICMP error about a packet of this flow.
    Related(FlowKey),
    /// An ICMP error for another host than the sender of the packet that it quotes.
    Misdirected,
    /// An ICMP message that has no meaning between sites.
    Unrelated,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FragmentKey {
    direction: Direction,
    local: IpAddr,
    remote: IpAddr,
    protocol: u8,
    id: u32,
}

impl FragmentKey {
    /// The ends of `key` are those that the first fragment has.
    pub fn new(direction: Direction, key: &FlowKey, id: u32) -> FragmentKey {
        FragmentKey { direction, local: key.local, remote: key.remote, protocol: key.protocol, id }
    }
}

pub struct FlowTable {
    flows: HashMap<FlowKey, Flow>,
    pub fragments: FragmentTable,
    shares: FlowShares,
    flows_max: usize,
    /// The number of flows that each peer began, and each host.
    begun_by_peers: HashMap<usize, usize>,
    begun_by_hosts: HashMap<FlowSender, usize>,
}

/// Returns how a packet is looked up, before its translation.
pub fn lookup(bytes: &[u8], packet: &ParsedPacket, direction: Direction, mappings: &PrefixTable) -> Lookup {
    let (local, remote) = match direction {
        Direction::Outbound => (mappings.to_outside(packet.source), packet.destination),
        Direction::Inbound => (packet.destination, packet.source),
    };
    let key = |ports: (u16, u16)| {
        let (local_port, remote_port) = match direction {
            Direction::Outbound => ports,
            Direction::Inbound => (ports.1, ports.0),
        };
        Lookup::Flow(FlowKey { protocol: packet.protocol, local, remote, local_port, remote_port })
    };
    if let Fragment::Later { id } = packet.fragment {
        return Lookup::Fragment(FragmentKey { direction, local, remote, protocol: packet.protocol, id });
    }
    match packet.transport {
        TransportHeader::Tcp(tcp) => key((tcp.source, tcp.destination)),
        TransportHeader::Udp { source, destination } => key((source, destination)),
        TransportHeader::Echo { request, id } => key(echo_ports(request, id)),
        TransportHeader::Opaque => key((0, 0)),
        TransportHeader::IcmpOther { .. } => Lookup::Unrelated,
        TransportHeader::IcmpError { .. } => {
            related(bytes, packet, direction, mappings).unwrap_or(Lookup::Unrelated)
        }
    }
}

/// The ports of an echo message: the identifier stands at the end that asks. A request of the other end with the same
/// identifier therefore belongs to another flow, and is judged as one that the other end begins.
fn echo_ports(request: bool, id: u16) -> (u16, u16) {
    if request { (id, 0) } else { (0, id) }
}

/// The flow of the packet that an ICMP error quotes: it went the other way.
fn related(
    bytes: &[u8],
    packet: &ParsedPacket,
    direction: Direction,
    mappings: &PrefixTable,
) -> Option<Lookup> {
    let quoted = bytes.get(packet::quoted_at(packet)..packet.length)?;
    let inner = packet::parse_quoted(quoted).ok()?;
    // RFC 1122, 3.2.2: an error goes to the sender of the packet that caused it. The quoted packet alone would let a peer send
    // to every host, if only it knows of one flow.
    if inner.source != packet.destination {
        return Some(Lookup::Misdirected);
    }
    let (source, destination) = match inner.transport {
        TransportHeader::Tcp(tcp) => (tcp.source, tcp.destination),
        TransportHeader::Udp { source, destination } => (source, destination),
        TransportHeader::Echo { request, id } => echo_ports(request, id),
        TransportHeader::Opaque if matches!(inner.fragment, Fragment::Later { .. }) => return None,
        TransportHeader::Opaque => (0, 0),
        _ => return None,
    };
    let (remote, local, local_port, remote_port) = match direction {
        Direction::Inbound => (inner.destination, inner.source, source, destination),
        Direction::Outbound => (inner.source, mappings.to_outside(inner.destination), destination, source),
    };
    Some(Lookup::Related(FlowKey { protocol: inner.protocol, local, remote, local_port, remote_port }))
}

/// Returns the port at the end that did not begin.
pub fn target_port(key: &FlowKey, direction: Direction) -> u16 {
    match (key.protocol, direction) {
        (packet::TCP | packet::UDP, Direction::Outbound) => key.remote_port,
        (packet::TCP | packet::UDP, Direction::Inbound) => key.local_port,
        _ => 0,
    }
}

impl FlowTable {
    pub fn new(flows_max: usize) -> FlowTable {
        FlowTable {
            flows: HashMap::new(),
            fragments: FragmentTable::default(),
            shares: FlowShares::default(),
            flows_max,
            begun_by_peers: HashMap::new(),
            begun_by_hosts: HashMap::new(),
        }
    }

    pub fn len(&self) -> usize {
        self.flows.len()
    }

    pub fn is_empty(&self) -> bool {
        self.flows.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Flow> {
        self.flows.values()
    }

    pub fn get_mut(&mut self, key: &FlowKey) -> Option<&mut Flow> {
        self.flows.get_mut(key)
    }

    /// Enters a flow that was judged, and charges it to the sender of its first packet.
    pub fn begin(&mut self, new: NewFlow, now: Instant, began: SystemTime) -> Result<&mut Flow, FlowRefusal> {
        let NewFlow { key, peer, sender, start, right } = new;
        let has_room = self.has_room_for(sender);
        let free = match self.flows.entry(key) {
            Entry::Occupied(known) => return Ok(known.into_mut()),
            Entry::Vacant(free) if has_room => free,
            Entry::Vacant(_) => return Err(FlowRefusal::Full),
        };
        let share = self.shares.enter(&right, now).map_err(|_| FlowRefusal::Limit)?;
        if let Some(peer) = sender.peer {
            *self.begun_by_peers.entry(peer).or_default() += 1;
        }
        *self.begun_by_hosts.entry(sender).or_default() += 1;
        Ok(free.insert(Flow {
            key,
            peer,
            start,
            right,
            began,
            begun: now,
            last: now,
            outbound: Traffic::default(),
            inbound: Traffic::default(),
            closing: Closing::default(),
            share,
            begun_by: sender,
            service: None,
        }))
    }

    /// Tells whether a sender may begin a further flow. One peer begins no more than half of all flows: a gateway that was taken
    /// over cannot keep the hosts of other sites, or of this one, from beginning theirs. One host has no more than are free: it
    /// leaves half of them, two leave a third, and a host with few flows always finds a place.
    fn has_room_for(&self, sender: FlowSender) -> bool {
        let free = self.flows_max.saturating_sub(self.flows.len());
        let of_peer = sender.peer.and_then(|peer| self.begun_by_peers.get(&peer)).copied().unwrap_or(0);
        let of_host = self.begun_by_hosts.get(&sender).copied().unwrap_or(0);
        of_peer < self.flows_max / 2 && of_host < free
    }

    fn remove(&mut self, key: &FlowKey) -> Option<Flow> {
        let flow = self.flows.remove(key)?;
        self.shares.release(flow.share);
        if let Some(peer) = flow.begun_by.peer {
            count_down(&mut self.begun_by_peers, peer);
        }
        count_down(&mut self.begun_by_hosts, flow.begun_by);
        Some(flow)
    }

    /// Takes the bytes of a packet from the share of its flow. False: it is over the limit.
    pub fn take(&mut self, key: &FlowKey, direction: Direction, bytes: usize, now: Instant) -> bool {
        let Some(flow) = self.flows.get(key) else { return true };
        self.shares.take(flow.share, flow.start.direction == direction, bytes, now)
    }

    /// Forgets the limits of subjects without flows.
    pub fn sweep_shares(&mut self) {
        self.shares.sweep();
    }

    /// Removes flows that ended, and calls `ended` for each.
    pub fn expire(&mut self, now: Instant, mut ended: impl FnMut(Flow, FlowEnd)) {
        self.fragments.expire(now);
        let due = self.flows.iter().filter_map(|(key, flow)| Some((*key, flow.end_at(now)?)));
        for (key, end) in due.collect::<Vec<_>>() {
            if let Some(flow) = self.remove(&key) {
                ended(flow, end);
            }
        }
    }

    /// Judges all flows again, and removes those that are no longer allowed. `judge` may also change the peer.
    pub fn judge(
        &mut self,
        mut judge: impl FnMut(&mut Flow) -> Result<FlowRight, FlowRefusal>,
        mut ended: impl FnMut(Flow, FlowEnd),
    ) {
        let mut revoked = Vec::new();
        for (key, flow) in &mut self.flows {
            let before = flow.peer;
            match judge(flow) {
                Ok(right) if right != flow.right => {
                    flow.share = self.shares.follow(flow.share, &right);
                    flow.right = right;
                }
                Ok(_) => {}
                Err(_) => revoked.push(*key),
            }
            // The hosts of the sender are behind another peer now, and the slot of the former one may be given to a third.
            if flow.begun_by.peer == Some(before) && flow.peer != before {
                let sender = FlowSender { peer: Some(flow.peer), ..flow.begun_by };
                count_down(&mut self.begun_by_peers, before);
                count_down(&mut self.begun_by_hosts, flow.begun_by);
                *self.begun_by_peers.entry(flow.peer).or_default() += 1;
                *self.begun_by_hosts.entry(sender).or_default() += 1;
                flow.begun_by = sender;
            }
        }
        for key in revoked {
            if let Some(flow) = self.remove(&key) {
                ended(flow, FlowEnd::Revoked);
            }
        }
    }

    /// Ends all flows.
    pub fn stop(&mut self, mut ended: impl FnMut(Flow, FlowEnd)) {
        self.begun_by_peers.clear();
        self.begun_by_hosts.clear();
        self.flows.drain().for_each(|(_, flow)| ended(flow, FlowEnd::Stopped));
    }
}

/// Takes one from a count, and forgets it when nothing is left.
fn count_down<K: Eq + Hash>(counts: &mut HashMap<K, usize>, key: K) {
    if let Entry::Occupied(mut held) = counts.entry(key) {
        *held.get_mut() -= 1;
        if *held.get() == 0 {
            held.remove();
        }
    }
}

impl Flow {
    /// Returns whether the flow has limits.
    pub fn is_limited(&self) -> bool {
        self.share.is_some()
    }

    /// Counts a packet or frame, and follows the closing of a TCP connection.
    pub fn count(
        &mut self,
        direction: Direction,
        bytes: usize,
        packets: u64,
        transport: &TransportHeader,
        now: Instant,
    ) {
        let traffic = match direction {
            Direction::Outbound => &mut self.outbound,
            Direction::Inbound => &mut self.inbound,
        };
        traffic.packets += packets;
        traffic.bytes += bytes as u64;
        self.last = now;
        if let TransportHeader::Tcp(tcp) = transport {
            match direction {
                Direction::Outbound => self.closing.fin_outbound |= tcp.flags & TcpHeader::FIN != 0,
                Direction::Inbound => self.closing.fin_inbound |= tcp.flags & TcpHeader::FIN != 0,
            }
            self.closing.reset |= tcp.flags & TcpHeader::RST != 0;
            if tcp.flags & TcpHeader::SYN != 0 {
                self.closing = Closing::default();
            }
        }
    }

    fn end_at(&self, now: Instant) -> Option<FlowEnd> {
        let Closing { fin_outbound, fin_inbound, reset } = self.closing;
        let (limit, end) = match self.key.protocol {
            // The last acknowledgement, and repeated segments.
            packet::TCP if reset => (Duration::from_secs(2), FlowEnd::Reset),
            packet::TCP if fin_outbound && fin_inbound => (Duration::from_secs(10), FlowEnd::Done),
            // RFC 5382, REQ-5: four minutes until the other end has answered, two hours and four minutes after that.
            packet::TCP if self.outbound.packets == 0 || self.inbound.packets == 0 => {
                (Duration::from_secs(240), FlowEnd::Idle)
            }
            packet::TCP => (Duration::from_secs(7440), FlowEnd::Idle),
            // RFC 4787, REQ-5: at least two minutes.
            packet::UDP => (Duration::from_secs(180), FlowEnd::Idle),
            // RFC 5508, REQ-1.
            packet::ICMP | packet::ICMPV6 => (Duration::from_secs(60), FlowEnd::Done),
            _ => (Duration::from_secs(600), FlowEnd::Idle),
        };
        (now.duration_since(self.last) >= limit).then_some(end)
    }
}

#[cfg(test)]
#[path = "flow/tests.rs"]
mod tests;
