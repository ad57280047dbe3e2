//! A backup that is restored into a store, and the store that results.
//!
//! Input: the lines of a backup. Count and digest of the last line are corrected, because no mutation would
//! ever guess them; an input that begins with `!` is used as it is. Invariants: a refused backup leaves the
//! store empty; a restored store can be backed up, and that backup restores to the same records.
#![no_main]

use std::path::PathBuf;
use std::sync::{LazyLock, Mutex};

use bytes::Bytes;
use causeway_channel::peer::sha256;
use causeway_fuzz::json;
use causeway_store::{Op, ListRange, Revision, Store, StoreError, StoreSpec};
use libfuzzer_sys::{fuzz_mutator, fuzz_target};
use tokio::runtime::Runtime;

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    json::mutate(data, size, max_size, seed)
});

fuzz_target!(|data: &[u8]| {
    let backup = match data.strip_prefix(b"!") {
        Some(raw) => raw.to_vec(),
        None => with_trailer(data),
    };
    RUNTIME.block_on(async {
        let first = take(&FIRST).await;
        let imported = first.import(&backup[..]).await;
        let records = contents(&first).await;
        match imported {
            Ok(imported) => {
                assert_eq!(imported.records, records.len() as u64);
                let second = take(&SECOND).await;
                let exported = export(&first).await;
                let again = second.import(&exported[..]).await.expect("our own backup can be restored");
                assert!(again.epoch > imported.epoch && again.revision > imported.revision);
                assert_eq!(contents(&second).await, records, "a backup holds every record");
                give_back(&SECOND, second).await;
            }
            Err(error) => assert!(records.is_empty(), "a refused backup left something: {error}"),
        }
        give_back(&FIRST, first).await;
    });
});

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime on this thread")
});
static FIRST: Mutex<Option<Store>> = Mutex::new(None);
static SECOND: Mutex<Option<Store>> = Mutex::new(None);

/// An empty store, kept between inputs because opening one costs more than an input.
async fn take(place: &Mutex<Option<Store>>) -> Store {
    let kept = place.lock().expect("nothing panics while it is held").take();
    match kept {
        Some(store) => store,
        None => open(if std::ptr::eq(place, &FIRST) { "first" } else { "second" }).await,
    }
}

async fn open(name: &str) -> Store {
    let memory = PathBuf::from("/dev/shm");
    let folder = if memory.is_dir() { memory } else { std::env::temp_dir() };
    let folder = folder.join(format!("causeway-fuzz-backup-{}-{name}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("the folder for temporary files can be written");
    Store::open(StoreSpec::Sqlite { path: folder.join("store.db") })
        .await
        .expect("an empty folder becomes a store")
}

/// Empties a store for the next input. One whose revision has come near the end is replaced.
async fn give_back(place: &Mutex<Option<Store>>, store: Store) {
    if store.revision().await.is_ok_and(|revision| revision > Revision(1 << 40)) {
        return store.close().await.expect("a healthy store can be closed");
    }
    let keys: Vec<String> = contents(&store).await.into_iter().map(|(key, _)| key).collect();
    for keys in keys.chunks(100) {
        let ops = keys.iter().map(|key| Op::Delete { key: key.clone(), expected: None }).collect();
        store.commit(ops).await.expect("what is there can be deleted");
    }
    *place.lock().expect("nothing panics while it is held") = Some(store);
}

async fn contents(store: &Store) -> Vec<(String, Bytes)> {
    let listing = store.list("", ListRange::default()).await.expect("a healthy store can be listed");
    listing.records.into_iter().map(|record| (record.key.to_string(), record.value)).collect()
}

async fn export(store: &Store) -> Vec<u8> {
    let mut export = store.export();
    let mut text = Vec::new();
    while let Some(piece) =
        export.next().await.unwrap_or_else(|error: StoreError| panic!("no backup: {error}"))
    {
        text.extend_from_slice(&piece);
    }
    text
}

fn with_trailer(lines: &[u8]) -> Vec<u8> {
    let mut backup = lines.to_vec();
    if backup.last() != Some(&b'\n') {
        backup.push(b'\n');
    }
    let count = backup.iter().filter(|byte| **byte == b'\n').count() - 1;
    let digest: String = sha256(&backup).iter().map(|byte| format!("{byte:02x}")).collect();
    backup.extend_from_slice(format!("{{\"count\":{count},\"sha256\":\"{digest}\"}}\n").as_bytes());
    backup
}
