//! The short form of `bench/edge-api`: it runs to its end with a small cluster, and its figures can be read.

use std::process::Command;

use serde_json::Value;
use testlab::causeway::{binary, finish, relay_binary};

use crate::edge_api::missing;
use crate::here;

#[test]
fn the_bench_of_the_api_at_the_edge_runs_and_its_figures_are_read() {
    if let Some(reason) = missing() {
        println!("SKIPPED: the bench of the API at the edge: {reason}");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let results = folder.path().join("results.jsonl");
    let mut bench = Command::new(here("../../bench/edge-api"));
    bench.args(["--pods", "60", "--services", "10", "--idle", "1"]);
    bench.env("CAUSEWAY_BIN", binary().unwrap()).env("RELAY_BIN", relay_binary().unwrap());
    bench.env("BENCH_RESULTS", &results).env("TMPDIR", folder.path());
    let printed = finish(bench, None).unwrap().success().unwrap();
    println!("{printed}");
    for part in ["one node's view", "idle for 1 s", "list of 60 pods", "private memory after the lists"] {
        assert!(printed.contains(part), "no {part:?} in {printed}");
    }
    let rows = std::fs::read_to_string(&results).unwrap();
    let rows: Vec<Value> = rows.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let with_goal: Vec<&str> =
        rows.iter().filter_map(|row| row["goal"].as_str()).filter(|goal| !goal.is_empty()).collect();
    assert_eq!((rows.len(), with_goal), (7, vec!["< 40", ">= 1"]));
    for row in &rows {
        assert_eq!(row["command"], "bench/run edge-api", "{row}");
        assert!(row["figure"].as_str().is_some_and(|figure| !figure.is_empty()), "{row}");
        assert!(row["result"].as_f64().is_some_and(|result| result.is_finite() && result >= 0.0), "{row}");
    }
}
