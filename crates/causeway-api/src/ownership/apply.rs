//! Server-side apply: a manager declares all fields it wants; other fields of the object are not affected.

use std::fmt;

use serde_json::Value;

use super::conflict::{self, Conflict};
use super::entries::{FieldOwner, ManagedFields, ManagedOperation, OwnedFields};
use super::field_set::FieldSet;
use super::scope::{body_of, config_of, fields_within, identity_of, system_fields};
use super::update::before_first_apply;
use super::walk::{ambiguous_list, compare, fields_of, merge, remove};
use super::{FieldWriter, OwnershipError, last_applied};
use crate::status::Status;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerSideApplyError {
    /// Other managers own fields that would change.
    Conflicts(Vec<Conflict>),
    NotAnObject,
    /// The document sets managedFields; only the server may.
    ManagedFieldsSet,
    WrongVersion {
        found: String,
        expected: String,
    },
    /// Two items of a merged list have the same key, or one has none.
    AmbiguousItem {
        field: String,
        item: String,
    },
    Ownership(OwnershipError),
}

impl ServerSideApplyError {
    /// Returns the response to the client.
    pub fn status(&self) -> Status {
        match self {
            ServerSideApplyError::Conflicts(conflicts) => {
                Status::apply_conflict(self, conflicts.iter().map(Conflict::cause).collect())
            }
            _ => Status::bad_request(self),
        }
    }
}

impl std::error::Error for ServerSideApplyError {}

impl fmt::Display for ServerSideApplyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServerSideApplyError::Conflicts(conflicts) => conflict::describe(conflicts, f),
            ServerSideApplyError::NotAnObject => f.write_str("an applied configuration must be an object"),
            ServerSideApplyError::ManagedFieldsSet => f.write_str("metadata.managedFields must be nil"),
            ServerSideApplyError::WrongVersion { found, expected } => write!(
                f,
                "Incorrect version specified in apply patch. Specified patch version: {found}, expected: {expected}"
            ),
            ServerSideApplyError::AmbiguousItem { field, item } => {
                write!(f, "{field}: the item {item} has no unique key")
            }
            ServerSideApplyError::Ownership(error) => error.fmt(f),
        }
    }
}

/// Returns the object after `writer` applied `applied`, with its managedFields; `live` itself when that
/// changes nothing.
///
/// Fields of `applied` outside the writer's subresource, and those that the server fills, are ignored. kind
/// and apiVersion are those of `live` when there is one.
pub fn apply(
    writer: &FieldWriter<'_>,
    live: Option<&Value>,
    applied: &Value,
    force: bool,
) -> Result<Value, ServerSideApplyError> {
    check_document(writer, applied)?;
    let config = config_of(writer.subresource, applied);
    if let Some((field, item)) = ambiguous_list(&config) {
        return Err(ServerSideApplyError::AmbiguousItem { field, item: item.to_string() });
    }
    let stored = live.and_then(|live| ManagedFields::of(live).ok()).unwrap_or_default();
    let before = live.map_or_else(|| identity_of(applied), body_of);

    let owner = FieldOwner::of(writer, ManagedOperation::Apply);
    let mut entries = match live {
        Some(live) if stored.0.is_empty() => before_first_apply(writer, live),
        _ => stored.clone(),
    };
    let last = entries.0.remove(&owner);
    let fields = fields_of(&config).difference(&system_fields());
    entries.claim(owner.clone(), OwnedFields::by(writer, fields));

    let mut after = before.clone();
    merge(&mut after, &config);
    if let Some(last) = &last {
        prune(&mut after, &fields_within(writer.subresource, &last.fields), &entries.all_fields());
    }

    let change = compare(&before, &after);
    let written = change.written();
    let conflicts = conflict::find(&entries, &owner, &written);
    if !force {
        let conflicts =
            conflict::except(conflicts, &last_applied::allowed_conflicts(writer.manager, &before));
        if !conflicts.is_empty() {
            return Err(ServerSideApplyError::Conflicts(conflicts));
        }
    }
    entries.release(&written.union(&change.removed), Some(&owner));

    last_applied::refresh(writer.manager, applied, &mut after);
    if let Some(live) = live.filter(|_| after == before && entries.same_claims(&stored)) {
        return Ok(live.clone());
    }
    // A claim that did not change keeps its time, whatever this apply did to other managers.
    if let Some(last) = last.filter(|last| change.is_empty() && last.fields == entries.fields(&owner)) {
        entries.0.insert(owner, last);
    }
    entries.write(&mut after).map_err(ServerSideApplyError::Ownership)?;
    Ok(after)
}

fn check_document(writer: &FieldWriter<'_>, applied: &Value) -> Result<(), ServerSideApplyError> {
    let fields = applied.as_object().ok_or(ServerSideApplyError::NotAnObject)?;
    if applied.pointer("/metadata/managedFields").is_some_and(|list| !list.is_null()) {
        return Err(ServerSideApplyError::ManagedFieldsSet);
    }
    match fields.get("apiVersion").and_then(Value::as_str) {
        Some(found) if found != writer.api_version.as_str() => Err(ServerSideApplyError::WrongVersion {
            found: found.to_owned(),
            expected: writer.api_version.as_str().to_owned(),
        }),
        _ => Ok(()),
    }
}

/// Removes from `merged` the fields that the manager applied `last` time and that have no owner now.
///
/// A map is removed with its last owned field, even if it holds more: its defaulted fields came with it. A
/// map that still holds an owned field stays, and so does everything in it that was not applied.
fn prune(merged: &mut Value, last: &FieldSet, owned: &FieldSet) {
    let last = last.with_containers();
    let present = fields_of(merged).with_containers();
    let owned = owned.union(&system_fields()).with_containers();

    // First as if all applied fields and their contents were removed; then without the owned ones.
    let mut rest = merged.clone();
    remove(&mut rest, &last);
    let kept = fields_of(&rest).with_containers().union(&owned);
    let mut rest = merged.clone();
    remove(&mut rest, &present.difference(&kept));

    let gone = present.difference(&fields_of(&rest).with_containers()).intersection(&last);
    remove(merged, &gone);
}
