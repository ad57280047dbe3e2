//! Counts requests of local callers, by caller, verb and resource, within a bounded number of series.

use std::collections::BTreeMap;
use std::sync::Mutex;

use causeway_daemon::sync::MutexExt;

/// Requests of local callers, by caller, verb and resource.
#[derive(Default)]
pub struct RequestCounts(Mutex<BTreeMap<CountedRequest, u64>>);

/// The labels of a request in metrics.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct CountedRequest {
    pub caller: String,
    pub verb: &'static str,
    pub resource: String,
}

// Series in metrics. A site has a few components with a few dozen resources each.
const SERIES_MAX: usize = 1_024;

impl RequestCounts {
    /// Requests beyond the bound are counted together, by verb.
    pub fn count(&self, labels: CountedRequest) {
        let mut counts = self.0.lock_ignoring_poison();
        let is_full = counts.len() >= SERIES_MAX && !counts.contains_key(&labels);
        let other = || CountedRequest { caller: OTHER.into(), verb: labels.verb, resource: OTHER.into() };
        let labels = if is_full { other() } else { labels };
        *counts.entry(labels).or_default() += 1;
    }

    pub fn all(&self) -> Vec<(CountedRequest, u64)> {
        self.0.lock_ignoring_poison().iter().map(|(labels, count)| (labels.clone(), *count)).collect()
    }
}

/// The verb of a request as Kubernetes names it.
pub fn verb(method: &http::Method, is_watch: bool, has_name: bool) -> &'static str {
    match (method.as_str(), is_watch, has_name) {
        ("GET" | "HEAD", true, _) => "watch",
        ("GET" | "HEAD", false, true) => "get",
        ("GET" | "HEAD", false, false) => "list",
        ("POST", ..) => "create",
        ("PUT", ..) => "update",
        ("PATCH", ..) => "patch",
        ("DELETE", ..) => "delete",
        _ => OTHER,
    }
}

const OTHER: &str = "other";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_bounded() {
        let counts = RequestCounts::default();
        for number in 0..2 * SERIES_MAX {
            counts.count(CountedRequest {
                caller: number.to_string(),
                verb: "get",
                resource: "v1/pods".into(),
            });
        }
        let all = counts.all();
        assert_eq!(all.len(), SERIES_MAX + 1);
        assert_eq!(all.iter().map(|(_, count)| count).sum::<u64>(), 2 * SERIES_MAX as u64);
    }

    #[test]
    fn verbs_are_those_of_kubernetes() {
        assert_eq!(verb(&http::Method::GET, true, false), "watch");
        assert_eq!(verb(&http::Method::GET, false, true), "get");
        assert_eq!(verb(&http::Method::PUT, false, true), "update");
    }
}
