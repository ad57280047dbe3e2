//! Records of an edge reach the cloud, once in effect, also those of the time while the cloud was away.

use std::collections::BTreeSet;

use serde_json::Value;
use testlab::causeway::{Cloud, wait_for};

use crate::Lab;

/// The lines of this kind in the cloud's journal.
fn lines(lab: &Lab, event: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(lab.path("cloud").join("audit/fleet.jsonl")).unwrap_or_default();
    let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.filter(|line| line["event"] == event).collect()
}

/// The bytes of the edge's queue on disk.
fn queued_bytes(lab: &Lab) -> u64 {
    let entries = std::fs::read_dir(lab.path("edge").join("upstream")).into_iter().flatten().flatten();
    let segments = entries.filter(|entry| entry.path().extension().is_some_and(|kind| kind == "seg"));
    segments.filter_map(|entry| Some(entry.metadata().ok()?.len())).sum()
}

#[test]
fn records_of_an_edge_reach_the_cloud_also_those_from_while_it_was_away() {
    let mut lab = Lab::start();
    let token = lab.run(&["token", "create", "--site", "Oslo"]);
    let mut edge = lab.join("edge", token.trim());
    let started = |lab: &Lab| lines(lab, "edge-started");
    wait_for("the first start is told", || (started(&lab).len() == 1).then_some(())).unwrap();

    // Killed and started again twice, without a cloud.
    lab.cloud.process.kill().unwrap();
    for _ in 0..2 {
        edge.kill().unwrap();
        let before = queued_bytes(&lab);
        edge = lab.edge("edge", &[]);
        // Written records survive kill -9, synced or not.
        wait_for("the start is queued", || (queued_bytes(&lab) > before + 100).then_some(())).unwrap();
    }
    let (api, channel) = (lab.cloud.api.to_string(), lab.cloud.channel.to_string());
    lab.cloud = Cloud::start_with(&lab.path("cloud"), &["--api", &api, "--channel", &channel]).unwrap();
    // A line whose receipt the cloud could not write any more before it was killed is there twice, under one number.
    let numbers =
        |told: &[Value]| told.iter().map(|line| line["seq"].as_u64().unwrap()).collect::<BTreeSet<_>>();
    wait_for("both starts are told", || (numbers(&started(&lab)).len() >= 3).then_some(()))
        .unwrap_or_else(|error| panic!("{error}\n{}", edge.log()));
    let told = started(&lab);
    assert!(told.iter().all(|line| line["site"] == "Oslo" && line["gateway"] == "Oslo"), "{told:?}");
    assert_eq!(numbers(&told).len(), 3, "three starts under three numbers: {told:?}");
}

#[test]
fn the_audit_is_read_with_filters_and_counted() {
    let lab = Lab::start();
    let nothing = lab.cloud.run(&["audit", "--json"]).unwrap();
    assert_eq!((nothing.code, nothing.stdout.as_str()), (0, ""), "{}", nothing.stderr);
    assert!(nothing.stderr.contains("0 records, 0 lost"), "{}", nothing.stderr);

    // As the cloud writes what an edge tells; a line more than once is one record.
    let line = |seq: u64, decision: &str| {
        serde_json::json!({"time": "2026-11-16T00:00:00.000Z", "gateway": "gw", "site": "oslo", "subject": "s1",
            "service": "web", "protocol": "tcp", "decision": decision, "durationMs": 5, "end": "done",
            "queue": "aa", "seq": seq, "received": "2026-11-16T00:00:01.005Z"})
        .to_string()
    };
    let lost = r#"{"time": "2026-11-16T00:00:00Z", "event": "edge-records-lost", "lost": 7, "gateway": "gw", "site": "oslo"}"#;
    let lines = [line(1, "allow"), line(2, "deny"), line(2, "deny"), lost.to_owned()].join("\n") + "\n";
    std::fs::write(lab.path("cloud").join("audit/fleet.jsonl"), lines).unwrap();

    let ran = lab.cloud.run(&["audit", "--json"]).unwrap();
    let records: Vec<Value> = ran.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(records.len(), 2, "{}", ran.stdout);
    assert_eq!(records[0].as_object().unwrap().len(), 20, "the fields of the contract and no others");
    for part in ["2 records, 7 lost", "1 repeats", "after 1.0 s"] {
        assert!(ran.stderr.contains(part), "{part} is missing in {}", ran.stderr);
    }
    assert_eq!(lab.run(&["audit", "--json", "--decision", "deny"]).lines().count(), 1);
    assert_eq!(lab.run(&["audit", "--json", "--since", "1h", "--service", "mail"]), "");
    let table = lab.run(&["audit", "--limit", "1"]);
    assert!(table.starts_with("TIME") && table.lines().count() == 2, "{table}");
    assert_eq!(lab.cloud.run(&["audit", "--decision", "maybe"]).unwrap().code, 2);
}

#[test]
fn the_doctor_walks_to_a_service_and_says_where_it_breaks() {
    let lab = Lab::start();
    lab.run(&["apply", "-f", &crate::examples()]);
    lab.cloud.wait_condition("sx", "plant-dashboard", "Ready", "True").unwrap();
    let ran = lab.cloud.run(&["doctor", "plant-dashboard@cloud"]).unwrap();
    assert_eq!(ran.code, 1, "no edge is connected: {}", ran.stdout);
    for part in ["ok  API: the API answers", ": its address at cloud is 198.18.", ": never connected"] {
        assert!(ran.stdout.contains(part), "{part} is missing in {}", ran.stdout);
    }
    let ran = lab.cloud.run(&["doctor", "nothing-of-that-name"]).unwrap();
    assert!(ran.code == 1 && ran.stdout.contains("there is no EService"), "{}", ran.stdout);
    let status = lab.run(&["status"]);
    assert!(status.contains("cloud=198.18."), "{status}");
    assert!(status.contains("no gateway is connected at"), "{status}");
}
