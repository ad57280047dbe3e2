//! Finds the flow of a packet of a translated service, or lets it begin, and returns the ends that the packet gets.
//!
//! Flows have the addresses that hosts of this site see: at the site of the client its own address and the presence, at
//! the site of the server the server's address and the one that stands for the client. On the wire a packet has the
//! presence address and the number of the client, so that no real address crosses.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant, SystemTime};

use causeway_netmap::{GatewayName, ServiceName, SiteName, TranslatedPresenceEntry};

use super::admit::{Arrival, NotAdmitted, begins_connection, is_elsewhere};
use super::peers::PeerTable;
use crate::dial;
use crate::tun::admission::{FlowRefusal, FlowRight, FlowStart, judge_service};
use crate::tun::client_addresses::{ClientAddresses, ClientEnd, ClientId};
use crate::tun::client_numbers::{ClientNumbers, is_number};
use crate::tun::counters::DropReason;
use crate::tun::flow::{Flow, FlowKey, FlowTable, Lookup, NewFlow, ServiceFlow, ServiceSide, lookup};
use crate::tun::packet::{self, TransportHeader};
use crate::tun::plan::ForwardPlan;
use crate::tun::rewrite::PacketEnds;
use crate::tun::service_plan::PlannedService;
use crate::tun::translate::{Direction, PrefixTable};

/// Time between two searches for addresses that no flow uses.
const SWEEP_PERIOD: Duration = Duration::from_secs(1);

/// The addresses of clients: numbers of this site's on the wire, and addresses of other sites' here.
pub struct ServiceTranslator {
    numbers: ClientNumbers,
    addresses: ClientAddresses,
    /// The gateways of the slots, as the addresses know them.
    slots: Vec<Option<GatewayName>>,
    swept: Option<Instant>,
}

/// A packet that may pass.
pub struct AdmittedPacket {
    pub slot: usize,
    pub is_new: bool,
    /// None: the packet is of no translated service.
    pub ends: Option<PacketEnds>,
}

/// The part that a packet plays.
enum PacketRole<'a> {
    /// From a client of this site.
    ClientSends(&'a TranslatedPresenceEntry),
    /// From a server of this site.
    ServerSends,
    ClientReceives,
    ServerReceives(&'a PlannedService),
}

impl ServiceTranslator {
    pub fn new(secret: &[u8; 32]) -> ServiceTranslator {
        ServiceTranslator {
            numbers: ClientNumbers::new(secret),
            addresses: ClientAddresses::default(),
            slots: Vec::new(),
            swept: None,
        }
    }

    /// Follows a plan and the slots of its peers.
    pub fn follow(&mut self, plan: &ForwardPlan, peers: &PeerTable) {
        self.addresses.follow(&plan.services.ranges, &plan.services.taken);
        let name = |slot| peers.get(slot).map(|peer| peer.planned.entry.gateway.clone());
        let slots: Vec<Option<GatewayName>> = (0..peers.slots()).map(name).collect();
        for (slot, known) in self.slots.iter().enumerate() {
            if known.is_some() && slots.get(slot) != Some(known) {
                self.addresses.forget_peer(slot);
            }
        }
        self.slots = slots;
    }

    /// Forgets numbers and addresses that no flow uses.
    pub fn sweep(&mut self, flows: &FlowTable) {
        let (mut numbers, mut addresses, mut ends) = (HashSet::new(), HashSet::new(), HashSet::new());
        for flow in flows.iter() {
            match flow.service.as_deref() {
                Some(service) if service.side == ServiceSide::Client => {
                    numbers.insert(service.wire.local);
                }
                Some(_) => {
                    addresses.insert(flow.key.remote);
                    let end = ClientEnd { address: flow.key.remote, port: flow.key.remote_port };
                    ends.insert((end, flow.key.protocol));
                }
                None => {}
            }
        }
        self.numbers.retain(|number| numbers.contains(&number));
        let is_end_used = |end, protocol| ends.contains(&(end, protocol));
        self.addresses.retain(|address| addresses.contains(&address), is_end_used);
    }

    fn sweep_if_due(&mut self, flows: &FlowTable, now: Instant) -> bool {
        let is_due = self.swept.is_none_or(|swept| now.duration_since(swept) >= SWEEP_PERIOD);
        if is_due {
            self.swept = Some(now);
            self.sweep(flows);
        }
        is_due
    }

    fn number_of(
        &mut self,
        client: IpAddr,
        server: Option<&str>,
        flows: &FlowTable,
        now: Instant,
    ) -> Option<IpAddr> {
        if let Some(number) = self.numbers.number_of(client, server) {
            return Some(number);
        }
        self.sweep_if_due(flows, now).then(|| self.numbers.number_of(client, server))?
    }

    fn assign(
        &mut self,
        client: ClientId,
        seed: &str,
        (protocol, port): (u8, u16),
        flows: &FlowTable,
        now: Instant,
    ) -> Option<ClientEnd> {
        if let Some(end) = self.addresses.assign(client, seed, protocol, port) {
            return Some(end);
        }
        self.sweep_if_due(flows, now).then(|| self.addresses.assign(client, seed, protocol, port))?
    }
}

/// Admits a packet of a translated service. None: it is of no translated service.
pub fn admit_service(
    flows: &mut FlowTable,
    translator: &mut ServiceTranslator,
    plan: &ForwardPlan,
    peers: &PeerTable,
    arrival: &Arrival<'_>,
    now: Instant,
) -> Option<Result<AdmittedPacket, NotAdmitted>> {
    if plan.services.is_empty() {
        return None;
    }
    let role = role_of(plan, peers, arrival)?;
    Some(Admission { flows, translator, plan, peers, arrival, now }.admit(&role))
}

fn role_of<'a>(plan: &'a ForwardPlan, peers: &PeerTable, arrival: &Arrival<'_>) -> Option<PacketRole<'a>> {
    let packet = arrival.packet;
    match arrival.from {
        None => match plan.services.presence(packet.destination) {
            Some(presence) => Some(PacketRole::ClientSends(presence)),
            None => plan.services.is_client_address(packet.destination).then_some(PacketRole::ServerSends),
        },
        Some(slot) => {
            let site = &peers.get(slot)?.planned.entry.site;
            if let Some(service) = plan.services.service(site, packet.destination) {
                return Some(PacketRole::ServerReceives(service));
            }
            let presence = plan.services.presence(packet.source)?;
            let is_reply = presence.service_site == *site && is_number(packet.destination);
            is_reply.then_some(PacketRole::ClientReceives)
        }
    }
}

struct Admission<'a> {
    flows: &'a mut FlowTable,
    translator: &'a mut ServiceTranslator,
    plan: &'a ForwardPlan,
    peers: &'a PeerTable,
    arrival: &'a Arrival<'a>,
    now: Instant,
}

impl Admission<'_> {
    fn admit(mut self, role: &PacketRole<'_>) -> Result<AdmittedPacket, NotAdmitted> {
        let Arrival { bytes, packet, direction, .. } = *self.arrival;
        let drop = |reason| Err(NotAdmitted::Drop(reason));
        if matches!(role, PacketRole::ClientSends(_)) && !self.is_client(packet.source) {
            return drop(DropReason::ForeignSource);
        }
        let on_packet = match lookup(bytes, packet, direction, &PrefixTable::default()) {
            Lookup::Flow(key) => key,
            Lookup::Fragment(fragment) => {
                return match self.flows.fragments.find(self.arrival.from, &fragment) {
                    Some(key) => self.pass(&key, false),
                    None => drop(DropReason::NoFlow),
                };
            }
            Lookup::Related(key) => {
                return match self.key_here(role, &key) {
                    Some(key) => self.pass(&key, true),
                    None => drop(DropReason::NoFlow),
                };
            }
            Lookup::Misdirected => return drop(DropReason::IcmpError),
            Lookup::Unrelated => return drop(DropReason::NoFlow),
        };
        if let Some(key) = self.key_here(role, &on_packet).filter(|key| self.flows.get_mut(key).is_some()) {
            let passed = self.pass(&key, false)?;
            self.arrival.note_fragment(self.flows, &on_packet, key, self.now);
            return Ok(passed);
        }
        let is_reply = matches!(packet.transport, TransportHeader::Echo { request: false, .. });
        match role {
            _ if is_reply => drop(DropReason::NoFlow),
            PacketRole::ClientSends(presence) => self.begin_at_client(presence, &on_packet),
            PacketRole::ServerReceives(service) => self.begin_at_server(service, &on_packet),
            // A server begins nothing.
            PacketRole::ServerSends => drop(DropReason::NoRoute),
            PacketRole::ClientReceives => drop(DropReason::NoFlow),
        }
    }

    /// Tells whether an address may be that of a client of this site.
    fn is_client(&self, source: IpAddr) -> bool {
        !source.is_loopback()
            && !source.is_unspecified()
            && !is_number(source)
            && self.plan.services.presence(source).is_none()
            && !self.plan.services.is_client_address(source)
    }

    /// Returns the key of a flow with the addresses that hosts here see, for the key that the packet has.
    fn key_here(&self, role: &PacketRole<'_>, key: &FlowKey) -> Option<FlowKey> {
        match role {
            PacketRole::ClientSends(_) | PacketRole::ServerSends => Some(*key),
            PacketRole::ClientReceives => {
                Some(FlowKey { local: self.translator.numbers.client_of(key.local)?, ..*key })
            }
            PacketRole::ServerReceives(service) => {
                let client = ClientId { peer: self.arrival.from?, number: key.remote };
                let end = self.translator.addresses.find(client, key.protocol, key.remote_port)?;
                Some(at_server(service, key, end))
            }
        }
    }

    /// Lets a packet of an existing flow pass. `is_error`: it is an ICMP error about a packet of the flow.
    fn pass(&mut self, key: &FlowKey, is_error: bool) -> Result<AdmittedPacket, NotAdmitted> {
        let Arrival { packet, direction, from, count, .. } = *self.arrival;
        let drop = |reason| Err(NotAdmitted::Drop(reason));
        let Some(flow) = self.flows.get_mut(key) else { return drop(DropReason::NoFlow) };
        let Some(service) = &flow.service else { return drop(DropReason::NoFlow) };
        let (side, ends) = (service.side, service.ends(key, direction));
        if let Some(from) = from {
            // Another gateway of the server's site may reply; a client's packets come from its own gateway.
            let may_send = match side {
                ServiceSide::Server => from == flow.peer,
                ServiceSide::Client => self.peers.are_of_one_site(from, flow.peer),
            };
            match (may_send, is_error) {
                (true, false) => flow.peer = from,
                // An error tells nothing about the gateway to which packets go.
                (true, true) => {}
                (false, true) => return drop(DropReason::IcmpError),
                (false, false) => return drop(DropReason::Spoofed),
            }
        }
        let (slot, is_limited) = (flow.peer, flow.is_limited());
        let admitted = AdmittedPacket { slot, is_new: false, ends: Some(ends) };
        if !is_error && begins_connection(&packet.transport) && flow.start.direction != direction {
            let start = FlowStart { direction, ..flow.start };
            let refusal = FlowRefusal::NotAllowed;
            let service = flow.service.as_ref().map(|service| service.service.clone());
            return Err(NotAdmitted::Refuse {
                refusal,
                start,
                client_port: key.local_port,
                peer: slot,
                service,
            });
        }
        if !is_error {
            flow.count(direction, packet.length, count, &packet.transport, self.now);
        }
        if is_limited && !self.flows.take(key, direction, packet.length, self.now) {
            return drop(DropReason::Limit);
        }
        Ok(admitted)
    }

    fn begin_at_client(
        &mut self,
        presence: &TranslatedPresenceEntry,
        key: &FlowKey,
    ) -> Result<AdmittedPacket, NotAdmitted> {
        let Some(slot) = self.peers.by_name(&presence.gateway) else {
            return Err(NotAdmitted::Drop(DropReason::NoRoute));
        };
        if is_elsewhere(self.plan, self.peers, key.local) {
            return Err(NotAdmitted::Drop(DropReason::ForeignSource));
        }
        let start = FlowStart {
            direction: Direction::Outbound,
            local: key.local,
            remote: key.remote,
            protocol: key.protocol,
            port: port_of(key.protocol, key.remote_port),
        };
        let refused = |admission: &Admission<'_>, refusal| {
            admission.refused(refusal, start, key.local_port, slot, &presence.service)
        };
        let right = match judge_at_client(self.plan, presence, &start) {
            Ok(right) => right,
            Err(refusal) => return Err(refused(self, refusal)),
        };
        let server = right.subject.as_ref().map(|server| server.as_str());
        let Some(number) = self.translator.number_of(key.local, server, self.flows, self.now) else {
            return Err(refused(self, FlowRefusal::Full));
        };
        let service = ServiceFlow {
            service: presence.service.clone(),
            gateway: presence.gateway.clone(),
            side: ServiceSide::Client,
            wire: FlowKey { local: number, ..*key },
        };
        self.begin(*key, key, slot, start, right, service).map_err(|refusal| refused(self, refusal))
    }

    fn begin_at_server(
        &mut self,
        service: &PlannedService,
        on_wire: &FlowKey,
    ) -> Result<AdmittedPacket, NotAdmitted> {
        let peers = self.peers;
        let peer = self.arrival.from.and_then(|slot| Some((slot, peers.get(slot)?)));
        let Some((slot, peer)) = peer else { return Err(NotAdmitted::Drop(DropReason::NoRoute)) };
        let (protocol, number) = (on_wire.protocol, on_wire.remote);
        let site = peer.planned.entry.site.clone();
        let mut start = FlowStart {
            direction: Direction::Inbound,
            local: service.ip,
            remote: number,
            protocol,
            port: port_of(protocol, on_wire.local_port),
        };
        let refused = |admission: &Admission<'_>, refusal, start| {
            admission.refused(refusal, start, on_wire.remote_port, slot, &service.name)
        };
        let is_wellformed = is_number(number);
        let right = match judge_at_server(self.plan, service, &site, number, &start) {
            Ok(right) if is_wellformed => right,
            Ok(_) => return Err(NotAdmitted::Drop(DropReason::Spoofed)),
            Err(refusal) => return Err(refused(self, refusal, start)),
        };
        let client = ClientId { peer: slot, number };
        let port = (protocol, on_wire.remote_port);
        let Some(end) = self.translator.assign(client, site.as_str(), port, self.flows, self.now) else {
            return Err(refused(self, FlowRefusal::Full, start));
        };
        start.remote = end.address;
        let key = at_server(service, on_wire, end);
        let flow = ServiceFlow {
            service: service.name.clone(),
            gateway: peer.planned.entry.gateway.clone(),
            side: ServiceSide::Server,
            wire: *on_wire,
        };
        self.begin(key, on_wire, slot, start, right, flow).map_err(|refusal| refused(self, refusal, start))
    }

    fn begin(
        &mut self,
        key: FlowKey,
        on_packet: &FlowKey,
        slot: usize,
        start: FlowStart,
        right: FlowRight,
        service: ServiceFlow,
    ) -> Result<AdmittedPacket, FlowRefusal> {
        let Arrival { packet, direction, count, .. } = *self.arrival;
        let ends = service.ends(&key, direction);
        let new = NewFlow { key, peer: slot, sender: self.arrival.sender(), start, right };
        let flow = self.flows.begin(new, self.now, SystemTime::now())?;
        flow.service = Some(Box::new(service));
        flow.count(direction, packet.length, count, &packet.transport, self.now);
        self.arrival.note_fragment(self.flows, on_packet, key, self.now);
        Ok(AdmittedPacket { slot, is_new: true, ends: Some(ends) })
    }

    fn refused(
        &self,
        refusal: FlowRefusal,
        start: FlowStart,
        client_port: u16,
        peer: usize,
        service: &ServiceName,
    ) -> NotAdmitted {
        NotAdmitted::Refuse { refusal, start, client_port, peer, service: Some(service.clone()) }
    }
}

/// Returns the key of a flow at the site of the server.
fn at_server(service: &PlannedService, on_wire: &FlowKey, end: ClientEnd) -> FlowKey {
    FlowKey {
        protocol: on_wire.protocol,
        local: service.ip,
        remote: end.address,
        local_port: service.server_port(on_wire.protocol, on_wire.local_port),
        remote_port: end.port,
    }
}

fn port_of(protocol: u8, port: u16) -> u16 {
    if matches!(protocol, packet::TCP | packet::UDP) { port } else { 0 }
}

fn judge_at_client(
    plan: &ForwardPlan,
    presence: &TranslatedPresenceEntry,
    start: &FlowStart,
) -> Result<FlowRight, FlowRefusal> {
    let site = &plan.view.gateway.as_ref().ok_or(FlowRefusal::NoNetmap)?.site;
    let subject = plan.view.subject_at(start.local).filter(|subject| subject.site == *site);
    let subject = subject.map(|subject| &subject.server);
    judge_service(&plan.view, &presence.policies, presence.scope, site, subject, start)
}

fn judge_at_server(
    plan: &ForwardPlan,
    service: &PlannedService,
    site: &SiteName,
    number: IpAddr,
    start: &FlowStart,
) -> Result<FlowRight, FlowRefusal> {
    let subject = plan.services.server(site, number);
    let right = judge_service(&plan.view, &service.policies, service.scope, site, subject, start)?;
    let port = service.server_port(start.protocol, start.port);
    let is_local = |address: IpAddr| plan.own.addresses.contains(&address);
    let address = SocketAddr::new(service.ip, port.max(1));
    let transport =
        if start.protocol == packet::UDP { dial::SocketProtocol::Udp } else { dial::SocketProtocol::Tcp };
    let listeners = match start.protocol {
        packet::TCP | packet::UDP => plan.own.listeners.as_slice(),
        _ => &[],
    };
    match dial::check_address(&plan.own.rules, listeners, is_local, transport, address) {
        Ok(()) => Ok(right),
        Err(dial::Denied::OwnListener { .. }) => Err(FlowRefusal::OwnListener),
        Err(_) => Err(FlowRefusal::ServerDenied),
    }
}

/// Judges a flow of a translated service by a new plan, and finds its peer again.
pub fn judge_again(
    plan: &ForwardPlan,
    peers: &PeerTable,
    flow: &mut Flow,
    service: &ServiceFlow,
) -> Result<FlowRight, FlowRefusal> {
    match service.side {
        ServiceSide::Client => {
            let presence = plan.services.presence(flow.key.remote).ok_or(FlowRefusal::NotServed)?;
            flow.peer = peers.by_name(&presence.gateway).ok_or(FlowRefusal::NotServed)?;
            if presence.service != service.service || is_elsewhere(plan, peers, flow.key.local) {
                return Err(FlowRefusal::NotServed);
            }
            judge_at_client(plan, presence, &flow.start)
        }
        ServiceSide::Server => {
            flow.peer = peers.by_name(&service.gateway).ok_or(FlowRefusal::NotServed)?;
            let peer = peers.get(flow.peer).ok_or(FlowRefusal::NotServed)?;
            let site = &peer.planned.entry.site;
            let planned = plan.services.service(site, service.wire.local).ok_or(FlowRefusal::NotServed)?;
            let port = planned.server_port(flow.key.protocol, service.wire.local_port);
            let is_same = planned.name == service.service
                && planned.ip == flow.key.local
                && port == flow.key.local_port
                && plan.services.is_client_address(flow.key.remote);
            match is_same {
                true => judge_at_server(plan, planned, site, service.wire.remote, &flow.start),
                false => Err(FlowRefusal::NotServed),
            }
        }
    }
}

#[cfg(test)]
mod tests;
