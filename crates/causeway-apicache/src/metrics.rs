//! Metrics of the copy, per resource. Values are read at each scrape. An edge without a copy has none of them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::Ordering;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use tokio::sync::watch;

use crate::request_counts::CountedRequest;
use crate::server::EdgeApiStatus;

/// Shows the copy in `/metrics`, as soon as there is one.
pub fn register(registry: &mut Registry, status: watch::Receiver<Option<EdgeApiStatus>>) {
    registry.register_collector(Box::new(CopyCollector(status)));
}

struct CopyCollector(watch::Receiver<Option<EdgeApiStatus>>);

impl fmt::Debug for CopyCollector {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("CopyCollector")
    }
}

/// The sums over the subscriptions of one resource.
#[derive(Default)]
struct ResourceStats {
    objects: i64,
    bytes: i64,
    watchers: i64,
    /// Subscriptions that are not followed now.
    stale: i64,
}

impl Collector for CopyCollector {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let Some(status) = self.0.borrow().clone() else { return Ok(()) };
        let mut resources: BTreeMap<String, ResourceStats> = BTreeMap::new();
        let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        for collection in status.collections() {
            let (copy, entry) =
                (collection.stats(), resources.entry(collection.scope.resource.to_string()).or_default());
            entry.objects += number(copy.objects);
            entry.bytes += number(copy.bytes);
            entry.watchers += number(collection.watchers.load(Ordering::Relaxed) as u64);
            entry.stale += i64::from(!collection.is_live());
        }
        type Column = fn(&ResourceStats) -> i64;
        let columns: [(&str, &str, Column); 4] = [
            ("causeway_apicache_objects", "Objects in the copy of the Kubernetes API", |stats| stats.objects),
            ("causeway_apicache_bytes", "Bytes of objects in the copy", |stats| stats.bytes),
            ("causeway_apicache_watchers", "Open watches of local clients", |stats| stats.watchers),
            ("causeway_apicache_stale", "Subscriptions that the cloud does not keep current now", |stats| {
                stats.stale
            }),
        ];
        for (name, help, column) in columns {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for (resource, stats) in &resources {
                metric.encode_family(&[("resource", resource.as_str())])?.encode_gauge(&column(stats))?;
            }
        }
        let mut metric = encoder.encode_descriptor(
            "causeway_apicache_link_bytes",
            "Bytes of the API at the edge on the link, both directions, by cause and resource",
            None,
            MetricType::Counter,
        )?;
        for (cause, resources) in status.traffic().totals() {
            for (resource, bytes) in resources {
                let labels = [("cause", cause.as_str()), ("resource", resource.as_str())];
                metric
                    .encode_family(&labels)?
                    .encode_counter::<prometheus_client::encoding::NoLabelSet, _, u64>(&bytes, None)?;
            }
        }
        let mut metric = encoder.encode_descriptor(
            "causeway_apicache_requests",
            "Requests of local callers, by caller, verb and resource; at most 1,024 series, the rest is counted as other",
            None,
            MetricType::Counter,
        )?;
        for (labels, count) in status.requests() {
            let CountedRequest { caller, verb, resource } = &labels;
            let labels = [("caller", caller.as_str()), ("verb", verb), ("resource", resource.as_str())];
            metric
                .encode_family(&labels)?
                .encode_counter::<prometheus_client::encoding::NoLabelSet, _, u64>(&count, None)?;
        }
        let (waiting, dropped) = status.writes();
        encoder
            .encode_descriptor(
                "causeway_apicache_pending_writes",
                "Writes that wait for the API server",
                None,
                MetricType::Gauge,
            )?
            .encode_gauge(&number(waiting))?;
        encoder
            .encode_descriptor(
                "causeway_apicache_dropped_writes",
                "Writes of the time without the cloud that the API server refused, or that newer ones pushed out of the log",
                None,
                MetricType::Counter,
            )?
            .encode_counter::<prometheus_client::encoding::NoLabelSet, _, u64>(&dropped, None)?;
        Ok(())
    }
}
