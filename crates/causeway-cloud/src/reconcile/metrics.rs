//! Metrics of the reconciler.

use causeway_daemon::Metrics;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;

#[derive(Clone, Debug, Default)]
pub struct ReconcileMetrics {
    pub writes: Counter,
    pub failures: Counter,
    pub loads: Counter,
    pub pending: Gauge,
}

impl ReconcileMetrics {
    pub fn register(metrics: &Metrics) -> ReconcileMetrics {
        let counters = ReconcileMetrics::default();
        metrics.register(|registry| {
            let registry = registry.sub_registry_with_prefix("causeway_cloud_reconcile");
            registry.register(
                "writes",
                "Objects whose conditions were written, or had just been by another replica",
                counters.writes.clone(),
            );
            registry.register("failures", "Writes that did not succeed", counters.failures.clone());
            registry.register("loads", "Times that everything was loaded", counters.loads.clone());
            registry.register(
                "pending",
                "Objects to be looked at or being written",
                counters.pending.clone(),
            );
        });
        counters
    }
}
