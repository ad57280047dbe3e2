//! Guarantees about watching: no gap, no repeat, no waiting for slow watchers.

use std::time::{Duration, Instant};

use causeway_store::{Op, Revision, StoreError, WatchSignal};

use crate::lab::{Lab, event, events_upto, value};

pub async fn a_watch_shows_every_change_with_its_predecessor(lab: &Lab) {
    let store = lab.open().await;
    let start = store.put("other", value(0)).await.unwrap();
    let mut live = store.watch("esites/", start).await.unwrap();
    let created = store.create("esites/a", value(1)).await.unwrap();
    store.put("other", value(1)).await.unwrap();
    let updated = store.update("esites/a", value(2), created).await.unwrap();
    let deleted = store.delete("esites/a", None).await.unwrap();
    let again = store.put("esites/a", value(3)).await.unwrap();

    let mut late = store.watch("esites/", start).await.unwrap();
    for watch in [&mut live, &mut late] {
        let expected = [
            (created, Some(value(1)), None, created),
            (updated, Some(value(2)), Some(value(1)), created),
            (deleted, None, Some(value(2)), created),
            (again, Some(value(3)), None, again),
        ];
        for (revision, value, previous, created) in expected {
            let event = event(watch).await.unwrap();
            assert_eq!(&*event.key, "esites/a");
            assert_eq!(
                (event.revision, &event.value, &event.previous, event.created),
                (revision, &value, &previous, created)
            );
        }
    }
}

pub async fn a_watch_from_every_old_revision_misses_and_repeats_nothing(lab: &Lab) {
    let store = lab.open().await;
    let start = store.put("things/0", value("start")).await.unwrap();
    let mut story = store.watch("things/", start).await.unwrap();
    let mut last = start;
    for step in 1u64..40 {
        let ops = match step % 4 {
            0 => vec![Op::Delete { key: format!("things/{}", (step - 1) % 5), expected: None }],
            1 => vec![Op::Put { key: "elsewhere/x".into(), value: value(step) }],
            2 => (0..3).map(|n| Op::Put { key: format!("things/{n}"), value: value(step) }).collect(),
            _ => vec![Op::Put { key: format!("things/{}", step % 5), value: value(step) }],
        };
        last = store.commit(ops).await.unwrap().revision;
    }
    let events = 9 + 30 + 10;
    let story = events_upto(&mut story, last, events).await;
    for after in start.0..=last.0 {
        let expected: Vec<_> = story.iter().filter(|event| event.revision.0 > after).collect();
        let mut watch = store.watch("things/", Revision(after)).await.unwrap();
        let seen = events_upto(&mut watch, last, expected.len()).await;
        assert!(seen.iter().eq(expected), "after {after}: {seen:?}");
    }
}

pub async fn watches_under_concurrent_writes_see_the_same_story(lab: &Lab) {
    const WRITERS: u64 = 8;
    const WRITES: u64 = 150;
    let store = lab.open().await;
    let start = store.put("begin", value(0)).await.unwrap();
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let store = store.clone();
            tokio::spawn(async move {
                let mut revisions = Vec::new();
                for n in 0..WRITES {
                    revisions
                        .push(store.put(&format!("things/{writer}/{}", n % 10), value(n)).await.unwrap());
                }
                revisions
            })
        })
        .collect();
    // Watchers join at any time, from a given revision, while the writers run.
    let watchers: Vec<_> = (0..6)
        .map(|watcher| {
            let store = store.clone();
            tokio::spawn(async move {
                let mut watch = store.watch("things/", start).await.unwrap();
                let mut seen = Vec::new();
                while seen.len() < (WRITERS * WRITES) as usize {
                    let next = event(&mut watch).await.unwrap();
                    seen.push((next.revision, next.key.clone()));
                    // Some stop and resume from time to time.
                    if watcher % 2 == 1 && seen.len() % 97 == 0 {
                        watch = store.watch("things/", next.revision).await.unwrap();
                    }
                }
                seen
            })
        })
        .collect();
    let mut acknowledged = Vec::new();
    for writer in writers {
        let revisions = writer.await.unwrap();
        assert!(revisions.windows(2).all(|pair| pair[0] < pair[1]));
        acknowledged.extend(revisions);
    }
    acknowledged.sort_unstable();
    for watcher in watchers {
        let seen = watcher.await.unwrap();
        let revisions: Vec<Revision> = seen.iter().map(|(revision, _)| *revision).collect();
        assert_eq!(revisions, acknowledged);
    }
}

pub async fn a_watch_goes_on_where_it_was_after_reopening(lab: &Lab) {
    let store = lab.open().await;
    let mut last = store.put("a", value(0)).await.unwrap();
    let mut watch = store.watch("", last).await.unwrap();
    let second = store.put("a", value(1)).await.unwrap();
    assert_eq!(event(&mut watch).await.unwrap().revision, second);
    let mut missed = Vec::new();
    for n in 0..5 {
        missed.push(store.put("a", value(n)).await.unwrap());
    }
    store.close().await.unwrap();

    for _ in 0..3 {
        let store = lab.open().await;
        last = store.put("a", value("after")).await.unwrap();
        missed.push(last);
        let mut watch = store.watch("", second).await.unwrap();
        for revision in &missed {
            assert_eq!(event(&mut watch).await.unwrap().revision, *revision);
        }
        store.close().await.unwrap();
    }
    let store = lab.open().await;
    assert!(store.revision().await.unwrap() >= last);
}

pub async fn a_quiet_watch_says_how_far_it_is(lab: &Lab) {
    let store = lab.open().await;
    let start = store.put("loud/0", value(0)).await.unwrap();
    let mut quiet = store.watch("quiet/", start).await.unwrap();
    let last = store.put("loud/1", value(1)).await.unwrap();
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let signal =
            tokio::time::timeout(deadline - Instant::now(), quiet.next()).await.expect("progress in time");
        match signal.unwrap() {
            WatchSignal::Progress(revision) if revision >= last => break,
            WatchSignal::Progress(_) => {}
            WatchSignal::Event(event) => panic!("{event:?}"),
        }
    }
}

pub async fn a_slow_watcher_is_cut_off_and_nobody_waits_for_it(lab: &Lab) {
    let store = lab.open().await;
    let start = store.put("a", value(0)).await.unwrap();
    let mut slow = store.watch("", start).await.unwrap();
    let mut last = start;
    for chunk in 0..60 {
        let ops = (0..100).map(|n| Op::Put { key: format!("things/{n}"), value: value(chunk) }).collect();
        last = store.commit(ops).await.unwrap().revision;
    }
    let mut seen = Revision(0);
    let error = loop {
        match event(&mut slow).await {
            Ok(event) => seen = event.revision,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, StoreError::Lagged), "{error}");
    assert!(seen < last, "some of it was not kept for the slow one");
    // It resumes from the last revision it saw completely.
    let mut again = store.watch("", Revision(seen.0 - 1)).await.unwrap();
    assert_eq!(event(&mut again).await.unwrap().revision, seen);
    while event(&mut again).await.unwrap().revision < last {}
}
