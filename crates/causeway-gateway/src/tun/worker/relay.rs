//! Packets by a relay: sent through one, taken from one, and forwarded as one.
//!
//! A frame (`relay_frame`) is sealed inside the session with the relay, and by the relay inside its session with the
//! destination. A relay keeps nothing of it: it is forwarded from the buffer in which it came. Decisions are made by
//! `relay_permit`.

use std::time::Instant;

use super::Worker;
use super::inbound::Origin;
use super::train::Lane;
use crate::tun::cipher::TAG_BYTES;
use crate::tun::counters::DropReason;
use crate::tun::noise::DATA_HEADER_BYTES;
use crate::tun::path_selector::PathTarget;
use crate::tun::relay_frame::{self, RELAY_HEAD_BYTES, RelayHop, RelayId};
use crate::tun::relay_permit::{self, take_rates};
use crate::tun::traffic_class;

/// The way by which a message is sent, whatever path packets take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SendWay {
    Path(PathTarget),
    Channel,
}

impl Worker {
    /// Takes a frame that a peer has sealed. Frames travel over UDP alone, and never inside each other.
    pub(super) fn handle_relay_frame(
        &mut self,
        slot: usize,
        hop: RelayHop,
        frame: &mut [u8],
        origin: Origin,
        now: Instant,
    ) {
        let Origin::Address(_) = origin else { return self.counters.drop(DropReason::RelayRefused) };
        match hop {
            RelayHop::To(to) => self.forward(slot, to, frame, now),
            RelayHop::From(from) => self.take_relayed(slot, from, frame, now),
        }
    }

    /// Forwards a frame of one peer to another one, which learns from whom it is.
    fn forward(&mut self, slot: usize, to: RelayId, frame: &mut [u8], now: Instant) {
        let to_slot = self.peers.by_relay_id(to);
        let Some(from) = self.peers.relay_end(slot, now) else { return };
        let end = to_slot.and_then(|slot| self.peers.relay_end(slot, now));
        let verdict = relay_permit::check_relay(from, end);
        let is_forwarded = frame.get(RELAY_HEAD_BYTES..).is_some_and(relay_frame::is_forwarded);
        let (Some(sender), Some(to_slot)) = (self.peers.get_mut(slot), to_slot.filter(|_| verdict.is_ok()))
        else {
            return self.counters.drop(verdict.err().unwrap_or(DropReason::RelayRefused));
        };
        if !is_forwarded {
            return self.counters.drop(DropReason::Malformed);
        }
        if !take_rates(&mut sender.relay_budget, &mut self.relay_total, frame.len(), now) {
            return self.counters.drop(DropReason::RelayLimit);
        }
        sender.used = Some(now);
        relay_frame::write(RelayHop::From(RelayId::of(sender.session.peer())), frame);
        // The datagram goes on with the marks with which it came.
        match self.send_frame(to_slot, frame, self.outer_class, now) {
            true => self.counters.relayed.add(1, frame.len() - RELAY_HEAD_BYTES),
            false => self.counters.drop(DropReason::RelayNoPath),
        }
    }

    /// Takes a message that a relay has forwarded. The session with its sender shows whether it is authentic.
    fn take_relayed(&mut self, slot: usize, from: RelayId, frame: &mut [u8], now: Instant) {
        let sender = self.peers.by_relay_id(from).filter(|sender| *sender != slot);
        let relay = self.peers.get_mut(slot).filter(|peer| peer.planned.entry.relay);
        let (Some(relay), Some(from), Some(message)) = (relay, sender, frame.get_mut(RELAY_HEAD_BYTES..))
        else {
            return self.counters.drop(DropReason::RelayRefused);
        };
        relay.used = Some(now);
        let relay = RelayId::of(relay.session.peer());
        self.handle_message(message, Origin::Relay { relay, from }, now);
    }

    /// Seals a packet for a peer and sends it through a relay. A relay without a session costs no packet: the channel
    /// takes it.
    pub(super) fn send_relayed(&mut self, slot: usize, relay: RelayId, packet: &[u8], now: Instant) {
        let mut frame = std::mem::take(&mut self.relay_frame);
        if let Some(length) = self.seal_framed(slot, packet, &mut frame, now) {
            let frame = &frame[..RELAY_HEAD_BYTES + length];
            let relay_slot = self.peers.by_relay_id(relay);
            let class = traffic_class::of(packet);
            let is_sent = relay_slot.is_some_and(|relay| self.send_frame(relay, frame, class, now));
            if let (false, Some(relay)) = (is_sent, relay_slot.and_then(|slot| self.peers.get_mut(slot))) {
                relay.session.want_handshake();
            }
            if let Some(peer) = self.peers.get(slot)
                && (!is_sent || peer.needs_channel(now))
            {
                let name = &peer.planned.entry.gateway;
                let is_carried = self.shared.carrier.send(name, &frame[RELAY_HEAD_BYTES..]);
                if !is_carried && !is_sent {
                    self.counters.drop(DropReason::NoSession);
                }
            }
        }
        self.relay_frame = frame;
    }

    /// Seals a packet into a frame for a peer, and returns the length of the sealed packet.
    fn seal_framed(&mut self, slot: usize, packet: &[u8], frame: &mut [u8], now: Instant) -> Option<usize> {
        let peer = self.peers.get_mut(slot)?;
        relay_frame::write(RelayHop::To(RelayId::of(peer.session.peer())), frame);
        let mtu = peer.mtu();
        let room = frame.get_mut(RELAY_HEAD_BYTES..)?;
        let Some(length) = peer.session.seal(packet, room, mtu, now) else {
            self.counters.drop(DropReason::NoSession);
            return None;
        };
        peer.sent.add(1, packet.len());
        self.counters.sent.add(1, packet.len());
        Some(length)
    }

    /// Seals a frame for a peer into the train. False: the peer is not reached over UDP.
    fn send_frame(&mut self, slot: usize, frame: &[u8], traffic_class: u8, now: Instant) -> bool {
        let lane = Lane { slot, is_relayed: true, traffic_class };
        if !self.train.takes(lane, DATA_HEADER_BYTES + frame.len() + TAG_BYTES) {
            self.flush_train();
        }
        let Some(peer) = self.peers.get_mut(slot).filter(|peer| peer.is_reachable(now)) else { return false };
        let Some(length) = peer.session.seal_silently(frame, self.train.room(), now) else { return false };
        peer.used = Some(now);
        self.train.push(lane, length);
        true
    }

    /// Seals a message that is no packet of a host, and sends it.
    pub(super) fn send_silently(&mut self, slot: usize, plain: &[u8], way: SendWay, now: Instant) {
        let Some(peer) = self.peers.get_mut(slot) else { return };
        let mut sealed = vec![0; DATA_HEADER_BYTES + plain.len() + TAG_BYTES];
        if let Some(length) = peer.session.seal_silently(plain, &mut sealed, now) {
            self.send_by(slot, way, &sealed[..length], now);
        }
    }

    /// Sends a message of the wire to a peer. False: it is lost.
    pub(super) fn send_by(&mut self, slot: usize, way: SendWay, message: &[u8], now: Instant) -> bool {
        self.flush_train();
        let Some(peer) = self.peers.get(slot) else { return false };
        match way {
            SendWay::Channel => self.shared.carrier.send(&peer.planned.entry.gateway, message),
            SendWay::Path(PathTarget::Direct(address)) => {
                self.socket.send(address, message, message.len(), 0).is_ok()
            }
            SendWay::Path(PathTarget::Relay(relay)) => {
                let to = RelayId::of(peer.session.peer());
                let Some(relay) = self.peers.by_relay_id(relay) else { return false };
                let mut frame = vec![0; RELAY_HEAD_BYTES];
                relay_frame::write(RelayHop::To(to), &mut frame);
                frame.extend_from_slice(message);
                let is_sent = self.send_frame(relay, &frame, 0, now);
                self.flush_train();
                is_sent
            }
        }
    }

    /// Makes the session with a relay anew: the relay may have been restarted.
    pub(super) fn renew_relay(&mut self, relay: RelayId) {
        let slot = self.peers.by_relay_id(relay);
        if let Some(relay) = slot.and_then(|slot| self.peers.get_mut(slot)) {
            relay.session.want_handshake();
        }
    }
}
