//! Two clouds on one etcd of three members: one cloud to its users, also when parts of it die.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use testlab::causeway::{Cloud, wait_for};
use testlab::etcd::Cluster;

use crate::site;

#[test]
fn two_replicas_are_one_cloud() {
    let mut cluster = Cluster::start(3).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let store = format!("etcd={}", cluster.endpoints().join(","));
    let seal = folder.path().join("seal.key");
    let more = ["--store", &store, "--seal-key", seal.to_str().unwrap()];
    // Both start at the same moment on an empty store.
    let folders = [folder.path().join("one"), folder.path().join("two")];
    let started = folders.each_ref().map(|folder| Cloud::spawn(folder, &more).unwrap());
    let [mut one, two] = {
        let mut folders = folders.iter();
        started.map(|process| Cloud::await_ready(process, folders.next().unwrap()).unwrap())
    };
    let run = |cloud: &Cloud, arguments: &[&str]| cloud.run(arguments).unwrap().success().unwrap();
    assert_eq!(run(&one, &["ca", "show", "--pem"]), run(&two, &["ca", "show", "--pem"]));

    // A watch on one sees what is written through the other.
    let mut watch = two.client(&["get", "esites", "-o", "name", "-w"]).unwrap();
    let mut child = watch.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert_eq!(lines.next().unwrap(), "esite/cloud");
    one.apply(&site("Oslo")).unwrap().success().unwrap();
    assert!(lines.any(|line| line == "esite/Oslo"));
    child.kill().unwrap();
    child.wait().unwrap();

    // An edge's token made at one counts at the other; conditions are written once.
    run(&two, &["token", "create", "--site", "Oslo"]);
    assert!(run(&one, &["token", "list"]).contains("site Oslo"));
    let ready = one.wait_condition("esite", "Oslo", "Ready", "True").unwrap();
    assert_eq!(two.wait_condition("esite", "Oslo", "Ready", "True").unwrap(), ready);

    cluster.kill(0).unwrap();
    one.process.kill().unwrap();
    wait_for("the other replica takes writes", || {
        two.apply(&site("Bergen")).ok().filter(|ran| ran.code == 0).map(drop)
    })
    .unwrap();
    assert!(two.object("esite", "Bergen").is_some());
    assert!(two.object("esite", "Oslo").is_some());
}
