//! Rules for the fields of every object: metadata and conditions.
//!
//! The same rules as Kubernetes', save that names may contain capitals.

use crate::check;
use crate::field::{FieldError, FieldErrors};
use crate::kinds::{Kind, NAMESPACE};
use crate::meta::{Condition, ManagedFieldsEntry, ObjectMeta, OwnerReference};
use crate::{name, ownership};

// Kubernetes' own bound on all annotations of one object.
const ANNOTATIONS_BYTES_MAX: usize = 256 * 1024;
const LABELS_MAX: usize = 1_000;
const REFERENCES_MAX: usize = 1_000;
const CONDITIONS_MAX: usize = 64;
// Kubernetes' bounds on a condition.
const CONDITION_REASON_BYTES_MAX: usize = 1024;
const CONDITION_MESSAGE_BYTES_MAX: usize = 32 * 1024;

pub(crate) fn metadata(errors: &mut FieldErrors, kind: Kind, meta: &ObjectMeta, old: Option<&ObjectMeta>) {
    name(errors, meta);
    if kind.is_namespaced() && !["", NAMESPACE].contains(&meta.namespace.as_str()) {
        let why = "there is one namespace, \"default\"";
        errors.push(FieldError::invalid("metadata.namespace", meta.namespace.as_str(), why));
    }
    if !kind.is_namespaced() && !meta.namespace.is_empty() {
        let why = "this kind is cluster-scoped; leave the namespace out";
        errors.push(FieldError::forbidden("metadata.namespace", why));
    }
    labels(errors, meta);
    annotations(errors, meta);
    finalizers(errors, meta);
    owners(errors, meta);
    managed_fields(errors, meta);
    if let Some(old) = old {
        immutable(errors, "metadata.name", &meta.name, &old.name);
        immutable(errors, "metadata.uid", &meta.uid, &old.uid);
    }
}

fn name(errors: &mut FieldErrors, meta: &ObjectMeta) {
    if !meta.generate_name.is_empty()
        && let Err(allowed) = name::check_prefix(&meta.generate_name)
    {
        errors.push(FieldError::invalid("metadata.generateName", meta.generate_name.as_str(), allowed));
    }
    match meta.name.as_str() {
        "" if meta.generate_name.is_empty() => {
            errors.push(FieldError::required("metadata.name", "a name, or generateName to have one made"));
        }
        "" => {}
        name => check::object_name(errors, "metadata.name", name),
    }
}

fn labels(errors: &mut FieldErrors, meta: &ObjectMeta) {
    check::count(errors, "metadata.labels", meta.labels.len(), LABELS_MAX);
    for (key, value) in meta.labels.iter().take(LABELS_MAX) {
        let path = || format!("metadata.labels[{}]", bounded(key));
        if let Err(allowed) = name::check_label_key(key) {
            errors.push(FieldError::invalid(path(), key.as_str(), allowed));
        }
        if let Err(allowed) = name::check_label_value(value) {
            errors.push(FieldError::invalid(path(), value.as_str(), allowed));
        }
    }
}

fn annotations(errors: &mut FieldErrors, meta: &ObjectMeta) {
    let bytes: usize = meta.annotations.iter().map(|(key, value)| key.len() + value.len()).sum();
    if bytes > ANNOTATIONS_BYTES_MAX {
        let message = format!("all annotations together may have {ANNOTATIONS_BYTES_MAX} bytes");
        errors.push(FieldError::invalid("metadata.annotations", format!("{bytes} bytes"), message));
        return;
    }
    for key in meta.annotations.keys() {
        // Kubernetes compares annotation keys in lower case.
        if let Err(allowed) = name::check_label_key(&key.to_lowercase()) {
            let path = format!("metadata.annotations[{}]", bounded(key));
            errors.push(FieldError::invalid(path, key.as_str(), allowed));
        }
    }
}

fn finalizers(errors: &mut FieldErrors, meta: &ObjectMeta) {
    check::set(
        errors,
        "metadata.finalizers",
        &meta.finalizers,
        REFERENCES_MAX,
        |errors, path, name: &str| {
            if let Err(allowed) = name::check_label_key(name) {
                errors.push(FieldError::invalid(path, name, allowed));
            }
        },
    );
}

fn owners(errors: &mut FieldErrors, meta: &ObjectMeta) {
    check::count(errors, "metadata.ownerReferences", meta.owner_references.len(), REFERENCES_MAX);
    for (index, owner) in meta.owner_references.iter().take(REFERENCES_MAX).enumerate() {
        let fields = [
            ("apiVersion", &owner.api_version),
            ("kind", &owner.kind),
            ("name", &owner.name),
            ("uid", &owner.uid),
        ];
        for (field, value) in fields {
            if value.is_empty() {
                let path = format!("metadata.ownerReferences[{index}].{field}");
                errors
                    .push(FieldError::required(path, "an owner is named by apiVersion, kind, name and uid"));
            }
        }
    }
    let mut controllers = meta.owner_references.iter().filter(|owner| owner.controller == Some(true));
    if let Some(first) = controllers.next() {
        let shown = |owner: &OwnerReference| bounded(&format!("{}/{}", owner.kind, owner.name));
        for second in controllers.take(REFERENCES_MAX) {
            let why = format!(
                "Only one reference can have Controller set to true. Found \"true\" in references for {} and {}",
                shown(first),
                shown(second)
            );
            errors.push(FieldError::invalid(
                "metadata.ownerReferences",
                serde_json::Value::Array(Vec::new()),
                why,
            ));
        }
    }
}

/// Kubernetes' rules, with its messages. A client resets the list with one empty entry.
fn managed_fields(errors: &mut FieldErrors, meta: &ObjectMeta) {
    if let [only] = meta.managed_fields.as_slice()
        && *only == ManagedFieldsEntry::default()
    {
        return;
    }
    for (index, entry) in meta.managed_fields.iter().enumerate() {
        let path = |field: &str| format!("metadata.managedFields[{index}].{field}");
        if !["Apply", "Update"].contains(&entry.operation.as_str()) {
            let allowed = "must be `Apply` or `Update`";
            errors.push(FieldError::invalid(path("operation"), entry.operation.as_str(), allowed));
        }
        if !["", "FieldsV1"].contains(&entry.fields_type.as_str()) {
            let allowed = "must be `FieldsV1`";
            errors.push(FieldError::invalid(path("fieldsType"), entry.fields_type.as_str(), allowed));
        }
        if let Err(why) = ownership::check_manager(&entry.manager) {
            errors.push(FieldError::invalid(path("manager"), entry.manager.as_str(), why));
        }
    }
}

fn immutable(errors: &mut FieldErrors, path: &str, new: &str, old: &str) {
    if !new.is_empty() && new != old {
        errors.push(FieldError::invalid(path, new, format!("this field is immutable; it is \"{old}\"")));
    }
}

pub(crate) fn conditions(errors: &mut FieldErrors, conditions: &[Condition]) {
    check::count(errors, "status.conditions", conditions.len(), CONDITIONS_MAX);
    let mut seen = std::collections::HashSet::new();
    for (index, condition) in conditions.iter().take(CONDITIONS_MAX).enumerate() {
        let path = |field: &str| format!("status.conditions[{index}].{field}");
        if let Err(allowed) = name::check_label_key(&condition.kind) {
            errors.push(FieldError::invalid(path("type"), condition.kind.as_str(), allowed));
        }
        if !seen.insert(condition.kind.as_str()) {
            errors.push(FieldError::duplicate(path("type"), condition.kind.as_str()));
        }
        if !is_reason(&condition.reason) {
            let allowed = "write one word in CamelCase, of letters, digits and '_', beginning with a letter";
            errors.push(FieldError::invalid(path("reason"), condition.reason.as_str(), allowed));
        }
        if condition.message.len() > CONDITION_MESSAGE_BYTES_MAX {
            errors.push(FieldError::too_long(
                path("message"),
                &condition.message,
                CONDITION_MESSAGE_BYTES_MAX,
            ));
        }
    }
}

fn is_reason(reason: &str) -> bool {
    reason.len() <= CONDITION_REASON_BYTES_MAX
        && reason.starts_with(|first: char| first.is_ascii_alphabetic())
        && reason.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_,:".contains(&byte))
}

/// A key inside a path, shortened but recognisable.
fn bounded(key: &str) -> String {
    match key.char_indices().nth(64) {
        Some((end, _)) => format!("{}…", &key[..end]),
        None => key.into(),
    }
}
