//! Limits the fields that a write may change: the main resource everything but `status`, the status
//! subresource nothing else, and no writer the fields that the server fills itself.

use std::sync::LazyLock;

use serde_json::{Map, Value};

use super::entries::clear;
use super::field_set::FieldSet;

/// The part of an object that a request is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Subresource {
    Main,
    Status,
}

impl Subresource {
    /// The `subresource` in managedFields: the main resource has no name.
    pub fn name(self) -> &'static str {
        match self {
            Subresource::Main => "",
            Subresource::Status => "status",
        }
    }

    fn covers(self, field: &str) -> bool {
        (field == "status") == (self == Subresource::Status)
    }
}

/// Reverts changes of a write outside its part of the object: the main resource keeps the old status (a new
/// object has none), the status subresource keeps everything but the status. Idempotent.
pub fn confine(subresource: Subresource, old: Option<&Value>, new: &mut Value) {
    match subresource {
        Subresource::Main => replace(new, "status", old.and_then(|old| old.get("status")).cloned()),
        Subresource::Status => {
            let Some(old) = old else { return };
            let status = new.get("status").cloned();
            *new = old.clone();
            replace(new, "status", status);
        }
    }
}

/// The fields of `set` that belong to `subresource`.
pub(super) fn fields_within(subresource: Subresource, set: &FieldSet) -> FieldSet {
    set.only_fields(|name| subresource.covers(name))
}

/// Returns the applied document's part of the object: without nulls and without fields that the server fills.
pub(super) fn config_of(subresource: Subresource, applied: &Value) -> Value {
    let mut config = applied.clone();
    if let Some(fields) = config.as_object_mut() {
        fields.retain(|name, _| subresource.covers(name));
    }
    drop_nulls(&mut config, 0);
    super::walk::remove(&mut config, &SERVER_FILLED);
    if config.get("metadata").and_then(Value::as_object).is_some_and(Map::is_empty) {
        replace(&mut config, "metadata", None);
    }
    config
}

/// Returns the fields that identify the object which an applied document would create.
pub(super) fn identity_of(applied: &Value) -> Value {
    let mut identity = Map::new();
    for name in ["apiVersion", "kind"] {
        if let Some(value) = applied.get(name) {
            identity.insert(name.to_owned(), value.clone());
        }
    }
    let mut metadata = Map::new();
    for name in ["name", "namespace"] {
        if let Some(value) = applied.get("metadata").and_then(|metadata| metadata.get(name)) {
            metadata.insert(name.to_owned(), value.clone());
        }
    }
    identity.insert("metadata".to_owned(), Value::Object(metadata));
    Value::Object(identity)
}

/// Returns an object without its managedFields, with at least an empty metadata, as ownership compares it.
pub(super) fn body_of(object: &Value) -> Value {
    let mut body = object.clone();
    clear(&mut body);
    if body.get("metadata").is_none() {
        replace(&mut body, "metadata", Some(Value::Object(Map::new())));
    }
    body
}

/// Returns the fields without owners: they identify the object, or the server fills them.
pub(super) fn system_fields() -> FieldSet {
    SYSTEM.clone()
}

static SERVER_FILLED: LazyLock<FieldSet> = LazyLock::new(|| {
    FieldSet::of_fields(&[
        &["apiVersion"],
        &["kind"],
        &["metadata", "name"],
        &["metadata", "namespace"],
        &["metadata", "uid"],
        &["metadata", "resourceVersion"],
        &["metadata", "generation"],
        &["metadata", "creationTimestamp"],
        &["metadata", "deletionTimestamp"],
        &["metadata", "deletionGracePeriodSeconds"],
        &["metadata", "selfLink"],
        &["metadata", "managedFields"],
    ])
});

static SYSTEM: LazyLock<FieldSet> =
    LazyLock::new(|| SERVER_FILLED.union(&FieldSet::of_fields(&[&["metadata"]])));

fn replace(object: &mut Value, field: &str, value: Option<Value>) {
    let Some(fields) = object.as_object_mut() else { return };
    match value {
        Some(value) => drop(fields.insert(field.to_owned(), value)),
        None => drop(fields.remove(field)),
    }
}

/// Null means "no opinion" in an applied document, as it does for Kubernetes' own types.
fn drop_nulls(value: &mut Value, depth: usize) {
    if depth > super::field_set::DEPTH_MAX {
        return;
    }
    if let Value::Object(fields) = value {
        fields.retain(|_, value| !value.is_null());
        fields.values_mut().for_each(|value| drop_nulls(value, depth + 1));
    }
}
