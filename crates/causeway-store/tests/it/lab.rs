//! Creates stores for the battery: each `Lab` is one location that can be opened, closed and opened again.

use std::time::Duration;

use bytes::Bytes;
use causeway_store::{
    ListRange, Listing, Revision, Store, StoreError, StoreEvent, StoreRecord, StoreSpec, StoreWatch,
    WatchSignal,
};
use testlab::etcd::Cluster;

/// One empty location for a store.
pub struct Lab {
    pub spec: StoreSpec,
    _directory: Option<tempfile::TempDir>,
}

impl Lab {
    pub fn sqlite() -> Lab {
        let directory = tempfile::tempdir().unwrap();
        Lab {
            spec: StoreSpec::Sqlite { path: directory.path().join("store.db") },
            _directory: Some(directory),
        }
    }

    /// A separate prefix in a shared cluster.
    pub fn etcd(cluster: &Cluster, name: &str) -> Lab {
        let prefix = format!("/{name}/");
        Lab { spec: StoreSpec::Etcd { endpoints: cluster.endpoints(), tls: None, prefix }, _directory: None }
    }

    pub async fn open(&self) -> Store {
        Store::open(self.spec.clone()).await.unwrap()
    }
}

/// Makes a value with this text.
pub fn value(text: impl std::fmt::Display) -> Bytes {
    Bytes::from(format!(r#"{{"metadata":{{"name":"{text}"}}}}"#))
}

pub async fn list(store: &Store, prefix: &str) -> Listing {
    store.list(prefix, ListRange::default()).await.unwrap()
}

pub async fn list_at(store: &Store, prefix: &str, at: Revision) -> Result<Vec<StoreRecord>, StoreError> {
    store
        .list(prefix, ListRange { at: Some(at), ..ListRange::default() })
        .await
        .map(|listing| listing.records)
}

pub fn keys(records: &[StoreRecord]) -> Vec<&str> {
    records.iter().map(|record| &*record.key).collect()
}

/// Returns the next event; progress in between is skipped.
pub async fn event(watch: &mut StoreWatch) -> Result<std::sync::Arc<StoreEvent>, StoreError> {
    loop {
        let next = tokio::time::timeout(Duration::from_secs(20), watch.next()).await;
        if let WatchSignal::Event(event) = next.expect("an event within 20 seconds")? {
            return Ok(event);
        }
    }
}

/// Returns all events up to and including the revision `last`.
pub async fn events_upto(
    watch: &mut StoreWatch,
    last: Revision,
    count: usize,
) -> Vec<std::sync::Arc<StoreEvent>> {
    let mut events = Vec::new();
    while events.len() < count {
        let next = event(watch).await.unwrap();
        assert!(next.revision <= last, "{next:?} is behind {last}");
        events.push(next);
    }
    events
}

/// The number of repetitions of crash tests: five, or fifty with `CAUSEWAY_SOAK=1`.
pub fn rounds() -> u64 {
    if std::env::var("CAUSEWAY_SOAK").is_ok_and(|soak| soak == "1") { 50 } else { 5 }
}
