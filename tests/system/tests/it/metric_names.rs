//! Compares the metrics at `/metrics` of a cloud and an edge with the committed list, so that none is renamed by accident.
//!
//! Dashboards and alerts name metrics, so a change of the list is a change for users. A family without a value is not shown, so a
//! listed name that is absent must at least be registered somewhere in the source. The reference `docs/metrics.md` is made from what both
//! roles show, and from `NOT_SHOWN`. `UPDATE=1 cargo nextest run -p system -E 'test(metric_names)'` writes list and page.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::net::SocketAddr;
use std::path::Path;

use serde_json::Value;
use testlab::causeway::{get, wait_for};

use crate::{Lab, data};

#[test]
fn metric_names_are_as_listed() {
    let lab = Lab::start();
    let token = lab.run(&["token", "create", "--site", "Oslo"]);
    let edge = lab.join("edge", token.trim());
    lab.cloud.wait_condition("egateway", "Oslo", "Connected", "True").unwrap();
    let admin: SocketAddr = wait_for("the edge says where its admin port is", || {
        let text = std::fs::read(lab.path("edge").join("run/edge.json")).ok()?;
        serde_json::from_slice::<Value>(&text).ok()?["admin"].as_str()?.parse().ok()
    })
    .unwrap_or_else(|error| panic!("{error}\n{}", edge.log()));
    let mut shown = names("cloud", lab.cloud.admin);
    shown.extend(names("edge", admin));

    let path = data("metrics.txt");
    let listed = std::fs::read_to_string(&path).unwrap_or_default();
    let listed: BTreeSet<String> = listed.lines().map(str::to_owned).collect();
    let source = source();
    let (kept, gone): (BTreeSet<&String>, BTreeSet<&String>) =
        listed.iter().partition(|line| shown.contains(*line) || is_registered(line, &source));
    let new: BTreeSet<&String> = shown.difference(&listed).collect();
    if std::env::var_os("UPDATE").is_some() {
        let all: BTreeSet<&String> = kept.into_iter().chain(new).collect();
        let text: String = all.into_iter().map(|line| format!("{line}\n")).collect();
        std::fs::write(&path, text).unwrap();
    } else {
        assert!(gone.is_empty(), "gone: {gone:?}; a dashboard may need it; UPDATE=1 writes the list");
        assert!(new.is_empty(), "not listed: {new:?}; UPDATE=1 writes the list");
    }
    let mut metrics = BTreeMap::new();
    for (role, admin) in [("cloud", lab.cloud.admin), ("edge", admin)] {
        describe(&mut metrics, role, &get(admin, "/metrics").unwrap().1);
    }
    check_page(metrics, &source);
}

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/metrics.md");

const HEAD: &str = "\
# Metrics

<!-- Written by `UPDATE=1 cargo nextest run -p system -E 'test(metric_names)'` from what a cloud and an edge show. Do not edit. -->

`GET /metrics` on the admin port (127.0.0.1:7445 unless `admin` says otherwise) of a cloud and of an edge. A metric with labels is shown once it has a value. `docs/operations.md` has the scrape jobs, alert
rules and the dashboard. Names, types and labels are held by a test.

| metric | type | labels | role | meaning |
| --- | --- | --- | --- | --- |
";

/// Metrics that a cloud and an edge without traffic and without a Kubernetes cluster do not show: name, type, labels, role, help. The
/// help must be a string of the source.
const NOT_SHOWN: &[(&str, &str, &str, &str, &str)] = &[
    ("causeway_apicache_objects", "gauge", "resource", "edge", "Objects in the copy of the Kubernetes API"),
    ("causeway_apicache_bytes", "gauge", "resource", "edge", "Bytes of objects in the copy"),
    ("causeway_apicache_watchers", "gauge", "resource", "edge", "Open watches of local clients"),
    (
        "causeway_apicache_link_bytes_total",
        "counter",
        "cause resource",
        "edge",
        "Bytes of the API at the edge on the link, both directions, by cause and resource",
    ),
    (
        "causeway_apicache_requests_total",
        "counter",
        "caller resource verb",
        "edge",
        "Requests of local callers, by caller, verb and resource; at most 1,024 series, the rest is counted as other",
    ),
    (
        "causeway_apicache_stale",
        "gauge",
        "resource",
        "edge",
        "Subscriptions that the cloud does not keep current now",
    ),
    ("causeway_apicache_pending_writes", "gauge", "", "edge", "Writes that wait for the API server"),
    (
        "causeway_apicache_dropped_writes_total",
        "counter",
        "",
        "edge",
        "Writes of the time without the cloud that the API server refused, or that newer ones pushed out of the log",
    ),
    ("causeway_api_rejected_total", "counter", "reason", "cloud", "Refused without being looked at"),
    (
        "causeway_audit_export_failures_total",
        "counter",
        "destination",
        "cloud",
        "Deliveries that failed and are repeated",
    ),
    (
        "causeway_audit_export_lag_seconds",
        "gauge",
        "destination",
        "cloud",
        "Age of the oldest audit record that waits for a collector",
    ),
    (
        "causeway_audit_export_lost_total",
        "counter",
        "destination",
        "cloud",
        "Audit records that a collector never got",
    ),
    (
        "causeway_audit_export_records_total",
        "counter",
        "destination",
        "cloud",
        "Audit records delivered to a collector",
    ),
    (
        "causeway_audit_export_unwritten_total",
        "counter",
        "",
        "cloud",
        "Audit records that the disk of the export refused",
    ),
    (
        "causeway_audit_export_waiting",
        "gauge",
        "destination",
        "cloud",
        "Audit records that wait for a collector",
    ),
    (
        "causeway_channel_connections_rejected_total",
        "counter",
        "why",
        "cloud",
        "Connections that the channel port rejected, by reason",
    ),
    ("causeway_channel_sessions_ended_total", "counter", "why", "cloud", "Sessions that ended, by reason"),
    (
        "causeway_channel_sessions_refused_total",
        "counter",
        "why",
        "cloud",
        "Sessions that were not taken, by reason",
    ),
    (
        "causeway_dns_forward_failed_total",
        "counter",
        "reason",
        "cloud edge",
        "DNS queries that no upstream answered, by reason",
    ),
    (
        "causeway_dns_queries_total",
        "counter",
        "outcome transport",
        "cloud edge",
        "DNS queries, by transport and outcome",
    ),
    (
        "causeway_gateway_connections_open",
        "gauge",
        "direction protocol",
        "cloud edge",
        "Connections, sessions and requests that are open",
    ),
    (
        "causeway_gateway_connections_total",
        "counter",
        "direction protocol",
        "cloud edge",
        "Connections, sessions and requests that were admitted",
    ),
    (
        "causeway_gateway_refused_total",
        "counter",
        "reason",
        "cloud edge",
        "Connections, sessions and requests that were refused, by reason",
    ),
    (
        "causeway_gateway_tunnel_packets_dropped_total",
        "counter",
        "reason",
        "cloud edge",
        "Packets of the layer 3 tunnel that were dropped, by reason",
    ),
    (
        "causeway_gateway_tunnel_paths",
        "gauge",
        "path relay",
        "cloud edge",
        "Gateways by the path of packets to them",
    ),
    (
        "causeway_identity_credentials_refused_total",
        "counter",
        "why",
        "cloud",
        "API credentials that were not accepted, by reason",
    ),
    (
        "causeway_identity_requests_rejected_total",
        "counter",
        "why",
        "cloud",
        "Connections and requests that were rejected unread, by reason",
    ),
    (
        "causeway_site_info",
        "gauge",
        "site",
        "cloud",
        "1 for every site, with the labels of its ESite that metrics-site-labels names",
    ),
    (
        "causeway_sites_omitted",
        "gauge",
        "",
        "cloud",
        "Sites whose labels are not shown, because there are too many sites",
    ),
];

/// A row of the reference.
#[derive(Default, Debug)]
struct Described {
    kind: String,
    help: String,
    labels: BTreeSet<String>,
    roles: BTreeSet<String>,
}

/// Adds the metrics of a text in Prometheus' format.
fn describe(metrics: &mut BTreeMap<String, Described>, role: &str, text: &str) {
    for line in text.lines() {
        if let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')) {
            metrics.entry(name.to_owned()).or_default().help = help.trim_end_matches('.').to_owned();
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' '))
        {
            let metric = metrics.entry(name.to_owned()).or_default();
            metric.kind = kind.to_owned();
            metric.roles.insert(role.to_owned());
        } else if let Some((name, rest)) = line.split_once('{') {
            let name =
                ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
            let labels =
                rest.split('"').step_by(2).filter_map(|part| part.trim_start_matches(',').strip_suffix('='));
            let labels = labels.filter(|label| *label != "le").map(str::to_owned);
            metrics.entry(name.to_owned()).or_default().labels.extend(labels);
        }
    }
}

fn check_page(mut metrics: BTreeMap<String, Described>, source: &str) {
    for (name, kind, labels, role, help) in NOT_SHOWN {
        assert!(source.contains(&format!("\"{help}\"")), "{name}: {help:?} is no string of the source");
        let metric = metrics.entry((*name).to_owned()).or_default();
        assert!(
            metric.help.is_empty() || (metric.help == *help && metric.kind == *kind),
            "{name}: {metric:?}"
        );
        (metric.kind, metric.help) = ((*kind).to_owned(), (*help).to_owned());
        let words = labels.split(' ').filter(|label| !label.is_empty());
        metric.labels.extend(words.map(str::to_owned));
        metric.roles.extend(role.split(' ').map(str::to_owned));
    }
    let listed = std::fs::read_to_string(data("metrics.txt")).unwrap();
    // A value may be absent in this run, such as a round trip that is not measured yet: its row stays as it is committed.
    let committed = std::fs::read_to_string(PAGE).unwrap_or_default();
    for line in committed.lines() {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [name, kind, labels, _, help] = cells[..] else { continue };
        let name = name.trim_matches('`');
        let is_listed = listed.lines().any(|line| line.split(' ').nth(1) == Some(name));
        if !is_listed || metrics.get(name).is_some_and(|metric| !metric.labels.is_empty()) {
            continue;
        }
        let metric = metrics.entry(name.to_owned()).or_default();
        if metric.help.is_empty() {
            (metric.kind, metric.help) = (kind.to_owned(), help.to_owned());
        }
        metric.labels = labels.split(", ").filter(|label| !label.is_empty()).map(str::to_owned).collect();
    }
    let mut absent = Vec::new();
    for line in listed.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        match metrics.get_mut(words[1]) {
            Some(metric) => metric.roles.extend([words[0].to_owned()]),
            None => absent.push(words[1]),
        }
    }
    assert!(absent.is_empty(), "listed and neither shown nor in NOT_SHOWN: {absent:?}");
    let mut page = HEAD.to_owned();
    for (name, metric) in &metrics {
        let join = |words: &BTreeSet<String>| words.iter().cloned().collect::<Vec<_>>().join(", ");
        let Described { kind, help, labels, roles } = metric;
        writeln!(page, "| `{name}` | {kind} | {} | {} | {help} |", join(labels), join(roles)).unwrap();
    }
    if std::env::var_os("UPDATE").is_some() {
        return std::fs::write(PAGE, &page).unwrap();
    }
    assert!(committed == page, "docs/metrics.md does not match /metrics: UPDATE=1 writes it\n{page}");
}

/// A line `ROLE NAME TYPE` for each metric that is shown.
fn names(role: &str, admin: SocketAddr) -> BTreeSet<String> {
    let (code, text) = get(admin, "/metrics").unwrap();
    assert_eq!(code, 200);
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    types.map(|name_and_type| format!("{role} {name_and_type}")).collect()
}

/// Returns true if the name, or the part of it behind its component, is a string of the source.
fn is_registered(line: &str, source: &str) -> bool {
    let Some(name) = line.split(' ').nth(1) else { return false };
    let name = name.strip_suffix("_total").unwrap_or(name);
    let ends = name.match_indices('_').map(|(place, _)| &name[place + 1..]);
    std::iter::once(name).chain(ends).any(|part| source.contains(&format!("\"{part}\"")))
}

/// The text of all Rust files of `crates/`.
fn source() -> String {
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates")];
    let mut text = String::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => folders.push(path),
                false if path.extension().is_some_and(|kind| kind == "rs") => {
                    text.push_str(&std::fs::read_to_string(&path).unwrap());
                }
                false => {}
            }
        }
    }
    text
}
