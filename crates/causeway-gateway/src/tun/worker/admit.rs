//! Finds the flow of a packet, or lets it begin.

use std::net::IpAddr;
use std::time::{Instant, SystemTime};

use causeway_netmap::ServiceName;
use ipnet::IpNet;

use super::admit_service;
use super::peers::PeerTable;
use crate::tun::admission::{self, FlowRefusal, FlowRight, FlowStart};
use crate::tun::counters::DropReason;
use crate::tun::flow::{
    Flow, FlowKey, FlowSender, FlowTable, FragmentKey, Lookup, NewFlow, lookup, target_port,
};
use crate::tun::packet::{Fragment, ParsedPacket, TcpHeader, TransportHeader};
use crate::tun::plan::ForwardPlan;
use crate::tun::translate::Direction;

/// A packet that is not forwarded.
pub enum NotAdmitted {
    Drop(DropReason),
    /// It is answered and recorded.
    Refuse {
        refusal: FlowRefusal,
        start: FlowStart,
        client_port: u16,
        peer: usize,
        /// The translated service.
        service: Option<ServiceName>,
    },
}

/// A packet on its way.
pub struct Arrival<'packet> {
    pub bytes: &'packet [u8],
    pub packet: &'packet ParsedPacket,
    pub direction: Direction,
    /// Inbound: the peer that sent it.
    pub from: Option<usize>,
    /// Packets that a frame stands for.
    pub count: u64,
}

impl Arrival<'_> {
    /// Returns the sender to which a flow is charged that begins with the packet.
    pub fn sender(&self) -> FlowSender {
        FlowSender { peer: self.from, host: self.packet.source }
    }

    /// Lets later fragments of the packet follow it, after it was admitted. `on_packet` has the ends that the packet has.
    pub fn note_fragment(&self, flows: &mut FlowTable, on_packet: &FlowKey, flow: FlowKey, now: Instant) {
        if let Fragment::First { id } = self.packet.fragment {
            let fragment = FragmentKey::new(self.direction, on_packet, id);
            flows.fragments.note(self.from, fragment, flow, now);
        }
    }
}

/// Returns the peer of the packet's flow, and whether the flow is new.
pub fn admit(
    flows: &mut FlowTable,
    plan: &ForwardPlan,
    peers: &PeerTable,
    arrival: &Arrival<'_>,
    now: Instant,
) -> Result<(usize, bool), NotAdmitted> {
    let Arrival { bytes, packet, direction, from, count } = *arrival;
    if let Some(peer) = from {
        if !is_behind(plan, peers, peer, packet.source) {
            return Err(NotAdmitted::Drop(DropReason::Spoofed));
        }
        if !plan.is_own_on_wire(packet.destination) {
            return Err(NotAdmitted::Drop(DropReason::NoRoute));
        }
    }
    let key = match lookup(bytes, packet, direction, &plan.mappings) {
        Lookup::Flow(key) => key,
        Lookup::Fragment(fragment) => {
            flows.fragments.find(from, &fragment).ok_or(NotAdmitted::Drop(DropReason::NoFlow))?
        }
        Lookup::Related(key) => {
            let flow = flows.get_mut(&key).ok_or(NotAdmitted::Drop(DropReason::NoFlow))?;
            // An error ends connections or shrinks their packets: only the site of the flow reports one.
            if from.is_some_and(|from| !peers.are_of_one_site(from, flow.peer)) {
                return Err(NotAdmitted::Drop(DropReason::IcmpError));
            }
            if flow.service.is_some() {
                return Err(NotAdmitted::Drop(DropReason::NoFlow));
            }
            let (peer, is_limited) = (from.unwrap_or(flow.peer), flow.is_limited());
            if is_limited && !flows.take(&key, direction, packet.length, now) {
                return Err(NotAdmitted::Drop(DropReason::Limit));
            }
            return Ok((peer, false));
        }
        Lookup::Misdirected => return Err(NotAdmitted::Drop(DropReason::IcmpError)),
        Lookup::Unrelated => return Err(NotAdmitted::Drop(DropReason::NoFlow)),
    };
    let refused = |(refusal, start): (FlowRefusal, FlowStart), peer: usize| {
        let client_port = match direction {
            Direction::Outbound => key.local_port,
            Direction::Inbound => key.remote_port,
        };
        NotAdmitted::Refuse { refusal, start, client_port, peer, service: None }
    };
    if let Some(flow) = flows.get_mut(&key) {
        if flow.service.is_some() {
            return Err(NotAdmitted::Drop(DropReason::NoFlow));
        }
        flow.peer = from.unwrap_or(flow.peer);
        let (peer, is_limited) = (flow.peer, flow.is_limited());
        // A reply follows its flow; a connection that the other end begins on the same ports is judged by itself.
        if begins_connection(&packet.transport) && flow.start.direction != direction {
            judge_start(plan, peers, &key, peer, direction).map_err(|refusal| refused(refusal, peer))?;
        }
        flow.count(direction, packet.length, count, &packet.transport, now);
        if is_limited && !flows.take(&key, direction, packet.length, now) {
            return Err(NotAdmitted::Drop(DropReason::Limit));
        }
        arrival.note_fragment(flows, &key, key, now);
        return Ok((peer, false));
    }
    if matches!(packet.fragment, Fragment::Later { .. })
        || matches!(packet.transport, TransportHeader::Echo { request: false, .. })
    {
        return Err(NotAdmitted::Drop(DropReason::NoFlow));
    }
    let peer = from.or_else(|| peers.towards(key.remote)).ok_or(NotAdmitted::Drop(DropReason::NoRoute))?;
    let flow =
        begin(flows, plan, peers, &key, peer, arrival, now).map_err(|refusal| refused(refusal, peer))?;
    flow.count(direction, packet.length, count, &packet.transport, now);
    arrival.note_fragment(flows, &key, key, now);
    Ok((peer, true))
}

/// Tells whether packets to an address are routed to this peer, so that the peer may send packets with this source. Networks
/// may be nested: the inner one may be another gateway's, or a network of this site.
fn is_behind(plan: &ForwardPlan, peers: &PeerTable, peer: usize, address: IpAddr) -> bool {
    let longest = |networks: &[IpNet]| {
        let containing = networks.iter().filter(|network| network.contains(&address));
        containing.map(IpNet::prefix_len).max()
    };
    let own = longest(&plan.networks).max(longest(&plan.networks_on_wire));
    let theirs = peers.get(peer).and_then(|peer| longest(&peer.planned.entry.networks));
    peers.towards(address) == Some(peer) && theirs > own
}

/// Tells whether an address belongs to another site. The host of the gateway may forward packets of other sites to the device
/// again: they have none of the rights of this site.
///
/// A site that declares no network of the address's family has none that a packet from the tunnel could enter, and its hosts may have the
/// addresses of another site.
pub fn is_elsewhere(plan: &ForwardPlan, peers: &PeerTable, address: IpAddr) -> bool {
    if !plan.networks.iter().any(|own| own.addr().is_ipv4() == address.is_ipv4()) {
        return false;
    }
    match peers.towards(address) {
        Some(peer) => is_behind(plan, peers, peer, address),
        None => plan.is_on_demand(address) && !plan.is_own(address),
    }
}

/// Tells whether the packet is the first of a TCP connection: SYN without ACK (RFC 9293, 3.5).
pub fn begins_connection(transport: &TransportHeader) -> bool {
    matches!(transport, TransportHeader::Tcp(tcp) if tcp.flags & (TcpHeader::SYN | TcpHeader::ACK) == TcpHeader::SYN)
}

fn begin<'flows>(
    flows: &'flows mut FlowTable,
    plan: &ForwardPlan,
    peers: &PeerTable,
    key: &FlowKey,
    peer: usize,
    arrival: &Arrival<'_>,
    now: Instant,
) -> Result<&'flows mut Flow, (FlowRefusal, FlowStart)> {
    let mut judged = judge_start(plan, peers, key, peer, arrival.direction);
    // This gateway may have been restarted in the middle of a connection: a segment that does not begin one may
    // belong to a connection that the other end began.
    let is_reply = matches!(arrival.packet.transport, TransportHeader::Tcp(_))
        && !begins_connection(&arrival.packet.transport);
    if judged.is_err() && is_reply {
        let other = match arrival.direction {
            Direction::Outbound => Direction::Inbound,
            Direction::Inbound => Direction::Outbound,
        };
        judged = judge_start(plan, peers, key, peer, other).or(judged);
    }
    let (start, right) = judged?;
    let new = NewFlow { key: *key, peer, sender: arrival.sender(), start, right };
    flows.begin(new, now, SystemTime::now()).map_err(|refusal| (refusal, start))
}

/// Judges a flow that begins in this direction.
fn judge_start(
    plan: &ForwardPlan,
    peers: &PeerTable,
    key: &FlowKey,
    peer: usize,
    direction: Direction,
) -> Result<(FlowStart, FlowRight), (FlowRefusal, FlowStart)> {
    let start = FlowStart {
        direction,
        local: plan.mappings.to_inside(key.local),
        remote: key.remote,
        protocol: key.protocol,
        port: target_port(key, direction),
    };
    let entry = &peers.get(peer).ok_or((FlowRefusal::NoNetmap, start))?.planned.entry;
    if plan.stands_for_other_site(start.local) {
        return Err((FlowRefusal::Presence, start));
    }
    match admission::judge(&plan.view, &plan.own, entry, &start) {
        Ok(right) => Ok((start, right)),
        Err(refusal) => Err((refusal, start)),
    }
}

/// Judges a flow by a new plan, and finds its peer again.
pub fn judge_again(plan: &ForwardPlan, peers: &PeerTable, flow: &mut Flow) -> Result<FlowRight, FlowRefusal> {
    if let Some(service) = flow.service.take() {
        let judged = admit_service::judge_again(plan, peers, flow, &service);
        flow.service = Some(service);
        return judged;
    }
    flow.peer = peers.towards(flow.key.remote).ok_or(FlowRefusal::NoCommunity)?;
    if !plan.is_own_on_wire(flow.key.local) {
        return Err(FlowRefusal::NoCommunity);
    }
    let entry = &peers.get(flow.peer).ok_or(FlowRefusal::NoNetmap)?.planned.entry;
    flow.start.local = plan.mappings.to_inside(flow.key.local);
    if plan.stands_for_other_site(flow.start.local) {
        return Err(FlowRefusal::Presence);
    }
    admission::judge(&plan.view, &plan.own, entry, &flow.start)
}

#[cfg(test)]
mod tests;
