//! Both halves together, and each against an unusual peer.

use std::time::Duration;

use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::generation::{Generation, NetmapStamp};
use crate::netmap::{EntryKey, Netmap};
use crate::update::NetmapUpdateData;
use std::sync::Arc;

const NOW: Duration = Duration::ZERO;

fn netmap(epoch: u64, revision: u64, content: &str) -> Arc<Netmap> {
    let entries =
        content.bytes().map(|byte| (EntryKey::of("k", &char::from(byte).to_string()), Bytes::new()));
    Arc::new(Netmap::build(Generation { epoch, revision }, entries.collect(), None).unwrap())
}

fn target(netmap: &Arc<Netmap>) -> TargetNetmap {
    TargetNetmap { netmap: netmap.clone(), seen: netmap.generation() }
}

/// Runs both halves until neither has anything to send; returns the number of updates.
fn synchronise(sender: &mut NetmapSendState, receiver: &mut NetmapReceiver) -> usize {
    for crossed in 0..10 {
        let Some(update) = sender.next_update(NOW) else { return crossed };
        assert!(sender.next_update(NOW).is_none(), "one at a time");
        let reply = match receiver.handle_bytes(&update.encode()) {
            ReceiverStep::Persist(netmap) => receiver.handle_persisted(netmap, Ok(())),
            ReceiverStep::Reply(reply) => reply,
        };
        match reply {
            NetmapReply::Acknowledged(stamp) | NetmapReply::InForce { stamp, .. } => {
                assert!(sender.handle_acknowledged(stamp).is_some());
            }
            NetmapReply::Refused(refusal) => sender.handle_refused(refusal.want_whole, &refusal.reason, NOW),
        }
    }
    panic!("they do not come to an end");
}

fn held(receiver: &NetmapReceiver) -> Option<NetmapStamp> {
    receiver.held().map(|held| held.stamp())
}

#[test]
fn a_session_brings_the_newest_and_then_only_differences() {
    let mut receiver = NetmapReceiver::default();
    let mut sender = NetmapSendState::new(None, []);
    assert_eq!(sender.standing(), NetmapSyncState::NoTarget);
    assert_eq!(synchronise(&mut sender, &mut receiver), 0);
    let first = netmap(1, 5, "abc");
    sender.handle_target(target(&first));
    assert_eq!(sender.standing(), NetmapSyncState::Sending { held: None });
    assert_eq!(synchronise(&mut sender, &mut receiver), 1);
    assert_eq!(sender.standing(), NetmapSyncState::InForce(first.stamp()));
    sender.handle_target(target(&netmap(1, 6, "abcd")));
    let update = sender.next_update(NOW).unwrap();
    assert_eq!((update.base, update.set.len()), (Some(first.stamp()), 1));
}

#[test]
fn only_the_newest_of_many_is_sent() {
    let mut receiver = NetmapReceiver::default();
    let mut sender = NetmapSendState::new(None, []);
    for revision in 1..100 {
        sender.handle_target(target(&netmap(1, revision, if revision % 2 == 0 { "a" } else { "b" })));
    }
    assert_eq!(synchronise(&mut sender, &mut receiver), 1);
    assert_eq!(held(&receiver).unwrap().generation.revision, 99);
}

#[test]
fn a_new_session_goes_on_from_what_the_gateway_holds() {
    let (old, new) = (netmap(1, 5, "abc"), netmap(1, 6, "abd"));
    let update = |known: Option<&Arc<Netmap>>| {
        let mut sender = NetmapSendState::new(Some(old.stamp()), known.cloned());
        sender.handle_target(target(&new));
        sender.next_update(NOW).unwrap()
    };
    assert!(update(None).is_whole());
    assert!(update(Some(&netmap(1, 4, "xyz"))).is_whole());
    assert_eq!(update(Some(&old)).base, Some(old.stamp()));
    let mut same = NetmapSendState::new(Some(old.stamp()), []);
    same.handle_target(target(&netmap(1, 9, "abc")));
    assert!(same.next_update(NOW).is_none(), "equal digests: nothing to send");
    assert_eq!(same.standing(), NetmapSyncState::InForce(old.stamp()));
    same.handle_target(target(&netmap(1, 10, "ab")));
    assert_eq!(same.next_update(NOW).unwrap().unset.len(), 1, "and the base is known from then on");
}

#[test]
fn a_base_that_is_not_held_is_answered_with_the_whole() {
    let mut receiver = NetmapReceiver::new(Some(netmap(1, 3, "xyz")));
    // The gateway reports a netmap that it does not have: only damage could do this.
    let claimed = netmap(1, 4, "abc");
    let mut sender = NetmapSendState::new(Some(claimed.stamp()), [claimed]);
    let new = netmap(1, 5, "abcd");
    sender.handle_target(target(&new));
    assert_eq!(synchronise(&mut sender, &mut receiver), 2);
    assert_eq!(held(&receiver), Some(new.stamp()));
}

#[test]
fn a_whole_that_is_refused_is_not_sent_in_a_circle() {
    let mut sender = NetmapSendState::new(None, []);
    sender.handle_target(target(&netmap(1, 1, "a")));
    let mut pauses = Vec::new();
    let mut now = NOW;
    for _ in 0..6 {
        assert!(sender.next_update(now).unwrap().is_whole());
        sender.handle_refused(true, "no", now);
        assert!(sender.next_update(now).is_none());
        assert_eq!(sender.standing(), NetmapSyncState::Refused { held: None, reason: "no".into() });
        let wake = sender.wake_at().unwrap();
        pauses.push((wake - now).as_secs());
        now = wake;
    }
    assert_eq!(pauses, [5, 10, 20, 40, 60, 60]);
}

#[test]
fn a_full_disk_is_reported_and_the_new_netmap_is_in_force() {
    let old = netmap(1, 1, "a");
    let mut receiver = NetmapReceiver::new(Some(old.clone()));
    let new = netmap(1, 2, "b");
    let ReceiverStep::Persist(made) = receiver.handle_update(&new.update_from(None)) else { panic!() };
    let reply = receiver.handle_persisted(made.clone(), Err("no space left".into()));
    assert_eq!(reply, NetmapReply::InForce { stamp: new.stamp(), not_persisted: "no space left".into() });
    assert_eq!(held(&receiver), Some(new.stamp()));
    let again = receiver.handle_update(&new.update_from(None));
    assert_eq!(again, ReceiverStep::Reply(reply), "the same netmap once more: still not on disk");
    assert_eq!(receiver.handle_persisted(made, Ok(())), NetmapReply::Acknowledged(new.stamp()));
    assert_eq!(held(&receiver), Some(new.stamp()));
}

#[test]
fn a_replica_that_lags_behind_waits() {
    let mut receiver = NetmapReceiver::new(Some(netmap(1, 20, "new")));
    let mut sender = NetmapSendState::new(held(&receiver), []);
    let old = netmap(1, 10, "old");
    sender.handle_target(target(&old));
    assert_eq!(synchronise(&mut sender, &mut receiver), 0);
    assert!(matches!(sender.standing(), NetmapSyncState::Behind { .. }));
    sender.handle_target(TargetNetmap { netmap: old.clone(), seen: Generation { epoch: 1, revision: 20 } });
    assert_eq!(synchronise(&mut sender, &mut receiver), 0, "not above what the gateway holds");
    // After the store was followed further, the old content is the newer state.
    sender.handle_target(TargetNetmap { netmap: old.clone(), seen: Generation { epoch: 1, revision: 21 } });
    assert_eq!(synchronise(&mut sender, &mut receiver), 1);
    let now = held(&receiver).unwrap();
    assert_eq!((now.generation.revision, now.digest), (21, old.digest()));
    assert!(matches!(sender.standing(), NetmapSyncState::InForce(_)));
}

#[test]
fn a_restored_cloud_is_followed_and_the_old_one_is_not() {
    let mut receiver = NetmapReceiver::new(Some(netmap(1, 900, "a")));
    let mut sender = NetmapSendState::new(held(&receiver), []);
    sender.handle_target(target(&netmap(2, 3, "b")));
    assert_eq!(synchronise(&mut sender, &mut receiver), 1);
    assert_eq!(held(&receiver).unwrap().generation, Generation { epoch: 2, revision: 3 });
    let mut old_cloud = NetmapSendState::new(held(&receiver), []);
    old_cloud.handle_target(target(&netmap(1, 950, "c")));
    assert_eq!(synchronise(&mut old_cloud, &mut receiver), 0);
    // The same content under a new epoch is sent once, and is small.
    let mut same = NetmapSendState::new(held(&receiver), []);
    same.handle_target(target(&netmap(3, 1, "b")));
    let update = same.next_update(NOW).unwrap();
    assert!(update.set.is_empty() && update.encode().len() < 120, "{}", update.encode().len());
}

#[test]
fn an_acknowledgement_of_something_else_changes_nothing() {
    let mut sender = NetmapSendState::new(None, []);
    let first = netmap(1, 1, "a");
    sender.handle_target(target(&first));
    sender.next_update(NOW).unwrap();
    assert!(sender.handle_acknowledged(netmap(1, 1, "z").stamp()).is_none());
    assert!(sender.handle_acknowledged(first.stamp()).is_some());
    assert!(sender.handle_acknowledged(first.stamp()).is_none());
    sender.handle_refused(true, "late", NOW);
    assert_eq!(sender.standing(), NetmapSyncState::InForce(first.stamp()));
}

#[test]
fn malformed_bytes_ask_for_the_whole() {
    let ReceiverStep::Reply(NetmapReply::Refused(refusal)) = NetmapReceiver::default().handle_bytes(b"\x07")
    else {
        panic!()
    };
    assert!(refusal.want_whole && refusal.offered.is_none());
}

proptest! {
    /// Sessions break at any point, the cloud forgets, replicas lag: the generation at the edge only rises,
    /// and in the end it is the cloud's.
    #[test]
    fn any_history_ends_in_the_newest(steps in proptest::collection::vec((0u8..8, "[a-c]{0,3}"), 1..40)) {
        let mut receiver = NetmapReceiver::default();
        let (mut revision, mut content) = (1, String::new());
        let mut sender = NetmapSendState::new(None, []);
        let mut memory: Option<Arc<Netmap>> = None;
        let mut before = None;
        for (what, next) in steps {
            match what {
                0..=3 => {
                    revision += 1;
                    content = next.bytes().collect::<std::collections::BTreeSet<_>>().into_iter().map(char::from).collect();
                    sender.handle_target(target(&netmap(1, revision, &content)));
                }
                4 => drop(synchronise(&mut sender, &mut receiver)),
                // The session breaks after the update was applied; the acknowledgement is lost.
                5 => {
                    let update = sender.next_update(NOW);
                    if let Some(ReceiverStep::Persist(netmap)) = update.map(|update| receiver.handle_update(&update)) {
                        receiver.handle_persisted(netmap, Ok(()));
                    }
                    sender = NetmapSendState::new(held(&receiver), memory.clone());
                    sender.handle_target(target(&netmap(1, revision, &content)));
                }
                // Another replica that lags behind.
                6 => {
                    sender = NetmapSendState::new(held(&receiver), None);
                    sender.handle_target(target(&netmap(1, revision / 2, "old")));
                    synchronise(&mut sender, &mut receiver);
                    sender.handle_target(target(&netmap(1, revision, &content)));
                }
                _ => memory = receiver.held().cloned(),
            }
            let after = held(&receiver).map(|stamp| stamp.generation);
            prop_assert!(after >= before, "{after:?} after {before:?}");
            before = after;
        }
        revision += 1;
        sender.handle_target(target(&netmap(1, revision, &content)));
        synchronise(&mut sender, &mut receiver);
        prop_assert_eq!(held(&receiver).map(|held| held.digest), Some(netmap(1, 0, &content).digest()));
    }
}

#[test]
fn an_update_that_was_taken_twice_is_acknowledged_twice() {
    let mut receiver = NetmapReceiver::default();
    let update: NetmapUpdateData = netmap(1, 1, "a").update_from(None);
    let ReceiverStep::Persist(made) = receiver.handle_update(&update) else { panic!() };
    receiver.handle_persisted(made, Ok(()));
    assert_eq!(
        receiver.handle_update(&update),
        ReceiverStep::Reply(NetmapReply::Acknowledged(update.target))
    );
}
