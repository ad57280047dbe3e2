//! Admits, stores, lists and watches objects; the only access to them, for HTTP and for the cloud's
//! reconcilers alike.
//!
//! Input: requests parsed by `request` and allowed by `authorize`. The modules `admit`, `address`, `patch`
//! and `token` decide and are pure; the drivers `write`, `delete` and `list` read, decide, commit, and decide
//! again when a concurrent write came first. Errors are returned as the `Status` for the client.

pub mod address;
pub mod admit;
pub mod patch;
pub mod token;

mod applied;
mod delete;
mod list;
mod protect;
mod reserve;
mod typed;
mod write;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use causeway_api::{ApiVersion, Kind, Object, Status, Time, wire};
use causeway_store::{Revision, Store, StoreRecord};

use crate::TimeSource;
use crate::admin_audit::{AdminAudit, AdminRecord};
use crate::errors::{self, ErrorSubject, RegistryError};
use crate::request::options::VersionMatch;
use crate::watch::{KindReaders, StoreSource};

pub use delete::DeleteResult;
pub use list::ListPage;
pub use protect::SessionLookup;
pub use typed::LoadedObject;
pub use write::WriteResult;

/// The registry of objects in front of the store.
pub struct Registry {
    store: Store,
    clock: Arc<dyn TimeSource>,
    watch_readers: KindReaders,
    hooks: RegistryHooks,
    /// The number of events in the store, as last counted by the part that drops them.
    event_count: AtomicUsize,
}

/// The parts of a server that a registry calls.
#[derive(Clone, Default)]
pub struct RegistryHooks {
    /// The audit for writes of Causeway's own controllers. Clients are recorded where they are answered.
    pub admin_audit: Option<Arc<dyn AdminAudit>>,
    pub observer: Option<Arc<dyn ChangeObserver>>,
    /// Used before an object is deleted.
    pub sessions: Option<Arc<dyn SessionLookup>>,
}

/// Receives the changes that Causeway's own parts commit through this registry, each on the replica that
/// committed it.
pub trait ChangeObserver: Send + Sync {
    fn changed(&self, old: &Object, new: &Object);
}

/// An object as it is stored: its bytes, and the revision that wrote them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredObject {
    pub kind: Kind,
    pub revision: Revision,
    pub value: Bytes,
}

impl StoredObject {
    pub fn object(&self) -> Result<Object, RegistryError> {
        Object::from_stored(self.kind, &self.value).map_err(|error| damaged(self.kind, &error).into())
    }

    /// Appends the object to `out` in the form that a client receives.
    pub fn splice(&self, version: ApiVersion, out: &mut Vec<u8>) {
        wire::splice(out, self.kind, version, self.revision.0, &self.value);
    }

    fn of(kind: Kind, record: StoreRecord) -> StoredObject {
        StoredObject { kind, revision: record.revision, value: record.value }
    }
}

/// The author of a write.
#[derive(Debug, Clone, Copy)]
pub struct ObjectAuthor<'a> {
    /// The API root of the request; appears in refusals and in managedFields.
    pub version: ApiVersion,
    /// The field manager.
    pub manager: &'a str,
    /// Run all checks and write nothing.
    pub dry_run: bool,
}

impl<'a> ObjectAuthor<'a> {
    /// The author of a write by a part of Causeway itself.
    pub fn ourselves(manager: &'a str) -> ObjectAuthor<'a> {
        ObjectAuthor { version: ApiVersion::Group, manager, dry_run: false }
    }
}

impl Registry {
    /// A registry without hooks.
    pub fn new(store: Store, clock: Arc<dyn TimeSource>) -> Registry {
        Registry::with_hooks(store, clock, RegistryHooks::default())
    }

    pub fn with_hooks(store: Store, clock: Arc<dyn TimeSource>, hooks: RegistryHooks) -> Registry {
        let watch_readers = KindReaders::new(StoreSource(store.clone()));
        Registry { store, clock, watch_readers, hooks, event_count: AtomicUsize::new(0) }
    }

    /// Records that a controller has changed an object. Status and events are not recorded: they are reports,
    /// not administrative acts.
    fn note_controller(&self, manager: &str, verb: &str, kind: Kind, name: &str) {
        if kind == Kind::Event {
            return;
        }
        if let Some(audit) = &self.hooks.admin_audit {
            audit.record(AdminRecord::of_controller(manager, verb, kind.name(), name));
        }
    }

    /// Sets the number of events. Above `HARD_MAX` clients cannot create more.
    pub fn count_events(&self, count: usize) {
        self.event_count.store(count, Ordering::Relaxed);
    }

    pub fn store(&self) -> &Store {
        &self.store
    }

    pub fn watch_readers(&self) -> &KindReaders {
        &self.watch_readers
    }

    pub async fn get(
        &self,
        version: ApiVersion,
        kind: Kind,
        name: &str,
        at: VersionMatch,
    ) -> Result<StoredObject, RegistryError> {
        let about = ErrorSubject { version, kind, name };
        let record = self.read_record(about).await?;
        // The newest state is never older than requested, unless a future revision was requested.
        if let VersionMatch::NotOlderThan(wanted) | VersionMatch::Exact(wanted) = at {
            let current = self.revision(about).await?;
            if wanted > current {
                return Err(errors::too_large_revision(wanted, current).into());
            }
        }
        record
            .map(|record| StoredObject::of(kind, record))
            .ok_or_else(|| Status::not_found(version, kind, name).into())
    }

    async fn revision(&self, about: ErrorSubject<'_>) -> Result<Revision, RegistryError> {
        Ok(self.store.revision().await.map_err(|error| errors::from_store(&error, about))?)
    }

    pub fn clock(&self) -> Arc<dyn TimeSource> {
        self.clock.clone()
    }

    pub fn now(&self) -> Time {
        Time::new(self.clock.now())
    }
}

/// Returns the key of an object.
pub fn key(kind: Kind, name: &str) -> String {
    format!("{}/{name}", kind.plural())
}

/// Returns the key prefix of a kind.
pub fn prefix(kind: Kind) -> String {
    format!("{}/", kind.plural())
}

fn damaged(kind: Kind, error: &serde_json::Error) -> Status {
    tracing::error!(kind = kind.name(), %error, "a stored object cannot be read");
    Status::internal("a stored object cannot be read; the server's log says which")
}
