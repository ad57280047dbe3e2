//! From the device to the socket.

use std::time::{Instant, SystemTime};

use super::admit::{Arrival, NotAdmitted, admit};
use super::peers::PeerPath;
use super::{Worker, records};
use crate::tun::cipher::TAG_BYTES;
use crate::tun::counters::DropReason;
use crate::tun::mss;
use crate::tun::noise::DATA_HEADER_BYTES;
use crate::tun::offload::{FrameHeader, SegmentKind, SplitError, complete_checksum, fragment, split};
use crate::tun::packet::{self, ParsedPacket};
use crate::tun::path_monitor::{PROBE_SIZE_MAX, ProbeMessage, USED_FOR};
use crate::tun::reply::{REPLY_MAX, ReplyReason, reply};
use crate::tun::socket::SendError;
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
        if !self.plan.is_own(packet.source) {
            return self.counters.drop(DropReason::ForeignSource);
        }
        let count = packets_of(&header, &packet);
        let arrival = Arrival { bytes, packet: &packet, direction: Direction::Outbound, from: None, count };
        let slot = match admit(&mut self.flows, &self.plan, &self.peers, &arrival, now) {
            Ok((slot, is_new)) => {
                self.counters.flows_begun += u64::from(is_new);
                slot
            }
            Err(NotAdmitted::Drop(reason)) => {
                if reason == DropReason::NoRoute {
                    self.answer_host(bytes, &packet, ReplyReason::Unreachable);
                }
                return self.counters.drop(reason);
            }
            Err(NotAdmitted::Refuse { refusal, start, client_port, peer }) => {
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
        if self.plan.mappings.translate(bytes, &packet, Direction::Outbound, state) {
            packet.source = self.plan.mappings.to_outside(packet.source);
        }
        mss::clamp(bytes, &packet, mtu, state);
        let cut = split(bytes, &header, &packet, mtu, |segment| self.send_packet(slot, segment, now));
        match cut {
            Ok(_) => {}
            Err(SplitError::TooBig) => self.send_fragments(slot, bytes, &packet, mtu, &header, now),
            Err(SplitError::Malformed) => self.counters.drop(DropReason::Malformed),
        }
    }

    /// Seals a packet for a peer into the train, or keeps it until the handshake is done.
    pub(super) fn send_packet(&mut self, slot: usize, packet: &[u8], now: Instant) {
        let Some(peer) = self.peers.get_mut(slot) else { return };
        peer.used = Some(now);
        if !peer.session.is_open(now) {
            peer.session.want_handshake();
            if !peer.stage(packet) {
                self.counters.drop(DropReason::NoSession);
            }
            return self.handle_peer_time(slot, now);
        }
        let mtu = peer.mtu();
        let padded = packet.len().next_multiple_of(16).min(mtu.max(packet.len()));
        if !self.train.takes(slot, DATA_HEADER_BYTES + padded + TAG_BYTES) {
            self.flush_train();
        }
        let Some(peer) = self.peers.get_mut(slot) else { return };
        match peer.session.seal(packet, self.train.room(), mtu, now) {
            Some(length) => {
                peer.sent.add(1, packet.len());
                self.counters.sent.add(1, packet.len());
                self.train.push(slot, length);
            }
            None => self.counters.drop(DropReason::NoSession),
        }
    }

    /// Sends the collected packets.
    pub(super) fn flush_train(&mut self) {
        let Some((slot, bytes, segment, count)) = self.train.take() else { return };
        let Some(peer) = self.peers.get_mut(slot) else { return };
        let direct = peer.endpoint.filter(|_| !peer.monitor.is_dead());
        if direct.is_none() && !peer.planned.entry.plain_wireguard {
            let name = &peer.planned.entry.gateway;
            let carried =
                bytes.chunks(segment).filter(|packet| self.shared.carrier.try_send(name, packet)).count();
            if carried > 0 {
                self.counters.dropped[DropReason::Socket as usize] += (count - carried) as u64;
                peer.path = PeerPath::Channel;
                return;
            }
        }
        let Some(endpoint) = peer.endpoint else {
            self.counters.dropped[DropReason::NoSession as usize] += count as u64;
            return;
        };
        peer.path = PeerPath::Direct;
        match self.socket.send(endpoint, bytes, segment) {
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
        let actions = peer.session.handle_time(now);
        if actions.initiate {
            let index = super::random_index();
            let message = peer.session.initiate(&self.keys, index, now, SystemTime::now());
            if let Some(message) = message {
                self.peers.note_index(slot, index);
                self.send_initiation(slot, &message);
            }
        }
        if actions.keepalive {
            self.send_packet(slot, &[], now);
        }
        let Some(peer) = self.peers.get_mut(slot).filter(|peer| !peer.planned.entry.plain_wireguard) else {
            return;
        };
        if peer.session.is_open(now) && peer.endpoint.is_some() {
            if peer.session.is_unanswered(now) {
                peer.monitor.suspect(now);
            }
            let is_used = peer.used.is_some_and(|used| now.duration_since(used) < USED_FOR);
            if let Some(probe) = peer.monitor.handle_time(now, is_used) {
                self.send_probe(slot, probe.id, probe.size, now);
            }
        }
    }

    /// Sends an initiation by every way: the response shows which one works.
    fn send_initiation(&mut self, slot: usize, message: &[u8]) {
        let Some(peer) = self.peers.get_mut(slot) else { return };
        if let Some(target) = peer.initiation_target() {
            let _ = self.socket.send(target, message, message.len());
        }
        if !peer.planned.entry.plain_wireguard {
            self.shared.carrier.try_send(&peer.planned.entry.gateway, message);
        }
    }

    /// Sends a probe over the direct path, whatever path packets take.
    fn send_probe(&mut self, slot: usize, id: u32, size: usize, now: Instant) {
        self.flush_train();
        let Some(peer) = self.peers.get_mut(slot) else { return };
        let Some(endpoint) = peer.endpoint else { return };
        let mut plain = [0; PROBE_SIZE_MAX];
        let Some(plain) = plain.get_mut(..size) else { return };
        plain[..8].copy_from_slice(&ProbeMessage::Request { id }.write());
        let Some(length) = peer.session.seal_silently(plain, self.train.room(), now) else { return };
        let _ = self.socket.send(endpoint, &self.train.room()[..length], length);
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
    fn answer_host(&mut self, bytes: &[u8], packet: &ParsedPacket, reason: ReplyReason) {
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
