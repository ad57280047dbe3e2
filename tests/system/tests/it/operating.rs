//! Actions of an operator on a running process: scrapes its metrics, changes its log level, sends it SIGHUP.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use testlab::causeway::{Cloud, Process, daemon, finish, get, wait_for};

use crate::Lab;

/// The linter of Prometheus, which the lab keeps beside its Prometheus.
pub fn promtool() -> PathBuf {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../k8s/lab/install-prometheus");
    let output = Command::new(script).stderr(Stdio::inherit()).output().unwrap();
    let path = String::from_utf8(output.stdout).unwrap();
    PathBuf::from(path.trim()).with_file_name("promtool")
}

/// The linter's opinion of the metrics of a process.
pub fn lint(whose: &str, text: &str) {
    let mut linter = Command::new(promtool());
    linter.args(["check", "metrics"]);
    let ran = finish(linter, Some(text)).unwrap();
    assert!(ran.code == 0, "{whose}: {}{}", ran.stderr, ran.stdout);
}

/// The address of the admin port of an edge.
pub fn admin_of(lab: &Lab, edge: &str) -> SocketAddr {
    wait_for("the edge says where its admin port is", || {
        let text = std::fs::read(lab.path(edge).join("run/edge.json")).ok()?;
        serde_json::from_slice::<Value>(&text).ok()?["admin"].as_str()?.parse().ok()
    })
    .unwrap()
}

/// A request with a body and headers: the whole answer.
fn send(address: SocketAddr, method: &str, path: &str, headers: &str, body: &str) -> String {
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(5)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let length = body.len();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nhost: {address}\r\n{headers}content-length: {length}\r\nconnection: close\r\n\r\n{body}"
    )
    .unwrap();
    let mut answer = String::new();
    std::io::Read::read_to_string(&mut stream, &mut answer).unwrap();
    answer
}

#[test]
fn metrics_pass_the_linter_of_prometheus_and_know_every_gateway() {
    let lab = Lab::start();
    let token = lab.run(&["token", "create", "--site", "Oslo", "--gateway", "gw-oslo"]);
    let _edge = lab.join("edge", token.trim());
    let shown = |text: &str, name: &str| {
        let start = format!("{name}{{gateway=\"gw-oslo\",site=\"Oslo\"}} ");
        text.lines().find_map(|line| line.strip_prefix(&start).and_then(|value| value.parse::<f64>().ok()))
    };
    let text = wait_for("the gateway is in the metrics", || {
        let (_, text) = get(lab.cloud.admin, "/metrics").ok()?;
        // The round trip is known when the first ping has come back.
        shown(&text, "causeway_fleet_gateway_rtt_seconds")?;
        (shown(&text, "causeway_fleet_gateway_netmap_lag_seconds")? == 0.0).then_some(text)
    })
    .unwrap();
    assert_eq!(shown(&text, "causeway_fleet_gateway_connected"), Some(1.0));
    for name in ["causeway_fleet_gateway_sent_bytes_total", "causeway_fleet_gateway_received_bytes_total"] {
        assert!(shown(&text, name) > Some(0.0), "{name}");
    }
    let expiry = shown(&text, "causeway_fleet_gateway_certificate_expiry_timestamp_seconds").unwrap();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64();
    assert!(expiry > now && expiry < now + 100.0 * 86_400.0, "{expiry}");

    for (whose, address) in [("cloud", lab.cloud.admin), ("edge", admin_of(&lab, "edge"))] {
        lint(whose, &get(address, "/metrics").unwrap().1);
    }

    for (accept, form, end) in [
        ("", "text/plain; version=0.0.4", false),
        ("accept: text/plain;version=0.0.4\r\n", "text/plain; version=0.0.4", false),
        (
            "accept: application/openmetrics-text;version=1.0.0,*/*;q=0.1\r\n",
            "application/openmetrics-text",
            true,
        ),
    ] {
        let answer = send(lab.cloud.admin, "GET", "/metrics", accept, "");
        assert!(answer.contains(&format!("content-type: {form}")), "{accept}: {}", &answer[..300]);
        assert_eq!(answer.contains("# EOF"), end, "{accept}");
    }
}

#[test]
fn metrics_show_the_labels_of_sites_that_are_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let cloud = Cloud::start_with(
        &folder.path().join("cloud"),
        &["--metrics-site-labels", "region,example.org/tier"],
    );
    let lab = Lab { cloud: cloud.unwrap(), folder };
    lab.apply(
        "{apiVersion: causeway.io/v1, kind: ESite, metadata: {name: oslo, labels: {region: north, example.org/tier: '1', secret: x}}}",
    );
    let wanted = r#"causeway_site_info{site="oslo",label_region="north",label_example_org_tier="1"} 1"#;
    let text = wait_for("the site is in the metrics", || {
        let (_, text) = get(lab.cloud.admin, "/metrics").ok()?;
        text.lines().any(|line| line == wanted).then_some(text)
    });
    let text = text.unwrap();
    assert!(text.contains("causeway_site_info{site=\"cloud\"} 1"), "{text}");
    assert!(!text.contains("secret"), "{text}");
}

fn hang_up(process: &Process) {
    let pid = process.pid().to_string();
    assert!(Command::new("kill").args(["-HUP", &pid]).status().unwrap().success());
}

/// The lines that a process has logged since then.
fn logged(process: &Process, from: usize, part: &str) -> String {
    let told = || Some(process.log()[from..].to_owned()).filter(|log| log.contains(part));
    wait_for(&format!("it logs {part}"), told).unwrap_or_else(|error| panic!("{error}\n{}", process.log()))
}

#[test]
fn sighup_reloads_what_can_be_reloaded_and_says_what_cannot() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("causeway.toml");
    let write = |text: &str| std::fs::write(&path, text).unwrap();
    write("[log]\nfilter = \"info\"\n");
    let data_dir = folder.path().join("cloud");
    let cloud = Cloud::start_with(&data_dir, &["--config", path.to_str().unwrap()]).unwrap();
    let lab = Lab { cloud, folder };
    let token = lab.run(&["token", "create", "--site", "Oslo"]);
    let edge_path = lab.path("edge");
    let more =
        ["edge", "--data-dir", edge_path.to_str().unwrap(), "--admin", "127.0.0.1:0", "--join", token.trim()];
    let settings = ["--config", path.to_str().unwrap()];
    let edge =
        Process::spawn(daemon(&[&more[..], &settings].concat()).unwrap(), lab.path("edge.log")).unwrap();
    for (process, admin) in [(&lab.cloud.process, lab.cloud.admin), (&edge, admin_of(&lab, "edge"))] {
        let filter = || send(admin, "GET", "/debug/log", "", "");
        assert!(filter().ends_with("info\n"), "{}", filter());

        write(
            "[log]\nfilter = \"info,causeway_cloud=debug\"\n[cloud]\nlinks-max = 77\n[edge]\ntransport = \"tcp\"\n[gateway]\nbackends-deny = [\"203.0.113.0/24\"]\n",
        );
        let from = process.log().len();
        hang_up(process);
        let log = logged(process, from, "the configuration was read again");
        assert!(log.contains("log.filter is in force") && log.contains("needs a restart"), "{log}");
        assert!(
            log.contains("cloud.links-max") != log.contains("edge.transport"),
            "only of its own role: {log}"
        );
        let rules = log.lines().find(|line| line.contains("gateway.backends-deny"));
        assert!(rules.is_some_and(|line| line.contains("is in force for new connections")), "{log}");
        assert!(filter().ends_with("info,causeway_cloud=debug\n"), "{}", filter());

        write("[log]\nfilter = \"causeway=loud\"\n");
        let from = process.log().len();
        hang_up(process);
        logged(process, from, "everything stays as it is");
        assert!(filter().ends_with("info,causeway_cloud=debug\n"), "{}", filter());

        let answer = send(admin, "PUT", "/debug/log", "", "warn");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert!(filter().ends_with("warn\n"), "{}", filter());
        assert!(send(admin, "PUT", "/debug/log", "", "causeway=loud").starts_with("HTTP/1.1 400"));
        write("[log]\nfilter = \"info\"\n");
        let from = process.log().len();
        hang_up(process);
        logged(process, from, "log.filter is in force");
        assert!(filter().ends_with("info\n"), "{}", filter());
    }
    assert_eq!(get(lab.cloud.admin, "/readyz").unwrap().0, 200, "it runs on");
}
