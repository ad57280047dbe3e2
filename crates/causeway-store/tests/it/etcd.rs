//! The battery on a real cluster of three, and tests that need several members and replicas.

use std::time::{Duration, Instant};

use causeway_store::{EtcdTls, Revision, Store, StoreError, StoreSpec};
use testlab::etcd::{Cluster, Tls};

use crate::battery::{self, for_each_promise};
use crate::lab::{Lab, event, list, value};

/// One cluster for all guarantees: starting it costs more than most of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_promise_holds_on_three_members() {
    let cluster = Cluster::start(3).unwrap();
    macro_rules! run {
        ($($promise:ident,)*) => {
            $(
                let started = std::time::Instant::now();
                println!("{} ...", stringify!($promise));
                battery::$promise(&Lab::etcd(&cluster, stringify!($promise))).await;
                println!("{} ok, {:?}", stringify!($promise), started.elapsed());
            )*
        };
    }
    for_each_promise!(run);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_replicas_are_one_store_and_survive_the_loss_of_a_member_and_of_one_of_them() {
    let mut cluster = Cluster::start(3).unwrap();
    let lab = Lab::etcd(&cluster, "replicas");
    let (one, two) = tokio::join!(lab.open(), lab.open());
    assert_eq!(one.epoch().await, two.epoch().await);
    let start = one.revision().await.unwrap();
    let mut watch_one = one.watch("things/", start).await.unwrap();
    let mut watch_two = two.watch("things/", start).await.unwrap();

    let mut written = Vec::new();
    for n in 0..60 {
        match n {
            // Both replicas talk to the first member now.
            20 => cluster.kill(0).unwrap(),
            40 => {
                cluster.restart(0).unwrap();
                cluster.kill(1).unwrap();
            }
            _ => {}
        }
        let (writer, reader) = if n % 2 == 0 { (&one, &two) } else { (&two, &one) };
        let revision = put_until_it_works(writer, &format!("things/{n:02}"), n).await;
        let seen =
            reader.get(&format!("things/{n:02}")).await.unwrap().expect("the other replica reads it at once");
        assert_eq!(seen.revision, revision);
        written.push(revision);
    }
    for watch in [&mut watch_one, &mut watch_two] {
        let mut seen = Vec::new();
        while seen.last() != written.last() {
            seen.push(event(watch).await.unwrap().revision);
        }
        assert!(seen.windows(2).all(|pair| pair[0] < pair[1]), "in order and none twice: {seen:?}");
        assert!(written.iter().all(|revision| seen.contains(revision)), "{seen:?} lacks some of {written:?}");
    }
    one.close().await.unwrap();
    let last = put_until_it_works(&two, "things/last", 1).await;
    assert_eq!(event(&mut watch_two).await.unwrap().revision, last);
    assert_eq!(list(&two, "things/").await.records.len(), 61);
}

/// A write in flight when a member dies may be lost or not; the caller gets `Unavailable` and retries.
async fn put_until_it_works(store: &Store, key: &str, n: u64) -> Revision {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        match store.put(key, value(n)).await {
            Ok(revision) => return revision,
            Err(StoreError::Unavailable { .. }) if Instant::now() < deadline => {}
            Err(error) => panic!("{error:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_cluster_is_unavailable_and_the_same_handle_recovers_with_it() {
    let mut cluster = Cluster::start(1).unwrap();
    let store = Lab::etcd(&cluster, "lost").open().await;
    let first = store.put("a", value(1)).await.unwrap();
    let mut watch = store.watch("", first).await.unwrap();
    cluster.kill(0).unwrap();
    let started = Instant::now();
    let (read, write) = tokio::join!(store.get("a"), store.put("a", value(2)));
    assert!(matches!(read, Err(StoreError::Unavailable { .. })), "{read:?}");
    assert!(matches!(write, Err(StoreError::Unavailable { .. })), "{write:?}");
    assert!(started.elapsed() < Duration::from_secs(20), "it said so after {:?}", started.elapsed());
    cluster.restart(0).unwrap();
    let next = put_until_it_works(&store, "a", 3).await;
    assert_eq!(event(&mut watch).await.unwrap().revision, next);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_is_spoken_both_ways_when_the_address_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let tls = certificates(directory.path());
    let cluster = Cluster::start_tls(1, tls.clone()).unwrap();
    let open = |files: EtcdTls| {
        Store::open(StoreSpec::Etcd {
            endpoints: cluster.endpoints(),
            tls: Some(files),
            prefix: "/tls".into(),
        })
    };
    let ours = EtcdTls { ca: Some(tls.ca), cert: Some(tls.cert), key: Some(tls.key) };
    let store = open(ours.clone()).await.unwrap();
    let revision = store.put("a", value(1)).await.unwrap();
    assert_eq!(store.get("a").await.unwrap().unwrap().revision, revision);

    std::fs::create_dir(directory.path().join("other")).unwrap();
    let other = certificates(&directory.path().join("other"));
    let refused = [
        ("no certificate", EtcdTls { cert: None, key: None, ..ours.clone() }),
        ("an unknown authority", EtcdTls { ca: Some(other.ca), ..ours.clone() }),
        (
            "a certificate of another authority",
            EtcdTls { cert: Some(other.cert), key: Some(other.key), ..ours.clone() },
        ),
        ("a missing file", EtcdTls { ca: Some("/nowhere.pem".into()), ..ours.clone() }),
        ("no key", EtcdTls { key: None, ..ours }),
    ];
    for (name, files) in refused {
        let error = open(files).await.err().unwrap_or_else(|| panic!("{name} was accepted"));
        assert!(
            matches!(error, StoreError::Unavailable { .. } | StoreError::Invalid { .. }),
            "{name}: {error:?}"
        );
    }
}

fn certificates(directory: &std::path::Path) -> Tls {
    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
    let ca_key = KeyPair::generate().unwrap();
    let mut ca = CertificateParams::new(vec![]).unwrap();
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca_pem = ca.self_signed(&ca_key).unwrap().pem();
    let key = KeyPair::generate().unwrap();
    let member = CertificateParams::new(vec!["127.0.0.1".into()]).unwrap();
    let cert = member.signed_by(&key, &Issuer::new(ca, ca_key)).unwrap().pem();
    let tls = Tls {
        ca: directory.join("ca.pem"),
        cert: directory.join("cert.pem"),
        key: directory.join("key.pem"),
    };
    for (path, pem) in [(&tls.ca, ca_pem), (&tls.cert, cert), (&tls.key, key.serialize_pem())] {
        std::fs::write(path, pem).unwrap();
    }
    tls
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn marks_of_a_newer_program_and_of_a_broken_restore_are_respected() {
    let cluster = Cluster::start(1).unwrap();
    let lab = Lab::etcd(&cluster, "marks");
    let mut etcd = etcd_client::Client::connect(cluster.endpoints(), None).await.unwrap();
    let store = lab.open().await;
    store.put("a", value(1)).await.unwrap();
    let mut export = store.export();
    let mut backup = Vec::new();
    while let Some(lines) = export.next().await.unwrap() {
        backup.extend_from_slice(&lines);
    }

    // A restore by another process was killed in the middle: no replica takes the partial data for the whole.
    etcd.put("/marks/meta/importing", "somebody", None).await.unwrap();
    etcd.put("/marks/objects/half", "of it", None).await.unwrap();
    let error = store.put("b", value(1)).await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable { .. }), "{error:?}");
    let fresh = lab.open().await;
    let error = fresh.get("a").await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable { .. }), "{error:?}");
    assert_eq!(fresh.import(&backup[..]).await.unwrap().records, 1);
    let records = list(&fresh, "").await.records;
    assert_eq!(crate::lab::keys(&records), ["a"]);
    put_until_it_works(&store, "b", 2).await;

    etcd.put("/marks/meta/format", "99", None).await.unwrap();
    let error = Store::open(lab.spec.clone()).await.err().expect("refused");
    assert!(matches!(error, StoreError::TooNew { found: 99, .. }), "{error:?}");
}
