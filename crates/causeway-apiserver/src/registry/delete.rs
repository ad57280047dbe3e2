//! Deletes one object, or all objects that a selector matches.
//!
//! With finalizers, an object stays, marked for deletion, until the last of them is removed. The policy for
//! dependents is such a finalizer, which the garbage collector removes.

use causeway_api::garbage::{self, Propagation};
use causeway_api::{Kind, Object, Status, document};
use causeway_store::{Op, StoreError};

use super::reserve::is_reservation_missing;
use super::{ObjectAuthor, Registry, StoredObject, address, admit, damaged, key};
use crate::errors::{self, ErrorSubject, RegistryError};
use crate::request::options::{DeleteOptions, ListOptions};

/// The result of a deletion.
#[derive(Debug)]
pub enum DeleteResult {
    Gone {
        uid: String,
        last: StoredObject,
    },
    /// Finalizers keep the object; this is its current state.
    Pending(StoredObject),
}

impl DeleteResult {
    pub fn stored(&self) -> &StoredObject {
        match self {
            DeleteResult::Gone { last, .. } => last,
            DeleteResult::Pending(stored) => stored,
        }
    }
}

// As many attempts as for a write.
const ATTEMPTS_MAX: usize = 32;
// Objects read at once while a collection is deleted.
const PAGE: usize = 500;

impl Registry {
    pub async fn delete(
        &self,
        author: ObjectAuthor<'_>,
        kind: Kind,
        name: &str,
        options: &DeleteOptions,
    ) -> Result<DeleteResult, RegistryError> {
        let about = ErrorSubject { version: author.version, kind, name };
        let not_found = || Status::not_found(about.version, kind, name);
        let mut keep_reservation = false;
        for _ in 0..ATTEMPTS_MAX {
            let record = self.read_record(about).await?.ok_or_else(not_found)?;
            let object = Object::from_stored(kind, &record.value).map_err(|error| damaged(kind, &error))?;
            let stored = StoredObject::of(kind, record);
            check_preconditions(about, &stored, &object, options)?;
            let plan = plan(&object, options.propagation, self.now());
            if !matches!(plan, Plan::Nothing) {
                self.check_deletable(about, &object).await?;
            }
            let (ops, deleted) = match plan {
                Plan::Nothing => return Ok(DeleteResult::Pending(stored)),
                Plan::Mark(marked) => {
                    let written =
                        serde_json::from_slice(&stored.value).map_err(|error| damaged(kind, &error))?;
                    let value = document::encode(&marked.document(&written));
                    let op =
                        Op::Update { key: key(kind, name), value: value.clone(), expected: stored.revision };
                    (vec![op], DeleteResult::Pending(StoredObject { value, ..stored }))
                }
                Plan::Remove => {
                    let mut ops = vec![Op::Delete { key: key(kind, name), expected: Some(stored.revision) }];
                    if !keep_reservation {
                        ops.extend(address::moves(Some(&object), None));
                    }
                    (ops, DeleteResult::Gone { uid: object.metadata().uid.clone(), last: stored })
                }
            };
            if author.dry_run || options.dry_run {
                return Ok(deleted);
            }
            match self.store.commit(ops).await {
                Ok(committed) => return Ok(at(deleted, committed.revision)),
                Err(error) if is_reservation_missing(&error) => keep_reservation = true,
                Err(StoreError::Conflict { .. } | StoreError::NotFound { .. }) => {}
                Err(error) => return Err(errors::from_store(&error, about).into()),
            }
        }
        Err(Status::object_modified(about.version, kind, name).into())
    }

    /// Deletes the objects that a list would show, one by one; objects that are deleted concurrently are no
    /// failure.
    pub async fn delete_collection(
        &self,
        author: ObjectAuthor<'_>,
        kind: Kind,
        list: &ListOptions,
        options: &DeleteOptions,
    ) -> Result<Vec<StoredObject>, RegistryError> {
        self.check_all_deletable(author.version, kind, list).await?;
        let mut deleted = Vec::new();
        let mut page_options =
            ListOptions { limit: Some(list.limit.unwrap_or(PAGE).min(PAGE)), ..list.clone() };
        loop {
            let page = self.list(author.version, kind, &page_options).await?;
            for record in &page.records {
                let name = name_of(&record.key);
                match self.delete(author, kind, name, options).await {
                    Ok(one) => deleted.push(one.stored().clone()),
                    Err(RegistryError::NotFound(_)) => {}
                    Err(status) => return Err(status),
                }
            }
            let enough = list.limit.is_some_and(|limit| deleted.len() >= limit);
            match page.next {
                Some(token) if !enough => page_options.continue_token = Some(token),
                _ => return Ok(deleted),
            }
        }
    }
}

enum Plan {
    /// The object is marked already; its finalizers remain.
    Nothing,
    Mark(Box<Object>),
    Remove,
}

fn plan(object: &Object, propagation: Option<Propagation>, now: causeway_api::Time) -> Plan {
    let meta = object.metadata();
    let finalizers = garbage::finalizers(&meta.finalizers, propagation);
    if finalizers.is_empty() {
        return Plan::Remove;
    }
    if meta.deletion_timestamp.is_some() && finalizers == meta.finalizers {
        return Plan::Nothing;
    }
    let mut marked = object.clone();
    let meta = marked.metadata_mut();
    meta.finalizers = finalizers;
    if meta.deletion_timestamp.is_none() {
        meta.deletion_timestamp = Some(now);
        meta.deletion_grace_period_seconds = Some(0);
        meta.generation += 1;
    }
    Plan::Mark(Box::new(marked))
}

fn check_preconditions(
    about: ErrorSubject<'_>,
    stored: &StoredObject,
    object: &Object,
    options: &DeleteOptions,
) -> Result<(), RegistryError> {
    let found = &object.metadata().uid;
    if let Some(wanted) = options.uid.as_ref().filter(|wanted| *wanted != found) {
        return Err(admit::uid_conflict(about, wanted, found).into());
    }
    match options.resource_version {
        Some(wanted) if wanted != stored.revision => {
            let why = format!(
                "Precondition failed: ResourceVersion in precondition: {wanted}, ResourceVersion in object meta: {}",
                stored.revision
            );
            Err(Status::conflict(about.version, about.kind, about.name, why).into())
        }
        _ => Ok(()),
    }
}

fn at(deleted: DeleteResult, revision: causeway_store::Revision) -> DeleteResult {
    match deleted {
        DeleteResult::Gone { uid, last } => {
            DeleteResult::Gone { uid, last: StoredObject { revision, ..last } }
        }
        DeleteResult::Pending(stored) => DeleteResult::Pending(StoredObject { revision, ..stored }),
    }
}

/// Returns the name in a key.
pub(crate) fn name_of(key: &str) -> &str {
    key.split_once('/').map_or(key, |(_, name)| name)
}
