//! Guarantees about export and import.

use bytes::Bytes;
use causeway_store::{Op, Store, StoreError};

use crate::lab::{Lab, keys, list, list_at, value};

async fn export(store: &Store) -> Vec<u8> {
    let mut export = store.export();
    let mut backup = Vec::new();
    while let Some(lines) = export.next().await.unwrap() {
        backup.extend_from_slice(&lines);
    }
    backup
}

/// Removes everything, so that the same location can be restored into.
async fn empty(store: &Store) {
    loop {
        let page = causeway_store::ListRange { limit: Some(100), ..Default::default() };
        let listing = store.list("", page).await.unwrap();
        if listing.records.is_empty() {
            return;
        }
        let ops =
            listing.records.iter().map(|r| Op::Delete { key: r.key.to_string(), expected: None }).collect();
        store.commit(ops).await.unwrap();
    }
}

pub async fn a_backup_restores_everything_under_a_new_epoch(lab: &Lab) {
    let store = lab.open().await;
    for n in 0..700 {
        store.put(&format!("things/{n:04}"), value(n)).await.unwrap();
    }
    store.put("binary", Bytes::from_static(b"\xff\xfe\n")).await.unwrap();
    let before = list(&store, "").await;
    let epoch = store.epoch().await;

    // Records that are written while the backup runs are not in it.
    let mut export = store.export();
    let mut backup = export.next().await.unwrap().unwrap().to_vec();
    store.put("things/0699", value("later")).await.unwrap();
    store.delete("things/0600", None).await.unwrap();
    while let Some(lines) = export.next().await.unwrap() {
        backup.extend_from_slice(&lines);
    }

    let error = store.import(&backup[..]).await.unwrap_err();
    assert!(matches!(error, StoreError::NotEmpty { count: 700 }), "{error}");
    empty(&store).await;
    let old = store.revision().await.unwrap();
    let imported = store.import(&backup[..]).await.unwrap();
    assert_eq!(imported.records, 701);
    assert!(imported.epoch > epoch);
    assert_eq!(store.epoch().await, imported.epoch);
    assert!(imported.revision > old && imported.revision > before.revision);

    let after = list(&store, "").await;
    assert_eq!(keys(&after.records), keys(&before.records));
    assert!(after.records.iter().zip(&before.records).all(|(a, b)| a.value == b.value));
    // A client with a revision of the lost store is told to list again.
    let error = list_at(&store, "", before.revision).await.unwrap_err();
    assert!(matches!(error, StoreError::Compacted { .. }), "{error}");
    let error = store.watch("", before.revision).await.err().expect("refused");
    assert!(matches!(error, StoreError::Compacted { .. }), "{error}");
    let next = store.put("things/0000", value("next")).await.unwrap();
    assert!(next > imported.revision);
    store.close().await.unwrap();
    let store = lab.open().await;
    assert_eq!(store.epoch().await, imported.epoch);
    assert_eq!(list(&store, "").await.records.len(), 701);
}

pub async fn a_damaged_backup_restores_nothing(lab: &Lab) {
    let store = lab.open().await;
    for n in 0..600 {
        store.put(&format!("things/{n}"), value(n)).await.unwrap();
    }
    let backup = export(&store).await;
    empty(&store).await;
    let mut changed = backup.clone();
    let place = backup.len() / 2;
    changed[place] = if changed[place] == b'7' { b'8' } else { b'7' };
    let mut longer = backup.clone();
    longer.extend_from_slice(b"{\"count\":0,\"sha256\":\"\"}\n");
    let cases: [(&str, &[u8]); 6] = [
        ("empty", b""),
        ("foreign", b"{\"kind\":\"List\"}\n"),
        ("newer", b"{\"format\":\"causeway-backup\",\"version\":99,\"epoch\":1,\"revision\":1}\n"),
        ("cut short", &backup[..backup.len() - 100]),
        ("changed", &changed),
        ("longer", &longer),
    ];
    for (name, text) in cases {
        let error = store.import(text).await.unwrap_err();
        assert!(matches!(error, StoreError::Corrupt { .. } | StoreError::TooNew { .. }), "{name}: {error}");
        assert_eq!(list(&store, "").await.records.len(), 0, "{name}");
        store.put("still/works", value(1)).await.unwrap();
        store.delete("still/works", None).await.unwrap();
    }
    assert_eq!(store.import(&backup[..]).await.unwrap().records, 600);
}
