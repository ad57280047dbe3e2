//! Metrics of netmaps.

use causeway_daemon::Metrics;
use prometheus_client::metrics::counter::Counter;

#[derive(Clone, Debug, Default)]
pub struct NetmapMetrics {
    pub compiles: Counter,
    pub failures: Counter,
    pub refused: Counter,
    whole: Counter,
    deltas: Counter,
    bytes: Counter,
}

impl NetmapMetrics {
    pub fn register(metrics: &Metrics) -> NetmapMetrics {
        let counters = NetmapMetrics::default();
        metrics.register(|registry| {
            let registry = registry.sub_registry_with_prefix("causeway_cloud_netmap");
            registry.register("compiles", "Times a gateway's netmap was compiled", counters.compiles.clone());
            registry.register("failures", "Netmaps that could not be made", counters.failures.clone());
            registry.register("refused", "Updates that a gateway refused", counters.refused.clone());
            registry.register("whole_updates", "Netmaps sent whole", counters.whole.clone());
            registry.register("delta_updates", "Netmaps sent as a change", counters.deltas.clone());
            registry.register("update_bytes", "Bytes of all updates sent", counters.bytes.clone());
        });
        counters
    }

    pub fn sent(&self, is_whole: bool, bytes: usize) {
        if is_whole { &self.whole } else { &self.deltas }.inc();
        self.bytes.inc_by(bytes as u64);
    }
}
