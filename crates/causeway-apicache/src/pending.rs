//! Writes of the site while the API server cannot be reached.
//!
//! `log` keeps them on disk, `replay` sends them on return, with the credential that `identity` chooses; `token_cipher` seals tokens on disk; `existing` recognises an object that an
//! earlier attempt created. A write is taken into the log only
//! where `server::offline` says so, the status of the node itself and of its pods, and events, or `server::offline_objects`: resources that
//! the operator lists. Of several writes to one status the last result is kept, with the object on which the first
//! one stood, so the log is bounded by the objects of the site.
//!
//! The rule for conflicts: fields that the site changed win, every other field stays as it is in the cluster. A write to an object that was
//! deleted, or replaced by another of the same name, is dropped and reported.

pub mod existing;
pub mod identity;
pub mod log;
pub mod replay;
mod token_cipher;

use serde_json::Value;

use crate::copy::local::LocalObject;
use crate::kube_object::{KubeObject, kept_text};

/// The annotation that marks an object which the API server does not have like this; its value is the time of the write.
pub const PENDING: &str = "causeway.io/pending";

/// Adds the mark to an object.
pub fn mark(mut object: Value, at: i64) -> Value {
    let at = jiff::Timestamp::from_second(at).unwrap_or_default();
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        let annotations = metadata.entry("annotations").or_insert_with(|| Value::Object(Default::default()));
        if !annotations.is_object() {
            *annotations = Value::Object(Default::default());
        }
        annotations[PENDING] = at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string().into();
    }
    object
}

/// An object of the copy as the site changed it: the same UID and revision, with another body.
pub fn changed(copied: &KubeObject, body: &Value) -> LocalObject {
    let object = KubeObject { body: kept_text(body).into(), ..copied.clone() };
    LocalObject { stands_on: Some((copied.key.clone(), copied.revision)), object: Some(object) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_mark_changes_nothing_else() {
        let marked = mark(json!({"metadata": {"name": "a", "annotations": {"x": "y"}}, "status": {}}), 0);
        let expected = json!({"metadata": {"name": "a", "annotations": {"x": "y", PENDING: "1970-01-01T00:00:00Z"}}, "status": {}});
        assert_eq!(marked, expected);
        assert_eq!(
            mark(json!({"metadata": {"annotations": null}}), 0)["metadata"]["annotations"][PENDING],
            "1970-01-01T00:00:00Z"
        );
        assert_eq!(mark(json!([]), 0), json!([]));
    }
}
