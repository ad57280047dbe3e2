//! The process itself: listeners, readiness, dumps, the demo, an end in order.

use std::fs::{File, Permissions};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;

use serde_json::json;
use testlab::causeway::{Cloud, Process, command, daemon, get, run, wait_for};
use testlab::https::{Client, Request};

use crate::Lab;

#[test]
fn the_admin_port_tells_how_it_is() {
    let mut lab = Lab::start();
    let admin = lab.cloud.admin;
    let body = |path: &str| get(admin, path).unwrap();
    let (code, text) = body("/readyz?verbose");
    assert!(code == 200 && text.contains("[+]store ok") && text.contains("[+]reconcile ok"), "{text}");
    assert_eq!(body("/healthz").0, 200);
    let metrics = body("/metrics").1;
    for name in
        ["causeway_build_info", "causeway_cloud_reconcile_writes_total", "process_resident_memory_bytes"]
    {
        assert!(metrics.contains(name), "{name} is missing");
    }
    let dump: serde_json::Value = serde_json::from_str(&body("/debug").1).unwrap();
    assert_eq!(dump["config"]["cloud"]["store"], "sqlite");
    assert_eq!(lab.cloud.process.terminate().unwrap().code(), Some(0));
    assert!(!lab.path("cloud/run/addresses.json").exists());
    let connected = std::net::TcpStream::connect(lab.cloud.api);
    assert!(connected.is_err(), "nobody listens any more");
}

#[test]
fn a_taken_port_stops_the_start_and_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    for flag in ["--api", "--channel"] {
        let mut cloud = Cloud::spawn(&folder.path().join("cloud"), &[flag, &address]).unwrap();
        let status = wait_for("the cloud ends", || cloud.ended()).unwrap();
        assert_eq!(status.code(), Some(1));
        let log = cloud.log();
        assert!(log.contains(&address) && log.contains(flag), "{log}");
    }
}

#[test]
fn a_server_that_is_away_is_named_with_what_to_try() {
    let mut lab = Lab::start();
    lab.cloud.process.kill().unwrap();
    let ran = lab.cloud.run(&["get", "esites"]).unwrap();
    assert_eq!(ran.code, 1);
    for part in [&lab.cloud.api.to_string(), "CAUSEWAY_KUBECONFIG", "is `causeway cloud` running"] {
        assert!(ran.stderr.contains(part), "{part} is missing in {}", ran.stderr);
    }
}

/// Without networks of its own the demo has fixed addresses on the loopback: one demo at a time, also among test processes.
fn lone_demo() -> File {
    let lock = File::create(std::env::temp_dir().join("causeway-test-lone-demo.lock")).unwrap();
    lock.lock().unwrap();
    lock
}

#[test]
fn the_demo_keeps_its_promises_and_leaves_nothing() {
    let _lone = lone_demo();
    // With root the first has networks; the second shows the output for other users.
    for arguments in [&["demo", "--check"][..], &["demo", "--check", "--loopback"]] {
        let folder = tempfile::tempdir().unwrap();
        let mut command = command(arguments).unwrap();
        command.env("TMPDIR", folder.path());
        let ran = testlab::causeway::finish(command, None).unwrap();
        assert_eq!(ran.code, 0, "{}{}", ran.stdout, ran.stderr);
        assert!(ran.stdout.contains("refusals as promised"), "{}", ran.stdout);
        if arguments.contains(&"--loopback") {
            assert!(ran.stderr.contains("left out without root"), "{}", ran.stderr);
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}

#[test]
fn the_demo_stays_until_it_is_told_to_end() {
    let _lone = lone_demo();
    let folder = tempfile::tempdir().unwrap();
    let outside = tempfile::tempdir().unwrap();
    let mut command = daemon(&["demo"]).unwrap();
    command.env("TMPDIR", folder.path()).env("CAUSEWAY_LOG", "info");
    let (log, output) = (outside.path().join("log"), outside.path().join("output"));
    let mut demo = Process::spawn_with_output(command, log, &output).unwrap();
    let data_dir = wait_for("the demo has a data dir", || {
        std::fs::read_dir(folder.path())
            .unwrap()
            .next()
            .map(|entry| entry.unwrap().path().join("cloud"))
            .filter(|path| path.join("run/addresses.json").exists())
    })
    .unwrap();
    // The table is the last of the output: after it the address and the sign-in are whole.
    let printed = wait_for("the demo prints its table", || {
        let printed = std::fs::read_to_string(&output).ok()?;
        printed.contains("as promised").then_some(printed)
    })
    .unwrap();
    let (address, token) = console_sign_in(&printed);
    let client = Client::from_kubeconfig(&data_dir.join("admin.kubeconfig")).unwrap();
    assert_eq!(client.address(), address.parse().unwrap(), "the console is at the address of the API");
    let client = client.nobody().unwrap();
    let page = client.get("/console").unwrap();
    assert!(page.code == 200 && page.text().contains("<html"), "{}: {}", page.code, page.text());
    let sign_in = Request::new("POST", "/console/session").header("causeway-console", "1");
    let refused = client.send(&sign_in.clone().json(&json!({"token": format!("{token}x")}))).unwrap();
    assert_eq!(refused.code, 401, "{}", refused.text());
    let session = client.send(&sign_in.json(&json!({"token": token}))).unwrap().success().unwrap();
    assert_eq!(session["role"], "admin");

    // In another terminal, which knows neither the program nor the cloud.
    let exports = printed.lines().map(str::trim).filter(|line| line.starts_with("export "));
    let mut shell = std::process::Command::new("bash");
    let typed = exports.chain(["causeway status"]).collect::<Vec<_>>().join("\n");
    shell.args(["-ec", &typed]).env_clear().env("PATH", "/usr/bin:/bin").env("HOME", outside.path());
    let status = testlab::causeway::finish(shell, None).unwrap().success().unwrap();
    assert!(status.contains("GATEWAY") && status.contains("plant-dashboard"), "{typed}\n{status}");

    assert!(demo.ended().is_none());
    assert_eq!(demo.terminate().unwrap().code(), Some(0), "{}", demo.log());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

/// The first `make demo` of a clone builds for minutes: cargo's own progress is the sign that it does.
#[test]
fn make_demo_hides_no_progress_of_the_build() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let mut make = std::process::Command::new("make");
    // Without the options of a `make test` that runs this test.
    make.args(["--dry-run", "demo", "--directory", root]).env_remove("MAKEFLAGS").env_remove("MAKELEVEL");
    let printed = testlab::causeway::finish(make, None).unwrap().success().unwrap();
    let build = printed.lines().find(|line| line.contains("run --package causeway -- demo")).expect(&printed);
    assert!(!build.contains("quiet") && !build.contains("2>"), "{build}");
    let settings = std::fs::read_to_string(format!("{root}/.cargo/config.toml")).unwrap_or_default();
    assert!(!settings.contains("quiet ="), "{settings}");
}

/// The figures of the bench reach the table of `make bench`: each line has the fields that `cargo xtask benchmarks` reads.
#[test]
fn the_footprint_is_written_for_the_table_of_figures() {
    let folder = tempfile::tempdir().unwrap();
    let results = folder.path().join("results.jsonl");
    let mut bench = std::process::Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../bench/footprint"));
    bench.args(["--rounds", "1", "--settle", "0"]);
    bench.env("CAUSEWAY_BIN", testlab::causeway::binary().unwrap()).env("BENCH_RESULTS", &results);
    testlab::causeway::finish(bench, None).unwrap().success().unwrap();
    let text = std::fs::read_to_string(&results).unwrap();
    let mut figures = Vec::new();
    for line in text.lines() {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!(line["command"], "bench/run footprint");
        assert!(
            line["goal"].is_string() && line["result"].as_f64().is_some_and(|result| result > 0.0),
            "{line}"
        );
        figures.push(line["figure"].as_str().unwrap().to_owned());
    }
    for figure in
        ["size of the program, MB", "cloud, restart: ready after, ms", "idle edge: private memory, MB"]
    {
        assert!(figures.iter().any(|found| found == figure), "{figure}: {figures:?}");
    }
    assert_eq!(figures.len(), 9, "{figures:?}");
}

/// A suite that fails does not hide the other one, and `make test` fails when any does.
#[test]
fn make_test_runs_both_suites_whatever_fails() {
    let folder = tempfile::tempdir().unwrap();
    let (cargo, log) = (folder.path().join("cargo"), folder.path().join("log"));
    // In place of cargo: notes its arguments, and fails where the test wants it.
    let script = format!(
        "#!/bin/sh\necho \"$*\" >> {}\ncase \"$*\" in *' --workspace --no-fail-fast'*) exit $FIRST;; *traces*) exit $SECOND;; esac\n",
        log.display()
    );
    std::fs::write(&cargo, script).unwrap();
    std::fs::set_permissions(&cargo, Permissions::from_mode(0o755)).unwrap();
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    for nextest in ["cargo-nextest", ""] {
        for (first, second, expected) in [
            ("0", "0", None),
            ("3", "0", Some("Error 3")),
            ("0", "4", Some("Error 4")),
            ("3", "4", Some("Error 3")),
        ] {
            std::fs::write(&log, "").unwrap();
            let mut make = std::process::Command::new("make");
            make.args(["test", "--directory", root, &format!("CARGO={}", cargo.display())]);
            make.arg(format!("NEXTEST={nextest}")).args([
                "-o",
                "build-needs",
                "-o",
                "test-needs",
                "-o",
                "check",
            ]);
            make.env("FIRST", first).env("SECOND", second);
            // Without the options of a `make test` that runs this test.
            make.env_remove("MAKEFLAGS").env_remove("MAKELEVEL");
            let ran = testlab::causeway::finish(make, None).unwrap();
            let asked = std::fs::read_to_string(&log).unwrap();
            let suites =
                asked.lines().filter(|line| line.contains(" --no-fail-fast") || line.contains("traces"));
            assert_eq!(suites.count(), 2, "{nextest:?} {first} {second}: {asked}");
            assert_eq!(ran.code != 0, expected.is_some(), "{}", ran.stderr);
            assert!(expected.is_none_or(|error| ran.stderr.contains(error)), "{}", ran.stderr);
        }
    }
}

/// The address of the console and the token for it, as the demo prints them.
fn console_sign_in(printed: &str) -> (String, String) {
    let after = |start: &str| printed.lines().find_map(|line| line.trim().strip_prefix(start));
    let address = after("https://").and_then(|rest| rest.strip_suffix("/console"));
    let token = after("sign in with ");
    address.zip(token).map(|(address, token)| (address.to_owned(), token.to_owned())).expect(printed)
}

#[test]
fn a_plain_user_has_the_demo_without_the_parts_that_need_root() {
    if !rustix::process::geteuid().is_root() {
        println!(
            "skipped: the demo as a plain user: this test is not run by root and cannot become another user"
        );
        return;
    }
    let _lone = lone_demo();
    // Everything that a plain user touches is in one folder: the test's own folders are root's.
    let folder = tempfile::tempdir().unwrap();
    let [program, home] = ["causeway", "home"].map(|name| folder.path().join(name));
    std::fs::copy(testlab::causeway::binary().unwrap(), &program).unwrap();
    std::fs::create_dir(&home).unwrap();
    std::os::unix::fs::chown(&home, Some(NOBODY), Some(NOBODY)).unwrap();
    for (path, mode) in [(folder.path(), 0o755), (&program, 0o755), (&home, 0o700)] {
        std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }
    let mut command = std::process::Command::new("setpriv");
    let user = NOBODY.to_string();
    command.args([
        "--reuid",
        &user,
        "--regid",
        &user,
        "--clear-groups",
        "--inh-caps=-all",
        "--pdeathsig",
        "KILL",
    ]);
    command.arg("--").arg(&program).args(["demo", "--check"]).current_dir(&home);
    command.env_clear().env("PATH", "/usr/bin:/bin").env("HOME", &home).env("TMPDIR", &home);
    let ran = testlab::causeway::finish(command, None).unwrap();
    assert_eq!(ran.code, 0, "{}{}", ran.stdout, ran.stderr);
    for left_out in ["networks of their own", "DNS on port 53", "presences at real addresses", "ECommunity"] {
        assert!(ran.stderr.contains(left_out), "{left_out} is missing in {}", ran.stderr);
    }
    assert!(ran.stdout.contains("7 crossings and 6 refusals as promised"), "{}", ran.stdout);
    assert_eq!(std::fs::read_dir(&home).unwrap().count(), 0, "something is left behind");
}

#[test]
fn a_second_demo_on_the_same_loopback_ends_at_once_with_the_reason() {
    let _lone = lone_demo();
    // One of the addresses of the demo's servers without root.
    let taken = TcpListener::bind("127.10.0.10:8080");
    let folder = tempfile::tempdir().unwrap();
    let mut command = command(&["demo", "--check", "--loopback"]).unwrap();
    command.env("TMPDIR", folder.path());
    let begun = std::time::Instant::now();
    let ran = testlab::causeway::finish(command, None).unwrap();
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    for part in ["127.10.0.10:8080", "another demo", "as root"] {
        assert!(ran.stderr.contains(part), "{part} is missing in {}", ran.stderr);
    }
    assert!(begun.elapsed() < std::time::Duration::from_secs(20), "it did not wait for its deadline");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    drop(taken);
}

/// The user and the group `nobody` of Debian.
const NOBODY: u32 = 65534;

#[test]
fn kubeconfig_prints_the_admins() {
    let lab = Lab::start();
    let printed =
        run(&["kubeconfig", "--data-dir", lab.path("cloud").to_str().unwrap()]).unwrap().success().unwrap();
    assert_eq!(printed, std::fs::read_to_string(lab.cloud.kubeconfig()).unwrap());
    let listed =
        run(&["get", "esites", "-o", "name", "--data-dir", lab.path("cloud").to_str().unwrap()]).unwrap();
    assert_eq!(listed.success().unwrap(), "esite/cloud\n");
}

#[test]
fn systemd_is_told_of_start_life_and_stop() {
    let lab = Lab::start();
    let token = lab.run(&["token", "create", "--site", "Oslo"]);
    let folder = tempfile::tempdir().unwrap();
    let data_dir = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (cloud, edge) = (data_dir("cloud"), data_dir("edge"));
    let any = "127.0.0.1:0";
    let rows: [&[&str]; 2] = [
        &["cloud", "--data-dir", &cloud, "--api", any, "--channel", any, "--admin", any],
        &["edge", "--data-dir", &edge, "--admin", any, "--join", token.trim()],
    ];
    for arguments in rows {
        let socket = UnixDatagram::bind(folder.path().join(format!("{}.sock", arguments[0]))).unwrap();
        socket.set_read_timeout(Some(testlab::causeway::DEADLINE)).unwrap();
        let mut command = daemon(arguments).unwrap();
        command.env("NOTIFY_SOCKET", socket.local_addr().unwrap().as_pathname().unwrap());
        command.env("WATCHDOG_USEC", "100000").env("CAUSEWAY_PRESENCE", "off").env("CAUSEWAY_DNS", "off");
        let log = folder.path().join(format!("{}.log", arguments[0]));
        let process = Process::spawn(command, log).unwrap();
        let told = || {
            let mut buffer = [0; 64];
            let length = socket
                .recv(&mut buffer)
                .unwrap_or_else(|error| panic!("{arguments:?}: {error}\n{}", process.log()));
            String::from_utf8_lossy(&buffer[..length]).into_owned()
        };
        // An edge feeds the watchdog while it enrols, before it is ready.
        while told() != "READY=1" {}
        assert_eq!([told(), told(), told()], ["WATCHDOG=1"; 3], "{arguments:?}");
        let pid = process.pid().to_string();
        assert!(std::process::Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
        while told() != "STOPPING=1" {}
    }
}

#[test]
fn an_edge_enrols_with_the_token_file_of_its_configuration_and_needs_it_once() {
    let lab = Lab::start();
    let token = lab.run(&["token", "create", "--site", "Oslo"]);
    let folder = tempfile::tempdir().unwrap();
    let (file, data_dir) = (folder.path().join("join.token"), folder.path().join("edge"));
    let data_dir = data_dir.to_str().unwrap();
    let start = || {
        let mut command = daemon(&["edge", "--data-dir", data_dir, "--admin", "127.0.0.1:0"]).unwrap();
        command.env("CAUSEWAY_JOIN_FILE", &file).env("CAUSEWAY_PRESENCE", "off").env("CAUSEWAY_DNS", "off");
        command
    };
    let ran = testlab::causeway::finish(start(), None).unwrap();
    assert_eq!(ran.code, 2, "{}", ran.stderr);
    assert!(ran.stderr.contains("join-file"), "{}", ran.stderr);

    std::fs::write(&file, token).unwrap();
    let mut edge = Process::spawn(start(), folder.path().join("first.log")).unwrap();
    lab.cloud.wait_condition("egateway", "Oslo", "Connected", "True").unwrap();
    // In order, so that the cloud knows at once.
    let pid = edge.pid().to_string();
    assert!(std::process::Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    lab.cloud.wait_condition("egateway", "Oslo", "Connected", "False").unwrap();
    edge.kill().unwrap();

    std::fs::remove_file(&file).unwrap();
    let _edge = Process::spawn(start(), folder.path().join("second.log")).unwrap();
    lab.cloud.wait_condition("egateway", "Oslo", "Connected", "True").unwrap();
}
