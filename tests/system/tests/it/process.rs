//! The process itself: listeners, readiness, dumps, the demo, an end in order.

use std::net::TcpListener;

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
