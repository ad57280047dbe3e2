//! Metrics of sessions.

use causeway_channel::link::Transport;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

#[derive(Debug, Clone, Default)]
pub struct SessionMetrics {
    open: Family<TransportLabels, Gauge>,
    begun: Family<TransportLabels, Counter>,
    ended: Family<WhyLabels, Counter>,
    refused: Family<WhyLabels, Counter>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TransportLabels {
    transport: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WhyLabels {
    why: String,
}

impl SessionMetrics {
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("causeway_channel");
        let open = "Sessions of gateways, the lingering too";
        registry.register("sessions", open, self.open.clone());
        registry.register("sessions_begun", "Sessions that were taken", self.begun.clone());
        registry.register("sessions_ended", "Sessions that ended, by reason", self.ended.clone());
        registry.register(
            "sessions_refused",
            "Sessions that were not taken, by reason",
            self.refused.clone(),
        );
    }

    pub fn count_refused(&self, why: &str) {
        self.refused.get_or_create(&WhyLabels { why: why.to_owned() }).inc();
    }

    pub fn count_ended(&self, why: &str) {
        self.ended.get_or_create(&WhyLabels { why: why.to_owned() }).inc();
    }

    /// Counts a session for as long as the guard lives.
    pub fn session(&self, transport: Transport) -> impl Drop + use<> {
        let labels = TransportLabels { transport: transport.as_str() };
        self.begun.get_or_create(&labels).inc();
        let open = self.open.get_or_create(&labels).clone();
        open.inc();
        Open(open)
    }
}

struct Open(Gauge);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.dec();
    }
}
