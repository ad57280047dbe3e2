//! The process itself: listeners, readiness, dumps, the demo, an end in order.

use std::net::TcpListener;
use std::os::unix::net::UnixDatagram;

use testlab::causeway::{Cloud, Process, command, daemon, get, run, wait_for};

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

#[test]
fn the_demo_keeps_its_promises_and_leaves_nothing() {
    // With root the first has networks; the second shows what others get.
    for arguments in [&["demo", "--check"][..], &["demo", "--check", "--loopback"]] {
        let folder = tempfile::tempdir().unwrap();
        let mut command = command(arguments).unwrap();
        command.env("TMPDIR", folder.path());
        let ran = testlab::causeway::finish(command, None).unwrap();
        assert_eq!(ran.code, 0, "{}{}", ran.stdout, ran.stderr);
        assert!(ran.stdout.contains("refusals as promised"), "{}", ran.stdout);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}

#[test]
fn the_demo_stays_until_it_is_told_to_end() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = daemon(&["demo"]).unwrap();
    command.env("TMPDIR", folder.path()).env("CAUSEWAY_LOG", "info");
    let mut demo = Process::spawn(command, folder.path().with_extension("log")).unwrap();
    wait_for("the demo has a data dir", || {
        std::fs::read_dir(folder.path())
            .unwrap()
            .next()
            .map(|entry| entry.unwrap().path().join("cloud/run/addresses.json"))
            .filter(|path| path.exists())
    })
    .unwrap();
    assert!(demo.ended().is_none());
    assert_eq!(demo.terminate().unwrap().code(), Some(0), "{}", demo.log());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    std::fs::remove_file(folder.path().with_extension("log")).unwrap();
}

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
