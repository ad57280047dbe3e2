//! Metrics of the netmap keeper.

use causeway_daemon::Metrics;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;

#[derive(Clone, Debug, Default)]
pub struct NetmapKeeperMetrics {
    pub taken: Counter,
    pub refused: Counter,
    pub write_failures: Counter,
    pub unpersisted: Gauge,
    pub entries: Gauge,
    pub bytes: Gauge,
}

impl NetmapKeeperMetrics {
    pub fn register(&self, metrics: &Metrics) {
        metrics.register(|registry| {
            let registry = registry.sub_registry_with_prefix("causeway_edge_netmap");
            registry.register("applied", "Netmaps put in force", self.taken.clone());
            registry.register("refused", "Updates refused, for whatever reason", self.refused.clone());
            registry.register("write_failures", "Netmaps the disk refused", self.write_failures.clone());
            registry.register(
                "unpersisted",
                "1 while the netmap in force is not on disk",
                self.unpersisted.clone(),
            );
            registry.register("entries", "Entries of the netmap in force", self.entries.clone());
            registry.register("size_bytes", "Bytes of the netmap in force", self.bytes.clone());
        });
    }
}
