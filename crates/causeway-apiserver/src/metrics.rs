//! Metrics of the API server: requests, watchers, refusals.

use std::time::Duration;

use causeway_daemon::Metrics;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};

use crate::watch::WatchObserver;

/// Labels of a request. Each has few values: verbs, the eight resources and a few words, and codes.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct RequestLabels {
    pub verb: &'static str,
    pub resource: &'static str,
    pub code: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct VerbLabel {
    verb: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

#[derive(Debug, Clone)]
pub struct ApiMetrics {
    requests: Family<RequestLabels, Counter>,
    seconds: Family<VerbLabel, Histogram>,
    rejected: Family<ReasonLabel, Counter>,
    pub watchers: Gauge,
    watch_events_sent: Counter,
    watchers_cut_off: Counter,
    pub connections: Gauge,
}

impl ApiMetrics {
    pub fn register(metrics: &Metrics) -> ApiMetrics {
        let api = ApiMetrics {
            requests: Family::default(),
            // Buckets from half a millisecond to eight seconds.
            seconds: Family::new_with_constructor(|| Histogram::new(exponential_buckets(0.0005, 2.0, 15))),
            rejected: Family::default(),
            watchers: Gauge::default(),
            watch_events_sent: Counter::default(),
            watchers_cut_off: Counter::default(),
            connections: Gauge::default(),
        };
        metrics.register(|registry| {
            let registry = registry.sub_registry_with_prefix("causeway_api");
            registry.register("requests", "Requests answered, watches when they end", api.requests.clone());
            registry.register("request_seconds", "Time to answer, without watches", api.seconds.clone());
            registry.register("rejected", "Refused without being looked at", api.rejected.clone());
            registry.register("watchers", "Watches that run", api.watchers.clone());
            registry.register("watch_events_sent", "Events sent to watchers", api.watch_events_sent.clone());
            registry.register(
                "watchers_cut_off",
                "Watchers that were too slow",
                api.watchers_cut_off.clone(),
            );
            registry.register("connections", "Open connections", api.connections.clone());
        });
        api
    }

    pub fn answered(&self, labels: &RequestLabels, took: Option<Duration>) {
        self.requests.get_or_create(labels).inc();
        if let Some(took) = took {
            self.seconds.get_or_create(&VerbLabel { verb: labels.verb }).observe(took.as_secs_f64());
        }
    }

    pub fn rejected(&self, reason: &'static str) {
        self.rejected.get_or_create(&ReasonLabel { reason }).inc();
    }
}

impl WatchObserver for ApiMetrics {
    fn events_sent(&self, count: usize) {
        self.watch_events_sent.inc_by(count as u64);
    }

    fn cut_off(&self) {
        self.watchers_cut_off.inc();
    }
}
