//! From the device to the socket.

use std::time::{Instant, SystemTime};

use super::admit::{Arrival, NotAdmitted, admit};
use super::admit_service::{AdmittedPacket, admit_service};
use super::peers::{CarriedProbe, Peer};
use super::relay::SendWay;
use super::train::Lane;
use super::{Worker, records};
use crate::tun::cipher::TAG_BYTES;
use crate::tun::counters::DropReason;
use crate::tun::mss;
use crate::tun::noise::DATA_HEADER_BYTES;
use crate::tun::offload::{FrameHeader, SegmentKind, SplitError, complete_checksum, fragment, split};
use crate::tun::packet::{self, ParsedPacket};
use crate::tun::path_monitor::PROBE_SIZE_MAX;
use crate::tun::path_selector::PathTarget;
use crate::tun::peer_message::{MESSAGE_BYTES_MAX, PeerMessage};
use crate::tun::reply::{REPLY_MAX, ReplyReason, reply};
use crate::tun::rewrite::rewrite;
use crate::tun::socket::SendError;
use crate::tun::traffic_class;
use crate::tun::translate::Direction;

impl Worker {
    /// Forwards a frame of this site.
    pub(super) fn handle_frame(&mut self, frame: &mut [u8], now: Instant) {
        let Some(header) = FrameHeader::read(frame) else { return self.counters.drop(DropReason::Malformed) };
        let bytes = &mut frame[FrameHeader::BYTES..];
        let Ok(mut packet) = packet::parse(bytes) else { return self.counters.drop(DropReason::Malformed) };
        if is_local_chatter(&packet) {
            return;
        }
        let count = packets_of(&header, &packet);
        let arrival = Arrival { bytes, packet: &packet, direction: Direction::Outbound, from: None, count };
        let (slot, ends) = match self.admit(&arrival, now) {
            Ok(AdmittedPacket { slot, is_new, ends }) => {
                self.counters.flows_begun += u64::from(is_new);
                (slot, ends)
            }
            Err(NotAdmitted::Drop(reason)) => {
                if reason == DropReason::NoRoute && self.plan.is_on_demand(packet.destination) {
                    return self.await_peer(frame, &packet, now);
                }
                if reason == DropReason::NoRoute {
                    self.answer_host(bytes, &packet, ReplyReason::Unreachable);
                }
                return self.counters.drop(reason);
            }
            Err(NotAdmitted::Refuse { refusal, start, client_port, peer, service }) => {
                self.counters.drop(DropReason::Refused);
                if let Some(peer) = self.peers.get(peer) {
                    let entry = &peer.planned.entry;
                    let record = records::of_refusal(
                        &self.plan.view,
                        &start,
                        client_port,
                        entry,
                        refusal,
                        SystemTime::now(),
                        service.as_ref(),
                    );
                    self.shared.context.audit.record(record);
                }
                return self.answer_host(bytes, &packet, ReplyReason::Prohibited);
            }
        };
        let state = header.checksum_state();
        let Some(mtu) = self.peers.get(slot).map(|peer| peer.mtu()) else {
            return self.counters.drop(DropReason::NoRoute);
        };
        if !matches!(split_size(&header, &packet, mtu), Ok(())) && packet.dont_fragment {
            self.counters.drop(DropReason::TooBig);
            return self.answer_host(bytes, &packet, ReplyReason::TooBig { mtu: mtu as u16 });
        }
        match ends {
            Some(ends) => {
                rewrite(bytes, &packet, &ends, state);
                (packet.source, packet.destination) = (ends.source, ends.destination);
            }
            None => {
                if self.plan.mappings.translate(bytes, &packet, Direction::Outbound, state) {
                    packet.source = self.plan.mappings.to_outside(packet.source);
                }
            }
        }
        mss::clamp(bytes, &packet, mtu, state);
        let cut = split(bytes, &header, &packet, mtu, |segment| self.send_packet(slot, segment, now));
        match cut {
            Ok(_) => {}
            Err(SplitError::TooBig) => self.send_fragments(slot, bytes, &packet, mtu, &header, now),
            Err(SplitError::Malformed) => self.counters.drop(DropReason::Malformed),
        }
    }

    /// Finds the flow of a packet, of a translated service or between networks, or lets it begin.
    pub(super) fn admit(
        &mut self,
        arrival: &Arrival<'_>,
        now: Instant,
    ) -> Result<AdmittedPacket, NotAdmitted> {
        let (flows, plan, peers) = (&mut self.flows, &self.plan, &self.peers);
        if let Some(admitted) = admit_service(flows, &mut self.translator, plan, peers, arrival, now) {
            return admitted;
        }
        if arrival.from.is_none() && !plan.is_own(arrival.packet.source) {
            return Err(NotAdmitted::Drop(DropReason::ForeignSource));
        }
        let (slot, is_new) = admit(flows, plan, peers, arrival, now)?;
        Ok(AdmittedPacket { slot, is_new, ends: None })
    }

    /// Seals a packet for a peer into the train, or keeps it until the handshake is done.
    pub(super) fn send_packet(&mut self, slot: usize, packet: &[u8], now: Instant) {
        let Some(peer) = self.peers.get_mut(slot) else { return };
        // A keepalive is no use of the path.
        if !packet.is_empty() {
            peer.used = Some(now);
        }
        if !peer.session.is_open(now) {
            peer.session.want_handshake();
            if !peer.stage(packet) {
                self.counters.drop(DropReason::NoSession);
            }
            return self.handle_peer_time(slot, now);
        }
        if let Some(PathTarget::Relay(relay)) = peer.target() {
            return self.send_relayed(slot, relay, packet, now);
        }
        let lane = Lane { slot, is_relayed: false, traffic_class: traffic_class::of(packet) };
        let mtu = peer.mtu();
        let padded = packet.len().next_multiple_of(16).min(mtu.max(packet.len()));
        if !self.train.takes(lane, DATA_HEADER_BYTES + padded + TAG_BYTES) {
            self.flush_train();
        }
        let Some(peer) = self.peers.get_mut(slot) else { return };
        match peer.session.seal(packet, self.train.room(), mtu, now) {
            Some(length) => {
                peer.sent.add(1, packet.len());
                self.counters.sent.add(1, packet.len());
                self.train.push(lane, length);
            }
            None => self.counters.drop(DropReason::NoSession),
        }
    }

    /// Sends the collected packets.
    pub(super) fn flush_train(&mut self) {
        let Some((lane, bytes, segment, count)) = self.train.take() else { return };
        let Some(peer) = self.peers.get_mut(lane.slot) else { return };
        let mut carried = 0;
        if !lane.is_relayed && peer.needs_channel(Instant::now()) {
            let name = &peer.planned.entry.gateway;
            carried = bytes.chunks(segment).filter(|packet| self.shared.carrier.send(name, packet)).count();
        }
        // Without a path that works, the last address of the peer is better than nothing.
        let last = peer.endpoint.filter(|_| carried == 0);
        let Some(endpoint) = peer.direct().or(last) else {
            let reason = if carried > 0 { DropReason::Socket } else { DropReason::NoSession };
            self.counters.dropped[reason as usize] += (count - carried) as u64;
            return;
        };
        match self.socket.send(endpoint, bytes, segment, lane.traffic_class) {
            Ok(()) => {}
            Err(SendError::TooLong) => {
                // Only this peer's path is too small; the datagrams are lost as in any network.
                peer.monitor.refused(Instant::now());
                self.counters.dropped[DropReason::TooBig as usize] += count as u64;
            }
            Err(SendError::Io(_)) => self.counters.dropped[DropReason::Socket as usize] += count as u64,
        }
    }

    /// Does what is due for a peer: handshakes, keepalives, probes.
    pub(super) fn handle_peer_time(&mut self, slot: usize, now: Instant) {
        let Some(peer) = self.peers.get_mut(slot) else { return };
        peer.session.keep_alive(peer.keepalive(now));
        let actions = peer.session.handle_time(now);
        if actions.initiate {
            let index = super::random_index();
            let message = peer.session.initiate(&self.keys, index, now, SystemTime::now());
            if let Some(message) = message {
                self.peers.note_index(slot, index);
                self.send_initiation(slot, &message, now);
            }
        }
        if actions.keepalive {
            self.send_packet(slot, &[], now);
        }
        self.handle_path_time(slot, now);
    }

    /// Sends the probes that are due for the paths to a peer.
    fn handle_path_time(&mut self, slot: usize, now: Instant) {
        let open = |peer: &&mut Peer| !peer.is_plain() && peer.session.is_open(now);
        let Some(peer) = self.peers.get_mut(slot).filter(open) else { return };
        let (is_used, is_unanswered) = (peer.is_used(now), peer.session.is_unanswered(now));
        match peer.selector.selected() {
            Some(target) => {
                if is_unanswered {
                    peer.monitor.suspect(now);
                }
                let probe = peer.monitor.handle_time(now, is_used);
                if peer.monitor.is_dead() {
                    tracing::debug!(gateway = %peer.planned.entry.gateway, ?target, "the path is lost");
                    peer.note_lost(now);
                    if let PathTarget::Relay(relay) = target {
                        self.renew_relay(relay);
                    }
                } else if let Some(probe) = probe {
                    self.send_probe(slot, target, probe.id, probe.size, now);
                }
            }
            None if is_unanswered && peer.carried.is_due(now) => {
                peer.carried.sent = Some(now);
                self.send_message(
                    slot,
                    PeerMessage::ProbeRequest { id: CarriedProbe::ID },
                    SendWay::Channel,
                    now,
                );
            }
            None => {}
        }
        let is_round = self.peers.get(slot).is_some_and(|peer| peer.selector.is_round_due(now, is_used));
        if is_round {
            self.tell_addresses(slot, now);
        }
        while let Some(probe) =
            self.peers.get_mut(slot).and_then(|peer| peer.selector.next_probe(now, is_used))
        {
            self.send_probe(slot, probe.target, probe.id, 0, now);
        }
    }

    /// Asks relays for the address of this gateway while a direct path is searched for.
    pub(super) fn ask_relays(&mut self, now: Instant) {
        if !self.peers.iter().any(|peer| peer.is_searching(now)) {
            return;
        }
        for (_, relay) in self.peers.iter_mut().filter(|(_, peer)| peer.is_reflexive_due(now)) {
            relay.used = Some(now);
            if !relay.session.is_open(now) {
                relay.session.want_handshake();
            } else if relay.selector.selected().is_some() {
                relay.monitor.suspect(now);
            }
        }
    }

    /// Tells a peer, by the path that works, at which addresses this gateway may be reached directly.
    pub(super) fn tell_addresses(&mut self, slot: usize, now: Instant) {
        let addresses = self.peers.reflexive(now);
        if addresses.is_empty() {
            return;
        }
        let target = self.peers.get(slot).and_then(Peer::target).filter(|target| !target.is_direct());
        let way = target.map_or(SendWay::Channel, SendWay::Path);
        self.send_message(slot, PeerMessage::Addresses(addresses), way, now);
    }

    /// Sends a message to a peer, by a way of its own.
    pub(super) fn send_message(&mut self, slot: usize, message: PeerMessage, way: SendWay, now: Instant) {
        let mut plain = [0; MESSAGE_BYTES_MAX];
        if let Some(length) = message.write(&mut plain) {
            self.send_silently(slot, &plain[..length], way, now);
        }
    }

    /// Sends an initiation by every way: the response shows which one works. Relays are used where there is no channel.
    fn send_initiation(&mut self, slot: usize, message: &[u8], now: Instant) {
        let Some(peer) = self.peers.get_mut(slot) else { return };
        let target = peer.initiation_target();
        if let Some(target) = target {
            self.send_by(slot, SendWay::Path(target.into()), message, now);
        }
        let Some(peer) = self.peers.get(slot).filter(|peer| !peer.is_plain()) else { return };
        let relays: Vec<PathTarget> = peer.selector.relays().collect();
        if !self.send_by(slot, SendWay::Channel, message, now) {
            for relay in relays {
                self.send_by(slot, SendWay::Path(relay), message, now);
            }
        }
    }

    /// Sends a probe by a path, padded to `size` bytes, whatever path packets take.
    fn send_probe(&mut self, slot: usize, target: PathTarget, id: u32, size: usize, now: Instant) {
        let mut plain = [0; PROBE_SIZE_MAX];
        let Some(length) = (PeerMessage::ProbeRequest { id }).write(&mut plain) else { return };
        let Some(plain) = plain.get(..size.max(length)) else { return };
        self.send_silently(slot, plain, SendWay::Path(target), now);
    }

    /// Cuts a packet of IPv4 that may be fragmented and is longer than the path.
    fn send_fragments(
        &mut self,
        slot: usize,
        bytes: &mut [u8],
        packet: &ParsedPacket,
        mtu: usize,
        header: &FrameHeader,
        now: Instant,
    ) {
        let is_complete = match (header.kind, header.needs_checksum) {
            (SegmentKind::One, true) => complete_checksum(bytes, header).is_ok(),
            (SegmentKind::One, false) => true,
            _ => false,
        };
        let cut =
            is_complete.then(|| fragment(bytes, packet, mtu, |piece| self.send_packet(slot, piece, now)));
        if cut.flatten().is_none() {
            self.counters.drop(DropReason::TooBig);
        }
    }

    /// Answers a host of this site.
    pub(super) fn answer_host(&mut self, bytes: &[u8], packet: &ParsedPacket, reason: ReplyReason) {
        if self.replies == 0 {
            return;
        }
        let mut out = [0; REPLY_MAX];
        if let Some(length) = reply(&mut out, bytes, packet, reason) {
            self.replies -= 1;
            self.write_packet(&out[..length]);
        }
    }
}

/// Neighbour discovery and multicast of the host itself, which no tunnel carries.
fn is_local_chatter(packet: &ParsedPacket) -> bool {
    let is_link_local = |address: std::net::IpAddr| match address {
        std::net::IpAddr::V4(address) => address.is_link_local(),
        std::net::IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    packet.destination.is_multicast() || is_link_local(packet.source) || is_link_local(packet.destination)
}

fn packets_of(header: &FrameHeader, packet: &ParsedPacket) -> u64 {
    let payload = packet.length.saturating_sub(packet.transport_at);
    match header.segment_bytes {
        0 => 1,
        segment => (payload as u64).div_ceil(u64::from(segment)).max(1),
    }
}

/// Tells whether the packets of a frame fit the path.
fn split_size(header: &FrameHeader, packet: &ParsedPacket, mtu: usize) -> Result<(), SplitError> {
    let longest = match header.kind {
        SegmentKind::One => packet.length,
        SegmentKind::Udp => packet.transport_at + 8 + usize::from(header.segment_bytes),
        // TCP segments are made smaller.
        SegmentKind::Tcp4 | SegmentKind::Tcp6 => 0,
    };
    if longest <= mtu { Ok(()) } else { Err(SplitError::TooBig) }
}
