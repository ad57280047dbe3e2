//! Ownership after create, update and patch: the writer that changes a field becomes its only owner.

use serde_json::{Map, Value, json};

use super::entries::{FieldOwner, ManagedFields, ManagedOperation, OwnedFields, clear};
use super::scope::{body_of, confine, fields_within, system_fields};
use super::walk::{compare, fields_of};
use super::{FieldWriter, OwnershipError, Subresource};

/// Sets the managedFields of `new` that follow from the change `old` → `new` by `writer`; no `old` is a
/// create.
///
/// The write is confined to its subresource first. managedFields that the client sent are taken as they are,
/// `[]` and `[{}]` reset them; a status write cannot change them. `new` should be decoded and defaulted, or
/// fields that the server will normalise count as changed.
pub fn update(writer: &FieldWriter<'_>, old: Option<&Value>, new: &mut Value) -> Result<(), OwnershipError> {
    let mut entries = entries_before(writer, old, new);
    confine(writer.subresource, old, new);
    let before = old.map_or_else(|| json!({"metadata": {}}), body_of);
    if entries.0.is_empty() && !fields_of(&before).difference(&system_fields()).is_empty() {
        // As in Kubernetes: fields without any owner were reset on purpose, and stay so until the next apply.
        clear(new);
        return Ok(());
    }
    record(&mut entries, writer, &before, &body_of(new));
    entries.cap_updaters();
    entries.write(new)
}

/// When `old` and `new` differ at most in the times of their entries, makes `new` equal to `old` and returns
/// true: nothing changed. Call it with both in the stored form.
pub fn keep_old_if_same(old: &Value, new: &mut Value) -> bool {
    let (Ok(old_entries), Ok(new_entries)) = (ManagedFields::of(old), ManagedFields::of(new)) else {
        return old == new;
    };
    let same = old_entries.same_claims(&new_entries) && same_but_entries(old, new);
    if same {
        new.clone_from(old);
    }
    same
}

/// Returns entries for all fields of an object that was never tracked, so that a first apply finds an owner.
pub(super) fn before_first_apply(writer: &FieldWriter<'_>, live: &Value) -> ManagedFields {
    let mut entries = ManagedFields::default();
    for subresource in [Subresource::Main, Subresource::Status] {
        let writer = FieldWriter { manager: "before-first-apply", subresource, ..*writer };
        record(&mut entries, &writer, &json!({"metadata": {}}), &body_of(live));
    }
    entries
}

/// Uses the client's entries, unless they are unusable: clients that do not know managedFields must not strip
/// them by accident.
fn entries_before(writer: &FieldWriter<'_>, old: Option<&Value>, new: &Value) -> ManagedFields {
    let stored = || old.and_then(|old| ManagedFields::of(old).ok()).unwrap_or_default();
    if writer.subresource == Subresource::Status {
        return stored();
    }
    let sent = new.pointer("/metadata/managedFields").and_then(Value::as_array);
    let reset = sent.is_some_and(|list| match list.as_slice() {
        [] => true,
        [only] => only.as_object().is_some_and(Map::is_empty),
        _ => false,
    });
    if reset {
        return ManagedFields::default();
    }
    ManagedFields::of(new).ok().filter(|entries| !entries.0.is_empty()).unwrap_or_else(stored)
}

fn record(entries: &mut ManagedFields, writer: &FieldWriter<'_>, before: &Value, after: &Value) {
    let change = compare(before, after);
    let system = system_fields();
    let written = fields_within(writer.subresource, &change.written().difference(&system));
    let removed = fields_within(writer.subresource, &change.removed);
    let owner = FieldOwner::of(writer, ManagedOperation::Update);
    let owned = entries.fields(&owner);

    entries.release(&written.union(&removed), None);
    if !written.is_empty() || entries.fields(&owner) != owned {
        entries.claim(owner, OwnedFields::by(writer, written));
    }
}

fn same_but_entries(old: &Value, new: &Value) -> bool {
    let (Some(old), Some(new)) = (old.as_object(), new.as_object()) else { return old == new };
    same_but(old, new, "metadata")
        && match (old.get("metadata"), new.get("metadata")) {
            (Some(Value::Object(old)), Some(Value::Object(new))) => same_but(old, new, "managedFields"),
            (old, new) => old == new,
        }
}

fn same_but(old: &Map<String, Value>, new: &Map<String, Value>, except: &str) -> bool {
    let others = |fields: &Map<String, Value>| fields.keys().filter(|name| *name != except).count();
    others(old) == others(new)
        && old.iter().filter(|(name, _)| *name != except).all(|(name, value)| new.get(name) == Some(value))
}
