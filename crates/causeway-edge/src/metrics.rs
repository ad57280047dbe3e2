//! Metrics of the link and of the spool, for `/metrics`. Values are read at each scrape; nothing is counted
//! twice.

use std::fmt;

use causeway_channel::link::Transport;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use crate::link::CurrentLink;
use crate::spool::Spool;

/// Shows them in `/metrics`.
pub fn register(registry: &mut Registry, current_link: CurrentLink, spool: Option<Spool>) {
    registry.register_collector(Box::new(LinkCollector { current_link, spool }));
}

#[derive(Debug)]
struct LinkCollector {
    current_link: CurrentLink,
    spool: Option<Spool>,
}

impl Collector for LinkCollector {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let shown = self.current_link.shown();
        let help = "1 for the transport that carries the link to the cloud";
        let mut link = encoder.encode_descriptor("causeway_channel_link", help, None, MetricType::Gauge)?;
        // Both are always there, so that a rule can add them up.
        for transport in [Transport::Quic, Transport::Tcp].map(Transport::as_str) {
            let is_up = i64::from(shown.transport == Some(transport));
            link.encode_family(&[("transport", transport)])?.encode_gauge(&is_up)?;
        }
        let mut put = |name: &str, help: &str, metric: &dyn Shown| metric.put(&mut encoder, name, help);
        if let Some(milliseconds) = shown.rtt_ms {
            let rtt = ConstGauge::new(milliseconds / 1000.0);
            put("causeway_channel_rtt_seconds", "Round trip to the cloud", &rtt)?;
        }
        let count = |value: u64| ConstCounter::new(value);
        let sessions = "Sessions with the cloud since the start";
        put("causeway_channel_sessions_begun", sessions, &count(shown.sessions))?;
        let attempts = "Attempts to connect since the start";
        put("causeway_channel_dials", attempts, &count(shown.attempts))?;
        put("causeway_channel_sent_bytes", "Sent over the link in use", &count(shown.sent_bytes))?;
        put(
            "causeway_channel_received_bytes",
            "Received over the link in use",
            &count(shown.received_bytes),
        )?;
        let Some(spool) = &self.spool else { return Ok(()) };
        let queue = spool.stats();
        let gauge = |value: u64| ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
        put("causeway_spool_waiting", "Records the cloud does not have yet", &gauge(queue.waiting))?;
        put("causeway_spool_bytes", "Bytes of the spool on disk", &gauge(queue.bytes))?;
        put("causeway_spool_dropped", "Records that the bound of the queue dropped", &count(queue.lost))
    }
}

/// One metric without labels.
trait Shown {
    fn put(&self, encoder: &mut DescriptorEncoder, name: &str, help: &str) -> fmt::Result;
}

impl<M: EncodeMetric> Shown for M {
    fn put(&self, encoder: &mut DescriptorEncoder, name: &str, help: &str) -> fmt::Result {
        let encoder = encoder.encode_descriptor(name, help, None, self.metric_type())?;
        self.encode(encoder)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::{LinkOptions, LinkPublisher};
    use crate::spool::SpoolLimits;

    #[test]
    fn a_link_that_is_away_and_a_queue_show_themselves() {
        let (_publisher, current_link) = LinkPublisher::new(&LinkOptions::default());
        let folder = tempfile::tempdir().unwrap();
        let spool = Spool::open(folder.path(), SpoolLimits::default()).unwrap();
        let mut registry = Registry::default();
        register(&mut registry, current_link, Some(spool));
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for line in [
            "causeway_channel_link{transport=\"quic\"} 0",
            "causeway_channel_link{transport=\"tcp\"} 0",
            "causeway_channel_dials_total 0",
            "causeway_spool_waiting 0",
            "causeway_spool_dropped_total 0",
        ] {
            assert!(text.lines().any(|shown| shown == line), "{line} is missing in\n{text}");
        }
        assert!(!text.contains("rtt_seconds"), "nobody knows it");
    }
}
