//! Guarantees about reading: ranges, pages, old revisions, compaction.

use std::collections::BTreeMap;

use causeway_store::{ListRange, Op, Revision, StoreError};

use crate::lab::{Lab, keys, list, list_at, value};

pub async fn a_prefix_lists_only_its_own(lab: &Lab) {
    let store = lab.open().await;
    for key in ["esite", "esites", "esites/", "esites/a", "esites/b", "esites/é", "esites0", "f"] {
        store.create(key, value(key)).await.unwrap();
    }
    assert_eq!(keys(&list(&store, "esites/").await.records), ["esites/", "esites/a", "esites/b", "esites/é"]);
    assert_eq!(list(&store, "").await.records.len(), 8);
    assert_eq!(list(&store, "nothing/").await.records.len(), 0);
    let page = |after: &str, limit| ListRange { at: None, after: Some(after.into()), limit };
    let rows: [(ListRange, &[&str], u64); 6] = [
        (page("esites/a", None), &["esites/b", "esites/é"], 0),
        (page("esites/a", Some(1)), &["esites/b"], 1),
        (page("esites/aa", Some(9)), &["esites/b", "esites/é"], 0),
        (page("a", Some(2)), &["esites/", "esites/a"], 2),
        (page("zzz", None), &[], 0),
        (
            ListRange { limit: Some(4), ..ListRange::default() },
            &["esites/", "esites/a", "esites/b", "esites/é"],
            0,
        ),
    ];
    for (page, expected, remaining) in rows {
        let listing = store.list("esites/", page.clone()).await.unwrap();
        assert_eq!((keys(&listing.records), listing.remaining), (expected.to_vec(), remaining), "{page:?}");
    }
}

pub async fn pages_are_one_snapshot_while_others_write(lab: &Lab) {
    const RECORDS: usize = 10_000;
    let store = lab.open().await;
    let key = |n: usize| format!("things/{n:05}");
    for chunk in (0..RECORDS).collect::<Vec<_>>().chunks(100) {
        let ops = chunk.iter().map(|n| Op::Create { key: key(*n), value: value("old") }).collect();
        store.commit(ops).await.unwrap();
    }
    let stop = tokio_util::sync::CancellationToken::new();
    let writer = tokio::spawn({
        let (store, stop) = (store.clone(), stop.clone());
        async move {
            let mut written = 0;
            while !stop.is_cancelled() {
                let n = written * 7919 % RECORDS;
                store.put(&key(n), value("new")).await.unwrap();
                // Some are deleted, and some are created in between.
                let _ = store.delete(&key((n + 5) % RECORDS), None).await;
                store.put(&format!("things/{n:05}x"), value("new")).await.unwrap();
                written += 1;
            }
            written
        }
    });
    let mut page = ListRange { limit: Some(500), ..ListRange::default() };
    let mut seen = Vec::new();
    loop {
        let listing = store.list("things/", page.clone()).await.unwrap();
        assert!(page.at.is_none_or(|at| at == listing.revision));
        seen.extend(listing.records);
        if listing.remaining == 0 {
            break;
        }
        page = ListRange {
            at: Some(listing.revision),
            after: Some(seen.last().unwrap().key.to_string()),
            limit: Some(500),
        };
        let whole = store.list("things/", ListRange { at: page.at, ..ListRange::default() }).await.unwrap();
        assert_eq!(whole.records.len(), seen.len() + listing.remaining as usize);
    }
    stop.cancel();
    assert!(writer.await.unwrap() > 0, "somebody wrote meanwhile");
    let at = page.at.unwrap();
    assert!(store.revision().await.unwrap() > at);
    assert!(seen.windows(2).all(|pair| pair[0].key < pair[1].key), "in order, none twice");
    assert!(seen.iter().all(|record| record.revision <= at), "nothing from the future");
    let whole = store.list("things/", ListRange { at: Some(at), ..ListRange::default() }).await.unwrap();
    assert_eq!(seen, whole.records);
}

pub async fn a_list_at_an_old_revision_shows_what_was(lab: &Lab) {
    let store = lab.open().await;
    let mut model: BTreeMap<String, causeway_store::StoreRecord> = BTreeMap::new();
    let mut then = Vec::new();
    for step in 0u64..60 {
        let key = format!("k/{}", step * 7 % 5);
        let revision = if step % 4 == 3 && model.contains_key(&key) {
            model.remove(&key);
            store.delete(&key, None).await.unwrap()
        } else {
            let revision = store.put(&key, value(step)).await.unwrap();
            let created = model.get(&key).map_or(revision, |record| record.created);
            let record = causeway_store::StoreRecord {
                key: key.as_str().into(),
                value: value(step),
                revision,
                created,
            };
            model.insert(key, record);
            revision
        };
        then.push((revision, model.values().cloned().collect::<Vec<_>>()));
    }
    for (revision, expected) in then {
        assert_eq!(list_at(&store, "k/", revision).await.unwrap(), expected, "at {revision}");
    }
}

pub async fn compaction_ends_old_lists_and_watches(lab: &Lab) {
    let store = lab.open().await;
    let mut revisions = Vec::new();
    for n in 0..20 {
        revisions.push(store.put("a", value(n)).await.unwrap());
        revisions.push(store.put("b", value(n)).await.unwrap());
    }
    let gone = store.delete("b", None).await.unwrap();
    let oldest = revisions[30];
    assert_eq!(store.compact(oldest).await.unwrap(), oldest);
    assert_eq!(store.compact(revisions[3]).await.unwrap(), oldest, "compacting less changes nothing");

    for old in [revisions[0], revisions[29]] {
        let error = list_at(&store, "", old).await.unwrap_err();
        assert!(matches!(error, StoreError::Compacted { requested, .. } if requested == old), "{error}");
        let error = watch_error(&store, old).await;
        assert!(matches!(error, StoreError::Compacted { .. }), "{error}");
    }
    assert_eq!(list_at(&store, "", oldest).await.unwrap().len(), 2);
    let mut watch = store.watch("", oldest).await.unwrap();
    for revision in revisions[31..].iter().chain([&gone]) {
        assert_eq!(crate::lab::event(&mut watch).await.unwrap().revision, *revision);
    }
    assert_eq!(keys(&list(&store, "").await.records), ["a"]);
    let current = store.revision().await.unwrap();
    let error = store.compact(Revision(current.0 + 50)).await.unwrap_err();
    assert!(matches!(error, StoreError::Future { .. }), "{error}");
}

/// A watch may be refused at its start, or with its first event.
async fn watch_error(store: &causeway_store::Store, after: Revision) -> StoreError {
    match store.watch("", after).await {
        Err(error) => error,
        Ok(mut watch) => watch.next().await.unwrap_err(),
    }
}

pub async fn a_future_revision_is_refused(lab: &Lab) {
    let store = lab.open().await;
    let current = store.put("a", value(1)).await.unwrap();
    let future = Revision(current.0 + 100);
    let error = list_at(&store, "", future).await.unwrap_err();
    assert!(matches!(error, StoreError::Future { requested, .. } if requested == future), "{error}");
    let error = store.watch("", future).await.err().expect("refused");
    assert!(matches!(error, StoreError::Future { .. }), "{error}");
}
