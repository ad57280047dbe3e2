//! The files of `deploy/` for Prometheus and Grafana: promtool accepts the rules and passes their unit tests, the queries of the
//! dashboard are valid, and rules and dashboard name only metrics that exist.

use std::collections::BTreeSet;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use testlab::causeway::{Process, finish, get, wait_for};

use crate::crossing::{Fleet, STRANGER, connect};
use crate::data;
use crate::operating::{admin_of, lint, promtool};

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

/// Prometheus itself scrapes a cloud and an edge with traffic, by the jobs of `deploy/`: metrics that have no value without traffic are
/// there too. It evaluates the rules and every query of the dashboard.
#[test]
fn prometheus_scrapes_a_cloud_and_an_edge_with_traffic() {
    let fleet = Fleet::start("auto");
    let admins = [fleet.lab.cloud.admin, admin_of(&fleet.lab, "oslo")];
    for (from, to) in [("cloud", "oslo"), ("oslo", "cloud")] {
        drop(fleet.connect(from, to));
        // No policy names this client.
        drop(connect(STRANGER, fleet.at(from, to)));
    }
    let folder = tempfile::tempdir().unwrap();
    let scrape = std::fs::read_to_string(deployed("prometheus/scrape.yaml")).unwrap();
    let mut parts = scrape.split("127.0.0.1:7445");
    let parts = [(); 3].map(|()| parts.next().expect("two jobs, each with the default address"));
    let rules = deployed("prometheus/rules.yaml").canonicalize().unwrap();
    let config = folder.path().join("prometheus.yml");
    let text = format!(
        "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\nrule_files: [{rules:?}]\n{}{}{}{}{}",
        parts[0], admins[0], parts[1], admins[1], parts[2]
    );
    std::fs::write(&config, text).unwrap();
    let prometheus = Prometheus::start(&config);

    for job in ["causeway-cloud", "causeway-edge"] {
        for query in [
            format!("up{{job=\"{job}\"}} == 1"),
            format!("causeway_build_info{{job=\"{job}\"}}"),
            format!("causeway_gateway_connections_total{{job=\"{job}\"}} > 0"),
            format!("causeway_gateway_refused_total{{job=\"{job}\"}} > 0"),
        ] {
            wait_for(&query, || prometheus.query(&query).ok().filter(|found| !found.is_empty()))
                .unwrap_or_else(|error| panic!("{error}\n{}", prometheus.process.log()));
        }
    }
    for (whose, address) in ["cloud", "edge"].into_iter().zip(admins) {
        lint(whose, &get(address, "/metrics").unwrap().1);
    }
    for query in queries() {
        let query = query.replace("$__rate_interval", "5m").replace("$site", ".*").replace("$instance", ".*");
        prometheus.query(&query).unwrap_or_else(|error| panic!("{query}: {error}"));
    }
    // A rule is healthy when its last evaluation had no error.
    let health = wait_for("the rules are evaluated", || {
        let answer = prometheus.ask(&["rules"]);
        let groups = answer["data"]["groups"].as_array()?.clone();
        let rules = groups.iter().flat_map(|group| group["rules"].as_array().cloned().unwrap_or_default());
        let health: Vec<(String, String)> = rules
            .map(|rule| (rule["name"].to_string(), rule["health"].as_str().unwrap_or_default().to_owned()))
            .collect();
        (!health.is_empty() && health.iter().all(|(_, health)| health != "unknown")).then_some(health)
    })
    .unwrap();
    let ill: Vec<_> = health.iter().filter(|(_, health)| health != "ok").collect();
    assert!(health.len() > 20 && ill.is_empty(), "{} rules; {ill:?}", health.len());
}

/// A Prometheus with its data in a folder of its own. It ends with the value.
struct Prometheus {
    process: Process,
    address: SocketAddr,
    _folder: tempfile::TempDir,
}

impl Prometheus {
    fn start(config: &Path) -> Prometheus {
        let folder = tempfile::tempdir().unwrap();
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).arg(promtool().with_file_name("prometheus"));
        command.arg(format!("--config.file={}", config.display()));
        command.arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()));
        command.arg(format!("--web.listen-address={free}"));
        let process = Process::spawn(command, folder.path().join("log")).unwrap();
        let prometheus = Prometheus { process, address: free, _folder: folder };
        let is_ready = || get(free, "/-/ready").ok().filter(|(code, _)| *code == 200);
        wait_for("Prometheus is ready", is_ready)
            .unwrap_or_else(|error| panic!("{error}\n{}", prometheus.process.log()));
        prometheus
    }

    /// Its API, with form fields.
    fn ask(&self, arguments: &[&str]) -> Value {
        let [path, fields @ ..] = arguments else { panic!("no path") };
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--noproxy", "*", "--get", "--max-time", "20"]);
        for field in fields {
            curl.args(["--data-urlencode", field]);
        }
        curl.arg(format!("http://{}/api/v1/{path}", self.address));
        finish(curl, None).unwrap().json().unwrap_or_default()
    }

    /// The series that a query finds now, or the error.
    fn query(&self, query: &str) -> Result<Vec<Value>, String> {
        let answer = self.ask(&["query", &format!("query={query}")]);
        match answer["status"].as_str() {
            Some("success") => Ok(answer["data"]["result"].as_array().cloned().unwrap_or_default()),
            _ => Err(answer.to_string()),
        }
    }
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
