//! The common parts of every object: metadata, conditions, and the metadata of lists.
//!
//! The formats are Kubernetes' own, so that its clients can read them. `resourceVersion` is read but never
//! written here: the store knows the revision, and `wire::splice` inserts it before the stored text.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Time;
use crate::kinds::MappedSubnet;

/// Standard object's metadata. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#metadata
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ObjectMeta {
    /// Name of the object, unique within its kind, fixed once created. Letters (also capitals), digits, '-' and '.',
    /// beginning and ending with a letter or a digit, at most 253 characters. Example: TokyoChibaSite1.
    // Always written, also when empty: the stored form relies on metadata having at least one field.
    pub name: String,

    /// A prefix from which the server generates a unique name when none is given. Example: presence-.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub generate_name: String,

    /// Not used: all kinds of this group are cluster-scoped.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,

    /// Not used any more by Kubernetes; accepted and dropped.
    #[serde(skip_serializing)]
    pub self_link: String,

    /// Identifies the object over its whole life; an object created again under the same name gets another. Read-only.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,

    /// The revision at which the object was last written. An update that carries it is refused with 409 when
    /// another client wrote in between. Read-only.
    #[serde(skip_serializing)]
    pub resource_version: String,

    /// Rises with every change of the object's own fields, not with changes of metadata or status. Read-only.
    #[serde(skip_serializing_if = "is_zero")]
    pub generation: i64,

    /// Time of creation. Read-only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub creation_timestamp: Option<Time>,

    /// Time at which deletion was requested; set while finalizers keep the object. Read-only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deletion_timestamp: Option<Time>,

    /// Seconds until the object is deleted gracefully; set together with deletionTimestamp. Read-only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deletion_grace_period_seconds: Option<i64>,

    /// Key-value pairs to group and select objects by. Example: {"tier": "factory"}.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,

    /// Key-value pairs of users and tools that cannot be selected by.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,

    /// Objects that own this one. When the last of them is deleted this object is deleted too; an owner of a
    /// kind that this server does not serve counts as existing.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["uid"], "x-kubernetes-patch-merge-key" = "uid", "x-kubernetes-patch-strategy" = "merge"))]
    pub owner_references: Vec<OwnerReference>,

    /// Names that must be removed before the object is deleted. While there is one, deletion only sets
    /// deletionTimestamp.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "set", "x-kubernetes-patch-strategy" = "merge"))]
    pub finalizers: Vec<String>,

    /// The fields that each manager has set, for server-side apply. Maintained by the server.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub managed_fields: Vec<ManagedFieldsEntry>,
}

impl ObjectMeta {
    /// Metadata that only has a name.
    pub fn named(name: impl Into<String>) -> ObjectMeta {
        ObjectMeta { name: name.into(), ..ObjectMeta::default() }
    }

    /// Tells whether deletion was requested and finalizers keep the object. It grants nothing any more.
    pub fn is_being_deleted(&self) -> bool {
        self.deletion_timestamp.is_some()
    }
}

/// Points to an object that owns this one.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct OwnerReference {
    /// API version of the owner. Example: causeway.io/v1.
    pub api_version: String,
    /// Kind of the owner. Example: ServiceExpose.
    pub kind: String,
    /// Name of the owner.
    pub name: String,
    /// UID of the owner.
    pub uid: String,
    /// True when the owner is the controller that manages this object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub controller: Option<bool>,
    /// True when an owner that is deleted in the foreground must not be removed before this object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub block_owner_deletion: Option<bool>,
}

/// One manager's fields, as server-side apply keeps them.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ManagedFieldsEntry {
    /// Name of the manager that owns the fields. Example: kubectl.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub manager: String,
    /// Operation by which the fields were set: Apply or Update.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub operation: String,
    /// The API version the fields were written in.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub api_version: String,
    /// Time at which the manager last changed its fields.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time: Option<Time>,
    /// The form of fieldsV1. Always FieldsV1.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub fields_type: String,
    /// The set of fields, as a tree of keys.
    #[serde(rename = "fieldsV1", skip_serializing_if = "Value::is_null")]
    #[schemars(schema_with = "any_object")]
    pub fields_v1: Value,
    /// The subresource the fields were written through. Example: status.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub subresource: String,
}

/// Metadata of a list.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ListMeta {
    /// The revision of the list; a watch that starts from it misses nothing.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub resource_version: String,
    /// Token for the next page; absent on the last one.
    #[serde(rename = "continue", skip_serializing_if = "String::is_empty")]
    pub continue_token: String,
    /// Number of objects after this page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remaining_item_count: Option<i64>,
}

/// The observed state of the object. Written by Causeway, never by users.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ObjectStatus {
    /// The metadata.generation that the status is based on. Lower than metadata.generation: the last change
    /// has not been processed yet.
    #[serde(skip_serializing_if = "is_zero")]
    pub observed_generation: i64,

    /// Findings, one per type. Ready summarises them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"], "x-kubernetes-patch-merge-key" = "type", "x-kubernetes-patch-strategy" = "merge"))]
    pub conditions: Vec<Condition>,

    /// EGateway only: the time at which its current session began or, while it is disconnected, its last
    /// session ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_seen: Option<Time>,

    /// EGateway only: the reason why its last session ended. Stopped, LinkLost, Revoked, CertificateExpired,
    /// Superseded, CloudStopped or Refused. Kept while the gateway is connected again.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub last_disconnect_reason: String,

    /// EGateway only: name and version of the program of its current or last session, as the gateway says. Example: causeway 0.1.0.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub software: String,

    /// ESite only: networks that were allocated from mapFrom of an ECommunity, and under which other sites see the subnets.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub mapped_subnets: Vec<MappedSubnet>,
}

impl ObjectStatus {
    pub fn is_empty(&self) -> bool {
        *self == ObjectStatus::default()
    }

    pub fn condition(&self, kind: &str) -> Option<&Condition> {
        self.conditions.iter().find(|condition| condition.kind == kind)
    }
}

/// One finding about an object.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Type of the finding, in CamelCase. Example: PoliciesResolved.
    #[serde(rename = "type")]
    pub kind: String,
    /// True, False, or Unknown.
    pub status: ConditionStatus,
    /// The metadata.generation the finding is based on.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub observed_generation: i64,
    /// Time of the last change of status.
    pub last_transition_time: Time,
    /// Reason, as one word for programs. Example: PolicyMissing.
    pub reason: String,
    /// Explanation, as a sentence for operators.
    #[serde(default)]
    pub message: String,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum ConditionStatus {
    True,
    False,
    Unknown,
}

impl ConditionStatus {
    pub fn as_str(self) -> &'static str {
        match self {
            ConditionStatus::True => "True",
            ConditionStatus::False => "False",
            ConditionStatus::Unknown => "Unknown",
        }
    }
}

impl From<bool> for ConditionStatus {
    fn from(holds: bool) -> ConditionStatus {
        if holds { ConditionStatus::True } else { ConditionStatus::False }
    }
}

/// Writes one condition into the list. `lastTransitionTime` stays when the status does not change, so the
/// same finding written twice is the same value.
pub fn set_condition(
    conditions: &mut Vec<Condition>,
    kind: &str,
    status: ConditionStatus,
    reason: &str,
    message: impl Into<String>,
    now: Time,
    generation: i64,
) {
    let mut condition = Condition {
        kind: kind.into(),
        status,
        observed_generation: generation,
        last_transition_time: now,
        reason: reason.into(),
        message: message.into(),
    };
    match conditions.iter_mut().find(|existing| existing.kind == kind) {
        Some(existing) => {
            if existing.status == status {
                condition.last_transition_time = existing.last_transition_time;
            }
            *existing = condition;
        }
        None => conditions.push(condition),
    }
}

pub(crate) fn is_zero(number: &i64) -> bool {
    *number == 0
}

fn any_object(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({ "type": "object" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_keeps_its_transition_time_until_its_status_changes() {
        let mut conditions = Vec::new();
        let mut set = |status: bool, reason: &str, now| {
            set_condition(&mut conditions, "Ready", status.into(), reason, "", Time::from_second(now), 1);
            (conditions.len(), conditions[0].last_transition_time.as_second(), conditions[0].reason.clone())
        };
        assert_eq!(set(true, "First", 100), (1, 100, "First".into()));
        assert_eq!(set(true, "Second", 200), (1, 100, "Second".into()));
        assert_eq!(set(false, "Third", 300), (1, 300, "Third".into()));
    }

    #[test]
    fn metadata_is_never_written_empty_and_never_with_a_resource_version() {
        let meta = ObjectMeta { resource_version: "7".into(), ..ObjectMeta::default() };
        assert_eq!(serde_json::to_string(&meta).unwrap(), r#"{"name":""}"#);
    }
}
