//! A full disk: a tiny tmpfs, filled by the store itself and by another program.
//!
//! Mounting needs root; without it the test prints a note and is skipped.

use std::path::Path;
use std::process::Command;

use causeway_store::{ListRange, Revision, Store, StoreError, StoreSpec};

use crate::lab::{event, list, value};

/// A small file system of its own; unmounted on drop.
struct Tmpfs(tempfile::TempDir);

impl Tmpfs {
    fn mount(size: &str) -> Option<Tmpfs> {
        let directory = tempfile::tempdir().unwrap();
        let mounted = mount(&["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"], directory.path());
        mounted.then_some(Tmpfs(directory))
    }

    fn resize(&self, size: &str) {
        assert!(mount(&["-o", &format!("remount,size={size}")], self.0.path()), "remount");
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

fn mount(arguments: &[&str], place: &Path) -> bool {
    Command::new("mount").args(arguments).arg(place).status().is_ok_and(|status| status.success())
}

/// Writes until the store reports that it is full; returns the acknowledged writes.
async fn fill(store: &Store, round: &str, written: &mut Vec<(String, Revision)>) {
    for n in 0..100_000 {
        let key = format!("things/{round}/{n:05}");
        match store.create(&key, value("x".repeat(5000))).await {
            Ok(revision) => written.push((key, revision)),
            Err(error) => {
                assert!(matches!(error, StoreError::Full { .. }), "{error:?}");
                return;
            }
        }
    }
    panic!("the disk never became full");
}

async fn everything_is_there(store: &Store, written: &[(String, Revision)]) {
    let listing = list(store, "things/").await;
    let found: Vec<(String, Revision)> =
        listing.records.iter().map(|r| (r.key.to_string(), r.revision)).collect();
    assert_eq!(found, written);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_refuses_writes_serves_reads_and_recovers() {
    let Some(disk) = Tmpfs::mount("3m") else {
        println!(
            "skipped: a_full_disk_refuses_writes_serves_reads_and_recovers: cannot mount a tmpfs (needs root)"
        );
        return;
    };
    let spec = StoreSpec::Sqlite { path: disk.0.path().join("store.db") };
    let store = Store::open(spec.clone()).await.unwrap();
    let mut watch = store.watch("things/", store.revision().await.unwrap()).await.unwrap();
    let mut written = Vec::new();

    // The store fills the disk itself, several times; each time there is more space afterwards.
    for (round, more) in [("a", "5m"), ("b", "7m"), ("c", "12m")] {
        fill(&store, round, &mut written).await;
        for attempt in 0..20 {
            // Small writes may still fit; large ones must not, and none may cause damage.
            if let Ok(revision) =
                store.create(&format!("things/{round}/x{attempt:02}"), value("y".repeat(5000))).await
            {
                written.push((format!("things/{round}/x{attempt:02}"), revision));
            }
            assert!(store.get(&written[0].0).await.unwrap().is_some(), "reads go on");
        }
        everything_is_there(&store, &written).await;
        let page =
            ListRange { at: Some(written[written.len() / 2].1), limit: Some(3), ..ListRange::default() };
        assert_eq!(store.list("things/", page).await.unwrap().records.len(), 3, "old lists go on");
        disk.resize(more);
        let key = format!("things/{round}/y");
        written.push((
            key.clone(),
            store.create(&key, value("room again")).await.expect("it recovers by itself"),
        ));
    }
    // Another program takes the space, and frees it again.
    std::fs::write(disk.0.path().join("ballast"), vec![0; 64 << 20])
        .expect_err("the ballast takes all that is left");
    fill(&store, "d", &mut written).await;
    everything_is_there(&store, &written).await;
    std::fs::remove_file(disk.0.path().join("ballast")).unwrap();
    written.push((
        "things/d/y".into(),
        store.create("things/d/y", value("room again")).await.expect("it recovers"),
    ));

    for (key, revision) in &written {
        let seen = event(&mut watch).await.unwrap();
        assert_eq!(
            (&*seen.key, seen.revision),
            (&**key, *revision),
            "watchers saw all of it and nothing else"
        );
    }
    store.close().await.unwrap();
    let store = Store::open(spec).await.unwrap();
    everything_is_there(&store, &written).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_on_a_full_disk_is_refused_with_a_clear_error() {
    let Some(disk) = Tmpfs::mount("1m") else {
        println!(
            "skipped: a_store_on_a_full_disk_is_refused_with_a_clear_error: cannot mount a tmpfs (needs root)"
        );
        return;
    };
    std::fs::write(disk.0.path().join("ballast"), vec![0; 2 << 20]).expect_err("full");
    let spec = StoreSpec::Sqlite { path: disk.0.path().join("store.db") };
    let error = Store::open(spec.clone()).await.err().expect("refused");
    assert!(matches!(error, StoreError::Full { .. }), "{error:?}");
    std::fs::remove_file(disk.0.path().join("ballast")).unwrap();
    Store::open(spec).await.expect("there is room now").put("a", value(1)).await.unwrap();
}
