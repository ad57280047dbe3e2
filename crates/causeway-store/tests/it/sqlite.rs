//! The battery on the embedded engine, and tests of its files.

use causeway_store::{RestoreTarget, Store, StoreError, StoreSpec};

use crate::battery::{self, for_each_promise};
use crate::lab::{Lab, value};

macro_rules! tests {
    ($($promise:ident,)*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $promise() {
                battery::$promise(&Lab::sqlite()).await;
            }
        )*
    };
}
for_each_promise!(tests);

fn path(lab: &Lab) -> &std::path::Path {
    match &lab.spec {
        StoreSpec::Sqlite { path } => path,
        StoreSpec::Etcd { .. } => unreachable!("a lab of files"),
    }
}

#[tokio::test]
async fn the_files_are_private() {
    use std::os::unix::fs::PermissionsExt;
    let lab = Lab::sqlite();
    let store = lab.open().await;
    store.put("a", value(1)).await.unwrap();
    let mut files = 0;
    for entry in std::fs::read_dir(path(&lab).parent().unwrap()).unwrap() {
        let entry = entry.unwrap();
        assert_eq!(entry.metadata().unwrap().permissions().mode() & 0o777, 0o600, "{:?}", entry.file_name());
        files += 1;
    }
    assert!(files >= 3, "the database, its log and its index");
}

#[tokio::test]
async fn a_newer_format_and_a_foreign_file_are_refused_untouched() {
    let lab = Lab::sqlite();
    lab.open().await.close().await.unwrap();
    let edit = |sql: &str| rusqlite::Connection::open(path(&lab)).unwrap().execute_batch(sql).unwrap();
    edit("PRAGMA user_version = 99");
    let before = std::fs::read(path(&lab)).unwrap();
    let error = Store::open(lab.spec.clone()).await.err().expect("refused");
    assert!(matches!(error, StoreError::TooNew { found: 99, supported: 1 }), "{error}");
    assert_eq!(std::fs::read(path(&lab)).unwrap(), before);

    edit("PRAGMA user_version = 1; PRAGMA application_id = 7");
    let error = Store::open(lab.spec.clone()).await.err().expect("refused");
    assert!(matches!(error, StoreError::Corrupt { .. }), "{error}");

    std::fs::write(
        path(&lab),
        "this is no database, it is a letter to a friend, and long enough to have a page",
    )
    .unwrap();
    let error = Store::open(lab.spec.clone()).await.err().expect("refused");
    assert!(matches!(error, StoreError::Corrupt { .. }), "{error}");
}

#[tokio::test]
async fn a_file_belongs_to_one_store_at_a_time() {
    let lab = Lab::sqlite();
    let store = lab.open().await;
    let error = Store::open(lab.spec.clone()).await.err().expect("refused");
    assert!(matches!(error, StoreError::Unavailable { .. }), "{error}");
    store.close().await.unwrap();
    lab.open().await;
}

#[tokio::test]
async fn people_can_read_the_tables() {
    let lab = Lab::sqlite();
    let store = lab.open().await;
    store.put("esites/Tokyo", value("Tokyo")).await.unwrap();
    store.put("esites/Tokyo", value("new")).await.unwrap();
    store.close().await.unwrap();
    let database = rusqlite::Connection::open(path(&lab)).unwrap();
    let name: String = database
        .query_row("SELECT value ->> '$.metadata.name' FROM objects WHERE key = 'esites/Tokyo'", [], |row| {
            row.get(0)
        })
        .unwrap();
    assert_eq!(name, "new");
    let was: String =
        database.query_row("SELECT value ->> '$.metadata.name' FROM history", [], |row| row.get(0)).unwrap();
    assert_eq!(was, "Tokyo");
}

#[tokio::test]
async fn a_restore_that_fails_leaves_no_database_and_one_that_succeeds_is_whole() {
    let source = Lab::sqlite();
    let store = source.open().await;
    store.put("esites/Tokyo", value("Tokyo")).await.unwrap();
    let mut backup = Vec::new();
    let mut export = store.export();
    while let Some(lines) = export.next().await.unwrap() {
        backup.extend_from_slice(&lines);
    }
    let lab = Lab::sqlite();
    let files = || {
        let entries = std::fs::read_dir(path(&lab).parent().unwrap()).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    let before = files();
    let target = RestoreTarget::open(lab.spec.clone()).await.unwrap();
    assert!(target.is_temporary() && target.store().import(&backup[..backup.len() - 9]).await.is_err());
    assert!(!path(&lab).exists());
    drop(target);
    assert!(!path(&lab).exists());
    // Without `finish` the restore counts as failed, and the log of the lost database is not applied to the
    // new one.
    let target = RestoreTarget::open(lab.spec.clone()).await.unwrap();
    target.store().import(&backup[..]).await.unwrap();
    target.store().clone().close().await.unwrap();
    drop(target);
    assert_eq!(files(), before);

    std::fs::write(path(&lab).with_extension("db-wal"), "the log of a lost database").unwrap();
    let target = RestoreTarget::open(lab.spec.clone()).await.unwrap();
    assert_eq!(target.store().import(&backup[..]).await.unwrap().records, 1);
    assert!(!path(&lab).exists(), "not before it is complete");
    target.finish().await.unwrap();
    let store = lab.open().await;
    assert!(store.get("esites/Tokyo").await.unwrap().is_some());
    store.close().await.unwrap();
    // An existing store is not replaced.
    let target = RestoreTarget::open(lab.spec.clone()).await.unwrap();
    let error = target.store().import(&backup[..]).await.unwrap_err();
    assert!(!target.is_temporary() && matches!(error, StoreError::NotEmpty { count: 1 }), "{error}");
}
