//! Counters of the tunnel: plain numbers in the worker, published about once a second as state and metrics.

use std::collections::BTreeMap;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use serde::{Deserialize, Serialize};

/// Why a packet was dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DropReason {
    /// Headers that cannot be read, or can be read in two ways.
    Malformed,
    /// From a host whose address is not in a network of this site.
    ForeignSource,
    /// To a network that no peer has, or from the tunnel to one that this site has not.
    NoRoute,
    /// From a peer with a source address outside of its networks.
    Spoofed,
    /// An ICMP error or fragment of no known flow.
    NoFlow,
    /// A policy does not allow it.
    Refused,
    /// Over the rate of a policy.
    Limit,
    /// Longer than the path carries.
    TooBig,
    /// No session with the peer yet, and the queue is full.
    NoSession,
    /// A message that is not from a peer, or was changed.
    NotAuthentic,
    Replayed,
    /// The device or the socket has not taken it.
    Device,
    Socket,
    /// A frame for a relay that it does not forward: between these sites, or to no peer.
    RelayRefused,
    /// A frame to a peer that this relay does not reach over UDP.
    RelayNoPath,
    /// A frame over the rate of a relay.
    RelayLimit,
    /// A network marked congestion on the way, and the sender of the packet does not understand the mark.
    Congestion,
    /// An ICMP error for another host than the one whose packet it quotes, or from another site than that of the flow.
    IcmpError,
}

pub const DROP_REASONS: [(DropReason, &str); 18] = [
    (DropReason::Malformed, "malformed"),
    (DropReason::ForeignSource, "foreign-source"),
    (DropReason::NoRoute, "no-route"),
    (DropReason::Spoofed, "spoofed"),
    (DropReason::NoFlow, "no-flow"),
    (DropReason::Refused, "refused"),
    (DropReason::Limit, "limit"),
    (DropReason::TooBig, "too-big"),
    (DropReason::NoSession, "no-session"),
    (DropReason::NotAuthentic, "not-authentic"),
    (DropReason::Replayed, "replayed"),
    (DropReason::Device, "device"),
    (DropReason::Socket, "socket"),
    (DropReason::RelayRefused, "relay-refused"),
    (DropReason::RelayNoPath, "relay-no-path"),
    (DropReason::RelayLimit, "relay-limit"),
    (DropReason::Congestion, "congestion"),
    (DropReason::IcmpError, "icmp-error"),
];

/// Counters of the worker since its start.
#[derive(Clone, Copy, Default, Debug)]
pub struct TunnelCounters {
    pub dropped: [u64; DROP_REASONS.len()],
    pub sent: PacketCount,
    pub received: PacketCount,
    /// Sealed packets that were forwarded between other gateways.
    pub relayed: PacketCount,
    pub handshakes: u64,
    pub flows_begun: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct PacketCount {
    pub packets: u64,
    pub bytes: u64,
}

impl PacketCount {
    pub fn add(&mut self, packets: u64, bytes: usize) {
        self.packets += packets;
        self.bytes += bytes as u64;
    }
}

impl TunnelCounters {
    pub fn drop(&mut self, reason: DropReason) {
        self.dropped[reason as usize] += 1;
    }

    pub fn dropped_by_reason(&self) -> BTreeMap<String, u64> {
        let known =
            DROP_REASONS.iter().map(|(reason, word)| ((*word).to_owned(), self.dropped[*reason as usize]));
        known.filter(|(_, count)| *count > 0).collect()
    }
}

/// The path of a peer: `direct`, `relayed` with the name of the relay, `channel` or `none`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, EncodeLabelSet)]
pub struct PathLabel {
    pub path: &'static str,
    pub relay: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reason {
    reason: &'static str,
}

/// Metrics `causeway_gateway_tunnel_*`; clones share them.
#[derive(Clone, Debug, Default)]
pub struct TunnelMetrics {
    dropped: Family<Reason, Counter>,
    sent_packets: Counter,
    sent_bytes: Counter,
    received_packets: Counter,
    received_bytes: Counter,
    relayed_packets: Counter,
    relayed_bytes: Counter,
    paths: Family<PathLabel, Gauge>,
    handshakes: Counter,
    flows: Gauge,
    flows_begun: Counter,
    peers: Gauge,
}

impl TunnelMetrics {
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("causeway_gateway_tunnel");
        registry.register(
            "packets_dropped",
            "Packets of the layer 3 tunnel that were dropped, by reason",
            self.dropped.clone(),
        );
        registry.register("sent_packets", "Packets sealed for other gateways", self.sent_packets.clone());
        registry.register(
            "sent_bytes",
            "Bytes of packets sealed for other gateways",
            self.sent_bytes.clone(),
        );
        registry.register(
            "received_packets",
            "Packets opened from other gateways",
            self.received_packets.clone(),
        );
        registry.register(
            "received_bytes",
            "Bytes of packets opened from other gateways",
            self.received_bytes.clone(),
        );
        registry.register(
            "relayed_packets",
            "Sealed packets forwarded between other gateways",
            self.relayed_packets.clone(),
        );
        registry.register(
            "relayed_bytes",
            "Bytes of sealed packets forwarded between other gateways",
            self.relayed_bytes.clone(),
        );
        registry.register("paths", "Gateways by the path of packets to them", self.paths.clone());
        registry.register("handshakes", "Completed WireGuard handshakes", self.handshakes.clone());
        registry.register("flows", "Flows that cross the tunnel", self.flows.clone());
        registry.register("flows_begun", "Flows that were admitted", self.flows_begun.clone());
        registry.register("peers", "Gateways with a session that is open", self.peers.clone());
    }

    /// Adds what was counted since `before`.
    pub fn publish(&self, before: &TunnelCounters, now: &TunnelCounters, flows: usize, peers: usize) {
        for (reason, word) in DROP_REASONS {
            let more = now.dropped[reason as usize] - before.dropped[reason as usize];
            self.dropped.get_or_create(&Reason { reason: word }).inc_by(more);
        }
        self.sent_packets.inc_by(now.sent.packets - before.sent.packets);
        self.sent_bytes.inc_by(now.sent.bytes - before.sent.bytes);
        self.received_packets.inc_by(now.received.packets - before.received.packets);
        self.received_bytes.inc_by(now.received.bytes - before.received.bytes);
        self.relayed_packets.inc_by(now.relayed.packets - before.relayed.packets);
        self.relayed_bytes.inc_by(now.relayed.bytes - before.relayed.bytes);
        self.handshakes.inc_by(now.handshakes - before.handshakes);
        self.flows_begun.inc_by(now.flows_begun - before.flows_begun);
        self.flows.set(flows as i64);
        self.peers.set(peers as i64);
    }

    /// Replaces the numbers of gateways by path.
    pub fn publish_paths(&self, paths: &BTreeMap<PathLabel, i64>) {
        self.paths.clear();
        for (label, count) in paths {
            self.paths.get_or_create(label).set(*count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_its_place_and_word() {
        for (index, (reason, _)) in DROP_REASONS.iter().enumerate() {
            assert_eq!(*reason as usize, index);
        }
        let mut counters = TunnelCounters::default();
        counters.drop(DropReason::Spoofed);
        counters.drop(DropReason::Spoofed);
        assert_eq!(counters.dropped_by_reason(), BTreeMap::from([("spoofed".to_owned(), 2)]));
    }
}
