//! Namespace: the one namespace `default`, read-only.
//!
//! Kubernetes tools look for namespaces before they do anything else. Causeway's own kinds are
//! cluster-scoped; events live in `default`, as events about cluster-scoped objects do in Kubernetes.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::field::FieldErrors;
use crate::meta::{ObjectMeta, ObjectStatus};

/// The name of the only namespace.
pub const NAMESPACE: &str = "default";

/// Namespace provides a scope for names. There is one, default, and it cannot be changed.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Namespace {
    pub metadata: ObjectMeta,

    /// The desired state of the namespace. Read-only.
    pub spec: NamespaceSpec,

    /// The current state of the namespace. Read-only.
    #[serde(rename = "status")]
    pub state: NamespaceStatus,

    /// Conditions, which a Namespace does not have here: it has `state` in their place.
    #[serde(skip)]
    pub status: ObjectStatus,
}

/// The specification of a Namespace.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NamespaceSpec {
    /// Finalizers that must be removed before the namespace is deleted. Always kubernetes.
    pub finalizers: Vec<String>,
}

impl Default for NamespaceSpec {
    fn default() -> NamespaceSpec {
        NamespaceSpec { finalizers: vec!["kubernetes".into()] }
    }
}

/// The state of a Namespace.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NamespaceStatus {
    /// Always Active.
    pub phase: String,
}

impl Default for NamespaceStatus {
    fn default() -> NamespaceStatus {
        NamespaceStatus { phase: "Active".into() }
    }
}

impl Namespace {
    /// Returns the namespace `default` as it is stored.
    pub fn only() -> Namespace {
        let mut namespace = Namespace { metadata: ObjectMeta::named(NAMESPACE), ..Namespace::default() };
        namespace.metadata.labels.insert("kubernetes.io/metadata.name".into(), NAMESPACE.into());
        namespace
    }

    pub(crate) fn check_fields(&self, _: &mut FieldErrors) {}
}
