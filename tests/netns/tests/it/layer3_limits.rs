//! Limits of a policy on flows, seen in packets: how many may be open, and how many bytes cross.

use std::net::{IpAddr, SocketAddr};
use std::process::{Child, Stdio};

use serde_json::{Value, json};
use testlab::causeway::wait_for;
use testlab::net::reach_tcp;

use crate::layer3_connection::Flow;
use crate::layer3_lab::{Layer3, PATIENCE, PORT};
use crate::layer3_paths::path;

const BYTES_PER_SECOND: u64 = 250_000;
const SECONDS: u64 = 4;
/// Four times the rate of the policy.
const SENT: &str = "8M";

fn limited(lab: &Layer3, limits: Value) {
    lab.policy(json!({"allowedSites": ["edge-a"], "limits": limits}));
    lab.community(&["edge-a", "edge-b"], Some(&["narrow"]));
}

fn dropped_by_limit(lab: &Layer3) -> u64 {
    // The gateway of the host that sends drops most of them; both count.
    let edges = lab.edges[..2].iter();
    edges.filter_map(|edge| edge.debug().unwrap()["tunnel"]["dropped"]["limit"].as_u64()).sum()
}

#[test]
fn layer3_a_policy_limits_the_flows_that_are_open() {
    let test = "layer3_a_policy_limits_the_flows_that_are_open";
    let Some(lab) = Layer3::start(test) else { return };
    limited(&lab, json!({"connections": 2}));
    let server = SocketAddr::new(lab.address("host-b", false), PORT);
    let client = lab.host("host-a");
    wait_for("TCP crosses", || reach_tcp(&client, server, PATIENCE).ok()).unwrap();
    // The flow of that connection counts until both gateways have forgotten it. They tell of it once a second.
    let told = |edge: usize, peer: &str| path(&lab, edge, peer)["received"]["bytes"].as_u64() > Some(0);
    wait_for("both gateways tell of the packets", || (told(0, "edge-b") && told(1, "edge-a")).then_some(()))
        .unwrap();
    let flows = |edge: usize| lab.edges[edge].debug().unwrap()["tunnel"]["flows"].as_u64().unwrap();
    wait_for("no flow is left", || (flows(0) + flows(1) == 0).then_some(())).unwrap();
    let mut flows = [Flow::open(&lab, "host-a", "host-b"), Flow::open(&lab, "host-a", "host-b")];
    let refused = reach_tcp(&client, server, PATIENCE).unwrap_err();
    let kind = refused.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
    assert_eq!(kind, Some(std::io::ErrorKind::ConnectionRefused), "{refused:#}");
    lab.await_record(
        "the refusal is in the audit",
        &["--gateway", "edge-a", "--decision", "deny"],
        |record| {
            record["reason"] == "over the limit of the policy" && record["service"] == format!("ip/{server}")
        },
    );
    // Both flows go on, and a third one begins when one has ended.
    flows.iter_mut().for_each(|flow| flow.echo(b"within the limit"));
    let [first, mut last] = flows;
    drop(first);
    wait_for("a third connection is let in", || reach_tcp(&client, server, PATIENCE).ok()).unwrap();
    last.echo(b"within the limit");
    lab.end();
}

/// A server of iperf3 at host-b; ended when dropped.
struct IperfServer(Child);

impl Drop for IperfServer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Sends more than the policy allows and returns the bytes that arrived, and the seconds that it took.
fn load(lab: &Layer3, target: IpAddr, more: &[&str]) -> (u64, f64) {
    let (target, seconds) = (target.to_string(), SECONDS.to_string());
    let arguments = ["-c", &target, "-u", "-b", SENT, "-l", "1200", "-t", &seconds, "-J"];
    let said = lab.host("host-a").command("iperf3").args(arguments).args(more).output().unwrap();
    assert!(said.status.success(), "{said:?}");
    let report: Value = serde_json::from_slice(&said.stdout).unwrap();
    let sum = &report["end"]["sum"];
    let (packets, lost) = (sum["packets"].as_u64().unwrap(), sum["lost_packets"].as_u64().unwrap());
    println!("{more:?}: {packets} packets of 1200 bytes in {SECONDS} s, {lost} lost");
    ((packets - lost) * 1200, sum["seconds"].as_f64().unwrap())
}

#[test]
fn layer3_a_policy_limits_the_bytes_of_each_direction() {
    let test = "layer3_a_policy_limits_the_bytes_of_each_direction";
    let Some(lab) = Layer3::start(test) else { return };
    let version = lab.host("host-a").command("iperf3").arg("--version").output();
    if !version.is_ok_and(|output| output.status.success()) {
        println!("skipped: {test} needs iperf3 (.ci/needs test installs it)");
        return;
    }
    let mut server = lab.host("host-b").command("iperf3");
    let _server = IperfServer(server.arg("-s").stdout(Stdio::null()).spawn().unwrap());
    let target = lab.address("host-b", false);
    limited(&lab, json!({"bytesPerSecondIn": BYTES_PER_SECOND, "bytesPerSecondOut": BYTES_PER_SECOND}));
    wait_for("the policy allows ping", || lab.pings("host-a", target).then_some(())).unwrap();
    // To the server, and back.
    for more in [&[][..], &["-R"]] {
        let before = dropped_by_limit(&lab);
        let (arrived, seconds) = load(&lab, target, more);
        // The rate, what may cross at once, and packets that are on their way when iperf3 stops its clock.
        let most = (BYTES_PER_SECOND as f64 * (seconds + 3.0)) as u64;
        println!(
            "{BYTES_PER_SECOND} bytes per second: {arrived} bytes arrived in {seconds:.1} s, at most {most}"
        );
        assert!(arrived > 0 && arrived <= most, "{arrived} of at most {most}");
        wait_for("packets over the limit are counted", || (dropped_by_limit(&lab) > before).then_some(()))
            .unwrap();
    }
    lab.end();
}
