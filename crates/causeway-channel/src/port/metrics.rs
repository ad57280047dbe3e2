//! Counters of the port for `/metrics`: completed handshakes and rejected connections.

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// Reason for which the port rejected a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RejectReason {
    /// `accept` on the listener failed, most likely for want of file descriptors.
    Accept,
    /// Too many handshakes per second, in total or from this address.
    RateAll,
    RateAddress,
    /// Too many handshakes at the same time: the oldest was cancelled for a newer one.
    HalfOpenAll,
    HalfOpenAddress,
    /// More handshakes than can be completed in time.
    Busy,
    /// The handshake failed: plain text, a scanner, a foreign CA, a wrong ALPN.
    Handshake,
    HandshakeTimeout,
    /// No ALPN, or one that this transport does not carry.
    Protocol,
    /// The client of a channel or replica link has no certificate.
    NoCertificate,
    /// The certificate is refused: its key was revoked, or it is not a replica's and the replica protocol was
    /// requested.
    Certificate,
    /// This replica holds its maximum number of sessions.
    Sessions,
}

impl RejectReason {
    pub fn as_str(self) -> &'static str {
        match self {
            RejectReason::Accept => "accept",
            RejectReason::RateAll => "rate-all",
            RejectReason::RateAddress => "rate-address",
            RejectReason::HalfOpenAll => "half-open-all",
            RejectReason::HalfOpenAddress => "half-open-address",
            RejectReason::Busy => "busy",
            RejectReason::Handshake => "handshake",
            RejectReason::HandshakeTimeout => "handshake-timeout",
            RejectReason::Protocol => "protocol",
            RejectReason::NoCertificate => "no-certificate",
            RejectReason::Certificate => "certificate",
            RejectReason::Sessions => "sessions",
        }
    }
}

impl EncodeLabelValue for RejectReason {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), std::fmt::Error> {
        EncodeLabelValue::encode(&self.as_str(), encoder)
    }
}

/// Clones share the counters.
#[derive(Debug, Clone, Default)]
pub struct PortMetrics {
    turned_away: Family<Labels, Counter>,
    retries: Counter,
    handshakes: Counter,
    pub(super) half_open: Gauge,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    why: RejectReason,
}

impl PortMetrics {
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("causeway_channel");
        registry.register(
            "connections_rejected",
            "Connections that the channel port rejected, by reason",
            self.turned_away.clone(),
        );
        registry.register(
            "retries",
            "QUIC attempts that were sent a Retry to prove their address",
            self.retries.clone(),
        );
        registry.register("handshakes", "Completed handshakes of the channel port", self.handshakes.clone());
        registry.register("half_open", "Handshakes in progress at the channel port", self.half_open.clone());
    }

    pub fn turned_away(&self, why: RejectReason) -> u64 {
        self.turned_away.get_or_create(&Labels { why }).get()
    }

    /// Returns the number of QUIC attempts that had to prove their address.
    pub fn retries(&self) -> u64 {
        self.retries.get()
    }

    pub fn handshakes(&self) -> u64 {
        self.handshakes.get()
    }

    pub(super) fn count_turned_away(&self, why: RejectReason) {
        self.turned_away.get_or_create(&Labels { why }).inc();
    }

    pub(super) fn count_retry(&self) {
        self.retries.inc();
    }

    pub(super) fn count_handshake(&self) {
        self.handshakes.inc();
    }
}
