//! After any damage to the files, an edge starts with the old netmap or the new one, whole.

use causeway_netmap::{EntryKey, Generation};

use super::disk::{decode, encode};
use super::*;

fn netmap(revision: u64, entries: usize) -> Arc<Netmap> {
    let entry = |number: usize| {
        let value = format!("value {number} of {revision}");
        (EntryKey::of("presence", &number.to_string()), Bytes::from(value))
    };
    let entries = (0..entries).map(entry).collect();
    Arc::new(Netmap::build(Generation { epoch: 1, revision }, entries, None).unwrap())
}

fn whole(netmap: &Netmap) -> Bytes {
    netmap.update_from(None).encode()
}

#[tokio::test]
async fn of_two_turns_of_one_generation_the_later_is_there_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let keeper = NetmapKeeper::open(folder.path(), None).unwrap();
    // Each of the two places is the later one once.
    for turn in 1..4 {
        let new = Netmap::clone(&netmap(7, turn as usize)).at_turn(turn);
        let reply = keeper.handle(whole(&new)).await;
        assert!(matches!(reply, EdgeMessageBody::NetmapAck(_)), "{reply:?}");
        assert_eq!(keeper.held().unwrap().turn, turn);
        assert_eq!(persisted(folder.path()).unwrap().stamp(), new.stamp());
        let found = NetmapFiles::open(&folder.path().join(FOLDER)).unwrap().1;
        assert_eq!(found, Found::Netmap(Arc::new(new)));
    }
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
        let EdgeMessageBody::NetmapAck(ack) = keeper.handle(whole(&new)).await else { panic!("{revision}") };
        assert_eq!(ack.held, Some(held_message(new.stamp())));
        assert!(readiness.is_ready());
        assert_eq!(open().unwrap().stamp(), Some(new.stamp()));
        assert_eq!(persisted(data_dir).as_ref(), Some(&*new));
        assert_eq!(keeper.subscribe().borrow().as_ref().unwrap().view.generation, new.generation());
    }
    keeper.forget().await;
    assert!(!readiness.is_ready());
    assert_eq!((keeper.stamp(), open().unwrap().stamp()), (None, None), "enrolled anew");
    let EdgeMessageBody::NetmapAck(_) = keeper.handle(whole(&netmap(1, 1))).await else { panic!() };
}

#[tokio::test]
async fn an_old_generation_and_a_wrong_base_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let keeper = NetmapKeeper::open(folder.path(), None).unwrap();
    keeper.handle(whole(&netmap(5, 3))).await;
    let EdgeMessageBody::NetmapRefused(refused) = keeper.handle(whole(&netmap(4, 3))).await else { panic!() };
    assert!(!refused.want_whole && refused.held == keeper.held());
    let delta = netmap(7, 3).update_from(Some(&netmap(6, 3))).encode();
    let EdgeMessageBody::NetmapRefused(refused) = keeper.handle(delta).await else { panic!() };
    assert!(refused.want_whole);
    assert_eq!(keeper.stamp(), Some(netmap(5, 3).stamp()));
}

/// The next report to a session beside its responses.
async fn later_ack(acks: &mut watch::Receiver<Option<NetmapAck>>) -> NetmapAck {
    let changed = tokio::time::timeout(Duration::from_secs(60), acks.changed()).await;
    changed.expect("it is told").unwrap();
    acks.borrow_and_update().clone().unwrap()
}

#[tokio::test]
async fn a_disk_that_refuses_is_reported_and_the_new_netmap_is_in_force() {
    let folder = tempfile::tempdir().unwrap();
    let data_dir = folder.path();
    let readiness = causeway_daemon::Readiness::new();
    let keeper = NetmapKeeper::open(data_dir, Some(readiness.register("netmap"))).unwrap();
    keeper.handle(whole(&netmap(1, 3))).await;
    let mut acks = keeper.later_acks();
    // A folder that is gone refuses every write, also for root.
    let away = folder.path().join("away");
    std::fs::rename(data_dir.join(FOLDER), &away).unwrap();
    let new = netmap(2, 2);
    let EdgeMessageBody::NetmapAck(ack) = keeper.handle(whole(&new)).await else { panic!() };
    assert_eq!(ack.held, Some(held_message(new.stamp())), "it is in force");
    assert!(ack.not_persisted.contains("cannot be written"), "{}", ack.not_persisted);
    assert_eq!(keeper.subscribe().borrow().as_ref().unwrap().view.generation, new.generation());
    assert_eq!(keeper.views().borrow().generation, new.generation());
    assert!(!readiness.is_ready());
    assert_eq!(later_ack(&mut acks).await, ack, "a session that begins now hears of it");
    // The same once more is answered the same.
    let EdgeMessageBody::NetmapAck(again) = keeper.handle(whole(&new)).await else { panic!() };
    assert_eq!(again, ack);
    // The disk is writable again: the netmap is written without a new update, and reported.
    std::fs::rename(&away, data_dir.join(FOLDER)).unwrap();
    let told = later_ack(&mut acks).await;
    assert_eq!((told.held, told.not_persisted.as_str()), (Some(held_message(new.stamp())), ""));
    assert!(readiness.is_ready());
    assert_eq!(persisted(data_dir).as_ref(), Some(&*new));
}

/// A disk on which no new file can be made, also by root: the name of every temporary file is taken by a folder with something in it.
/// Names of temporary files count up, so some thousand are enough for a test.
fn block(folder: &Path) {
    for place in ["a", "b"] {
        for number in 0..BLOCKED {
            let name = format!(".{place}.{}-{number}.tmp", std::process::id());
            std::fs::create_dir_all(folder.join(name).join("x")).unwrap();
        }
    }
}

fn unblock(folder: &Path) {
    for place in ["a", "b"] {
        for number in 0..BLOCKED {
            let name = format!(".{place}.{}-{number}.tmp", std::process::id());
            let _ = std::fs::remove_dir_all(folder.join(name));
        }
    }
}

const BLOCKED: usize = 300;

#[tokio::test]
async fn after_a_restart_nothing_that_was_taken_away_is_back() {
    let folder = tempfile::tempdir().unwrap();
    let netmaps = folder.path().join(FOLDER);
    let open = || NetmapKeeper::open(folder.path(), None).unwrap();
    let not_persisted = async |keeper: &NetmapKeeper, netmap: &Netmap| {
        let EdgeMessageBody::NetmapAck(ack) = keeper.handle(whole(netmap)).await else { panic!() };
        ack.not_persisted
    };
    let entry = |name: &str| (EntryKey::of("policy", name), Bytes::from_static(b"x"));
    let build = |revision, names: &[&str]| {
        let entries = names.iter().map(|name| entry(name)).collect();
        Arc::new(Netmap::build(Generation { epoch: 1, revision }, entries, None).unwrap())
    };
    let (first, more, less) = (build(1, &["a", "b"]), build(2, &["a", "b", "c"]), build(3, &["a", "c"]));
    let keeper = open();
    assert_eq!(not_persisted(&keeper, &first).await, "");
    block(&netmaps);
    // An update that only adds leaves the stored netmap as it is.
    let why = not_persisted(&keeper, &more).await;
    assert!(why.contains("which allows no more"), "{why}");
    assert_eq!(open().stamp(), Some(first.stamp()), "a restart");
    // An update that takes away withdraws it: an edge that starts now forwards nothing, asks for everything,
    // and accepts nothing older.
    let why = not_persisted(&keeper, &less).await;
    assert!(why.contains("is withdrawn"), "{why}");
    drop(keeper);
    let readiness = causeway_daemon::Readiness::new();
    let keeper = NetmapKeeper::open(folder.path(), Some(readiness.register("netmap"))).unwrap();
    assert_eq!((keeper.held(), keeper.views().borrow().generation), (None, Generation::default()));
    assert!(!readiness.is_ready());
    let older = build(0, &["a", "b"]);
    assert!(
        matches!(keeper.handle(whole(&older)).await, EdgeMessageBody::NetmapRefused(_)),
        "older than the withdrawn one"
    );
    // The cloud may confirm the withdrawn netmap.
    let why = not_persisted(&keeper, &first).await;
    assert!(why.contains("cannot be written"), "{why}");
    assert_eq!(keeper.stamp(), Some(first.stamp()));
    // With free space the newest is written, and the next start is an ordinary one.
    assert!(not_persisted(&keeper, &less).await.contains("cannot be written"));
    let mut acks = keeper.later_acks();
    unblock(&netmaps);
    while !later_ack(&mut acks).await.not_persisted.is_empty() {}
    drop(keeper);
    assert_eq!(open().stamp(), Some(less.stamp()));
    let left: Vec<_> = std::fs::read_dir(&netmaps).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().ends_with(".withdrawn")), "{left:?}");
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
        let (disk, found) = NetmapFiles::open(folder.path()).unwrap();
        // And goes on from there: the next one does not take the place of the one that is whole.
        disk.write(&netmap(3, 1)).unwrap();
        assert_eq!(NetmapFiles::open(folder.path()).unwrap().1, Found::Netmap(netmap(3, 1)));
        assert!(decode(&std::fs::read(folder.path().join("a")).unwrap()).is_ok());
        found
    };
    let whole = encode(&new);
    assert_eq!(newest(Some(&whole)), Found::Netmap(new.clone()));
    assert_eq!(newest(None), Found::Netmap(old.clone()));
    for length in 0..whole.len() {
        assert!(decode(&whole[..length]).is_err(), "cut to {length}");
        let mut garbled = whole.clone();
        garbled[length] ^= 0x20;
        assert!(decode(&garbled).is_err(), "byte {length}");
    }
    for length in [0, 1, 20, whole.len() / 2, whole.len() - 1] {
        assert_eq!(newest(Some(&whole[..length])), Found::Netmap(old.clone()), "cut to {length}");
    }
    // Both damaged: no netmap, and no error.
    std::fs::write(folder.path().join("a"), b"x").unwrap();
    std::fs::write(folder.path().join("b"), b"").unwrap();
    std::fs::write(folder.path().join(".a.1-1.tmp"), b"half").unwrap();
    assert_eq!(NetmapFiles::open(folder.path()).unwrap().1, Found::Nothing);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2, "what a killed process left is gone");
}
