//! Guarantees of following: a state and every change after it, through compaction, failures and the end.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use causeway_store::{FollowBackoff, Followed, Revision, StoreError, StoreFollower, StoreRecord};

use crate::lab::{Lab, keys, value};

const BACKOFF: FollowBackoff =
    FollowBackoff { first: Duration::from_millis(1), max: Duration::from_millis(8) };

/// Returns the next step that is not progress.
async fn step<T>(follower: &mut StoreFollower<'_, T>) -> Option<Followed<T>> {
    loop {
        let next = tokio::time::timeout(Duration::from_secs(20), follower.next()).await;
        match next.expect("a step within 20 seconds") {
            Some(Followed::Progress(_)) => {}
            step => return step,
        }
    }
}

fn loaded(step: Option<Followed<Vec<StoreRecord>>>) -> (Vec<StoreRecord>, Revision) {
    match step {
        Some(Followed::Loaded { state, revision }) => (state, revision),
        other => panic!("expected a load, got {other:?}"),
    }
}

fn key_of<T: std::fmt::Debug>(step: Option<Followed<T>>) -> String {
    match step {
        Some(Followed::Event(event)) => event.key.to_string(),
        other => panic!("expected an event, got {other:?}"),
    }
}

#[tokio::test]
async fn a_follower_has_the_state_and_then_every_change_until_the_store_is_closed() {
    let lab = Lab::sqlite();
    let store = lab.open().await;
    store.put("a/1", value(1)).await.unwrap();
    store.put("b/1", value(1)).await.unwrap();
    let mut follower = StoreFollower::records(&store, "a/", BACKOFF);
    let (records, revision) = loaded(step(&mut follower).await);
    assert_eq!((keys(&records), revision), (vec!["a/1"], store.revision().await.unwrap()));
    store.put("b/2", value(2)).await.unwrap();
    store.put("a/2", value(2)).await.unwrap();
    store.delete("a/1", None).await.unwrap();
    assert_eq!(key_of(step(&mut follower).await), "a/2");
    assert_eq!(key_of(step(&mut follower).await), "a/1");
    store.clone().close().await.unwrap();
    assert!(step(&mut follower).await.is_none());
    assert!(step(&mut follower).await.is_none(), "it stays ended");
}

#[tokio::test]
async fn a_follower_resumes_behind_a_revision_and_loads_when_that_is_compacted() {
    let lab = Lab::sqlite();
    let store = lab.open().await;
    let first = store.put("a/1", value(1)).await.unwrap();
    store.put("a/2", value(2)).await.unwrap();
    let mut follower = StoreFollower::records(&store, "a/", BACKOFF).resume(first);
    assert_eq!(key_of(step(&mut follower).await), "a/2");
    let last = store.put("a/3", value(3)).await.unwrap();
    store.compact(last).await.unwrap();
    let mut late = StoreFollower::records(&store, "a/", BACKOFF).resume(first);
    let (records, revision) = loaded(step(&mut late).await);
    assert_eq!((keys(&records), revision), (vec!["a/1", "a/2", "a/3"], last));
    store.put("a/4", value(4)).await.unwrap();
    assert_eq!(key_of(step(&mut late).await), "a/4");
}

#[tokio::test]
async fn a_failed_load_is_told_and_repeated_and_a_caller_may_ask_for_another() {
    let lab = Lab::sqlite();
    let store = lab.open().await;
    let revision = store.put("a/1", value(1)).await.unwrap();
    let loads = Arc::new(AtomicUsize::new(0));
    let count = loads.clone();
    let mut follower = StoreFollower::new(&store, "a/", BACKOFF, move || {
        let number = count.fetch_add(1, Ordering::SeqCst);
        Box::pin(async move {
            match number {
                0 | 1 => Err(StoreError::Unavailable { reason: number.to_string(), source: None }),
                _ => Ok((number, revision)),
            }
        })
    });
    for number in ["0", "1"] {
        match step(&mut follower).await {
            Some(Followed::Failed(StoreError::Unavailable { reason, .. })) => assert_eq!(reason, number),
            other => panic!("{other:?}"),
        }
    }
    assert!(matches!(step(&mut follower).await, Some(Followed::Loaded { state: 2, .. })));
    store.put("a/2", value(2)).await.unwrap();
    assert_eq!(key_of(step(&mut follower).await), "a/2");
    follower.restart(&StoreError::Unavailable { reason: "an event was not handled".into(), source: None });
    assert!(matches!(step(&mut follower).await, Some(Followed::Loaded { state: 3, .. })));
    assert_eq!(key_of(step(&mut follower).await), "a/2", "the events behind the load come again");
}

#[tokio::test]
async fn a_wait_that_is_given_up_loses_nothing() {
    let lab = Lab::sqlite();
    let store = lab.open().await;
    store.put("a/1", value(1)).await.unwrap();
    let loads = Arc::new(AtomicUsize::new(0));
    let (count, source) = (loads.clone(), store.clone());
    let mut follower = StoreFollower::new(&store, "a/", BACKOFF, move || {
        count.fetch_add(1, Ordering::SeqCst);
        let store = source.clone();
        Box::pin(async move {
            tokio::time::sleep(Duration::from_millis(50)).await;
            Ok(((), store.revision().await?))
        })
    });
    let mut given_up = 0;
    loop {
        match tokio::time::timeout(Duration::from_millis(3), follower.next()).await {
            Err(_) => given_up += 1,
            Ok(Some(Followed::Loaded { .. })) => break,
            Ok(other) => panic!("{other:?}"),
        }
        assert!(given_up < 1000, "the load begins anew with every wait");
    }
    assert!(given_up > 2 && loads.load(Ordering::SeqCst) == 1, "{given_up} {loads:?}");
}
