//! The CAs in the store: what is written is what is read, and only with the right seal.

use super::*;

#[test]
fn a_roll_survives_the_store_and_keys_cannot_be_exchanged() {
    let folder = tempfile::tempdir().unwrap();
    let seal = SealKey::generate(&folder.path().join("seal.key")).unwrap();
    let now = from_unix_seconds(1_800_000_000);
    let (old, new) = (Authority::create(now).unwrap(), Authority::create(now).unwrap());
    let value = encode(&[(&old, now), (&new, now)], &seal, "host:/seal.key".into());
    let cas = decode(&value, Revision(7), &seal).unwrap();
    assert_eq!(cas.ids(), [old.id(), new.id()]);
    assert_eq!((cas.serving().id(), cas.issuing().id()), (old.id(), new.id()));
    assert!(cas.is_changing() && cas.revision == Revision(7));
    assert!(cas.dated().all(|(_, created)| created == now));

    let mut stored = parse(&value).unwrap();
    let (first, second) = stored.authorities.split_at_mut(1);
    std::mem::swap(&mut first[0].sealed_key, &mut second[0].sealed_key);
    let exchanged = serde_json::to_vec(&stored).unwrap();
    assert!(matches!(decode(&exchanged, Revision(7), &seal), Err(CaStoreError::Seal(SealError::Sealed))));

    stored.authorities.clear();
    let empty = serde_json::to_vec(&stored).unwrap();
    assert!(matches!(decode(&empty, Revision(7), &seal), Err(CaStoreError::Damaged(_))));
}

#[test]
fn a_damaged_record_is_not_quoted() {
    let folder = tempfile::tempdir().unwrap();
    let seal = SealKey::generate(&folder.path().join("seal.key")).unwrap();
    let key = "-----BEGIN PRIVATE KEY-----";
    for record in [
        format!("{key:?}"),
        format!(r#"{{"version":{key:?}}}"#),
        format!(r#"{{"version":1,"authorities":{key:?}}}"#),
    ] {
        let error = decode(record.as_bytes(), Revision(7), &seal).unwrap_err();
        assert!(
            matches!(error, CaStoreError::Damaged(_)) && !error.to_string().contains("PRIVATE"),
            "{error}"
        );
    }
}

#[tokio::test]
async fn a_seal_key_is_dropped_only_when_it_opens_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let spec = causeway_store::StoreSpec::Sqlite { path: folder.path().join("store.db") };
    let store = Store::open(spec).await.unwrap();
    let (ours, other) = (folder.path().join("seal.key"), folder.path().join("other.key"));
    let place = SealKeyLocation { path: ours.clone(), host: "here".into() };
    let (cas, seal) =
        open_or_create(&store, &place, from_unix_seconds(1_800_000_000), || Ok(())).await.unwrap();

    // The answer was lost, the store was asked again, and says that the record exists.
    drop_useless_seal(&store, &seal).await.unwrap();
    assert!(ours.exists());
    let again = open_or_create(&store, &place, from_unix_seconds(1_800_000_000), || Ok(())).await.unwrap().0;
    assert_eq!(again.ids(), cas.ids());

    let useless = SealKey::generate(&other).unwrap();
    drop_useless_seal(&store, &useless).await.unwrap();
    assert!(!other.exists());
}
