//! The migration from `kubectl apply` to `kubectl apply --server-side`, as in Kubernetes.
//!
//! Client-side apply left its last configuration in an annotation. Fields with the values of that
//! configuration were set by the same user: changing them is no conflict. This applies only to the manager
//! `kubectl`.

use serde_json::Value;

use super::field_set::FieldSet;
use super::walk::{compare, fields_of};

const MANAGER: &str = "kubectl";
const ANNOTATION: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Kubernetes' limit for all annotations of an object together; a longer text could only fail.
const ANNOTATION_BYTES_MAX: usize = 256 * 1024;

/// Returns the fields that `manager` may change in `live` although other managers hold them.
pub fn allowed_conflicts(manager: &str, live: &Value) -> FieldSet {
    let annotation = annotation(live).filter(|_| manager == MANAGER);
    let Some(last) = annotation.and_then(|text| serde_json::from_str::<Value>(text).ok()) else {
        return FieldSet::default();
    };
    let change = compare(&last, live);
    fields_of(&last).difference(&change.written()).difference(&change.removed)
}

/// Updates the annotation, if there is one, so that going back to client-side apply works too.
pub fn refresh(manager: &str, applied: &Value, object: &mut Value) {
    if manager != MANAGER || annotation(object).is_none() {
        return;
    }
    let mut document = applied.clone();
    if let Some(annotations) = document.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) {
        annotations.remove(ANNOTATION);
    }
    let text = document.to_string() + "\n";
    let Some(annotations) = object.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) else {
        return;
    };
    if text.len() > ANNOTATION_BYTES_MAX {
        annotations.remove(ANNOTATION);
    } else {
        annotations.insert(ANNOTATION.to_owned(), Value::String(text));
    }
}

fn annotation(object: &Value) -> Option<&str> {
    object.get("metadata")?.get("annotations")?.get(ANNOTATION)?.as_str()
}
