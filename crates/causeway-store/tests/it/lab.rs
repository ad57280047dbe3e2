//! Makes stores for the battery: each `Lab` is one place that can be opened, closed and opened again.

use std::time::Duration;

use bytes::Bytes;
use causeway_store::{Event, Listing, Page, Record, Revision, Signal, Store, StoreError, StoreSpec, Watch};
use testlab::etcd::Cluster;

/// One empty place for a store.
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

    /// A place of its own in a shared cluster.
    pub fn etcd(cluster: &Cluster, name: &str) -> Lab {
        let prefix = format!("/{name}/");
        Lab { spec: StoreSpec::Etcd { endpoints: cluster.endpoints(), tls: None, prefix }, _directory: None }
    }

    pub async fn open(&self) -> Store {
        Store::open(self.spec.clone()).await.unwrap()
    }
}

/// A value that says what it is.
pub fn value(text: impl std::fmt::Display) -> Bytes {
    Bytes::from(format!(r#"{{"metadata":{{"name":"{text}"}}}}"#))
}

pub async fn list(store: &Store, prefix: &str) -> Listing {
    store.list(prefix, Page::default()).await.unwrap()
}

pub async fn list_at(store: &Store, prefix: &str, at: Revision) -> Result<Vec<Record>, StoreError> {
    store.list(prefix, Page { at: Some(at), ..Page::default() }).await.map(|listing| listing.records)
}

pub fn keys(records: &[Record]) -> Vec<&str> {
    records.iter().map(|record| &*record.key).collect()
}

/// The next event; progress in between is skipped.
pub async fn event(watch: &mut Watch) -> Result<std::sync::Arc<Event>, StoreError> {
    loop {
        let next = tokio::time::timeout(Duration::from_secs(20), watch.next()).await;
        if let Signal::Event(event) = next.expect("an event within 20 seconds")? {
            return Ok(event);
        }
    }
}

/// All events up to and with the revision `last`.
pub async fn events_upto(watch: &mut Watch, last: Revision, count: usize) -> Vec<std::sync::Arc<Event>> {
    let mut events = Vec::new();
    while events.len() < count {
        let next = event(watch).await.unwrap();
        assert!(next.revision <= last, "{next:?} is behind {last}");
        events.push(next);
    }
    events
}
