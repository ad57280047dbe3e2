//! Replicas that share one seal key file, as from a mounted secret.

use testlab::causeway::Cloud;
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
