//! Refused packets in the audit of the cloud, and open connections whose policy or member goes.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testlab::causeway::wait_for;
use testlab::net::reach_tcp;

use crate::layer3_connection::Flow;
use crate::layer3_lab::{Layer3, PATIENCE, PORT};

/// Longer than any echo takes, also on a machine that stands still for a moment.
const SILENCE: Duration = Duration::from_secs(10);
const SERVICE: &str = "ip/10.1.0.2:7000";

/// The record of a flow to the server that ended in one of these ways, at a gateway.
fn await_end(lab: &Layer3, gateway: &str, ends: &[&str]) -> Value {
    let is_it = |record: &Value| {
        record["service"] == SERVICE
            && record["protocol"] == "tcp"
            && ends.iter().any(|end| record["end"] == *end)
    };
    lab.await_record(
        &format!("{gateway} records the end {ends:?}"),
        &["--gateway", gateway, "--decision", "allow"],
        is_it,
    )
}

#[test]
fn layer3_refused_packets_are_in_the_audit_and_an_open_connection_ends_with_its_policy() {
    let test = "layer3_refused_packets_are_in_the_audit_and_an_open_connection_ends_with_its_policy";
    let Some(lab) = Layer3::start(test) else { return };
    lab.policy(json!({"allowedSites": ["edge-b"], "ports": ["icmp", "tcp/7000", "udp/7000"]}));
    lab.community(&["edge-a", "edge-b"], Some(&["narrow"]));
    lab.await_crossing("host-b", "host-a", false);
    // The policy names who may begin.
    let back = SocketAddr::new(lab.address("host-b", false), PORT);
    let refused = reach_tcp(&lab.host("host-a"), back, PATIENCE).unwrap_err();
    let kind = refused.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
    assert_eq!(kind, Some(std::io::ErrorKind::ConnectionRefused), "{refused:#}");
    let record = lab.await_record(
        "the refusal is in the audit",
        &["--gateway", "edge-a", "--decision", "deny"],
        |r| r["service"] == "ip/10.2.0.2:7000" && r["protocol"] == "tcp",
    );
    assert_eq!(
        (&record["end"], &record["reason"]),
        (&json!("refused"), &json!("no policy allows it")),
        "{record}"
    );
    assert_eq!((&record["clientSite"], &record["packets"]), (&json!("edge-a"), &json!(1)), "{record}");
    assert!(record["client"].as_str().is_some_and(|client| client.starts_with("10.1.0.2:")), "{record}");

    let flow = Flow::open(&lab, "host-b", "host-a");
    let echoes = std::thread::spawn(move || flow.echo_until_end(SILENCE));
    let begin = Instant::now();
    lab.policy(json!({"allowedSites": [], "ports": ["icmp", "tcp/7000", "udp/7000"]}));
    let applied = begin.elapsed();
    let (last, _, is_reset) = echoes.join().unwrap();
    println!(
        "the policy goes: the last echo came {:?} after the command began, which took {applied:?}",
        last.saturating_duration_since(begin)
    );
    assert!(is_reset, "the host is told");
    for gateway in ["edge-b", "edge-a"] {
        let ended = await_end(&lab, gateway, &["revoked"]);
        assert_eq!((&ended["clientSite"], &ended["rule"]), (&json!("edge-b"), &json!("narrow")), "{ended}");
        assert!(ended["packets"].as_u64() > Some(3) && ended["sentBytes"].as_u64() > Some(0), "{ended}");
    }
    lab.end();
}

#[test]
fn layer3_an_open_connection_ends_with_its_membership() {
    let test = "layer3_an_open_connection_ends_with_its_membership";
    let Some(lab) = Layer3::start(test) else { return };
    lab.community(&["cloud", "edge-a", "edge-b"], None);
    lab.await_crossing("host-b", "host-a", false);
    lab.await_crossing("host-b", "host-c", false);
    let flow = Flow::open(&lab, "host-b", "host-a");
    let mut kept = Flow::open(&lab, "host-b", "host-c");
    let echoes = std::thread::spawn(move || flow.echo_until_end(SILENCE));
    let begin = Instant::now();
    lab.community(&["cloud", "edge-b"], None);
    let applied = begin.elapsed();
    let (last, _, is_reset) = echoes.join().unwrap();
    println!(
        "the member goes: the last echo came {:?} after the command began, which took {applied:?}; reset: {is_reset}",
        last.saturating_duration_since(begin)
    );
    await_end(&lab, "edge-b", &["revoked"]);
    // A gateway that is in no community any more stops its tunnel.
    await_end(&lab, "edge-a", &["revoked", "stopped"]);
    // The other members are not disturbed.
    kept.echo(b"still there");
    wait_for("the flows of the member are gone", || {
        (lab.edges[0].debug().ok()?["tunnel"]["flows"].as_u64().unwrap_or(0) == 0).then_some(())
    })
    .unwrap();
    lab.end();
}
