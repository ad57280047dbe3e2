//! What an edge has to tell reaches the cloud, once in effect, also what it said while the cloud was away.

use serde_json::Value;
use testlab::causeway::{Cloud, wait_for};

use crate::Lab;

/// The lines of this kind in the cloud's journal.
fn lines(lab: &Lab, event: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(lab.path("cloud").join("audit/fleet.jsonl")).unwrap_or_default();
    let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.filter(|line| line["event"] == event).collect()
}

/// What the edge's queue holds on disk.
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
        // What is written survives kill -9, synced or not.
        wait_for("the start is queued", || (queued_bytes(&lab) > before + 100).then_some(())).unwrap();
    }
    let (api, channel) = (lab.cloud.api.to_string(), lab.cloud.channel.to_string());
    lab.cloud = Cloud::start_with(&lab.path("cloud"), &["--api", &api, "--channel", &channel]).unwrap();
    wait_for("both starts are told", || (started(&lab).len() >= 3).then_some(()))
        .unwrap_or_else(|error| panic!("{error}\n{}", edge.log()));
    let told = started(&lab);
    assert!(told.iter().all(|line| line["site"] == "Oslo" && line["gateway"] == "Oslo"), "{told:?}");
    let mut numbers: Vec<u64> = told.iter().map(|line| line["seq"].as_u64().unwrap()).collect();
    numbers.dedup();
    assert_eq!(numbers.len(), 3, "three starts under three numbers: {told:?}");
}
