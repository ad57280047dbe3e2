//! Guarantees about writing: preconditions, atomic commits, limits.

use causeway_store::{
    COMMIT_BYTES_MAX, KEY_BYTES_MAX, OPS_MAX, Op, Revision, Store, StoreError, VALUE_BYTES_MAX,
};

use crate::lab::{Lab, keys, list, value};

pub async fn records_are_created_read_updated_and_deleted(lab: &Lab) {
    let store = lab.open().await;
    assert!(store.get("esites/Tokyo").await.unwrap().is_none());
    let created = store.create("esites/Tokyo", value(1)).await.unwrap();
    assert!(created > Revision(0));

    let record = store.get("esites/Tokyo").await.unwrap().unwrap();
    assert_eq!((&*record.key, &record.value), ("esites/Tokyo", &value(1)));
    assert_eq!((record.revision, record.created), (created, created));

    let updated = store.update("esites/Tokyo", value(2), created).await.unwrap();
    assert!(updated > created);
    let record = store.get("esites/Tokyo").await.unwrap().unwrap();
    assert_eq!((&record.value, record.revision, record.created), (&value(2), updated, created));

    let deleted = store.delete("esites/Tokyo", Some(updated)).await.unwrap();
    assert!(deleted > updated);
    assert!(store.get("esites/Tokyo").await.unwrap().is_none());

    let again = store.put("esites/Tokyo", value(3)).await.unwrap();
    let record = store.get("esites/Tokyo").await.unwrap().unwrap();
    assert_eq!(record.created, again, "a key made anew is young");
    assert_eq!(store.revision().await.unwrap(), again);
}

pub async fn a_refused_operation_changes_nothing(lab: &Lab) {
    let store = lab.open().await;
    let first = store.create("a", value(1)).await.unwrap();
    let second = store.update("a", value(2), first).await.unwrap();

    let refused = store.create("a", value(9)).await.unwrap_err();
    assert!(matches!(&refused, StoreError::AlreadyExists { key } if key == "a"), "{refused}");
    let refused = store.update("a", value(9), first).await.unwrap_err();
    assert!(
        matches!(&refused, StoreError::Conflict { key, expected, actual } if key == "a" && *expected == first && *actual == second),
        "{refused}"
    );
    let refused = store.delete("a", Some(first)).await.unwrap_err();
    assert!(matches!(refused, StoreError::Conflict { .. }), "{refused}");
    for missing in [
        store.update("b", value(9), first).await.unwrap_err(),
        store.delete("b", None).await.unwrap_err(),
        store.delete("b", Some(first)).await.unwrap_err(),
    ] {
        assert!(matches!(&missing, StoreError::NotFound { key } if key == "b"), "{missing}");
    }
    assert_eq!(store.revision().await.unwrap(), second, "refusals take no revision");
    assert_eq!(store.get("a").await.unwrap().unwrap().value, value(2));
}

pub async fn of_two_writers_exactly_one_gets_a_conflict(lab: &Lab) {
    let store = lab.open().await;
    for round in 0..20 {
        let key = format!("esites/{round}");
        let base = store.create(&key, value("base")).await.unwrap();
        let (one, two) =
            tokio::join!(store.update(&key, value("one"), base), store.update(&key, value("two"), base));
        let (winner, loser, kept) = match (one, two) {
            (Ok(winner), Err(loser)) => (winner, loser, value("one")),
            (Err(loser), Ok(winner)) => (winner, loser, value("two")),
            other => panic!("round {round}: {other:?}"),
        };
        assert!(matches!(loser, StoreError::Conflict { actual, .. } if actual == winner), "{loser}");
        assert_eq!(store.get(&key).await.unwrap().unwrap().value, kept);
        let (one, two) = tokio::join!(store.create("new", value("one")), store.create("new", value("two")));
        assert!(one.is_ok() != two.is_ok(), "round {round}: {one:?} {two:?}");
        store.delete("new", None).await.unwrap();
    }
}

pub async fn a_commit_of_many_is_one_moment(lab: &Lab) {
    let store = lab.open().await;
    let a = store.create("a", value("a1")).await.unwrap();
    let b = store.create("b", value("b1")).await.unwrap();
    let ops = vec![
        Op::Update { key: "a".into(), value: value("a2"), expected: a },
        Op::Delete { key: "b".into(), expected: Some(b) },
        Op::Create { key: "c".into(), value: value("c1") },
        Op::Put { key: "d".into(), value: value("d1") },
    ];
    let committed = store.commit(ops).await.unwrap();
    let listing = list(&store, "").await;
    assert_eq!(keys(&listing.records), ["a", "c", "d"]);
    assert!(listing.records.iter().all(|record| record.revision == committed.revision));
    let previous: Vec<_> =
        committed.previous.iter().map(|p| p.as_ref().map(|p| (p.value.clone(), p.revision))).collect();
    assert_eq!(previous, [Some((value("a1"), a)), Some((value("b1"), b)), None, None]);

    // One refused operation among many: nothing of the commit is executed, at any position.
    for place in 0..3 {
        let mut ops = vec![
            Op::Put { key: "x".into(), value: value(1) },
            Op::Delete { key: "a".into(), expected: None },
        ];
        ops.insert(place, Op::Create { key: "c".into(), value: value(2) });
        let refused = store.commit(ops).await.unwrap_err();
        assert!(matches!(&refused, StoreError::AlreadyExists { key } if key == "c"), "{refused}");
    }
    assert_eq!(list(&store, "").await, listing);
}

pub async fn sizes_and_keys_have_limits(lab: &Lab) {
    let store = lab.open().await;
    let whole = bytes::Bytes::from(vec![b'1'; VALUE_BYTES_MAX]);
    store.create("whole", whole.clone()).await.unwrap();
    assert_eq!(store.get("whole").await.unwrap().unwrap().value, whole);
    let half = bytes::Bytes::from(vec![b'1'; VALUE_BYTES_MAX / 2]);
    let longest = "k".repeat(KEY_BYTES_MAX);
    store.create(&longest, value(1)).await.unwrap();

    let too_large = [
        vec![Op::Put { key: "a".into(), value: bytes::Bytes::from(vec![b'1'; VALUE_BYTES_MAX + 1]) }],
        vec![Op::Put { key: format!("{longest}k"), value: value(1) }],
        ["a", "b", "c"].map(|key| Op::Put { key: key.into(), value: half.clone() }).into(),
    ];
    assert!(half.len() * 3 > COMMIT_BYTES_MAX);
    for ops in too_large {
        refused(&store, ops, |error| matches!(error, StoreError::TooLarge { .. })).await;
    }
    let put = |key: &str| Op::Put { key: key.into(), value: value(1) };
    let many: Vec<Op> = (0..OPS_MAX).map(|n| put(&format!("many/{n}"))).collect();
    let mut too_many = many.clone();
    too_many.push(put("one more"));
    store.commit(many).await.unwrap();
    for ops in [vec![], vec![put("")], vec![put("a\0b")], vec![put("a"), put("b"), put("a")], too_many] {
        refused(&store, ops, |error| matches!(error, StoreError::Invalid { .. })).await;
    }
    assert_eq!(list(&store, "").await.records.len(), OPS_MAX + 2);
}

async fn refused(store: &Store, ops: Vec<Op>, expected: fn(&StoreError) -> bool) {
    let described: String = format!("{ops:?}").chars().take(80).collect();
    match store.commit(ops).await {
        Err(error) => assert!(expected(&error), "{error} for {described}"),
        Ok(_) => panic!("not refused: {described}"),
    }
}

pub async fn odd_keys_and_values_come_back_as_they_were(lab: &Lab) {
    let store = lab.open().await;
    let mut names = vec![
        "esites/東京",
        "esites/München",
        "esites/🚉",
        "a b/c\td",
        "quote\"'`",
        "%_\\",
        "a//b/",
        "/",
        " ",
        "\u{7f}",
        "é",
        "e\u{301}",
    ];
    for name in &names {
        store.create(name, value(name.escape_default())).await.unwrap();
    }
    for name in &names {
        let record = store.get(name).await.unwrap().unwrap();
        assert_eq!((&*record.key, &record.value), (*name, &value(name.escape_default())));
    }
    names.sort_unstable();
    assert_eq!(keys(&list(&store, "").await.records), names, "keys sort by their bytes");
    for bytes in [&b"\xff\x00\xfe"[..], b"", b"\0", b"plain", b"{\"a\":\n1}"] {
        store.put("value", bytes::Bytes::copy_from_slice(bytes)).await.unwrap();
        assert_eq!(store.get("value").await.unwrap().unwrap().value, bytes);
    }
}

pub async fn a_closed_store_says_so(lab: &Lab) {
    let store = lab.open().await;
    let revision = store.create("a", value(1)).await.unwrap();
    let mut watch = store.watch("", revision).await.unwrap();
    let other = store.clone();
    store.close().await.unwrap();
    assert!(matches!(other.put("a", value(2)).await, Err(StoreError::Closed)));
    assert!(matches!(other.get("a").await, Err(StoreError::Closed)));
    assert!(matches!(watch.next().await, Err(StoreError::Closed)));
    let store = lab.open().await;
    assert_eq!(store.get("a").await.unwrap().unwrap().value, value(1));
}
