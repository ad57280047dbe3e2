//! Whatever happens to the files, an edge comes up on the old netmap or the new one, whole.

use causeway_netmap::{Generation, Key};

use super::disk::{decode, encode};
use super::*;

fn netmap(revision: u64, entries: usize) -> Arc<Netmap> {
    let entry = |number: usize| {
        let value = format!("value {number} of {revision}");
        (Key::of("presence", &number.to_string()), Bytes::from(value))
    };
    let entries = (0..entries).map(entry).collect();
    Arc::new(Netmap::build(Generation { epoch: 1, revision }, entries, None).unwrap())
}

fn whole(netmap: &Netmap) -> Bytes {
    netmap.update_from(None).encode()
}

#[tokio::test]
async fn what_was_acknowledged_is_there_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let data_dir = folder.path();
    let readiness = causeway_daemon::Readiness::new();
    let open = || NetmapKeeper::open(data_dir, None);
    let keeper = NetmapKeeper::open(data_dir, Some(readiness.register("netmap"))).unwrap();
    assert!(keeper.held().is_none() && !readiness.is_ready());
    for revision in 1..5 {
        let new = netmap(revision, 20);
        let EdgeSays::NetmapAck(ack) = keeper.handle(whole(&new)).await else { panic!("{revision}") };
        assert_eq!(ack.held, Some(held_message(new.stamp())));
        assert!(readiness.is_ready());
        assert_eq!(open().unwrap().stamp(), Some(new.stamp()));
        assert_eq!(persisted(data_dir).as_ref(), Some(&*new));
        assert_eq!(keeper.subscribe().borrow().as_ref().unwrap().view.generation, new.generation());
    }
    keeper.forget().await;
    assert!(!readiness.is_ready());
    assert_eq!((keeper.stamp(), open().unwrap().stamp()), (None, None), "enrolled anew");
    let EdgeSays::NetmapAck(_) = keeper.handle(whole(&netmap(1, 1))).await else { panic!() };
}

#[tokio::test]
async fn an_old_generation_and_a_wrong_base_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let keeper = NetmapKeeper::open(folder.path(), None).unwrap();
    keeper.handle(whole(&netmap(5, 3))).await;
    let EdgeSays::NetmapRefused(refused) = keeper.handle(whole(&netmap(4, 3))).await else { panic!() };
    assert!(!refused.want_whole && refused.held == keeper.held());
    let delta = netmap(7, 3).update_from(Some(&netmap(6, 3))).encode();
    let EdgeSays::NetmapRefused(refused) = keeper.handle(delta).await else { panic!() };
    assert!(refused.want_whole);
    assert_eq!(keeper.stamp(), Some(netmap(5, 3).stamp()));
}

#[tokio::test]
async fn a_disk_that_refuses_is_reported_and_the_old_netmap_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let data_dir = folder.path();
    let readiness = causeway_daemon::Readiness::new();
    let keeper = NetmapKeeper::open(data_dir, Some(readiness.register("netmap"))).unwrap();
    keeper.handle(whole(&netmap(1, 3))).await;
    // A folder that is gone refuses every write, also for root.
    let away = folder.path().join("away");
    std::fs::rename(data_dir.join(FOLDER), &away).unwrap();
    let EdgeSays::NetmapRefused(refused) = keeper.handle(whole(&netmap(2, 3))).await else { panic!() };
    assert!(refused.reason.contains("cannot be written") && !refused.want_whole, "{}", refused.reason);
    assert!(!readiness.is_ready());
    assert_eq!(keeper.stamp(), Some(netmap(1, 3).stamp()));
    std::fs::rename(&away, data_dir.join(FOLDER)).unwrap();
    let EdgeSays::NetmapAck(_) = keeper.handle(whole(&netmap(2, 3))).await else { panic!() };
    assert!(readiness.is_ready());
}

/// A kill at any byte: the file that is being written may have any length, or be missing. Damage afterwards: any byte.
#[test]
fn files_cut_or_garbled_anywhere_come_up_on_the_old_or_the_new_netmap() {
    let folder = tempfile::tempdir().unwrap();
    let (old, new) = (netmap(1, 5), netmap(2, 6));
    let newest = |content: Option<&[u8]>| {
        std::fs::write(folder.path().join("a"), encode(&old)).unwrap();
        match content {
            Some(content) => std::fs::write(folder.path().join("b"), content).unwrap(),
            None => drop(std::fs::remove_file(folder.path().join("b"))),
        }
        let (disk, found) = Disk::open(folder.path()).unwrap();
        // And goes on from there: the next one does not take the place of the one that is whole.
        disk.write(&netmap(3, 1)).unwrap();
        assert_eq!(Disk::open(folder.path()).unwrap().1.as_ref(), Some(&*netmap(3, 1)));
        assert!(decode(&std::fs::read(folder.path().join("a")).unwrap()).is_ok());
        found
    };
    let whole = encode(&new);
    assert_eq!(newest(Some(&whole)).as_ref(), Some(&*new));
    assert_eq!(newest(None).as_ref(), Some(&*old));
    for length in 0..whole.len() {
        assert!(decode(&whole[..length]).is_err(), "cut to {length}");
        let mut garbled = whole.clone();
        garbled[length] ^= 0x20;
        assert!(decode(&garbled).is_err(), "byte {length}");
    }
    for length in [0, 1, 20, whole.len() / 2, whole.len() - 1] {
        assert_eq!(newest(Some(&whole[..length])).as_ref(), Some(&*old), "cut to {length}");
    }
    // Both damaged: no netmap, and no error.
    std::fs::write(folder.path().join("a"), b"x").unwrap();
    std::fs::write(folder.path().join("b"), b"").unwrap();
    std::fs::write(folder.path().join(".a.1-1.tmp"), b"half").unwrap();
    assert_eq!(Disk::open(folder.path()).unwrap().1, None);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2, "what a killed process left is gone");
}
