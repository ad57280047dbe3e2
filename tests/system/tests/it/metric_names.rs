//! Compares the metrics at `/metrics` of a cloud and an edge with the committed list, so that none is renamed by accident.
//!
//! Dashboards and alerts name metrics, so a change of the list is a change for users. A family without a value is not shown, so a
//! listed name that is absent must at least be registered somewhere in the source. `UPDATE=1 cargo nextest run -p system
//! -E 'test(metric_names)'` writes the list.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;

use serde_json::Value;
use testlab::causeway::{get, wait_for};

use crate::{Lab, data};

#[test]
fn metric_names_are_as_listed() {
    let lab = Lab::start();
    let token = lab.run(&["token", "create", "--site", "Oslo"]);
    let edge = lab.join("edge", token.trim());
    lab.cloud.wait_condition("egateway", "Oslo", "Connected", "True").unwrap();
    let admin: SocketAddr = wait_for("the edge says where its admin port is", || {
        let text = std::fs::read(lab.path("edge").join("run/edge.json")).ok()?;
        serde_json::from_slice::<Value>(&text).ok()?["admin"].as_str()?.parse().ok()
    })
    .unwrap_or_else(|error| panic!("{error}\n{}", edge.log()));
    let mut shown = names("cloud", lab.cloud.admin);
    shown.extend(names("edge", admin));

    let path = data("metrics.txt");
    let listed = std::fs::read_to_string(&path).unwrap_or_default();
    let listed: BTreeSet<String> = listed.lines().map(str::to_owned).collect();
    let source = source();
    let (kept, gone): (BTreeSet<&String>, BTreeSet<&String>) =
        listed.iter().partition(|line| shown.contains(*line) || is_registered(line, &source));
    let new: BTreeSet<&String> = shown.difference(&listed).collect();
    if std::env::var_os("UPDATE").is_some() {
        let all: BTreeSet<&String> = kept.into_iter().chain(new).collect();
        let text: String = all.into_iter().map(|line| format!("{line}\n")).collect();
        return std::fs::write(&path, text).unwrap();
    }
    assert!(gone.is_empty(), "gone: {gone:?}; a dashboard may need it; UPDATE=1 writes the list");
    assert!(new.is_empty(), "not listed: {new:?}; UPDATE=1 writes the list");
}

/// A line `ROLE NAME TYPE` for each metric that is shown.
fn names(role: &str, admin: SocketAddr) -> BTreeSet<String> {
    let (code, text) = get(admin, "/metrics").unwrap();
    assert_eq!(code, 200);
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    types.map(|name_and_type| format!("{role} {name_and_type}")).collect()
}

/// Is the name, or the part of it behind its component, a string of the source?
fn is_registered(line: &str, source: &str) -> bool {
    let Some(name) = line.split(' ').nth(1) else { return false };
    let name = name.strip_suffix("_total").unwrap_or(name);
    let ends = name.match_indices('_').map(|(place, _)| &name[place + 1..]);
    std::iter::once(name).chain(ends).any(|part| source.contains(&format!("\"{part}\"")))
}

/// The text of all Rust files of `crates/`.
fn source() -> String {
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates")];
    let mut text = String::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => folders.push(path),
                false if path.extension().is_some_and(|kind| kind == "rs") => {
                    text.push_str(&std::fs::read_to_string(&path).unwrap());
                }
                false => {}
            }
        }
    }
    text
}
