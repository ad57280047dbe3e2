//! Replicas that share one seal key file, as from a mounted secret.

use serde_json::Value;
use testlab::causeway::{Cloud, Process, daemon, wait_for};
use testlab::etcd::Cluster;

#[test]
fn replicas_that_share_a_seal_key_file_start_together() {
    let cluster = Cluster::start(1).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let store = format!("etcd={}", cluster.endpoints().join(","));
    let seal = folder.path().join("seal.key");
    let more = ["--store", &store, "--seal-key", seal.to_str().unwrap()];
    // Both start at the same moment on an empty store.
    let folders = [folder.path().join("one"), folder.path().join("two")];
    let started = folders.each_ref().map(|folder| Cloud::spawn(folder, &more).unwrap());
    let [one, two] = {
        let mut folders = folders.iter();
        started.map(|process| Cloud::await_ready(process, folders.next().unwrap()).unwrap())
    };
    let run = |cloud: &Cloud, arguments: &[&str]| cloud.run(arguments).unwrap().success().unwrap();
    assert_eq!(run(&one, &["ca", "show", "--pem"]), run(&two, &["ca", "show", "--pem"]));
}

#[test]
fn an_edge_remembers_the_replicas_it_was_told_of() {
    let cluster = Cluster::start(1).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let store = format!("etcd={}", cluster.endpoints().join(","));
    let seal = folder.path().join("seal.key");
    let more = ["--store", &store, "--seal-key", seal.to_str().unwrap()];
    let mut one = Cloud::start_with(&folder.path().join("one"), &more).unwrap();
    let run = |cloud: &Cloud, arguments: &[&str]| cloud.run(arguments).unwrap().success().unwrap();
    let token = run(&one, &["token", "create", "--site", "Oslo"]);
    let data = folder.path().join("edge");
    let edge = |more: &[&str]| {
        let arguments =
            [&["edge", "--data-dir", data.to_str().unwrap(), "--admin", "127.0.0.1:0"], more].concat();
        Process::spawn(daemon(&arguments).unwrap(), folder.path().join("edge.log")).unwrap()
    };
    let mut first = edge(&["--join", token.trim()]);
    let is_connected = |edge: &Process| edge.log().contains("connected to the cloud").then_some(());
    wait_for("the edge is connected", || is_connected(&first)).unwrap();

    // A replica that comes later is told to those who are connected, and stands in new tokens.
    let two = Cloud::start_with(&folder.path().join("two"), &more).unwrap();
    let kept = || -> Option<Value> {
        let settings: Value = serde_json::from_slice(&std::fs::read(data.join("edge.json")).ok()?).ok()?;
        let endpoints = settings["endpoints"].as_array()?;
        let has = |cloud: &Cloud| endpoints.iter().any(|endpoint| *endpoint == cloud.channel.to_string());
        (has(&one) && has(&two)).then(|| settings.clone())
    };
    let settings =
        wait_for("both replicas are kept", kept).unwrap_or_else(|error| panic!("{error}\n{}", first.log()));
    assert_eq!(settings["joinedAt"], serde_json::json!([one.channel.to_string()]), "the way back stays");
    let tokens = wait_for("tokens name both", || {
        let token = run(&two, &["token", "create", "--site", "Rome"]);
        let token: causeway_channel::JoinToken = token.trim().parse().ok()?;
        (token.endpoints.len() == 2).then_some(token.endpoints)
    })
    .unwrap();
    println!("a token of the second replica names {tokens:?}");

    // The replica of its enrolment is gone when the edge starts again.
    first.terminate().unwrap();
    one.process.kill().unwrap();
    let again = edge(&[]);
    wait_for("the edge is connected to the other replica", || is_connected(&again))
        .unwrap_or_else(|error| panic!("{error}\n{}", again.log()));
}
