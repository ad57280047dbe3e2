//! The console as a browser shows it. The steps of the browser are in `browser/`; this file makes the fleet they look at.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use testlab::causeway::{Cloud, Process, binary, daemon, finish, wait_for};

/// The folder of the browser's driver; the script installs it when it is missing. None, with a reason, where it cannot be had.
fn modules() -> Option<String> {
    let ran = finish(Command::new(here("install-browser")), None).unwrap();
    if ran.code == 3 {
        skip(ran.stderr.trim(), std::env::var("CI").ok().as_deref());
        return None;
    }
    Some(ran.success().unwrap().lines().last().unwrap().to_owned())
}

/// Tells why a test is skipped. In CI (`CI=true`, as every CI service sets it) nothing is skipped: a browser that is missing there
/// would leave the console untested without a sign.
fn skip(reason: &str, ci: Option<&str>) {
    assert!(ci != Some("true"), "CI=true, and the console cannot be tested: {reason}");
    println!("SKIPPED: {reason}");
}

#[test]
fn a_missing_browser_fails_in_ci_and_is_skipped_elsewhere() {
    skip("no chromium", None);
    skip("no chromium", Some("false"));
    assert!(std::panic::catch_unwind(|| skip("no chromium", Some("true"))).is_err());
}

fn here(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// A cloud with the connected sites oslo and rome, the site bare without a gateway, and a service at oslo.
struct ConsoleLab {
    cloud: Cloud,
    _edges: Vec<Process>,
    _backend: std::thread::JoinHandle<()>,
    folder: tempfile::TempDir,
}

const NO_DNS: [&str; 2] = ["--dns", "off"];

impl ConsoleLab {
    fn start() -> ConsoleLab {
        let folder = tempfile::tempdir().unwrap();
        let cloud = Cloud::start_with(&folder.path().join("cloud"), &NO_DNS).unwrap();
        let (port, backend) = backend();
        let edges = ["oslo", "rome"].map(|site| {
            let token = cloud.run(&["token", "create", "--site", site]).unwrap().success().unwrap();
            let data_dir = folder.path().join(site);
            let fixed = ["edge", "--admin", "127.0.0.1:0", "--join", token.trim(), "--data-dir"];
            let arguments = [&fixed[..], &[data_dir.to_str().unwrap()], &NO_DNS].concat();
            Process::spawn(daemon(&arguments).unwrap(), folder.path().join(format!("{site}.log"))).unwrap()
        });
        let objects = format!(
            "
            {{apiVersion: causeway.io/v1, kind: ESite, metadata: {{name: bare}}}}
---
            {{apiVersion: causeway.io/v1, kind: EService, metadata: {{name: web}}, eSiteName: oslo, ip: 127.0.0.1, port: {port}, protocol: HTTP}}
---
            {{apiVersion: causeway.io/v1, kind: EServer, metadata: {{name: truck}}, eSiteName: rome, ip: 10.0.0.7}}
---
            {{apiVersion: causeway.io/v1, kind: EPolicy, metadata: {{name: trucks}}, allowedServers: [truck]}}
---
            {{apiVersion: causeway.io/v1, kind: ServiceExpose, metadata: {{name: web}}, eServiceName: web, eSites: [rome], ePolicys: [trucks]}}
"
        );
        cloud.apply(&objects).unwrap().success().unwrap();
        for gateway in ["oslo", "rome"] {
            cloud.wait_condition("egateway", gateway, "Connected", "True").unwrap();
        }
        ConsoleLab { cloud, _edges: edges.into(), _backend: backend, folder }
    }

    /// Runs a part of a program of `browser/` to its end, prints its output, and fails with the log and the failed scenarios.
    ///
    /// The browser has a network namespace of its own: Chromium aborts requests with ERR_NETWORK_CHANGED when an
    /// interface of its host comes or goes, and tests beside this one make interfaces.
    fn browse(&self, modules: &str, program: &str, part: &str) {
        let mut command = self.browser(modules, program);
        command.env("CONSOLE_PART", part);
        let ran = finish(command, None).unwrap();
        println!("{}{}", ran.stdout, ran.stderr);
        let failed = ran.stdout.split_once("FAILED").map_or("", |(_, after)| after);
        assert_eq!(ran.code, 0, "{}\nFAILED{failed}{}", self.cloud.process.log(), ran.stderr);
    }

    fn browser(&self, modules: &str, program: &str) -> Command {
        let mut command = Command::new("node");
        command.arg(here("browser").join(program));
        command.env("CONSOLE_MODULES", modules).env("CAUSEWAY_PROGRAM", binary().unwrap());
        command.env("CONSOLE_CHROMIUM", here("browser").join("isolated-chromium"));
        command.env("CONSOLE_URL", format!("https://{}/console", self.cloud.api));
        command.env("CONSOLE_KUBECONFIG", self.cloud.kubeconfig()).env("HOME", self.folder.path());
        command
    }
}

/// A backend that answers HTTP until the process ends.
fn backend() -> (u16, std::thread::JoinHandle<()>) {
    use std::io::{Read, Write};
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let serve = move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { continue };
            let _ = stream.read(&mut [0; 1024]);
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok");
        }
    };
    (port, std::thread::spawn(serve))
}

#[test]
fn the_console_works_in_a_browser() {
    run_scenarios("1/2");
}

/// The other half of the scenarios, with a fleet of its own: together they would take minutes on a loaded machine.
#[test]
fn the_console_works_in_a_browser_other_half() {
    run_scenarios("2/2");
}

fn run_scenarios(part: &str) {
    let Some(modules) = modules() else { return };
    let lab = ConsoleLab::start();
    wait_for("the exposure has its address", || {
        let presences = lab.cloud.run(&["get", "vp", "-o", "name"]).ok()?.success().ok()?;
        (!presences.trim().is_empty()).then_some(())
    })
    .unwrap();
    lab.browse(&modules, "scenarios.mjs", part);
}

/// Prints first paint and frame times; asserts nothing about them. The long form (`make soak`, `bench/run console`) has 1,000 sites and
/// 5,000 exposures, the short one shows that the measurement works.
#[test]
fn a_large_fleet_is_measured() {
    let Some(modules) = modules() else { return };
    let is_long = std::env::var_os("CAUSEWAY_SOAK").is_some_and(|value| value == "1");
    let (sites, exposures, seconds) = if is_long { ("1000", "5000", "10") } else { ("20", "40", "1") };
    let lab = ConsoleLab::start();
    let mut command = lab.browser(&modules, "large-fleet.mjs");
    command.env("CONSOLE_SITES", sites).env("CONSOLE_EXPOSURES", exposures).env("CONSOLE_SECONDS", seconds);
    // Its lines are shown as they come: the long form takes minutes.
    let status = command.status().unwrap();
    assert!(status.success(), "{status}\n{}", lab.cloud.process.log());
}
