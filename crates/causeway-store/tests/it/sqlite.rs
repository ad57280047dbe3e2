//! The battery on the embedded engine, and what only files can show.

use causeway_store::{Store, StoreError, StoreSpec};

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
