//! `metadata.managedFields`: the owners of fields, read from and written into objects.
//!
//! The input may be foreign and is refused as a whole when it is invalid; the output is sorted as Kubernetes
//! sorts it. Fields that the server itself fills have no owner.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::field_set::{ELEMENTS_MAX, FieldSet, FieldSetError};
use super::scope::system_fields;
use super::{FieldWriter, OwnershipError, Subresource};
use crate::Time;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ManagedOperation {
    Apply,
    Update,
}

impl ManagedOperation {
    pub fn name(self) -> &'static str {
        match self {
            ManagedOperation::Apply => "Apply",
            ManagedOperation::Update => "Update",
        }
    }
}

/// The owner of fields: entries with equal owners are one entry. An applier is the same under every
/// apiVersion, because its next apply replaces its last one; for updaters each apiVersion has its own entry.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FieldOwner {
    pub manager: String,
    pub operation: ManagedOperation,
    pub subresource: String,
    /// Empty for appliers.
    pub api_version: String,
}

impl FieldOwner {
    pub fn new(
        manager: &str,
        operation: ManagedOperation,
        subresource: &str,
        api_version: &str,
    ) -> FieldOwner {
        let api_version = if operation == ManagedOperation::Apply { "" } else { api_version };
        FieldOwner {
            manager: manager.to_owned(),
            operation,
            subresource: subresource.to_owned(),
            api_version: api_version.to_owned(),
        }
    }

    pub(super) fn of(writer: &FieldWriter<'_>, operation: ManagedOperation) -> FieldOwner {
        FieldOwner::new(writer.manager, operation, writer.subresource.name(), writer.api_version.as_str())
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OwnedFields {
    pub api_version: String,
    /// The text as it was read: a time that cannot be parsed is kept, and counts as oldest.
    pub time: Option<String>,
    pub fields: FieldSet,
}

impl OwnedFields {
    pub fn by(writer: &FieldWriter<'_>, fields: FieldSet) -> OwnedFields {
        let api_version = writer.api_version.as_str().to_owned();
        OwnedFields { api_version, time: Some(writer.now.to_string()), fields }
    }
}

/// All entries of one object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ManagedFields(pub BTreeMap<FieldOwner, OwnedFields>);

/// Kubernetes keeps ten updaters apart; the oldest beyond that are merged into one.
const UPDATERS_MAX: usize = 10;
const ANCIENT: &str = "ancient-changes";

impl ManagedFields {
    /// Reads the entries of `object`. An object without any has none.
    pub fn of(object: &Value) -> Result<ManagedFields, FieldSetError> {
        let Some(list) = object.pointer("/metadata/managedFields").filter(|list| !list.is_null()) else {
            return Ok(ManagedFields::default());
        };
        let mut budget = ELEMENTS_MAX;
        let mut entries = ManagedFields::default();
        for entry in list.as_array().ok_or(FieldSetError::NotAnObject)? {
            let (owner, claim) = read_entry(entry, &mut budget)?;
            entries.claim(owner, claim);
        }
        Ok(entries)
    }

    /// Adds a claim to the fields that its owner already has.
    pub fn claim(&mut self, owner: FieldOwner, claim: OwnedFields) {
        if let Some(held) = self.0.get_mut(&owner) {
            held.fields = held.fields.union(&claim.fields);
            held.api_version = claim.api_version;
            held.time = claim.time;
        } else if !claim.fields.is_empty() {
            self.0.insert(owner, claim);
        }
    }

    pub fn fields(&self, owner: &FieldOwner) -> FieldSet {
        self.0.get(owner).map(|claim| claim.fields.clone()).unwrap_or_default()
    }

    /// Returns all fields that have an owner.
    pub fn all_fields(&self) -> FieldSet {
        self.0.values().fold(FieldSet::default(), |all, claim| all.union(&claim.fields))
    }

    /// Takes `fields` from every owner but `except`; an owner without fields is removed.
    pub fn release(&mut self, fields: &FieldSet, except: Option<&FieldOwner>) {
        for (owner, claim) in &mut self.0 {
            if Some(owner) != except {
                claim.fields = claim.fields.difference(fields);
            }
        }
        self.0.retain(|_, claim| !claim.fields.is_empty());
    }

    /// Tells whether both are equal except for the times.
    pub fn same_claims(&self, other: &ManagedFields) -> bool {
        let claims = |entries: &ManagedFields| {
            let owned = entries.0.iter().map(|(owner, claim)| (owner.clone(), claim.fields.clone()));
            owned.collect::<Vec<_>>()
        };
        claims(self) == claims(other)
    }

    /// Merges the oldest updaters of each apiVersion into one, until no more than ten are left.
    pub fn cap_updaters(&mut self) {
        let mut updaters: Vec<FieldOwner> =
            self.0.keys().filter(|owner| owner.operation == ManagedOperation::Update).cloned().collect();
        updaters.sort_by_cached_key(|owner| (self.seconds(owner), owner.clone()));
        let mut left = updaters.len();
        let mut first_of_version: BTreeMap<String, FieldOwner> = BTreeMap::new();
        for owner in updaters {
            if left <= UPDATERS_MAX {
                return;
            }
            let version = owner.api_version.clone();
            // The first one stays as it is until a second one joins it: alone it would save nothing.
            let Some(first) = first_of_version.get(&version).cloned() else {
                first_of_version.insert(version, owner);
                continue;
            };
            let bucket = FieldOwner::new(ANCIENT, ManagedOperation::Update, "", &version);
            // The last one to join is the youngest, and gives the merged entry its time.
            for joining in [&first, &owner].into_iter().filter(|joining| **joining != bucket) {
                if let Some(claim) = self.0.remove(joining) {
                    self.claim(bucket.clone(), claim);
                }
            }
            first_of_version.insert(version, bucket);
            left = self.0.keys().filter(|owner| owner.operation == ManagedOperation::Update).count();
        }
    }

    /// Writes the entries into `object`, in the order of Kubernetes: appliers, then updaters, oldest first.
    pub fn write(&self, object: &mut Value) -> Result<(), OwnershipError> {
        if self.0.values().map(|claim| claim.fields.size()).sum::<usize>() > ELEMENTS_MAX {
            return Err(OwnershipError::TooManyFields);
        }
        clear(object);
        let mut owners: Vec<&FieldOwner> = self.0.keys().collect();
        owners.sort_by_cached_key(|owner| {
            let version = self.0[*owner].api_version.clone();
            (owner.operation, self.seconds(owner), owner.manager.clone(), version, owner.subresource.clone())
        });
        let list: Vec<Value> = owners.into_iter().map(|owner| write_entry(owner, &self.0[owner])).collect();
        if let (false, Some(object)) = (list.is_empty(), object.as_object_mut()) {
            let metadata = object.entry("metadata").or_insert_with(|| Value::Object(Map::new()));
            if let Some(metadata) = metadata.as_object_mut() {
                metadata.insert("managedFields".to_owned(), Value::Array(list));
            }
        }
        Ok(())
    }

    fn seconds(&self, owner: &FieldOwner) -> i64 {
        let time = self.0.get(owner).and_then(|claim| claim.time.as_deref());
        time.and_then(|time| time.parse::<Time>().ok()).map_or(0, Time::as_second)
    }
}

/// Removes `metadata.managedFields` from an object.
pub fn clear(object: &mut Value) {
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
    }
}

fn read_entry(entry: &Value, budget: &mut usize) -> Result<(FieldOwner, OwnedFields), FieldSetError> {
    let entry = entry.as_object().ok_or(FieldSetError::NotAnObject)?;
    let text = |name: &str| entry.get(name).and_then(Value::as_str).unwrap_or_default();
    let operation = match text("operation") {
        "Apply" => ManagedOperation::Apply,
        "Update" => ManagedOperation::Update,
        other => return Err(FieldSetError::Malformed { element: other.chars().take(64).collect() }),
    };
    let fields = match entry.get("fieldsV1") {
        None | Some(Value::Null) => FieldSet::default(),
        Some(fields) => FieldSet::parse_within(fields, budget)?.difference(&system_fields()),
    };
    let subresource =
        if text("subresource") == Subresource::Status.name() { Subresource::Status.name() } else { "" };
    let owner = FieldOwner::new(text("manager"), operation, subresource, text("apiVersion"));
    let time = entry.get("time").and_then(Value::as_str).map(str::to_owned);
    Ok((owner, OwnedFields { api_version: text("apiVersion").to_owned(), time, fields }))
}

fn write_entry(owner: &FieldOwner, claim: &OwnedFields) -> Value {
    let mut entry = json!({
        "manager": owner.manager,
        "operation": owner.operation.name(),
        "apiVersion": claim.api_version,
        "fieldsType": "FieldsV1",
        "fieldsV1": claim.fields.print(),
    });
    if let Some(time) = &claim.time {
        entry["time"] = json!(time);
    }
    if !owner.subresource.is_empty() {
        entry["subresource"] = json!(owner.subresource);
    }
    entry
}
