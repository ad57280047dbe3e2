//! Metrics of a gateway, for `/metrics`: `causeway_gateway_*`.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::connection_record::CrossingDirection;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Crossing {
    direction: &'static str,
    protocol: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Word {
    reason: &'static str,
}

/// Counters; clones share them.
#[derive(Clone, Debug, Default)]
pub struct GatewayMetrics {
    open: Family<Crossing, Gauge>,
    total: Family<Crossing, Counter>,
    refused: Family<Word, Counter>,
    revoked: Counter,
    /// Bytes from clients to backends, and back.
    pub sent_bytes: Counter,
    pub received_bytes: Counter,
    /// Presences without a listener.
    pub unbound: Gauge,
    /// Datagrams dropped because a queue was full, their client was refused, or they were too long.
    pub datagrams_dropped: Counter,
    /// Datagrams sent to other gateways as datagrams of the link, and those sent on a stream instead.
    pub datagrams_beside: Counter,
    pub datagrams_on_streams: Counter,
    /// UDP sessions evicted from the full table.
    pub udp_sessions_evicted: Counter,
    /// Failed accepts, for example without a free file descriptor.
    pub accept_failures: Counter,
    /// Answers to ARP requests and neighbour solicitations of a LAN.
    pub neighbour_answers: Counter,
}

impl GatewayMetrics {
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("causeway_gateway");
        registry.register(
            "connections_open",
            "Connections, sessions and requests that are open",
            self.open.clone(),
        );
        registry.register(
            "connections",
            "Connections, sessions and requests that were admitted",
            self.total.clone(),
        );
        registry.register(
            "refused",
            "Connections, sessions and requests that were refused, by reason",
            self.refused.clone(),
        );
        registry.register(
            "revoked",
            "Connections, sessions and requests cut because a new netmap no longer allows them",
            self.revoked.clone(),
        );
        registry.register("sent_bytes", "Bytes from clients to backends", self.sent_bytes.clone());
        registry.register("received_bytes", "Bytes from backends to clients", self.received_bytes.clone());
        registry.register("presences_unbound", "Presences without a listener", self.unbound.clone());
        registry.register("datagrams_dropped", "Datagrams not handed on", self.datagrams_dropped.clone());
        let beside = "Datagrams sent to gateways as QUIC datagrams";
        registry.register("datagrams_quic", beside, self.datagrams_beside.clone());
        let on_streams = "Datagrams sent to gateways on streams";
        registry.register("datagrams_on_streams", on_streams, self.datagrams_on_streams.clone());
        let evicted = "UDP sessions evicted from the full table";
        registry.register("udp_sessions_evicted", evicted, self.udp_sessions_evicted.clone());
        registry.register(
            "accept_failures",
            "Failed accepts of client connections",
            self.accept_failures.clone(),
        );
        let answers =
            "Answers to ARP requests and neighbour solicitations for presences and networks of other sites";
        registry.register("neighbour_answers", answers, self.neighbour_answers.clone());
    }

    pub(crate) fn opened(&self, direction: CrossingDirection, protocol: &'static str) {
        let crossing = Crossing { direction: direction.as_str(), protocol };
        self.open.get_or_create(&crossing).inc();
        self.total.get_or_create(&crossing).inc();
    }

    pub(crate) fn closed(&self, direction: CrossingDirection, protocol: &'static str) {
        self.open.get_or_create(&Crossing { direction: direction.as_str(), protocol }).dec();
    }

    pub fn refused(&self, reason: &'static str) {
        self.refused.get_or_create(&Word { reason }).inc();
    }

    pub(crate) fn revoked(&self, count: usize) {
        self.revoked.inc_by(count as u64);
    }
}
