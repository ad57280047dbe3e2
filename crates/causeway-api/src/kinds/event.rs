//! Event: a report about an occurrence concerning an object, as in Kubernetes.
//!
//! Served under `v1` and under `events.k8s.io/v1`, which gives some fields other names; the stored form is
//! that of `v1`, and `rename` translates the top level of a value. `crate::events` decides the number of
//! events and their retention.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::NAMESPACE;
use crate::field::{FieldError, FieldErrors};
use crate::meta::{ObjectMeta, ObjectStatus};
use crate::time::MicroTime;
use crate::{ApiVersion, Time};

/// Event is a report of an event somewhere in the cluster. Events have a limited retention time of one hour.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Event {
    pub metadata: ObjectMeta,

    /// The object this event is about.
    pub involved_object: ObjectReference,

    /// Reason of the event, as one word for programs. Example: Disconnected.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,

    /// Description of the event, for operators.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,

    /// The component that reports it.
    pub source: EventSource,

    /// Time of the first occurrence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_timestamp: Option<Time>,

    /// Time of the most recent occurrence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_timestamp: Option<Time>,

    /// Number of occurrences.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<i64>,

    /// Normal or Warning.
    #[serde(rename = "type", skip_serializing_if = "String::is_empty")]
    pub kind: String,

    /// Time of the first observation, in microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event_time: Option<MicroTime>,

    /// The series it represents, if it is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub series: Option<EventSeries>,

    /// The action that was taken or that failed.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub action: String,

    /// A second object of a more complex action.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub related: Option<ObjectReference>,

    /// Name of the controller that reports it. Example: kubernetes.io/kubelet.
    pub reporting_component: String,

    /// Identifies the instance of the controller.
    pub reporting_instance: String,

    /// Events have no status.
    #[serde(skip)]
    pub status: ObjectStatus,
}

/// Names an object.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ObjectReference {
    /// Kind of the object.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// Namespace of the object.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Name of the object.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// UID of the object.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// API version of the object.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub api_version: String,
    /// The revision the reference is about.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub resource_version: String,
    /// A part of the object, if it is not the whole.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub field_path: String,
}

/// The reporter of an event.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct EventSource {
    /// The component.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub component: String,
    /// The host it runs on.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub host: String,
}

/// A series of events: repeated occurrences of one event.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct EventSeries {
    /// Number of occurrences so far.
    pub count: i64,
    /// Time of the last observed occurrence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_observed_time: Option<MicroTime>,
}

/// The two types of events.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum EventType {
    Normal,
    Warning,
}

impl EventType {
    pub const fn as_str(self) -> &'static str {
        match self {
            EventType::Normal => "Normal",
            EventType::Warning => "Warning",
        }
    }
}

// Kubernetes' bounds on events of events.k8s.io/v1; those of v1 are only bounded as a whole.
const WORD_BYTES_MAX: usize = 128;
const NOTE_BYTES_MAX: usize = 1024;

impl Event {
    pub(crate) fn default_fields(&mut self) {
        if self.metadata.namespace.is_empty() {
            self.metadata.namespace = NAMESPACE.into();
        }
    }

    /// The rules of `v1`, which are few.
    pub(crate) fn check_fields(&self, errors: &mut FieldErrors) {
        let namespace = &self.involved_object.namespace;
        if !namespace.is_empty() && *namespace != self.metadata.namespace {
            let why = "does not match event.namespace";
            errors.push(FieldError::invalid("involvedObject.namespace", namespace.as_str(), why));
        }
    }

    /// The rules of `events.k8s.io/v1` for a new event, as in Kubernetes.
    pub fn check_group_fields(&self) -> Vec<FieldError> {
        let mut errors = FieldErrors::default();
        if self.event_time.is_none() {
            errors.push(FieldError::required("eventTime", "the time of the event"));
        }
        let words = [
            ("reportingController", &self.reporting_component),
            ("reportingInstance", &self.reporting_instance),
            ("action", &self.action),
            ("reason", &self.reason),
        ];
        for (field, value) in words {
            if value.is_empty() {
                errors.push(FieldError::required(field, "at most 128 characters"));
            } else if value.len() > WORD_BYTES_MAX {
                errors.push(FieldError::too_long(field, value, WORD_BYTES_MAX));
            }
        }
        if !["Normal", "Warning"].contains(&self.kind.as_str()) {
            errors.push(FieldError::invalid("type", self.kind.as_str(), "has invalid value: "));
        }
        if self.message.len() > NOTE_BYTES_MAX {
            errors.push(FieldError::too_long("note", &self.message, NOTE_BYTES_MAX));
        }
        errors.into_vec()
    }

    /// Returns when the event was last reported, according to its own fields.
    pub fn last_seen(&self) -> Option<Time> {
        let series = self.series.as_ref().and_then(|series| series.last_observed_time).map(MicroTime::time);
        let times = [
            self.last_timestamp,
            self.first_timestamp,
            series,
            self.event_time.map(MicroTime::time),
            self.metadata.creation_timestamp,
        ];
        times.into_iter().flatten().max()
    }

    /// Returns the number of occurrences.
    pub fn occurrences(&self) -> i64 {
        self.series.as_ref().map(|series| series.count).or(self.count).unwrap_or(1).max(1)
    }
}

/// Fields that `v1` and `events.k8s.io/v1` name differently.
pub(crate) const NAMES: [(&str, &str); 7] = [
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
    ("reportingComponent", "reportingController"),
];

/// Gives the fields of an event, or the properties of its schema, the names they have under `version`.
pub fn rename(value: &mut Value, version: ApiVersion) {
    let Some(fields) = value.as_object_mut() else { return };
    for (core, group) in NAMES {
        let (from, to) = if version == ApiVersion::Events { (core, group) } else { (group, core) };
        if let Some(value) = fields.remove(from) {
            fields.insert(to.into(), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{Kind, Object};

    #[test]
    fn a_name_in_one_version_is_the_other_name_in_the_other() {
        let core = json!({"metadata": {"name": "a"}, "message": "m", "involvedObject": {"name": "x"}, "count": 2,
            "reportingComponent": "c"});
        let mut value = core.clone();
        rename(&mut value, ApiVersion::Events);
        assert_eq!((&value["note"], &value["regarding"]["name"]), (&json!("m"), &json!("x")));
        assert_eq!((&value["deprecatedCount"], &value["reportingController"]), (&json!(2), &json!("c")));
        assert_eq!(value.get("message"), None);
        rename(&mut value, ApiVersion::Core);
        assert_eq!(value, core);
    }

    #[test]
    fn an_event_of_kopf_is_taken_as_it_is_and_keeps_its_microseconds() {
        let body = json!({
            "metadata": {"namespace": "default", "generateName": "kopf-event-"},
            "action": "Action?", "type": "Normal", "reason": "Logging", "message": "Handler succeeded.",
            "reportingComponent": "kopf", "reportingInstance": "dev", "source": {"component": "kopf"},
            "firstTimestamp": "2026-11-17T10:00:00.123456Z", "lastTimestamp": "2026-11-17T10:00:00.123456Z",
            "eventTime": "2026-11-17T10:00:00.123456Z",
            "involvedObject": {"apiVersion": "causeway.io/v1", "kind": "EService", "name": "a", "uid": "u"},
        });
        let decoded = Object::decode(Kind::Event, body).unwrap();
        assert_eq!(decoded.unknown, Vec::<String>::new());
        let value = serde_json::to_value(&decoded.object).unwrap();
        assert_eq!(value["eventTime"], "2026-11-17T10:00:00.123456Z");
        assert_eq!(value["lastTimestamp"], "2026-11-17T10:00:00Z");
        assert_eq!(decoded.object.validate(None), Vec::new());
    }

    #[test]
    fn the_newer_version_asks_for_more() {
        let check = |body: Value, expected: &[&str]| {
            let Object::Event(event) = Object::decode(Kind::Event, body).unwrap().object else { panic!() };
            let errors = event.check_group_fields();
            assert_eq!(errors.iter().map(|error| error.path.as_str()).collect::<Vec<_>>(), expected);
        };
        let whole = json!({"metadata": {"name": "a"}, "eventTime": "2026-11-17T10:00:00.000000Z", "type": "Warning",
            "reason": "R", "action": "A", "reportingComponent": "c", "reportingInstance": "i"});
        check(whole.clone(), &[]);
        let mut long = whole;
        long["message"] = "x".repeat(1025).into();
        long["reason"] = "".into();
        check(long, &["reason", "note"]);
        check(
            json!({}),
            &["eventTime", "reportingController", "reportingInstance", "action", "reason", "type"],
        );
    }
}
