//! `kill -9` of the whole cloud while clients write: what was acknowledged is there, and time goes only forward.
//!
//! Five rounds on each store; fifty with CAUSEWAY_SOAK=1. The store has such a test of its own; this one goes through HTTP,
//! so it also shows that the cloud comes back by itself: lock, identity, addresses of presences, readiness.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use testlab::causeway::Cloud;
use testlab::etcd::Cluster;
use testlab::https::{Client, Request};
use testlab::random::SeededRandom;

use crate::{GROUP, admin, path, revision, site, soak};

const WRITERS: u64 = 4;

/// The state of an object after its last acknowledged write.
#[derive(Clone, Debug, PartialEq)]
enum Known {
    /// This version or a later one: a write that was not acknowledged may still have happened.
    AtLeast(u64),
    Deleted,
    /// The deletion was sent and never answered.
    PerhapsDeleted,
}

#[test]
fn kill_nine_loses_nothing_that_was_acknowledged_on_sqlite() {
    rounds("sqlite", &[]);
}

#[test]
fn kill_nine_loses_nothing_that_was_acknowledged_on_etcd() {
    let cluster = Cluster::start(1).unwrap();
    rounds("etcd", &["--store", &format!("etcd={}", cluster.endpoints().join(","))]);
}

fn rounds(store: &str, more: &[&str]) {
    let mut random = SeededRandom::for_test(&format!("kill -9 on {store}"));
    let folder = tempfile::tempdir().unwrap();
    let data_dir = folder.path().join("cloud");
    let mut known = BTreeMap::new();
    let mut newest = 0;
    let count = if soak() { 50 } else { 5 };
    for round in 0..=count {
        let mut cloud = Cloud::start_with(&data_dir, more).unwrap();
        let client = admin(&cloud);
        let found = revision(&client);
        assert!(found >= newest, "round {round}: revision {found} after {newest} was acknowledged");
        check(&client, &known, round);
        if round == count {
            break;
        }
        let delay = Duration::from_millis(50 + random.below(700));
        newest = newest.max(write_until_killed(&mut cloud, &client, round, delay, &mut known)).max(found);
    }
    let deleted = known.values().filter(|state| **state == Known::Deleted).count();
    println!("{store}: {count} rounds, {} objects, {deleted} deleted, revision {newest}", known.len());
    assert!(known.len() > count, "hardly anything was written");
}

/// Writes from several threads, kills the cloud in the middle, and returns the newest revision that was acknowledged.
fn write_until_killed(
    cloud: &mut Cloud,
    client: &Client,
    round: usize,
    delay: Duration,
    known: &mut BTreeMap<String, Known>,
) -> u64 {
    let (newest, dead) = (AtomicU64::new(0), AtomicBool::new(false));
    let started = std::sync::Barrier::new(WRITERS as usize + 1);
    let learned: Vec<(String, Known)> = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let (newest, dead, started) = (&newest, &dead, &started);
                scope.spawn(move || {
                    started.wait();
                    write(client, &format!("r{round}-w{writer}"), newest, dead)
                })
            })
            .collect();
        started.wait();
        // Not to wait for something: the moment of the crash is what the random choose.
        std::thread::sleep(delay);
        cloud.process.kill().unwrap();
        dead.store(true, Ordering::SeqCst);
        writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect()
    });
    known.extend(learned);
    newest.into_inner()
}

/// Creates, updates and deletes until the cloud does not answer any more.
fn write(client: &Client, prefix: &str, newest: &AtomicU64, dead: &AtomicBool) -> Vec<(String, Known)> {
    let mut known = Vec::new();
    let acknowledged = |request: &Request| -> bool {
        let Ok(answer) = client.send(request) else { return false };
        assert!(answer.code < 400 || dead.load(Ordering::SeqCst), "{}: {}", answer.code, answer.text());
        if let Some(revision) = answer.json()["metadata"]["resourceVersion"].as_str() {
            newest.fetch_max(revision.parse().unwrap(), Ordering::SeqCst);
        }
        (200..300).contains(&answer.code)
    };
    for number in 0.. {
        let name = format!("{prefix}-{number}");
        let create = Request::new("POST", &format!("{GROUP}/esites")).json(&version(&name, 1));
        if !acknowledged(&create) {
            break;
        }
        known.push((name.clone(), Known::AtLeast(1)));
        let update = Request::new("PATCH", &path("esites", &name))
            .body("application/merge-patch+json", version(&name, 2).to_string());
        if !acknowledged(&update) {
            break;
        }
        known.push((name.clone(), Known::AtLeast(2)));
        if number % 3 == 0 {
            known.push((name.clone(), Known::PerhapsDeleted));
            if !acknowledged(&Request::new("DELETE", &path("esites", &name))) {
                break;
            }
            known.push((name.clone(), Known::Deleted));
        }
    }
    known
}

fn version(name: &str, version: u64) -> Value {
    let mut object = site(name);
    object["metadata"]["labels"] = json!({"version": version.to_string()});
    object
}

fn check(client: &Client, known: &BTreeMap<String, Known>, round: usize) {
    let list = client.get(&format!("{GROUP}/esites")).unwrap().success().unwrap();
    let found: BTreeMap<&str, u64> =
        list["items"].as_array().unwrap().iter().filter_map(named_version).collect();
    for (name, state) in known {
        let found = found.get(name.as_str()).copied();
        let holds = match state {
            Known::AtLeast(version) => found.is_some_and(|found| found >= *version),
            Known::Deleted => found.is_none(),
            Known::PerhapsDeleted => true,
        };
        assert!(holds, "round {round}: {name} was acknowledged as {state:?} and is {found:?}");
    }
}

fn named_version(object: &Value) -> Option<(&str, u64)> {
    let version = object["metadata"]["labels"]["version"].as_str()?;
    Some((object["metadata"]["name"].as_str()?, version.parse().ok()?))
}
