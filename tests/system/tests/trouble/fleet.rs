//! Three clouds on an etcd of three members, and edges at each: one fleet, whichever replica is asked.
//!
//! A stream to any edge opens at any replica; a replica that is killed loses its edges to the remaining ones within five
//! seconds; one that is drained cuts nothing; a revoked gateway is out everywhere within a second.

use std::path::Path;
use std::time::{Duration, Instant};

use causeway_api::management::paths;
use causeway_channel::JoinToken;
use causeway_channel::session::KEEPALIVE_QUICK;
use serde_json::{Value, json};
use testlab::causeway::{Cloud, Process, wait_for};
use testlab::etcd::Cluster;
use testlab::https::Client;

use crate::{admin, call, edge};

const REPLICAS: usize = 3;

struct Fleet {
    clouds: Vec<Cloud>,
    admins: Vec<Client>,
    edges: Vec<(String, Process)>,
    folder: tempfile::TempDir,
    _cluster: Cluster,
}

impl Fleet {
    /// Three replicas; the edge `eN` begins at replica N.
    fn start() -> Fleet {
        let cluster = Cluster::start(3).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let store = format!("etcd={}", cluster.endpoints().join(","));
        let key = format!("{}\n", "5a".repeat(32));
        let mut clouds = Vec::new();
        for number in 0..REPLICAS {
            let data_dir = folder.path().join(format!("cloud{number}"));
            std::fs::create_dir_all(&data_dir).unwrap();
            std::fs::write(data_dir.join("seal.key"), &key).unwrap();
            // The seal key was prepared, so the first start must say that it is one.
            let more = ["--store", store.as_str(), "--new-fleet"];
            clouds.push(Cloud::start_with(&data_dir, &more[..if number == 0 { 3 } else { 2 }]).unwrap());
        }
        let admins: Vec<Client> = clouds.iter().map(admin).collect();
        let mut fleet = Fleet { clouds, admins, edges: Vec::new(), folder, _cluster: cluster };
        for number in 0..REPLICAS {
            fleet.join(number);
        }
        for admin in &fleet.admins {
            fleet.edges.iter().for_each(|(name, _)| fleet.connected(admin, name));
        }
        fleet
    }

    fn join(&mut self, number: usize) {
        let name = format!("e{number}");
        let made = call(&self.admins[0], "tokens", &json!({"site": name, "gateway": name}));
        let mut token: JoinToken = made["token"].as_str().unwrap().parse().unwrap();
        token.endpoints = vec![self.clouds[number].channel.to_string().parse().unwrap()];
        let process = edge(self.folder.path(), &name, &["--join", &token.to_text()]);
        self.edges.push((name, process));
    }

    fn connected(&self, admin: &Client, name: &str) {
        wait_for(&format!("{name} is connected"), || is_connected(admin, name)?.then_some(()))
            .unwrap_or_else(|error| panic!("{error}\n{}", self.logs()));
    }

    fn logs(&self) -> String {
        let clouds = self.clouds.iter().map(|cloud| cloud.process.log());
        let edges = self.edges.iter().map(|(_, process)| process.log());
        clouds.chain(edges).collect::<Vec<_>>().join("\n----\n")
    }
}

/// The line of a gateway as this replica shows it.
fn line(admin: &Client, name: &str) -> Option<Value> {
    let status = admin.get(paths::STATUS).ok()?.success().ok()?;
    status["gateways"].as_array()?.iter().find(|gateway| gateway["name"] == name).cloned()
}

fn is_connected(admin: &Client, name: &str) -> Option<bool> {
    line(admin, name)?["connected"].as_bool()
}

fn probe(admin: &Client, name: &str, bytes: u64) -> anyhow::Result<Value> {
    let body = json!({"gateway": name, "bytes": bytes, "seconds": 60});
    admin.post(paths::PROBE, &body)?.success()
}

#[test]
fn a_stream_to_any_edge_opens_at_any_replica_and_a_killed_replica_is_left_within_five_seconds() {
    let mut fleet = Fleet::start();
    for (number, admin) in fleet.admins.iter().enumerate() {
        for (name, _) in &fleet.edges {
            let found =
                probe(admin, name, 100_000).unwrap_or_else(|error| panic!("{error}\n{}", fleet.logs()));
            println!("replica {number} to {name}: {found}");
            assert_eq!(found["bytes"], 100_000);
        }
    }
    // Figures of sessions elsewhere are asked for, not guessed. A replica that does not answer within its deadline is asked again.
    let has_figures =
        |seen: &Value| seen["transport"].is_string() && seen["receivedBytes"].as_u64() > Some(0);
    wait_for("the figures of e0 at another replica", || line(&fleet.admins[1], "e0").filter(has_figures))
        .unwrap_or_else(|error| panic!("{error}\n{}", fleet.logs()));

    // An edge that was welcomed before its replica knew of another one is told the shorter interval afterwards.
    let quick = format!("keepalive_ms={}", KEEPALIVE_QUICK.as_millis());
    wait_for("e0 pings at the interval of a fleet with replicas", || {
        fleet.edges[0].1.log().contains(&quick).then_some(())
    })
    .unwrap_or_else(|error| panic!("{error}\n{}", fleet.logs()));

    fleet.clouds[0].process.kill().unwrap();
    let killed = Instant::now();
    wait_for("a stream reaches e0 elsewhere", || probe(&fleet.admins[1], "e0", 1000).ok())
        .unwrap_or_else(|error| panic!("{error}\n{}", fleet.logs()));
    let took = killed.elapsed();
    println!("after kill -9 of its replica, e0 was reached elsewhere after {took:?}");
    // The bound of five seconds follows from the interval (`session/keepalive.rs`); on a machine that runs other tests beside this
    // one it is printed, and held in the long form.
    assert!(
        took < Duration::from_secs(5) || std::env::var_os("CAUSEWAY_SOAK").is_none_or(|value| value != "1"),
        "{took:?}\n{}",
        fleet.logs()
    );
    // The other replicas hear of it a moment later.
    for (name, _) in &fleet.edges {
        wait_for("every edge is reached from the third", || probe(&fleet.admins[2], name, 1000).ok())
            .unwrap();
    }
    for cloud in &fleet.clouds {
        assert!(!cloud.process.log().contains("panicked"), "{}", cloud.process.log());
    }
}

#[test]
fn a_drained_replica_cuts_no_stream_and_its_edges_go_elsewhere() {
    let mut fleet = Fleet::start();
    // Through the replica that is to be drained, and large enough to be under way for a while.
    let (before, bytes) = (line(&fleet.admins[1], "e0").unwrap(), 60_000_000);
    let kubeconfig = fleet.clouds[1].kubeconfig();
    let stream = std::thread::spawn(move || probe(&client(&kubeconfig), "e0", bytes));
    wait_for("the stream is under way", || {
        let now = line(&fleet.admins[0], "e0")?["sentBytes"].as_u64()?;
        (now > before["sentBytes"].as_u64()? + 100_000).then_some(())
    })
    .unwrap_or_else(|error| panic!("{error}\n{}", fleet.logs()));
    assert!(!stream.is_finished(), "the stream must be under way when the drain begins");
    let begun = Instant::now();
    let status = fleet.clouds[0].process.terminate().unwrap();
    let ended = begun.elapsed();
    let found = stream.join().unwrap().unwrap_or_else(|error| panic!("{error}\n{}", fleet.logs()));
    assert_eq!((status.code(), &found["bytes"]), (Some(0), &json!(bytes)), "{}", fleet.logs());
    println!("the drained replica ended after {ended:?}; the stream took {} ms", found["milliseconds"]);
    for admin in &fleet.admins[1..] {
        fleet.connected(admin, "e0");
        wait_for("e0 is reached", || probe(admin, "e0", 1000).ok()).unwrap();
    }
}

fn client(kubeconfig: &Path) -> Client {
    Client::from_kubeconfig(kubeconfig).unwrap()
}

#[test]
fn a_revoked_gateway_is_out_at_every_replica_within_a_second() {
    let fleet = Fleet::start();
    for (number, (name, _)) in fleet.edges.iter().enumerate() {
        // Said at another replica than the one that holds the session.
        call(&fleet.admins[(number + 1) % REPLICAS], "revoke", &json!({"gateway": name}));
        let since = Instant::now();
        for admin in &fleet.admins {
            wait_for("the session has ended", || (!is_connected(admin, name)?).then_some(()))
                .unwrap_or_else(|error| panic!("{error}\n{}", fleet.logs()));
        }
        let took = since.elapsed();
        println!("{name} is out everywhere after {took:?}");
        assert!(took < Duration::from_secs(1), "{took:?}");
    }
}
