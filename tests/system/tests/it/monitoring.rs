//! The files of `deploy/` for Prometheus and Grafana: promtool accepts the rules and passes their unit tests, the queries of the
//! dashboard are valid, and rules and dashboard name only metrics that exist.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::data;
use crate::operating::promtool;

fn deployed(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy").join(path)
}

fn run_promtool(arguments: &[&str], file: &Path) -> String {
    let output = Command::new(promtool()).args(arguments).arg(file).output().unwrap();
    let said =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "promtool {arguments:?} {}: {said}", file.display());
    said
}

#[test]
fn prometheus_accepts_the_rules_and_their_tests_pass() {
    run_promtool(&["check", "rules"], &deployed("prometheus/rules.yaml"));
    run_promtool(&["check", "config"], &deployed("prometheus/scrape.yaml"));
    run_promtool(&["test", "rules"], &deployed("prometheus/rules.test.yaml"));
}

#[test]
fn every_alert_has_a_unit_test() {
    let rules = std::fs::read_to_string(deployed("prometheus/rules.yaml")).unwrap();
    let tests = std::fs::read_to_string(deployed("prometheus/rules.test.yaml")).unwrap();
    let names = |text: &str, key: &str| -> BTreeSet<String> {
        let named = text.lines().filter_map(|line| line.trim().trim_start_matches("- ").strip_prefix(key));
        named.map(|name| name.trim().to_owned()).collect()
    };
    assert_eq!(names(&rules, "alert: "), names(&tests, "alertname: "));
}

/// The dashboard as a rule file, which promtool can parse: one rule for each query.
#[test]
fn prometheus_accepts_the_queries_of_the_dashboard() {
    let rules: Vec<Value> = queries()
        .iter()
        .enumerate()
        .map(|(number, query)| {
            let query =
                query.replace("$__rate_interval", "5m").replace("$site", ".*").replace("$instance", ".*");
            serde_json::json!({"record": format!("query_{number}"), "expr": query})
        })
        .collect();
    assert!(rules.len() > 20, "{}", rules.len());
    // JSON is YAML.
    let file = serde_json::json!({"groups": [{"name": "dashboard", "rules": rules}]});
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("dashboard.yaml");
    std::fs::write(&path, file.to_string()).unwrap();
    run_promtool(&["check", "rules"], &path);
}

#[test]
fn rules_and_dashboard_name_metrics_that_exist() {
    let listed = std::fs::read_to_string(data("metrics.txt")).unwrap();
    let mut known = BTreeSet::new();
    for line in listed.lines() {
        let mut words = line.split(' ').skip(1);
        let (name, kind) = (words.next().unwrap(), words.next().unwrap());
        known.insert(name.to_owned());
        if kind == "histogram" {
            known.extend(["bucket", "sum", "count"].map(|suffix| format!("{name}_{suffix}")));
        }
    }
    let rules = std::fs::read_to_string(deployed("prometheus/rules.yaml")).unwrap();
    let mut used = BTreeSet::new();
    for text in queries().iter().map(String::as_str).chain([rules.as_str()]) {
        let words =
            text.split(|letter: char| !(letter.is_ascii_alphanumeric() || letter == '_' || letter == ':'));
        let is_metric = |word: &&str| {
            // Names with a colon are recorded by the rules themselves.
            (word.starts_with("causeway_") || word.starts_with("process_")) && !word.contains(':')
        };
        used.extend(words.filter(is_metric).map(str::to_owned));
    }
    assert!(used.len() > 30, "{used:?}");
    let unknown: BTreeSet<&String> = used.difference(&known).collect();
    assert!(unknown.is_empty(), "these are in no metrics.txt: {unknown:?}");
}

/// Every query of the dashboard, those of its variables included.
fn queries() -> Vec<String> {
    let text = std::fs::read_to_string(deployed("grafana/causeway.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    let mut found = Vec::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().into_iter().flatten() {
            found.push(target["expr"].as_str().unwrap().to_owned());
        }
    }
    found
}
