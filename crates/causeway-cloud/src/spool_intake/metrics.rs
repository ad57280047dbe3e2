//! The metrics of the spool intake.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;

use super::cursor::{ReceivedBatch, ReceivedRecordKind};

/// Counters; clones share them.
#[derive(Debug, Clone, Default)]
pub struct SpoolIntakeMetrics {
    audit: Counter,
    status: Counter,
    unknown: Counter,
    repeated: Counter,
    lost: Counter,
    troubles: Counter,
}

impl SpoolIntakeMetrics {
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("causeway_spool");
        registry.register("audit_records", "Audit records taken from edges", self.audit.clone());
        registry.register("status_records", "Status records taken from edges", self.status.clone());
        registry.register(
            "unknown_records",
            "Records of a kind this cloud does not know",
            self.unknown.clone(),
        );
        registry.register("repeated_records", "Records that had been taken before", self.repeated.clone());
        registry.register(
            "dropped_records",
            "Records that edges had to drop, as they told",
            self.lost.clone(),
        );
        registry.register(
            "delayed_batches",
            "Batches that had to wait for the disk or the store",
            self.troubles.clone(),
        );
    }

    pub(super) fn count_stored(&self, batch: &ReceivedBatch, skip: usize, newly_lost: u64) {
        for (_, kind, _) in batch.records_after(skip) {
            match kind {
                ReceivedRecordKind::Audit => &self.audit,
                ReceivedRecordKind::Status => &self.status,
                ReceivedRecordKind::Unknown => &self.unknown,
            }
            .inc();
        }
        self.repeated(skip);
        self.lost.inc_by(newly_lost);
    }

    pub(super) fn repeated(&self, records: usize) {
        self.repeated.inc_by(records as u64);
    }

    pub(super) fn trouble(&self) {
        self.troubles.inc();
    }

    #[cfg(test)]
    pub(super) fn repeated_total(&self) -> u64 {
        self.repeated.get()
    }
}
