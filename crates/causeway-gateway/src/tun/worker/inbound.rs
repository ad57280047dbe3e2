//! From the socket to the device.

use std::net::SocketAddr;
use std::time::{Instant, SystemTime};

use super::admit::{Arrival, NotAdmitted};
use super::admit_service::AdmittedPacket;
use super::peers::CarriedProbe;
use super::relay::SendWay;
use super::{Worker, records};
use crate::tun::checksum::ChecksumState;
use crate::tun::counters::DropReason;
use crate::tun::mss;
use crate::tun::noise::{self, COOKIE_REPLY, DATA, DATA_HEADER_BYTES, INITIATION, RESPONSE};
use crate::tun::offload::FrameHeader;
use crate::tun::packet;
use crate::tun::path_selector::{CandidateSource, PathSelector, PathTarget};
use crate::tun::peer_message::PeerMessage;
use crate::tun::relay_frame::{self, RelayId};
use crate::tun::reply::{REPLY_MAX, ReplyReason, reply};
use crate::tun::rewrite::rewrite;
use crate::tun::session::{OpenError, Opened};
use crate::tun::traffic_class;
use crate::tun::translate::Direction;

/// The way by which a message came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    Address(SocketAddr),
    /// Over the channel, whose other end is this peer.
    Channel(usize),
    /// Through a relay, which names this peer as the sender.
    Relay {
        relay: RelayId,
        from: usize,
    },
}

impl Origin {
    /// Returns the peer that the way names. A message of another one is not authentic.
    fn sender(self) -> Option<usize> {
        match self {
            Origin::Address(_) => None,
            Origin::Channel(slot) | Origin::Relay { from: slot, .. } => Some(slot),
        }
    }

    fn target(self) -> Option<PathTarget> {
        match self {
            Origin::Address(from) => Some(from.into()),
            Origin::Relay { relay, .. } => Some(relay.into()),
            Origin::Channel(_) => None,
        }
    }

    /// Returns the way back.
    fn way(self) -> SendWay {
        self.target().map_or(SendWay::Channel, SendWay::Path)
    }
}

/// Initiations per second above which senders must prove their address by a cookie.
const INITIATIONS_BEFORE_COOKIES: u32 = 100;
/// Above that number, cookie replies per second to one address, which may be forged, and initiations with a cookie that are read
/// from one address. Gateways behind one NAT share an address, and repeat their initiations.
pub const COOKIES_OF_ONE_ADDRESS: u64 = 20;
pub const INITIATIONS_OF_ONE_ADDRESS: u64 = 50;

impl Worker {
    /// Takes a message of the wire.
    pub(super) fn handle_message(&mut self, message: &mut [u8], origin: Origin, now: Instant) {
        match message {
            [DATA, 0, 0, 0, ..] => self.handle_data(message, origin, now),
            [INITIATION, 0, 0, 0, ..] => self.handle_initiation(message, origin, now),
            [RESPONSE, 0, 0, 0, ..] => self.handle_response(message, origin, now),
            [COOKIE_REPLY, 0, 0, 0, ..] => {
                let slot = noise::receiver_index(message).and_then(|index| self.peers.by_index(index));
                if let Some(peer) = slot.and_then(|slot| self.peers.get_mut(slot)) {
                    peer.session.handle_cookie(message, now);
                }
            }
            _ => self.counters.drop(DropReason::NotAuthentic),
        }
    }

    fn handle_initiation(&mut self, message: &[u8], origin: Origin, now: Instant) {
        // No answer to strangers: the first MAC shows that the sender knows this gateway's key.
        if message.len() != noise::INITIATION_BYTES || self.macs.check(message).is_err() {
            return self.counters.drop(DropReason::NotAuthentic);
        }
        if !self.peers.admits_initiation(origin, now) {
            return self.counters.drop(DropReason::Limit);
        }
        self.initiations.0 += 1;
        if self.initiations.0 > INITIATIONS_BEFORE_COOKIES
            && let Origin::Address(from) = origin
        {
            let cookie = noise::cookie_of(&self.cookie_secret.0, from.to_string().as_bytes());
            if !self.macs.check_cookie(message, &cookie) {
                if !self.cookie_rates.admits(from.ip(), now) {
                    return self.counters.drop(DropReason::Limit);
                }
                let mut nonce = [0; 24];
                super::random(&mut nonce);
                if let Some(reply) = self.macs.cookie_reply(message, &cookie, nonce) {
                    let _ = self.socket.send(from, &reply, reply.len(), 0);
                }
                return;
            }
            if !self.initiation_rates.admits(from.ip(), now) {
                return self.counters.drop(DropReason::Limit);
            }
        }
        let Ok(initiation) = noise::read_initiation(&self.keys, message) else {
            return self.counters.drop(DropReason::NotAuthentic);
        };
        let Some(slot) = self.peers.by_key(&initiation.peer) else {
            return self.counters.drop(DropReason::NotAuthentic);
        };
        if origin.sender().is_some_and(|sender| sender != slot) {
            return self.counters.drop(DropReason::NotAuthentic);
        }
        let index = super::random_index();
        let Some(peer) = self.peers.get_mut(slot) else { return };
        let Some(response) = peer.session.handle_initiation(initiation, index, now) else {
            return self.counters.drop(DropReason::Replayed);
        };
        self.peers.note_index(slot, index);
        self.send_by(slot, origin.way(), &response, now);
    }

    fn handle_response(&mut self, message: &[u8], origin: Origin, now: Instant) {
        if message.len() != noise::RESPONSE_BYTES || self.macs.check(message).is_err() {
            return self.counters.drop(DropReason::NotAuthentic);
        }
        let slot = noise::receiver_index(message).and_then(|index| self.peers.by_index(index));
        let is_sender = |slot: &usize| origin.sender().is_none_or(|sender| sender == *slot);
        let Some(slot) = slot.filter(is_sender) else {
            return self.counters.drop(DropReason::NotAuthentic);
        };
        // A relay has seen the initiation, and can invent responses to it.
        if matches!(origin, Origin::Relay { relay, from } if !self.peers.charge_relay((relay, from), now)) {
            return self.counters.drop(DropReason::Limit);
        }
        let Some(peer) = self.peers.get_mut(slot) else { return };
        if !peer.session.handle_response(message, now) {
            return self.counters.drop(DropReason::NotAuthentic);
        }
        self.counters.handshakes += 1;
        self.note_handshake(slot, origin, now);
        let staged =
            self.peers.get_mut(slot).map(|peer| std::mem::take(&mut peer.staged)).unwrap_or_default();
        if staged.is_empty() {
            // The responder uses the new keys only after a packet under them.
            self.send_packet(slot, &[], now);
        }
        staged.iter().for_each(|packet| self.send_packet(slot, packet, now));
        self.flush_train();
    }

    fn handle_data(&mut self, message: &mut [u8], origin: Origin, now: Instant) {
        let slot = noise::receiver_index(message).and_then(|index| self.peers.by_index(index));
        let Some((slot, peer)) = slot.and_then(|slot| Some((slot, self.peers.get_mut(slot)?))) else {
            return self.counters.drop(DropReason::NotAuthentic);
        };
        if matches!(origin, Origin::Relay { from, .. } if from != slot) {
            return self.counters.drop(DropReason::NotAuthentic);
        }
        let had_handshake = peer.session.last_handshake();
        let opened = match peer.session.open(message, now) {
            Ok(Opened::Packet(packet)) => packet.len(),
            Ok(Opened::Keepalive) => 0,
            Err(OpenError::Replayed) => return self.counters.drop(DropReason::Replayed),
            Err(_) => return self.counters.drop(DropReason::NotAuthentic),
        };
        let is_new_session = peer.session.last_handshake() != had_handshake;
        // IP packets begin with their version; see `peer_message`.
        let is_packet = opened > 0 && message[DATA_HEADER_BYTES] >= 0x40;
        match origin.target() {
            Some(from) => peer.note_path(from, is_packet, now),
            None if is_packet => peer.note_carried(now),
            None => {}
        }
        if is_new_session {
            self.counters.handshakes += 1;
            self.note_handshake(slot, origin, now);
            let staged =
                self.peers.get_mut(slot).map(|peer| std::mem::take(&mut peer.staged)).unwrap_or_default();
            staged.iter().for_each(|packet| self.send_packet(slot, packet, now));
        }
        if opened == 0 {
            return;
        }
        // The frame header is written over the header of the message, which is not needed any more.
        let room = DATA_HEADER_BYTES - FrameHeader::BYTES;
        let end = DATA_HEADER_BYTES + opened;
        let Some(buffer) = message.get_mut(room..end) else { return };
        self.handle_packet(slot, buffer, origin, now);
    }

    /// Takes an authentic packet of a peer; `buffer` has room for a frame header before it.
    fn handle_packet(&mut self, slot: usize, buffer: &mut [u8], origin: Origin, now: Instant) {
        let bytes = &mut buffer[FrameHeader::BYTES..];
        if let Some(hop) = relay_frame::read(bytes) {
            return self.handle_relay_frame(slot, hop, bytes, origin, now);
        }
        if let Some(message) = PeerMessage::read(bytes) {
            return self.handle_peer_message(slot, message, origin, now);
        }
        let Ok(mut packet) = packet::parse(bytes) else { return self.counters.drop(DropReason::Malformed) };
        if self.outer_class != 0 {
            match traffic_class::combine(bytes, self.outer_class) {
                Some(class) => packet.traffic_class = class,
                None => return self.counters.drop(DropReason::Congestion),
            }
        }
        let Some(peer) = self.peers.get_mut(slot) else { return };
        peer.used = Some(now);
        peer.received.add(1, packet.length);
        self.counters.received.add(1, packet.length);
        let mtu = peer.mtu();
        let arrival =
            Arrival { bytes, packet: &packet, direction: Direction::Inbound, from: Some(slot), count: 1 };
        let ends = match self.admit(&arrival, now) {
            Ok(AdmittedPacket { is_new, ends, .. }) => {
                self.counters.flows_begun += u64::from(is_new);
                ends
            }
            Err(NotAdmitted::Drop(reason)) => return self.counters.drop(reason),
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
                let mut out = [0; REPLY_MAX];
                if let Some(length) = reply(&mut out, bytes, &packet, ReplyReason::Prohibited)
                    && self.peer_replies.take(slot)
                {
                    self.send_packet(slot, &out[..length], now);
                }
                return;
            }
        };
        match ends {
            Some(ends) => {
                rewrite(bytes, &packet, &ends, ChecksumState::Full);
                // Joining compares ports as well.
                let Ok(rewritten) = packet::parse(bytes) else {
                    return self.counters.drop(DropReason::Malformed);
                };
                packet = rewritten;
            }
            None => {
                if self.plan.mappings.translate(bytes, &packet, Direction::Inbound, ChecksumState::Full) {
                    packet.destination = self.plan.mappings.to_inside(packet.destination);
                }
            }
        }
        mss::clamp(bytes, &packet, mtu, ChecksumState::Full);
        self.joiner.push(buffer, &packet, &mut self.device);
    }

    fn handle_peer_message(&mut self, slot: usize, message: PeerMessage, origin: Origin, now: Instant) {
        match (message, origin) {
            (PeerMessage::ProbeRequest { id }, _) => self.reply_to_probe(slot, id, origin, now),
            (PeerMessage::ProbeReply { id, seen }, Origin::Address(_) | Origin::Relay { .. }) => {
                // Collected packets take the path for which they were sealed.
                self.flush_train();
                let seen = seen.filter(|_| matches!(origin, Origin::Address(_)));
                let Some(peer) = self.peers.get_mut(slot) else { return };
                match PathSelector::is_own(id) {
                    true => peer.note_reply(id, now),
                    false => peer.monitor.handle_reply(id, now),
                }
                if seen.is_some_and(|address| peer.note_reflexive(address, now)) {
                    self.tell_all_addresses(now);
                }
            }
            (PeerMessage::ProbeReply { id: CarriedProbe::ID, .. }, Origin::Channel(_)) => {
                let Some(peer) = self.peers.get_mut(slot) else { return };
                peer.carried.round_trip = peer.carried.sent.map(|sent| now.duration_since(sent));
            }
            (PeerMessage::ProbeReply { .. }, Origin::Channel(_)) => {}
            (PeerMessage::Addresses(addresses), _) => {
                let outside = |address: &SocketAddr| {
                    self.peers.towards(address.ip()).is_none() && !self.plan.is_on_demand(address.ip())
                };
                let addresses: Vec<SocketAddr> = addresses.iter().filter(outside).collect();
                let Some(peer) = self.peers.get_mut(slot).filter(|peer| !peer.is_plain()) else { return };
                // The peer has packets to send.
                peer.used = Some(now);
                peer.selector.follow(CandidateSource::Told, addresses, now);
            }
        }
    }

    /// Replies by the way the request came, whatever path packets take.
    fn reply_to_probe(&mut self, slot: usize, id: u32, origin: Origin, now: Instant) {
        let seen = match origin {
            Origin::Address(from) => Some(from),
            Origin::Channel(_) | Origin::Relay { .. } => None,
        };
        self.send_message(slot, PeerMessage::ProbeReply { id, seen }, origin.way(), now);
    }

    /// Tells all peers to which a direct path is searched for that this gateway has another address.
    fn tell_all_addresses(&mut self, now: Instant) {
        for slot in 0..self.peers.slots() {
            if self.peers.get(slot).is_some_and(|peer| peer.is_searching(now)) {
                self.tell_addresses(slot, now);
            }
        }
    }

    /// Takes note of a handshake that went there and back.
    fn note_handshake(&mut self, slot: usize, origin: Origin, now: Instant) {
        let Some(peer) = self.peers.get_mut(slot) else { return };
        if let Some(from) = origin.target() {
            peer.note_path(from, false, now);
            peer.note_confirmed(from, now);
        }
    }
}
