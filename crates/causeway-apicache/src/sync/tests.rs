//! Both ends of a subscription against each other: random objects, changes, cuts and selectors, from a printed seed.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use causeway_api::Revision;
use testlab::random::SeededRandom;

use super::receiver::{
    SyncReceiver, SyncStep, SyncViolation, acknowledge, digest_answer, key_answers, subscribe,
};
use super::sender::{ScopedChange, SyncSender, SyncTarget};
use super::wire::{ChangeEntry, CloudSyncBody, EdgeSyncBody, Subscribe};
use crate::kube_object::KubeObject;
use crate::resource::{ResourceDescription, ResourceName, SubscriptionScope};

fn description() -> Bytes {
    let description = ResourceDescription {
        name: ResourceName::new("", "v1", "things"),
        kind: "Thing".into(),
        list_kind: "ThingList".into(),
        is_namespaced: true,
        columns: "[]".into(),
    };
    serde_json::to_vec(&description).unwrap().into()
}

/// The copy at the edge, as its disk has it.
#[derive(Default)]
struct Copy {
    objects: BTreeMap<String, (String, Revision, Bytes)>,
    staged: Vec<ChangeEntry>,
    revision: Revision,
    /// Every revision that a watcher saw, by key.
    seen: BTreeMap<String, Revision>,
}

impl Copy {
    fn entries(&self) -> Vec<(String, String, Revision)> {
        self.objects.iter().map(|(key, (uid, revision, _))| (key.clone(), uid.clone(), *revision)).collect()
    }

    fn complete(&mut self, changes: Vec<ChangeEntry>, revision: Revision) {
        let mut all = std::mem::take(&mut self.staged);
        all.extend(changes);
        assert!(
            all.is_sorted_by(|one, next| one.revision < next.revision),
            "changes arrive in the order of revisions, and a watcher can resume after each of them"
        );
        for change in all {
            let last = self.seen.insert(change.key.clone(), Revision(change.revision)).unwrap_or_default();
            assert!(
                Revision(change.revision) > last,
                "{} goes from {last} to {}",
                change.key,
                change.revision
            );
            match change.deleted {
                true => drop(self.objects.remove(&change.key)),
                false => {
                    let object = (change.uid, Revision(change.revision), change.body);
                    self.objects.insert(change.key, object);
                }
            }
        }
        self.revision = revision;
    }
}

/// The cluster: objects, the history of changes, and the oldest revision that history reaches back to.
#[derive(Default)]
struct Cluster {
    target: SyncTarget,
    history: Vec<ScopedChange>,
    floor: Revision,
}

impl Cluster {
    fn change(&mut self, dice: &mut SeededRandom) {
        self.target.revision.0 += 1 + dice.below(3);
        let revision = self.target.revision;
        let key = format!("shop/{}", dice.below(40));
        let object = (dice.below(4) > 0).then(|| {
            let recreated = dice.below(8) == 0;
            let known = self.target.objects.get(&key).filter(|_| !recreated);
            let uid = known.map_or_else(|| format!("uid-{revision}"), |known| known.uid.clone());
            let body = Bytes::from(format!(
                "{{\"at\":{revision},\"fill\":\"{}\"}}",
                "x".repeat(dice.below(3_000) as usize)
            ));
            Arc::new(KubeObject { key: key.clone(), uid, revision, body, cells: Bytes::new() })
        });
        match &object {
            Some(object) => drop(self.target.objects.insert(key.clone(), object.clone())),
            None if self.target.objects.remove(&key).is_none() => return,
            None => {}
        }
        let uid = object.as_ref().map_or_else(String::new, |object| object.uid.clone());
        self.history.push(ScopedChange { key, uid, revision, object, delta: None });
    }

    fn open(&self, subscribe: &Subscribe) -> SyncSender {
        let revision = Revision(subscribe.revision);
        match revision >= self.floor && revision <= self.target.revision && revision.0 > 0 {
            true => SyncSender::resume(description(), revision),
            false => SyncSender::compare(description(), subscribe, self.target.clone()),
        }
    }

    fn after(&self, revision: Revision) -> Vec<ScopedChange> {
        self.history.iter().filter(|change| change.revision > revision).cloned().collect()
    }
}

/// One session between the two ends; `steps` messages cross before the link is cut.
fn session(cluster: &mut Cluster, copy: &mut Copy, dice: &mut SeededRandom, steps: u64) {
    // A cut during a comparison leaves staged changes behind; a new session begins without them.
    copy.staged.clear();
    let scope = SubscriptionScope::all(ResourceName::new("", "v1", "things"));
    let first = subscribe(&scope, copy.revision, copy.objects.len() as u64);
    let mut sender = cluster.open(&first);
    let mut receiver = SyncReceiver::new(copy.revision);
    let mut offered = if Revision(first.revision) >= cluster.floor && first.revision > 0 {
        copy.revision.min(cluster.target.revision)
    } else {
        cluster.target.revision
    };
    for _ in 0..steps {
        if dice.below(3) == 0 {
            cluster.change(dice);
        }
        if sender.has_room() {
            let changes = cluster.after(offered);
            offered = cluster.target.revision;
            sender.offer(changes, offered);
            sender.progress(offered);
        }
        let Some(message) = sender.next_message() else { continue };
        for answer in deliver(&mut receiver, copy, message) {
            sender.handle(answer).unwrap();
        }
    }
}

fn deliver(receiver: &mut SyncReceiver, copy: &mut Copy, message: CloudSyncBody) -> Vec<EdgeSyncBody> {
    match receiver.handle(message).unwrap() {
        SyncStep::Describe(_) => Vec::new(),
        SyncStep::SendDigests { buckets } => vec![digest_answer(&copy.entries(), buckets)],
        SyncStep::SendKeys { wanted, of } => key_answers(&copy.entries(), &wanted, of),
        SyncStep::Stage { changes, sequence } => {
            copy.staged.extend(changes);
            vec![acknowledge(sequence)]
        }
        SyncStep::Complete { changes, sequence, revision } => {
            copy.complete(changes, revision);
            vec![acknowledge(sequence)]
        }
        SyncStep::Advance(revision) => {
            copy.revision = revision;
            Vec::new()
        }
        SyncStep::Refused(status) => panic!("{status}"),
    }
}

#[test]
fn the_copy_ends_equal_after_any_cuts_and_never_goes_back() {
    let mut dice = SeededRandom::for_test("both ends of a subscription");
    for _ in 0..200 {
        let (mut cluster, mut copy) = (Cluster::default(), Copy::default());
        cluster.target.revision = Revision(10);
        for _ in 0..dice.below(12) {
            for _ in 0..dice.below(60) {
                cluster.change(&mut dice);
            }
            if dice.below(3) == 0 {
                cluster.floor = cluster.target.revision;
            }
            let steps = dice.below(30);
            session(&mut cluster, &mut copy, &mut dice, steps);
        }
        session(&mut cluster, &mut copy, &mut dice, 2_000);
        // The last changes may still be on the way.
        let mut silent = SeededRandom::new(1);
        let target = cluster.target.clone();
        session(&mut cluster, &mut copy, &mut silent, 0);
        let first = subscribe(
            &SubscriptionScope::all(ResourceName::new("", "v1", "things")),
            copy.revision,
            copy.objects.len() as u64,
        );
        let mut sender = SyncSender::compare(description(), &first, target.clone());
        let mut receiver = SyncReceiver::new(copy.revision);
        while let Some(message) = sender.next_message() {
            for answer in deliver(&mut receiver, &mut copy, message) {
                sender.handle(answer).unwrap();
            }
        }
        assert!(receiver.is_live());
        let expected: Vec<_> = target
            .objects
            .iter()
            .map(|(key, object)| (key.clone(), object.uid.clone(), object.revision))
            .collect();
        assert_eq!((copy.entries(), copy.revision), (expected, target.revision));
    }
}

#[test]
fn fifty_changes_of_ten_thousand_cost_about_the_fifty() {
    let object = |number: u64, revision: u64| {
        let body = Bytes::from(format!(
            "{{\"number\":{number},\"at\":{revision},\"fill\":\"{}\"}}",
            "y".repeat(900)
        ));
        let key = format!("shop/thing-{number:05}");
        Arc::new(KubeObject {
            key,
            uid: format!("{number:036}"),
            revision: Revision(revision),
            body,
            cells: Bytes::new(),
        })
    };
    let mut target = SyncTarget { revision: Revision(20_000), objects: BTreeMap::new() };
    let mut copy = Copy { revision: Revision(10_001), ..Copy::default() };
    for number in 0..10_000 {
        let held = object(number, number + 1);
        copy.objects.insert(held.key.clone(), (held.uid.clone(), held.revision, held.body.clone()));
        let is_changed = number % 200 == 7;
        let now = if is_changed { object(number, 15_000 + number) } else { held };
        target.objects.insert(now.key.clone(), now);
    }
    let scope = SubscriptionScope::all(ResourceName::new("", "v1", "things"));
    let first = subscribe(&scope, copy.revision, copy.objects.len() as u64);
    let mut sender = SyncSender::compare(description(), &first, target);
    let mut receiver = SyncReceiver::new(copy.revision);
    let (mut up, mut down, mut bodies) = (0, 0, 0);
    while let Some(message) = sender.next_message() {
        if let CloudSyncBody::Changes(batch) = &message {
            bodies += batch.changes.iter().map(|change| change.body.len()).sum::<usize>();
        }
        down += super::frames::encode(&super::wire::CloudSyncMessage::from(message.clone())).unwrap().len();
        for answer in deliver(&mut receiver, &mut copy, message) {
            up += super::frames::encode(&super::wire::EdgeSyncMessage::from(answer.clone())).unwrap().len();
            sender.handle(answer).unwrap();
        }
    }
    println!("50 of 10,000 objects: {bodies} bytes of objects, {down} bytes down, {up} bytes up");
    assert!(bodies < 50 * 1_000, "{bodies}");
    assert!(up < 64 << 10, "{up}");
}

#[test]
fn messages_out_of_place_are_refused() {
    let mut receiver = SyncReceiver::new(Revision(0));
    let progress = CloudSyncBody::Progress(super::wire::SyncProgress { revision: 1 });
    assert!(matches!(receiver.handle(progress), Err(SyncViolation::Unexpected(_))));
    let mut sender = SyncSender::resume(description(), Revision(7));
    assert!(sender.handle(acknowledge(9)).is_err());
    assert!(sender.handle(digest_answer(&[], 4)).is_err());
    let accepted = sender.next_message().unwrap();
    let mut receiver = SyncReceiver::new(Revision(7));
    receiver.handle(accepted.clone()).unwrap();
    assert_eq!(receiver.handle(accepted), Err(SyncViolation::Unexpected("a second acceptance")));
    let change = |revision| ScopedChange {
        key: "a".into(),
        uid: "u".into(),
        revision: Revision(revision),
        object: None,
        delta: None,
    };
    sender.offer(vec![change(6)], Revision(6));
    assert_eq!(receiver.handle(sender.next_message().unwrap()), Err(SyncViolation::Order));
}

/// A message with numbers and texts that a careless or malicious peer may choose.
fn strange_numbers(dice: &mut SeededRandom) -> u64 {
    [0, 1, 2, 7, 4_096, 4_097, u64::from(u32::MAX), u64::MAX][dice.below(8) as usize]
}

fn strange_change(dice: &mut SeededRandom) -> ChangeEntry {
    let body = Bytes::from(vec![b'x'; dice.below(3) as usize]);
    ChangeEntry {
        key: ["", "a", "shop/a", "/"][dice.below(4) as usize].into(),
        uid: "u".into(),
        revision: strange_numbers(dice),
        deleted: dice.below(2) == 0,
        body: body.clone(),
        cells: body,
        base_revision: strange_numbers(dice),
    }
}

fn strange_cloud_message(dice: &mut SeededRandom) -> CloudSyncBody {
    use super::wire::{Accepted, ChangeBatch, DigestsWanted, KeysWanted, Refused, SyncProgress};
    let small = |dice: &mut SeededRandom| strange_numbers(dice) as u32;
    match dice.below(8) {
        0 => CloudSyncBody::Refused(Refused { code: small(dice), message: String::new() }),
        1 | 2 => CloudSyncBody::Accepted(Accepted {
            description: if dice.below(4) == 0 { Bytes::from_static(b"{") } else { description() },
            resumed: dice.below(2) == 0,
        }),
        3 => CloudSyncBody::DigestsWanted(DigestsWanted { buckets: small(dice) }),
        4 => CloudSyncBody::KeysWanted(KeysWanted {
            buckets: (0..dice.below(4)).map(|_| small(dice)).collect(),
            of: small(dice),
        }),
        5 => CloudSyncBody::Progress(SyncProgress { revision: strange_numbers(dice) }),
        _ => CloudSyncBody::Changes(ChangeBatch {
            changes: (0..dice.below(4)).map(|_| strange_change(dice)).collect(),
            sequence: if dice.below(4) == 0 { strange_numbers(dice) } else { 1 + dice.below(3) },
            complete_at: strange_numbers(dice),
        }),
    }
}

fn strange_edge_message(dice: &mut SeededRandom) -> EdgeSyncBody {
    use super::wire::{BucketDigests, BucketKeys, KeyEntry};
    let entry = |dice: &mut SeededRandom| KeyEntry {
        key: "k".repeat(strange_numbers(dice).min(700) as usize),
        digest: dice.number(),
    };
    match dice.below(5) {
        0 => EdgeSyncBody::Subscribe(Subscribe::default()),
        1 | 2 => {
            let count = if dice.below(4) == 0 { dice.below(9) } else { 2 };
            EdgeSyncBody::Digests(BucketDigests { digests: (0..count).map(|_| dice.number()).collect() })
        }
        3 => EdgeSyncBody::Keys(BucketKeys {
            entries: (0..dice.below(4)).map(|_| entry(dice)).collect(),
            more: dice.below(2) == 0,
        }),
        _ => acknowledge(strange_numbers(dice)),
    }
}

#[test]
fn no_messages_of_a_peer_cause_a_panic_or_lead_a_live_copy_back() {
    let mut dice = SeededRandom::for_test("random messages");
    let entries = [("shop/a".to_owned(), "u".to_owned(), Revision(3))];
    for _ in 0..20_000 {
        let (mut receiver, mut live_at) = (SyncReceiver::new(Revision(strange_numbers(&mut dice))), None);
        for _ in 0..dice.below(12) {
            // A violation ends the session.
            let Ok(step) = receiver.handle(strange_cloud_message(&mut dice)) else { break };
            match step {
                SyncStep::SendDigests { buckets } => drop(digest_answer(&entries, buckets)),
                SyncStep::SendKeys { wanted, of } => drop(key_answers(&entries, &wanted, of)),
                SyncStep::Complete { revision, .. } | SyncStep::Advance(revision) => {
                    assert!(live_at.is_none_or(|live_at| revision >= live_at), "{live_at:?} to {revision}");
                    live_at = Some(revision);
                }
                _ => {}
            }
        }
        let mut target =
            SyncTarget { revision: Revision(strange_numbers(&mut dice)), ..SyncTarget::default() };
        for number in 0..dice.below(6) {
            let (key, uid, revision) = (format!("shop/{number}"), "u".to_owned(), Revision(number));
            let object =
                KubeObject { key: key.clone(), uid, revision, body: Bytes::new(), cells: Bytes::new() };
            target.objects.insert(key, Arc::new(object));
        }
        let subscribe = Subscribe {
            revision: strange_numbers(&mut dice),
            objects: [0, 3, 8, 9][dice.below(4) as usize],
            ..Subscribe::default()
        };
        let mut sender = SyncSender::compare(description(), &subscribe, target);
        for _ in 0..dice.below(12) {
            while let Some(message) = sender.next_message() {
                super::frames::encode(&super::wire::CloudSyncMessage::from(message)).unwrap();
            }
            if sender.handle(strange_edge_message(&mut dice)).is_err() {
                break;
            }
        }
    }
}

proptest::proptest! {
    #[test]
    fn no_frame_of_a_peer_causes_a_panic(content in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..300)) {
        use super::frames::decode;
        use super::wire::{CloudSyncMessage, EdgeSyncMessage};
        for encoding in [0, 1, 2] {
            let frame = Bytes::from([&[encoding][..], &content].concat());
            let _ = decode::<EdgeSyncMessage>(frame.clone(), 1 << 10);
            let _ = decode::<CloudSyncMessage>(frame, 1 << 10);
        }
    }
}
