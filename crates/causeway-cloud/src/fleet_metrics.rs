//! One set of metrics per gateway that has a session at this replica: for `/metrics`, read at every scrape.
//!
//! With several replicas each shows its own sessions; `max by (gateway)` puts them together. The number of
//! label sets is the number of gateways, bounded: those beyond the bound are counted and not shown.

use std::fmt;

use causeway_api::GatewayStats;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use crate::netmaps::NetmapPublisher;
use crate::sessions::Sessions;

/// Gateways that are shown. Six lines each: a scrape of some megabytes at most.
const GATEWAYS_MAX: usize = 10_000;

/// Shows the gateways of this replica in `/metrics`.
pub fn register(registry: &mut Registry, sessions: Sessions, publisher: NetmapPublisher) {
    registry.register_collector(Box::new(FleetMetrics { sessions, publisher }));
}

struct FleetMetrics {
    sessions: Sessions,
    publisher: NetmapPublisher,
}

impl fmt::Debug for FleetMetrics {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("FleetMetrics")
    }
}

/// One gateway, as its metrics show it.
struct Row {
    gateway: String,
    site: String,
    stats: GatewayStats,
    lag_seconds: Option<f64>,
}

impl Collector for FleetMetrics {
    fn encode(&self, encoder: DescriptorEncoder) -> fmt::Result {
        let attached = self.sessions.attached().into_iter().map(|session| {
            let (gateway, site) = (session.peer.gateway().to_owned(), session.peer.site().to_owned());
            Row { gateway, site, stats: session.stats(), lag_seconds: None }
        });
        let mut rows: Vec<Row> = attached.collect();
        rows.sort_by(|one, other| one.gateway.cmp(&other.gateway));
        let omitted = rows.len().saturating_sub(GATEWAYS_MAX);
        rows.truncate(GATEWAYS_MAX);
        for row in &mut rows {
            row.lag_seconds = self.publisher.lag(&row.gateway).map(|lag| lag.as_secs_f64());
        }
        encode(encoder, &rows, omitted)
    }
}

fn encode(mut encoder: DescriptorEncoder, rows: &[Row], omitted: usize) -> fmt::Result {
    let mut family = |name: &str, help: &str, kind: MetricType, value: &dyn Fn(&Row) -> Option<f64>| {
        let mut metric = encoder.encode_descriptor(name, help, None, kind)?;
        for row in rows {
            let Some(value) = value(row) else { continue };
            let labels = [("gateway", row.gateway.as_str()), ("site", row.site.as_str())];
            let mut metric = metric.encode_family(&labels)?;
            match kind {
                MetricType::Counter => metric
                    .encode_counter::<prometheus_client::encoding::NoLabelSet, _, u64>(
                        &(value as u64),
                        None,
                    )?,
                _ => metric.encode_gauge(&value)?,
            }
        }
        Ok::<(), fmt::Error>(())
    };
    let gauge = MetricType::Gauge;
    let of = |stats: &GatewayStats, read: fn(&GatewayStats) -> u64| Some(read(stats) as f64);
    let connected = "1 while the gateway has a session at this replica";
    family("causeway_fleet_gateway_connected", connected, gauge, &|_| Some(1.0))?;
    let rtt = "Round trip between this replica and the gateway";
    family("causeway_fleet_gateway_rtt_seconds", rtt, gauge, &|row| {
        row.stats.rtt_ms.map(|rtt| rtt / 1000.0)
    })?;
    let sent = "Bytes sent to the gateway over its present link";
    family("causeway_fleet_gateway_sent_bytes", sent, MetricType::Counter, &|row| {
        of(&row.stats, |stats| stats.sent_bytes)
    })?;
    let received = "Bytes received from the gateway over its present link";
    family("causeway_fleet_gateway_received_bytes", received, MetricType::Counter, &|row| {
        of(&row.stats, |stats| stats.received_bytes)
    })?;
    let expiry = "When the certificate of the gateway's session expires, in seconds since 1970";
    family("causeway_fleet_gateway_certificate_expiry_timestamp_seconds", expiry, gauge, &|row| {
        row.stats.certificate_expires.map(|expires| expires.as_second() as f64)
    })?;
    let lag = "Age of the newest netmap that is not in force at the gateway yet; 0 when it is";
    family("causeway_fleet_gateway_netmap_lag_seconds", lag, gauge, &|row| row.lag_seconds)?;
    let metric = ConstGauge::new(i64::try_from(omitted).unwrap_or(i64::MAX));
    let help = "Gateways that are connected and not shown one by one, because they are too many";
    metric.encode(encoder.encode_descriptor(
        "causeway_fleet_gateways_omitted",
        help,
        None,
        metric.metric_type(),
    )?)
}

#[cfg(test)]
mod tests {
    use causeway_api::Time;

    use super::*;

    #[derive(Debug)]
    struct Rows(usize);

    impl Collector for Rows {
        fn encode(&self, encoder: DescriptorEncoder) -> fmt::Result {
            let stats = GatewayStats {
                rtt_ms: Some(12.5),
                sent_bytes: 7,
                certificate_expires: Some(Time::from_second(1_800_000_000)),
                ..GatewayStats::default()
            };
            let row = |name: &str, lag_seconds| Row {
                gateway: name.into(),
                site: "Oslo".into(),
                stats: stats.clone(),
                lag_seconds,
            };
            encode(encoder, &[row("a", Some(0.0)), row("b", None)], self.0)
        }
    }

    #[test]
    fn every_gateway_has_its_stats() {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Rows(3)));
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for line in [
            "causeway_fleet_gateway_connected{gateway=\"a\",site=\"Oslo\"} 1.0",
            "causeway_fleet_gateway_rtt_seconds{gateway=\"b\",site=\"Oslo\"} 0.0125",
            "causeway_fleet_gateway_sent_bytes_total{gateway=\"a\",site=\"Oslo\"} 7",
            "causeway_fleet_gateway_received_bytes_total{gateway=\"a\",site=\"Oslo\"} 0",
            "causeway_fleet_gateway_certificate_expiry_timestamp_seconds{gateway=\"a\",site=\"Oslo\"} 1800000000.0",
            "causeway_fleet_gateway_netmap_lag_seconds{gateway=\"a\",site=\"Oslo\"} 0.0",
            "causeway_fleet_gateways_omitted 3",
        ] {
            assert!(text.lines().any(|shown| shown == line), "{line} is missing in\n{text}");
        }
        assert!(!text.contains("lag_seconds{gateway=\"b\""), "nobody knows it");
    }
}
