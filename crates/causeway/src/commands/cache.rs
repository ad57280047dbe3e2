//! `causeway cache`: the edge's copy of the Kubernetes API, per resource.
//!
//! Runs on the host of the edge and reads its admin port; no credential is needed.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::SystemTime;

use causeway_api::table;
use serde_json::Value;

use super::doctor::edge::dump;
use crate::config::mistake::parse_flag;
use crate::output::{self, TextTable};

const EXAMPLES: &str = "\
Examples:
  causeway cache                                 the edge on this host
  causeway cache --data-dir /srv/edge --json
  causeway cache --admin 127.0.0.1:7445

LAG is the time since the last word of the cloud, while a resource is not followed.";

const DATA_DIR_DEFAULT: &str = "/var/lib/causeway";
const ADMIN_DEFAULT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 7445);

/// Show the edge's copy of the Kubernetes API: per resource objects, bytes, revision, lag, watchers
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Data directory of the edge [default: /var/lib/causeway]
    #[arg(long, value_name = "DIR", value_hint = clap::ValueHint::DirPath, env = "CAUSEWAY_DATA_DIR")]
    data_dir: Option<PathBuf>,
    /// Admin address of the edge [default: from the data dir, or 127.0.0.1:7445]
    #[arg(long, value_name = "ADDR", value_parser = parse_flag::<SocketAddr>)]
    admin: Option<SocketAddr>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub async fn run(arguments: Args) -> anyhow::Result<ExitCode> {
    let data_dir = arguments.data_dir.unwrap_or_else(|| DATA_DIR_DEFAULT.into());
    let admin = arguments.admin.or_else(|| admin_of(&data_dir)).unwrap_or(ADMIN_DEFAULT);
    let dump = dump(admin).await.map_err(|why| {
        anyhow::anyhow!("no edge answers at {admin}: {why}. Name its data dir with --data-dir, or its admin address with --admin")
    })?;
    let cache = &dump["kubernetes"];
    if arguments.json {
        output::print_line(&output::json(cache))?;
        return Ok(ExitCode::SUCCESS);
    }
    if cache.is_null() {
        output::note(
            "the edge serves no Kubernetes API: its cloud has no cluster (causeway cloud --kubernetes KUBECONFIG)",
        );
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(failure) = cache["failure"].as_str() {
        output::note(&output::plain(failure));
        return Ok(ExitCode::FAILURE);
    }
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |now| now.as_secs());
    output::print(&render(cache, now))?;
    Ok(ExitCode::SUCCESS)
}

fn admin_of(data_dir: &Path) -> Option<SocketAddr> {
    let text = std::fs::read(data_dir.join("run/edge.json")).ok()?;
    let value: Value = serde_json::from_slice(&text).ok()?;
    value["admin"].as_str()?.parse().ok()
}

fn render(cache: &Value, now: u64) -> String {
    let head = [
        "RESOURCE",
        "NAMESPACE",
        "SELECTOR",
        "OBJECTS",
        "BYTES",
        "REVISION",
        "LAG",
        "WATCHERS",
        "LAST SYNC",
        "PINNED BY",
    ];
    let (mut shown, mut refused) = (TextTable::new(&head), Vec::new());
    for entry in cache["resources"].as_array().into_iter().flatten() {
        let (scope, name) = (&entry["scope"], &entry["scope"]["resource"]);
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let parts = [text(&name["group"]), text(&name["version"]), text(&name["plural"])];
        let resource = parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("/");
        let selectors = [text(&scope["labelSelector"]), text(&scope["fieldSelector"])];
        let selector = selectors.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ");
        let synced = entry["lastSync"].as_u64().filter(|synced| *synced > 0);
        let since = synced.map(|synced| table::age(now.saturating_sub(synced)));
        let lag = match entry["live"].as_bool().unwrap_or(false) {
            true => "0s".to_owned(),
            false => since.clone().unwrap_or_else(|| "never synced".to_owned()),
        };
        shown.row([
            resource.clone(),
            text(&scope["namespace"]),
            selector,
            entry["objects"].to_string(),
            table::bytes(entry["bytes"].as_u64().unwrap_or(0)),
            text(&entry["revision"]),
            lag,
            entry["watchers"].to_string(),
            since.map_or_else(|| "never".to_owned(), |since| format!("{since} ago")),
            text(&entry["pinnedBy"]),
        ]);
        if let Some(why) = entry["refused"].as_str() {
            refused.push(format!("not kept current: {resource}: {why}\n"));
        }
    }
    let mut text = shown.render(false);
    text.extend(refused);
    text.push_str(&traffic(&cache["traffic"]));
    if let Some(waiting) = cache["writes"]["pending"].as_u64().filter(|waiting| *waiting > 0) {
        text.push_str(&format!("writes that wait for the API server: {waiting}\n"));
    }
    for refusal in cache["writes"]["refusals"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        text.push_str(&format!("dropped: {refusal}\n"));
    }
    for (pod, reasons) in cache["readyForOffline"]["pods"].as_object().into_iter().flatten() {
        let reasons: Vec<&str> = reasons.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        text.push_str(&format!("not ready for offline: {pod}: {}\n", reasons.join(", ")));
    }
    // Reasons repeat names that callers of the edge's API chose.
    output::plain_lines(&text)
}

/// The bytes of the day on the link, the largest causes first.
fn traffic(traffic: &Value) -> String {
    let Some(total) = traffic["bytes"].as_u64().filter(|total| *total > 0) else { return String::new() };
    let causes = traffic["byCause"].as_object().into_iter().flatten();
    let mut parts: Vec<(u64, String)> = causes
        .flat_map(|(cause, resources)| {
            let resources = resources.as_object().into_iter().flatten();
            resources.map(move |(resource, bytes)| {
                (bytes.as_u64().unwrap_or(0), format!("{cause} {resource}").trim().to_owned())
            })
        })
        .collect();
    parts.sort_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
    let shown: Vec<String> = parts
        .iter()
        .take(CAUSES_MAX)
        .map(|(bytes, name)| format!("{name} {}", table::bytes(*bytes)))
        .collect();
    let budget = traffic["budgetBytes"].as_u64().map(|budget| format!(" of {}", table::bytes(budget)));
    let mut text = format!(
        "bytes on the link today: {}{}: {}\n",
        table::bytes(total),
        budget.unwrap_or_default(),
        shown.join(", ")
    );
    if let Some(spent) = traffic["spent"].as_str() {
        text.push_str(&format!("budget: {spent}\n"));
    }
    text
}

// Causes that one line shows; `--json` shows all.
const CAUSES_MAX: usize = 5;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_resource_is_one_line() {
        let cache = json!({"connected": true, "resources": [
            {"scope": {"resource": {"group": "", "version": "v1", "plural": "pods"}, "fieldSelector": "spec.nodeName=n1"},
                "objects": 3, "bytes": 2048, "revision": "77", "live": true, "watchers": 1, "lastSync": 90, "pinnedBy": "edge"},
            {"scope": {"resource": {"group": "apps", "version": "v1", "plural": "deployments"}, "namespace": "shop"},
                "objects": 0, "bytes": 0, "revision": "0", "live": false, "watchers": 0, "lastSync": 0, "refused": "n1 may not"},
        ]});
        let text = render(&cache, 100);
        let words: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(
            words[1],
            ["v1/pods", "spec.nodeName=n1", "3", "2.0KiB", "77", "0s", "1", "10s", "ago", "edge"]
        );
        assert_eq!(words[2][..2], ["apps/v1/deployments", "shop"]);
        assert_eq!(words[3].join(" "), "not kept current: apps/v1/deployments: n1 may not");
        assert_eq!(words.len(), 4);
    }

    #[test]
    fn a_caller_of_the_edge_does_not_control_the_terminal() {
        let cache = json!({
            "resources": [{"scope": {"resource": {"version": "v1", "plural": "pods"}}, "refused": "no \u{1b}[2J"}],
            "writes": {"refusals": ["configmap \u{1b}[2J is invalid"]},
            "readyForOffline": {"pods": {"default/\u{1b}[2J": ["\u{202e}"]}},
        });
        let text = render(&cache, 100);
        assert!(!text.contains(['\u{1b}', '\u{202e}']), "{text:?}");
        assert_eq!(text.matches("\\u{1b}").count(), 3, "{text}");
    }

    #[test]
    fn bytes_of_the_day_are_shown_by_cause() {
        let traffic = json!({"bytes": 3072, "budgetBytes": 2048, "spent": "it is spent",
            "byCause": {"sync": {"v1/pods": 2048, "v1/nodes": 0}, "request": {"": 1024}}});
        let text = render(&json!({"resources": [], "traffic": traffic}), 100);
        let line = "bytes on the link today: 3.0KiB of 2.0KiB: sync v1/pods 2.0KiB, request 1.0KiB, sync v1/nodes 0B";
        assert!(text.lines().any(|found| found == line), "{text}");
        assert!(text.contains("budget: it is spent"), "{text}");
    }

    #[test]
    fn waiting_writes_and_pods_at_risk_are_named() {
        let cache = json!({"resources": [], "writes": {"pending": 2, "refusals": ["status of v1/pods shop/a: gone"]},
            "readyForOffline": {"ready": false, "pods": {"shop/b": ["Secret x is not in the copy"]}}});
        let text = render(&cache, 100);
        for line in [
            "writes that wait for the API server: 2",
            "dropped: status of v1/pods shop/a: gone",
            "not ready for offline: shop/b: Secret x is not in the copy",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}: {text}");
        }
    }
}
