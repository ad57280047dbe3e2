//! A sequence of writes, one JSON document each, against a registry on a real store.
//!
//! A document has `do` (create, update, status, merge, strategic, json, apply, force, delete), `as` (the
//! field manager) and `body`; kind and name come from the body. Invariants after every step: refusals are
//! client errors, stored objects can be read, the response is the stored object, writing an object back
//! unchanged changes nothing, and an address is reserved exactly when a presence holds it.
#![no_main]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock, Mutex};

use causeway_api::ownership::Subresource;
use causeway_api::{ApiVersion, Kind, Object, Status};
use causeway_apiserver::body::{self, ParsedBody};
use causeway_apiserver::registry::{ObjectAuthor, StoredObject, address, key};
use causeway_apiserver::request::media::{BodyFormat, PatchFormat};
use causeway_apiserver::request::options::{VersionMatch, FieldValidation};
use causeway_apiserver::{Registry, SystemClock};
use causeway_fuzz::{assert_short, json};
use causeway_store::{Op, ListRange, Store, StoreSpec};
use libfuzzer_sys::{fuzz_mutator, fuzz_target};
use serde_json::Value;
use tokio::runtime::Runtime;

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    json::mutate(data, size, max_size, seed)
});

fuzz_target!(|data: &[u8]| {
    let Some(steps) = json::documents(data) else { return };
    RUNTIME.block_on(async {
        let store = take().await;
        let registry = Registry::new(store.clone(), Arc::new(SystemClock));
        for step in steps.iter().take(STEPS_MAX) {
            walk(&registry, step).await;
        }
        check_addresses(&store).await;
        drop(registry);
        give_back(store).await;
    });
});

/// Enough to create, change, conflict and delete; more would only be slower.
const STEPS_MAX: usize = 12;

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime on this thread")
});
static STORE: Mutex<Option<Store>> = Mutex::new(None);

async fn walk(registry: &Registry, step: &Value) {
    let body = &step["body"];
    let kind = json::kind_of(body);
    let name = body["metadata"]["name"].as_str().unwrap_or("a").to_owned();
    let manager = step["as"].as_str().filter(|manager| manager.len() <= 128).unwrap_or("ann");
    let author = ObjectAuthor { version: ApiVersion::Group, manager, dry_run: step["dry"] == true };
    let before = registry.get(ApiVersion::Group, kind, &name, VersionMatch::Newest).await.ok();
    match write(registry, author, (kind, &name), step).await {
        Ok(Some(answered)) if !author.dry_run => {
            let name = answered.object().expect("what was answered can be read").name().to_owned();
            let stands = registry.get(ApiVersion::Group, kind, &name, VersionMatch::Newest).await;
            assert_eq!(stands.as_ref().ok(), Some(&answered), "what was answered is what stands");
            check_rest(registry, author, &answered, &name).await;
        }
        Ok(_) => {}
        Err(status) => {
            assert!((400..500).contains(&status.code), "{} {}", status.code, status.message);
            assert_short(&status.message, 256 * 1024);
            let after = registry.get(ApiVersion::Group, kind, &name, VersionMatch::Newest).await.ok();
            assert_eq!(before, after, "a refused write changed something: {}", status.message);
        }
    }
}

/// Returns the object after the step; none when it was deleted.
async fn write(
    registry: &Registry,
    author: ObjectAuthor<'_>,
    (kind, name): (Kind, &str),
    step: &Value,
) -> Result<Option<StoredObject>, Status> {
    let parsed =
        body::parse(BodyFormat::Json, step["body"].to_string().as_bytes()).map_err(Status::bad_request)?;
    let (target, warn) = ((kind, name), FieldValidation::Warn);
    let main = Subresource::Main;
    let written = match step["do"].as_str().unwrap_or_default() {
        "update" => registry.update(author, target, main, parsed, warn).await?,
        "status" => registry.update(author, target, Subresource::Status, parsed, warn).await?,
        "merge" => registry.patch(author, target, main, (PatchFormat::Merge, parsed), warn).await?,
        "strategic" => {
            registry.patch(author, target, main, (PatchFormat::StrategicMerge, parsed), warn).await?
        }
        "json" => {
            let patch = ParsedBody { value: step["patch"].clone(), duplicates: Vec::new() };
            registry.patch(author, target, main, (PatchFormat::Json, patch), warn).await?
        }
        "apply" => registry.apply(author, target, main, (parsed, false), warn).await?,
        "force" => registry.apply(author, target, main, (parsed, true), warn).await?,
        "delete" => {
            registry.delete(author, kind, name, &Default::default()).await?;
            return Ok(None);
        }
        _ => registry.create(author, kind, parsed, warn).await?,
    };
    Ok(Some(written.stored))
}

/// Writing back an object unchanged is no change, for any author.
async fn check_rest(registry: &Registry, author: ObjectAuthor<'_>, stored: &StoredObject, name: &str) {
    let mut text = Vec::new();
    stored.splice(ApiVersion::Group, &mut text);
    let parsed = body::parse(BodyFormat::Json, &text).expect("what a client gets is JSON");
    let target = (stored.kind, name);
    let again = registry.update(author, target, Subresource::Main, parsed, FieldValidation::Strict).await;
    match again {
        Ok(again) => assert_eq!(again.stored.revision, stored.revision, "writing back changed something"),
        Err(status) => panic!("what was read cannot be written back: {}", status.message),
    }
}

/// Reservations and presences must match.
async fn check_addresses(store: &Store) {
    let listing = store.list("", ListRange::default()).await.expect("a healthy store can be listed");
    let (mut held, mut reserved) = (BTreeMap::new(), BTreeMap::new());
    for record in &listing.records {
        if record.key.starts_with(address::COLLECTION) {
            reserved.insert(
                record.key.to_string(),
                address::holder(&record.value).expect("a reservation names its holder"),
            );
            continue;
        }
        let plural = record.key.split('/').next().unwrap_or_default();
        let kind = Kind::from_plural(plural).expect("only objects and reservations were written");
        let object = Object::from_stored(kind, &record.value).expect("what is stored can be read");
        assert_eq!(key(kind, object.name()), *record.key);
        if let Some(place) = address::reservation(&object) {
            let other = held.insert(place.clone(), object.name().to_owned());
            assert_eq!(other, None, "two presences hold {place}");
        }
    }
    assert_eq!(held, reserved, "reservations and presences differ");
}

/// An empty store, kept between inputs because opening one costs more than an input.
async fn take() -> Store {
    let kept = STORE.lock().expect("nothing panics while it is held").take();
    match kept {
        Some(store) => store,
        None => open().await,
    }
}

async fn open() -> Store {
    let memory = PathBuf::from("/dev/shm");
    let folder = if memory.is_dir() { memory } else { std::env::temp_dir() };
    let folder = folder.join(format!("causeway-fuzz-registry-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("the folder for temporary files can be written");
    Store::open(StoreSpec::Sqlite { path: folder.join("store.db") })
        .await
        .expect("an empty folder becomes a store")
}

async fn give_back(store: Store) {
    let listing = store.list("", ListRange::default()).await.expect("a healthy store can be listed");
    let gone = |key: &Arc<str>| Op::Delete { key: key.to_string(), expected: None };
    let ops: Vec<Op> = listing.records.iter().map(|record| gone(&record.key)).collect();
    if !ops.is_empty() {
        store.commit(ops).await.expect("what is there can be deleted");
    }
    *STORE.lock().expect("nothing panics while it is held") = Some(store);
}
