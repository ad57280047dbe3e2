//! Labels of sites in `/metrics`: `causeway_site_info{site="oslo",label_region="north"} 1`, to be joined with other metrics.
//!
//! Users of the API choose labels and their values, so the operator chooses which keys are shown, and at most `SITES_MAX` sites are.
//! Every replica shows all sites; `max by (site, label_region)` puts them together.

use std::collections::BTreeSet;
use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use crate::netmaps::NetmapPublisher;

/// Keys that are shown. A query joins by one or two of them.
const KEYS_MAX: usize = 16;
/// Sites that are shown, as many as `fleet_metrics` shows gateways.
const SITES_MAX: usize = 10_000;

/// Shows the labels with these keys. Without keys there is nothing to show.
pub fn register(registry: &mut Registry, keys: &[String], publisher: NetmapPublisher) {
    let labels = ShownLabels::new(keys);
    if !labels.keys.is_empty() {
        registry.register_collector(Box::new(SiteMetrics { labels, publisher }));
    }
}

/// The keys that are shown, each with the name of the label in the metric.
#[derive(Debug, Default, PartialEq, Eq)]
struct ShownLabels {
    keys: Vec<String>,
    names: Vec<String>,
}

impl ShownLabels {
    /// Takes the first `KEYS_MAX` keys. Of keys with the same name in metrics, as `a.b` and `a/b`, the first one is taken:
    /// a metric with two equal labels cannot be read.
    fn new(keys: &[String]) -> ShownLabels {
        let (mut labels, mut seen) = (ShownLabels::default(), BTreeSet::new());
        for key in keys {
            let name = label_name(key);
            if labels.keys.len() == KEYS_MAX || !seen.insert(name.clone()) {
                tracing::warn!(
                    key,
                    "metrics-site-labels: the label is not shown; at most 16, each with a name of its own"
                );
                continue;
            }
            labels.keys.push(key.clone());
            labels.names.push(name);
        }
        labels
    }
}

/// Returns the name of a label in metrics, as kube-state-metrics makes it: every other character is an underscore.
fn label_name(key: &str) -> String {
    let usable = |char: char| if char.is_ascii_alphanumeric() { char } else { '_' };
    format!("label_{}", key.chars().map(usable).collect::<String>())
}

struct SiteMetrics {
    labels: ShownLabels,
    publisher: NetmapPublisher,
}

impl fmt::Debug for SiteMetrics {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("SiteMetrics")
    }
}

impl Collector for SiteMetrics {
    fn encode(&self, encoder: DescriptorEncoder) -> fmt::Result {
        let mut sites = self.publisher.site_labels(&self.labels.keys);
        sites.sort();
        let omitted = sites.len().saturating_sub(SITES_MAX);
        sites.truncate(SITES_MAX);
        encode(encoder, &self.labels.names, &sites, omitted)
    }
}

fn encode(
    mut encoder: DescriptorEncoder,
    names: &[String],
    sites: &[(String, Vec<Option<String>>)],
    omitted: usize,
) -> fmt::Result {
    let help = "1 for every site, with the labels of its ESite that metrics-site-labels names";
    let mut metric = encoder.encode_descriptor("causeway_site_info", help, None, MetricType::Gauge)?;
    for (site, values) in sites {
        let labels =
            names.iter().zip(values).filter_map(|(name, value)| Some((name.as_str(), value.as_deref()?)));
        let labels: Vec<(&str, &str)> = std::iter::once(("site", site.as_str())).chain(labels).collect();
        metric.encode_family(&labels)?.encode_gauge(&1i64)?;
    }
    let metric = ConstGauge::new(i64::try_from(omitted).unwrap_or(i64::MAX));
    let help = "Sites whose labels are not shown, because there are too many sites";
    metric.encode(encoder.encode_descriptor("causeway_sites_omitted", help, None, metric.metric_type())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_get_names_of_their_own() {
        let labels =
            |keys: &[&str]| ShownLabels::new(&keys.iter().map(|key| (*key).to_owned()).collect::<Vec<_>>());
        let two = labels(&["region", "example.org/tier", "example.org.tier", "region"]);
        assert_eq!(two.keys, ["region", "example.org/tier"]);
        assert_eq!(two.names, ["label_region", "label_example_org_tier"]);
        let many: Vec<String> = (0..20).map(|number| format!("k{number}")).collect();
        assert_eq!(ShownLabels::new(&many).keys.len(), KEYS_MAX);
    }

    #[derive(Debug)]
    struct Sites;

    impl Collector for Sites {
        fn encode(&self, encoder: DescriptorEncoder) -> fmt::Result {
            let site = |name: &str, value: Option<&str>| (name.to_owned(), vec![value.map(str::to_owned)]);
            let sites = [site("oslo", Some("north")), site("rome", None), site("x\"y", Some("a\\b"))];
            encode(encoder, &["label_region".to_owned()], &sites, 2)
        }
    }

    #[test]
    fn every_site_has_its_labels() {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Sites));
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for line in [
            "causeway_site_info{site=\"oslo\",label_region=\"north\"} 1",
            "causeway_site_info{site=\"rome\"} 1",
            "causeway_site_info{site=\"x\\\"y\",label_region=\"a\\\\b\"} 1",
            "causeway_sites_omitted 2",
        ] {
            assert!(text.lines().any(|shown| shown == line), "{line} is missing in\n{text}");
        }
    }
}
