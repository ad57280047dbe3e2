//! The registry for Causeway's own parts: typed objects instead of bytes, closures instead of patches.
//!
//! Admission is the same as for every client. A write that changes nothing makes no revision.

use bytes::Bytes;
use causeway_api::ownership::Subresource;
use causeway_api::{ApiVersion, Kind, Object};
use causeway_store::{ListRange, Revision};

use super::admit::Draft;
use super::{ObjectAuthor, Registry, StoredObject, WriteResult, prefix};
use crate::admin_audit::{AdminRecord, changed_fields};
use crate::errors::{self, ErrorSubject, RegistryError};
use crate::request::options::{DeleteOptions, VersionMatch};

/// An object and the revision that wrote it.
#[derive(Debug, Clone, PartialEq)]
pub struct LoadedObject {
    pub object: Object,
    pub revision: Revision,
}

impl Registry {
    pub async fn object(&self, kind: Kind, name: &str) -> Result<Option<LoadedObject>, RegistryError> {
        match self.get(ApiVersion::Group, kind, name, VersionMatch::Newest).await {
            Ok(stored) => Ok(Some(LoadedObject { object: stored.object()?, revision: stored.revision })),
            Err(RegistryError::NotFound(_)) => Ok(None),
            Err(status) => Err(status),
        }
    }

    /// Returns all objects of a kind at one revision. An object that cannot be parsed is left out and logged.
    pub async fn objects(&self, kind: Kind) -> Result<(Vec<LoadedObject>, Revision), RegistryError> {
        self.objects_at(kind, None).await
    }

    /// As `objects`, at a given revision, so that several kinds can be read at the same revision.
    pub async fn objects_at(
        &self,
        kind: Kind,
        at: Option<Revision>,
    ) -> Result<(Vec<LoadedObject>, Revision), RegistryError> {
        let about = ErrorSubject { version: ApiVersion::Group, kind, name: "" };
        let listing = self.store.list(&prefix(kind), ListRange { at, ..ListRange::default() }).await;
        let listing = listing.map_err(|error| errors::from_store(&error, about))?;
        let loaded = listing.records.into_iter().filter_map(|record| {
            let stored = StoredObject::of(kind, record);
            Some(LoadedObject { object: stored.object().ok()?, revision: stored.revision })
        });
        Ok((loaded.collect(), listing.revision))
    }

    /// Creates an object; the refusal has the reason AlreadyExists when the name is taken.
    pub async fn create_object(&self, manager: &str, object: Object) -> Result<LoadedObject, RegistryError> {
        let stored = self.store_new(ObjectAuthor::ourselves(manager), Draft::ours(object), false).await?;
        self.created(manager, &stored)
    }

    /// Creates an object with the defaults of its kind, and owns only the fields that were given: a client
    /// that applies the object later sets the rest without a conflict.
    pub async fn create_with_defaults(
        &self,
        manager: &str,
        mut object: Object,
    ) -> Result<LoadedObject, RegistryError> {
        let stored = self.store_with_defaults(manager, &mut object).await?;
        self.created(manager, &stored)
    }

    /// As `create_with_defaults`, for an action of a client. Returns the record of the write instead of recording it under
    /// the name of a controller; the action records it under its caller.
    pub async fn create_for_action(
        &self,
        manager: &str,
        mut object: Object,
    ) -> Result<AdminRecord, RegistryError> {
        let stored = self.store_with_defaults(manager, &mut object).await?;
        Ok(record_of("create", &object, None, &stored))
    }

    async fn store_with_defaults(
        &self,
        manager: &str,
        object: &mut Object,
    ) -> Result<StoredObject, RegistryError> {
        let author = ObjectAuthor::ourselves(manager);
        self.claim_new(author, object)?;
        object.default_fields();
        self.store_new(author, Draft::ours(object.clone()), true).await
    }

    fn created(&self, manager: &str, stored: &StoredObject) -> Result<LoadedObject, RegistryError> {
        let object = stored.object()?;
        self.note_controller(manager, "create", object.kind(), object.name());
        Ok(LoadedObject { object, revision: stored.revision })
    }

    /// Changes an object's own fields and metadata. `edit` may run several times, each time on a newer state.
    pub async fn edit(
        &self,
        manager: &str,
        kind: Kind,
        name: &str,
        edit: impl FnMut(&mut Object),
    ) -> Result<LoadedObject, RegistryError> {
        let (loaded, written) = self.edit_through(manager, (kind, name), Subresource::Main, edit).await?;
        if written.changes_something() {
            self.note_controller(manager, "update", kind, name);
        }
        Ok(loaded)
    }

    /// As `edit`, for an action of a client. Returns the record of the write, which the action records under its caller;
    /// `None` when nothing was changed.
    pub async fn edit_for_action(
        &self,
        manager: &str,
        kind: Kind,
        name: &str,
        edit: impl FnMut(&mut Object),
    ) -> Result<Option<AdminRecord>, RegistryError> {
        let (loaded, written) = self.edit_through(manager, (kind, name), Subresource::Main, edit).await?;
        let before = written.before.as_ref();
        Ok(written.changes_something().then(|| record_of("update", &loaded.object, before, &written.stored)))
    }

    /// Changes an object's status alone.
    pub async fn edit_status(
        &self,
        manager: &str,
        kind: Kind,
        name: &str,
        edit: impl FnMut(&mut Object),
    ) -> Result<LoadedObject, RegistryError> {
        let (loaded, _) = self.edit_through(manager, (kind, name), Subresource::Status, edit).await?;
        Ok(loaded)
    }

    async fn edit_through(
        &self,
        manager: &str,
        (kind, name): (Kind, &str),
        subresource: Subresource,
        mut edit: impl FnMut(&mut Object),
    ) -> Result<(LoadedObject, WriteResult), RegistryError> {
        let about = ErrorSubject { version: ApiVersion::Group, kind, name };
        // The state on which the last decision was based, which is the committed one.
        let mut before = None;
        let decide = |live: &Object| {
            let mut object = live.clone();
            edit(&mut object);
            before = Some(live.clone());
            object
        };
        let written =
            self.change_object(ObjectAuthor::ourselves(manager), about, subresource, decide).await?;
        let loaded = LoadedObject { object: written.stored.object()?, revision: written.stored.revision };
        if let (Some(observer), Some(before)) = (&self.hooks.observer, &before) {
            observer.changed(before, &loaded.object);
        }
        Ok((loaded, written))
    }

    /// Deletes an object; an absent object counts as deleted.
    pub async fn delete_object(&self, manager: &str, kind: Kind, name: &str) -> Result<(), RegistryError> {
        match self.delete_object_if(manager, kind, name, &Default::default()).await {
            Err(RegistryError::NotFound(_)) => Ok(()),
            deleted => deleted,
        }
    }

    /// Deletes an object under preconditions, for example that it is still the one that was read.
    pub async fn delete_object_if(
        &self,
        manager: &str,
        kind: Kind,
        name: &str,
        options: &DeleteOptions,
    ) -> Result<(), RegistryError> {
        self.delete(ObjectAuthor::ourselves(manager), kind, name, options).await?;
        self.note_controller(manager, "delete", kind, name);
        Ok(())
    }
}

/// Makes the record of a write, without the user.
fn record_of(verb: &str, object: &Object, before: Option<&Bytes>, stored: &StoredObject) -> AdminRecord {
    let before = before.map(|before| serde_json::from_slice(before).unwrap_or_default());
    let after = serde_json::from_slice(&stored.value).unwrap_or_default();
    AdminRecord {
        verb: verb.to_owned(),
        kind: object.kind().name().to_owned(),
        name: object.name().to_owned(),
        changed: changed_fields(before.as_ref(), &after),
        ..AdminRecord::default()
    }
}
