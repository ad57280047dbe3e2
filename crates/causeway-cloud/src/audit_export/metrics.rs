//! Metrics `causeway_audit_export_*`, by destination: records that were delivered, lost and wait, failures, and the lag.

use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use super::spool::ExportSpool;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DestinationLabel {
    destination: &'static str,
}

/// Clones share the counters.
#[derive(Debug, Clone)]
pub struct ExportMetrics {
    records: Family<DestinationLabel, Counter>,
    failures: Family<DestinationLabel, Counter>,
    lost: Family<DestinationLabel, Counter>,
    spool: Arc<ExportSpool>,
}

impl ExportMetrics {
    pub fn new(spool: Arc<ExportSpool>) -> ExportMetrics {
        let (records, failures, lost) = (Family::default(), Family::default(), Family::default());
        ExportMetrics { records, failures, lost, spool }
    }

    pub fn register(&self, registry: &mut Registry) {
        // Each destination is shown from the start, so that a rate over its first failure is right.
        for (destination, ..) in self.spool.waiting() {
            let label = DestinationLabel { destination };
            for family in [&self.records, &self.failures, &self.lost] {
                drop(family.get_or_create(&label));
            }
        }
        let under = registry.sub_registry_with_prefix("causeway_audit_export");
        under.register("records", "Audit records delivered to a collector", self.records.clone());
        under.register("failures", "Deliveries that failed and are repeated", self.failures.clone());
        under.register("lost", "Audit records that a collector never got", self.lost.clone());
        registry.register_collector(Box::new(WaitingRecords(self.spool.clone())));
    }

    pub fn sent(&self, destination: &'static str, count: u64) {
        self.records.get_or_create(&DestinationLabel { destination }).inc_by(count);
    }

    pub fn failed(&self, destination: &'static str) {
        self.failures.get_or_create(&DestinationLabel { destination }).inc();
    }

    pub fn lost(&self, destination: &'static str, count: u64) {
        self.lost.get_or_create(&DestinationLabel { destination }).inc_by(count);
    }
}

/// Values that are read at each scrape.
#[derive(Debug)]
struct WaitingRecords(Arc<ExportSpool>);

impl Collector for WaitingRecords {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), std::fmt::Error> {
        let rows = self.0.waiting();
        let help = "Audit records that wait for a collector";
        let mut family =
            encoder.encode_descriptor("causeway_audit_export_waiting", help, None, MetricType::Gauge)?;
        for (destination, waiting, _) in &rows {
            let value = ConstGauge::new(*waiting as i64);
            value.encode(family.encode_family(&[("destination", *destination)])?)?;
        }
        let help = "Age of the oldest audit record that waits for a collector";
        let name = "causeway_audit_export_lag_seconds";
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (destination, _, age) in &rows {
            let value = ConstGauge::new(age.as_secs_f64());
            value.encode(family.encode_family(&[("destination", *destination)])?)?;
        }
        let help = "Audit records that the disk of the export refused";
        let value = ConstCounter::new(self.0.unwritten());
        value.encode(encoder.encode_descriptor(
            "causeway_audit_export_unwritten",
            help,
            None,
            MetricType::Counter,
        )?)
    }
}
