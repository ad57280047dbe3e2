//! Random histories against a model: a map with a counter, and all its past states.

use std::collections::BTreeMap;

use bytes::Bytes;
use causeway_store::{ListRange, Op, Revision, Store, StoreError, StoreRecord};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use testlab::etcd::Cluster;

use crate::lab::{Lab, event};

/// One step of a history.
#[derive(Debug, Clone)]
enum Act {
    Commit(Vec<Wish>),
    /// Compacts this share (of 8) of the remaining history.
    Compact(u64),
    Reopen,
}

#[derive(Debug, Clone)]
struct Wish {
    kind: u8,
    key: u8,
    value: u8,
    /// True if the expected revision is the right one.
    right: bool,
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let wish = (0u8..5, 0u8..6, any::<u8>(), prop::bool::weighted(0.8))
        .prop_map(|(kind, key, value, right)| Wish { kind, key, value, right });
    let act = prop_oneof![
        20 => prop::collection::vec(wish, 1..4).prop_map(Act::Commit),
        1 => (0u64..8).prop_map(Act::Compact),
        1 => Just(Act::Reopen),
    ];
    prop::collection::vec(act, 1..60)
}

/// An event that can be sorted: revision, key, value, previous, created.
type Told = (Revision, String, Option<Bytes>, Option<Bytes>, Revision);

/// The expected state of the store.
struct Model {
    records: BTreeMap<String, StoreRecord>,
    /// The state after each commit.
    past: Vec<(Revision, BTreeMap<String, StoreRecord>)>,
    events: Vec<Told>,
    oldest: Revision,
}

impl Model {
    fn op(&self, wish: &Wish) -> Op {
        // A prefix that is also a key, names that contain each other, and some that are not ASCII.
        let key = ["a/", "a/b", "a/b/c", "a0", "ä/é", "z"][wish.key as usize].to_owned();
        let value = Bytes::from(vec![wish.value; wish.value as usize % 5]);
        let found = self.records.get(&key).map_or(Revision(1), |record| record.revision);
        let expected = if wish.right { found } else { Revision(found.0 + 1) };
        match wish.kind {
            0 => Op::Create { key, value },
            1 => Op::Update { key, value, expected },
            2 => Op::Delete { key, expected: Some(expected) },
            3 => Op::Delete { key, expected: None },
            _ => Op::Put { key, value },
        }
    }

    /// The expected first refusal, as a word.
    fn refusal(&self, ops: &[Op]) -> Option<&'static str> {
        let mut keys: Vec<&str> = ops.iter().map(Op::key).collect();
        keys.sort_unstable();
        if keys.windows(2).any(|pair| pair[0] == pair[1]) {
            return Some("invalid");
        }
        ops.iter().find_map(|op| match (op, self.records.get(op.key())) {
            (Op::Create { .. }, Some(_)) => Some("exists"),
            (Op::Update { .. } | Op::Delete { .. }, None) => Some("missing"),
            (Op::Update { expected, .. } | Op::Delete { expected: Some(expected), .. }, Some(record)) => {
                (record.revision != *expected).then_some("conflict")
            }
            _ => None,
        })
    }

    fn apply(&mut self, ops: &[Op], revision: Revision) {
        for op in ops {
            let (key, before) = (op.key().to_owned(), self.records.remove(op.key()));
            let created = before.as_ref().map_or(revision, |record| record.created);
            let value = match op {
                Op::Create { value, .. } | Op::Update { value, .. } | Op::Put { value, .. } => {
                    Some(value.clone())
                }
                Op::Delete { .. } => None,
            };
            if let Some(value) = value.clone() {
                self.records
                    .insert(key.clone(), StoreRecord { key: key.as_str().into(), value, revision, created });
            }
            self.events.push((revision, key, value, before.map(|record| record.value), created));
        }
        self.past.push((revision, self.records.clone()));
    }
}

fn word(error: &StoreError) -> &'static str {
    match error {
        StoreError::AlreadyExists { .. } => "exists",
        StoreError::NotFound { .. } => "missing",
        StoreError::Conflict { .. } => "conflict",
        StoreError::Invalid { .. } => "invalid",
        other => panic!("{other:?}"),
    }
}

async fn play(lab: &Lab, acts: Vec<Act>) {
    let mut store = lab.open().await;
    let start = store.revision().await.unwrap();
    let mut model = Model {
        records: BTreeMap::new(),
        past: vec![(start, BTreeMap::new())],
        events: vec![],
        oldest: start,
    };
    for act in acts {
        match act {
            Act::Commit(wishes) => commit(&store, &mut model, &wishes).await,
            Act::Compact(share) => {
                let newest = model.past.last().unwrap().0;
                let upto = Revision(model.oldest.0 + (newest.0 - model.oldest.0) * share / 8);
                if upto > start {
                    store.compact(upto).await.unwrap();
                    model.oldest = model.oldest.max(upto);
                }
            }
            Act::Reopen => {
                store.close().await.unwrap();
                store = lab.open().await;
            }
        }
    }
    lists_agree(&store, &model).await;
    watches_agree(&store, &model).await;
    store.close().await.unwrap();
}

async fn commit(store: &Store, model: &mut Model, wishes: &[Wish]) {
    let ops: Vec<Op> = wishes.iter().map(|wish| model.op(wish)).collect();
    let before: Vec<Option<StoreRecord>> =
        ops.iter().map(|op| model.records.get(op.key()).cloned()).collect();
    let refusal = model.refusal(&ops);
    match store.commit(ops.clone()).await {
        Ok(committed) => {
            assert_eq!(refusal, None, "{ops:?}");
            assert!(committed.revision > model.past.last().unwrap().0);
            assert_eq!(committed.previous, before);
            model.apply(&ops, committed.revision);
        }
        Err(error) => assert_eq!(Some(word(&error)), refusal, "{ops:?}"),
    }
    for op in &ops {
        assert_eq!(store.get(op.key()).await.unwrap().as_ref(), model.records.get(op.key()));
    }
}

async fn lists_agree(store: &Store, model: &Model) {
    for (revision, records) in &model.past {
        for prefix in ["", "a/", "ä"] {
            let expected: Vec<&StoreRecord> =
                records.values().filter(|record| record.key.starts_with(prefix)).collect();
            let mut found = Vec::new();
            let mut page = ListRange { at: Some(*revision), after: None, limit: Some(2) };
            loop {
                let listing = match store.list(prefix, page.clone()).await {
                    Ok(listing) => listing,
                    Err(StoreError::Compacted { .. }) => {
                        assert!(*revision < model.oldest, "{revision} is kept");
                        return;
                    }
                    Err(error) => panic!("{error:?}"),
                };
                assert!(*revision >= model.oldest, "{revision} was compacted");
                found.extend(listing.records);
                assert_eq!(found.len() as u64 + listing.remaining, expected.len() as u64);
                if listing.remaining == 0 {
                    break;
                }
                page.after = Some(found.last().unwrap().key.to_string());
            }
            assert!(found.iter().eq(expected), "{prefix:?} at {revision}");
        }
    }
}

async fn watches_agree(store: &Store, model: &Model) {
    for after in model.past.iter().map(|(revision, _)| *revision).filter(|revision| *revision >= model.oldest)
    {
        let mut watch = store.watch("a/", after).await.unwrap();
        let expected: Vec<_> =
            model.events.iter().filter(|(r, key, ..)| *r > after && key.starts_with("a/")).collect();
        let mut found = Vec::new();
        while found.len() < expected.len() {
            let event = event(&mut watch).await.unwrap();
            found.push((
                event.revision,
                event.key.to_string(),
                event.value.clone(),
                event.previous.clone(),
                event.created,
            ));
        }
        // The order inside one revision is not defined.
        found.sort();
        let mut expected: Vec<_> = expected.into_iter().cloned().collect();
        expected.sort();
        assert_eq!(found, expected, "after {after}");
    }
}

fn check(cases: u32, mut lab: impl FnMut() -> Lab) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let lab = std::cell::RefCell::new(&mut lab);
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let outcome = TestRunner::new(config).run(&acts(), |acts| {
        let lab = (lab.borrow_mut())();
        runtime.block_on(play(&lab, acts));
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
}

#[test]
fn sqlite_is_what_a_simple_map_would_be() {
    check(64, Lab::sqlite);
}

#[test]
fn etcd_is_what_a_simple_map_would_be() {
    let cluster = Cluster::start(1).unwrap();
    let mut case = 0;
    check(6, || {
        case += 1;
        Lab::etcd(&cluster, &format!("model-{case}"))
    });
}
