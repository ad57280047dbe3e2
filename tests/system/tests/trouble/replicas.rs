//! Two clouds on one etcd of three members: one truth, one CA, and either may die.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use causeway_channel::JoinToken;
use serde_json::Value;
use testlab::causeway::{Cloud, wait_for};
use testlab::etcd::Cluster;
use testlab::https::Client;

use crate::{GROUP, admin, authorities, call, edge, edge_credentials, join_token, path, site, viewer};

fn store(cluster: &Cluster) -> String {
    format!("etcd={}", cluster.endpoints().join(","))
}

/// A data dir that holds a copy of another's seal key.
fn sealed_like(original: &Path, data_dir: &Path) {
    std::fs::create_dir_all(data_dir).unwrap();
    std::fs::copy(original.join("seal.key"), data_dir.join("seal.key")).unwrap();
}

fn create(client: &Client, name: &str) {
    client.post(&format!("{GROUP}/esites"), &site(name)).unwrap().success().unwrap();
}

/// Writing and reading through one client, which may take as long as an election.
fn both_verbs(client: &Client, name: &str) {
    wait_for(&format!("{name} is written"), || {
        let answer = client.post(&format!("{GROUP}/esites"), &site(name)).ok()?;
        // A write whose answer was lost has happened, and says so the next time.
        matches!(answer.code, 201 | 409).then_some(())
    })
    .unwrap();
    wait_for(&format!("{name} is read"), || {
        let answer = client.get(&path("esites", name)).ok()?;
        (answer.code == 200).then_some(())
    })
    .unwrap();
}

#[test]
fn two_replicas_are_one_cloud() {
    let mut cluster = Cluster::start(3).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (first_dir, second_dir) = (folder.path().join("first"), folder.path().join("second"));
    let first = Cloud::start_with(&first_dir, &["--store", &store(&cluster)]).unwrap();
    a_replica_without_the_key_is_refused(&cluster, folder.path());
    sealed_like(&first_dir, &second_dir);
    let mut second = Cloud::start_with(&second_dir, &["--store", &store(&cluster)]).unwrap();
    let (one, two) = (admin(&first), admin(&second));

    // One CA: both tell the same, and the admin of one is an admin at the other.
    assert_eq!(authorities(&one), authorities(&two));
    assert_eq!(one.authorities(), two.authorities());
    objects_and_watches_are_shared(&one, &two);
    tokens_are_shared(&one, &two);
    a_revocation_reaches_both(&folder, &second, &one, &two);

    cluster.kill(0).unwrap();
    for (client, name) in [(&one, "member-lost-1"), (&two, "member-lost-2")] {
        both_verbs(client, name);
    }
    assert_eq!(names(&one), names(&two));
    second.process.kill().unwrap();
    both_verbs(&one, "replica-lost");
    // And back: the replica finds everything that happened without it.
    let second = Cloud::start_with(&second_dir, &["--store", &store(&cluster)]).unwrap();
    assert_eq!(names(&admin(&second)), names(&one));
    for cloud in [&first, &second] {
        assert!(!cloud.process.log().contains("panicked"), "{}", cloud.process.log());
    }
}

fn a_replica_without_the_key_is_refused(cluster: &Cluster, folder: &Path) {
    let data_dir = folder.join("keyless");
    let mut cloud = Cloud::spawn(&data_dir, &["--store", &store(cluster)]).unwrap();
    let status = wait_for("the keyless replica ends", || cloud.ended()).unwrap();
    assert_eq!(status.code(), Some(1));
    let log = cloud.log();
    let (wanted, origin) = (data_dir.join("seal.key"), folder.join("first/seal.key"));
    for part in [wanted.to_str().unwrap(), origin.to_str().unwrap()] {
        assert!(log.contains(part), "{part} is not named in {log}");
    }
    assert!(!wanted.exists(), "a key of its own would be of no use");
}

fn objects_and_watches_are_shared(one: &Client, two: &Client) {
    let watch_on = |client: &Client| {
        let revision = crate::revision(client);
        client.watch(&format!("{GROUP}/esites?watch=1&resourceVersion={revision}")).unwrap()
    };
    let (mut at_one, mut at_two) = (watch_on(one), watch_on(two));
    create(one, "made-at-one");
    create(two, "made-at-two");
    for (watch, name) in [(&mut at_two, "made-at-one"), (&mut at_one, "made-at-two")] {
        watch
            .find(name, |event| event["type"] == "ADDED" && event["object"]["metadata"]["name"] == name)
            .unwrap();
    }
    assert_eq!(names(one), names(two));
    let conflict = one.post(&format!("{GROUP}/esites"), &site("made-at-two")).unwrap();
    assert_eq!(conflict.code, 409);
}

fn tokens_are_shared(one: &Client, two: &Client) {
    let viewer = viewer(one);
    assert_eq!(viewer.get(&format!("{GROUP}/esites")).unwrap().code, 200);
    // The same token at the other replica.
    let made = call(one, "tokens", &serde_json::json!({"role": "viewer", "ttlSeconds": 600}));
    let at_two = two.with_bearer(made["token"].as_str().unwrap()).unwrap();
    assert_eq!(at_two.get(&format!("{GROUP}/esites")).unwrap().code, 200);
}

/// A token made at one replica is redeemed at the other; the gateway, put out at one, is out at the other.
fn a_revocation_reaches_both(folder: &tempfile::TempDir, second: &Cloud, one: &Client, two: &Client) {
    // A token names the endpoints of the replica that made it; here the edge is sent to the other one.
    let mut token: JoinToken = join_token(one, "oslo").parse().unwrap();
    token.endpoints = vec![second.channel.to_string().parse().unwrap()];
    let edge = edge(folder.path(), "edge", &["--join", &token.to_text()]);
    let data_dir = folder.path().join("edge");
    wait_for("the edge is enrolled", || data_dir.join("identity.pem").exists().then_some(()))
        .unwrap_or_else(|error| panic!("{error}\n{}", edge.log()));
    let as_edge = |client: &Client| client.with_certificate(edge_credentials(&data_dir)).unwrap();
    let (at_one, at_two) = (as_edge(one), as_edge(two));
    for client in [&at_one, &at_two] {
        assert_eq!(client.get(&path("egateways", "oslo")).unwrap().code, 200);
    }
    call(one, "revoke", &serde_json::json!({"gateway": "oslo"}));
    let since = Instant::now();
    for (client, place) in [(&at_one, "where it was said"), (&at_two, "at the other replica")] {
        wait_for("the gateway is out", || {
            (client.get(&path("egateways", "oslo")).unwrap().code == 401).then_some(())
        })
        .unwrap();
        println!("revoked {place} after {} ms", since.elapsed().as_millis());
    }
    assert!(since.elapsed() < Duration::from_secs(1), "{:?}", since.elapsed());
}

fn names(client: &Client) -> Vec<String> {
    let list = client.get(&format!("{GROUP}/esites")).unwrap().success().unwrap();
    let name = |item: &Value| item["metadata"]["name"].as_str().unwrap().to_owned();
    list["items"].as_array().unwrap().iter().map(name).collect()
}

#[test]
fn replicas_that_start_together_agree_on_one_authority() {
    let cluster = Cluster::start(1).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let dirs = [folder.path().join("left"), folder.path().join("right")];
    let key = format!("{}\n", "5a".repeat(32));
    for data_dir in &dirs {
        std::fs::create_dir_all(data_dir).unwrap();
        std::fs::write(data_dir.join("seal.key"), &key).unwrap();
    }
    let store = store(&cluster);
    let spawned: Vec<_> = dirs
        .iter()
        .map(|data_dir| Cloud::spawn(data_dir, &["--store", &store, "--new-fleet"]).unwrap())
        .collect();
    let ready = |(process, data_dir): (_, &PathBuf)| Cloud::await_ready(process, data_dir).unwrap();
    let clouds: Vec<Cloud> = spawned.into_iter().zip(&dirs).map(ready).collect();
    let (left, right) = (admin(&clouds[0]), admin(&clouds[1]));
    assert_eq!(left.authorities(), right.authorities());
    assert_eq!(authorities(&left), authorities(&right));
    // Either's admin is known to the other: one CA signed both.
    assert_eq!(names(&left), ["cloud"]);
    assert_eq!(names(&right), ["cloud"]);
}
