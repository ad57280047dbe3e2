//! A connection of iperf3 between two hosts, of which the direct path is cut and comes back.

use std::process::Stdio;
use std::time::Instant;

use serde_json::Value;
use testlab::causeway::wait_for;

use crate::layer3_lab::Layer3;
use crate::layer3_outages::await_path;
use crate::layer3_paths::{Nat, cut_direct_path, restore_direct_path, set_nat};

/// Longer than the path takes to change twice.
const SECONDS: &str = "40";
const PORT: &str = "5201";

#[test]
fn layer3_a_connection_of_iperf3_survives_that_the_direct_path_is_cut() {
    let test = "layer3_a_connection_of_iperf3_survives_that_the_direct_path_is_cut";
    let Some(lab) = Layer3::start(test) else { return };
    let version = lab.host("host-a").command("iperf3").arg("--version").output();
    if !version.is_ok_and(|output| output.status.success()) {
        println!("skipped: {test} needs iperf3 (.ci/needs test installs it)");
        return;
    }
    set_nat(&lab, "nat-a", Nat::PortRestricted);
    set_nat(&lab, "nat-b", Nat::PortRestricted);
    lab.community(&["edge-a", "edge-b"], None);
    lab.await_crossing("host-a", "host-b", false);
    let target = lab.address("host-b", false);
    wait_for("the hosts talk until the path is direct", || {
        lab.pings("host-a", target);
        (crate::layer3_paths::path(&lab, 0, "edge-b")["path"] == "direct").then_some(())
    })
    .unwrap();
    let mut server = lab.host("host-b").command("iperf3");
    let mut server = server.args(["-s", "-1", "-p", PORT]).stdout(Stdio::null()).spawn().unwrap();
    wait_for("iperf3 listens", || {
        let listed = lab.host("host-b").command("ss").args(["-Hltn", "sport", "=", ":5201"]).output().ok()?;
        (!listed.stdout.is_empty()).then_some(())
    })
    .unwrap();
    let mut client = lab.host("host-a").command("iperf3");
    // A rate that a loaded machine carries too.
    client.args(["-c", &target.to_string(), "-p", PORT, "-t", SECONDS, "-i", "1", "-b", "20M", "-J"]);
    let mut client = client.stdout(Stdio::piped()).spawn().unwrap();
    // Its reports come at the end: packets of the peer show that it has begun.
    let sent = || crate::layer3_paths::path(&lab, 0, "edge-b")["sent"]["bytes"].as_u64().unwrap_or(0);
    let before = sent();
    wait_for("iperf3 sends", || (sent() > before + (4 << 20)).then_some(())).unwrap();
    cut_direct_path(&lab);
    let begin = Instant::now();
    println!("the direct path is cut: relayed after {:?}", await_path(&lab, "relayed"));
    let carried = sent();
    wait_for("iperf3 goes on through the relay", || (sent() > carried + (4 << 20)).then_some(())).unwrap();
    println!("4 MiB more were sent {:?} after the cut", begin.elapsed());
    assert!(client.try_wait().unwrap().is_none(), "the connection is open");
    restore_direct_path(&lab);
    println!("the direct path is back: direct after {:?}", await_path(&lab, "direct"));
    let is_open = client.try_wait().unwrap().is_none();
    let output = client.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(server.wait().unwrap().success());
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report["error"].is_null(), "{report}");
    let seconds: Vec<u64> = report["intervals"]
        .as_array()
        .unwrap()
        .iter()
        .map(|interval| interval["sum"]["bytes"].as_u64().unwrap() >> 10)
        .collect();
    println!("KiB in each second, still open when the path was direct again: {is_open}: {seconds:?}");
    let received = report["end"]["sum_received"]["bytes"].as_u64().unwrap();
    assert!(received > 8 << 20 && seconds.iter().rev().take(3).any(|kib| *kib > 0), "{received} {seconds:?}");
    lab.end();
}
