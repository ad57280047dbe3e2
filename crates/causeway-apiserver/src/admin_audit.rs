//! Records of administrative acts: one per write of an object and per action that changes something.
//!
//! `handle` makes the records for HTTP clients, the registry makes those of Causeway's own controllers. An
//! `AdminAudit`, which the role provides, stores them. Status that controllers or gateways report is not an
//! administrative act and is not recorded. Records hold names of fields, never their values.

use std::collections::BTreeSet;

use serde::Serialize;
use serde_json::{Map, Value};

/// Prefix of the user name under which Causeway's own controllers are recorded. The name of the field manager
/// follows.
pub const CONTROLLER_PREFIX: &str = "system:";

/// One administrative act. Empty fields are omitted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AdminRecord {
    /// The user of the presented credential; `system:MANAGER` for a controller.
    pub user: String,
    /// The impersonated user, if the request impersonates one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub impersonated_user: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub credential: Option<CredentialName>,
    /// The address of the client, without its port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client: Option<String>,
    /// The verb as in Kubernetes; for actions `revoke`, `backup`, `rotate-start` and the like.
    pub verb: String,
    /// A kind of object, or `JoinToken`, `ApiToken`, `CertificateAuthority`, `Store`.
    pub kind: String,
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subresource: Option<&'static str>,
    /// Names of the changed fields.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub changed: Vec<String>,
    /// Further details, without secrets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    pub dry_run: bool,
    /// The HTTP status of the response. None: the writer is a controller, which gets no response.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<u16>,
    /// The reason of a refusal, as in `Status.reason`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The name of a credential: enough to find and revoke it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CredentialName {
    /// `certificate` or `token`.
    pub kind: String,
    /// The hash of the certificate's key, or the id of the token.
    pub id: String,
}

/// The code of a write whose client disconnected before the response, as in nginx. The write may have
/// happened, so it is not a refusal, and each such write has its own record.
pub const CLIENT_GONE: u16 = 499;

impl AdminRecord {
    /// Makes the record of a write by one of Causeway's own controllers.
    pub fn of_controller(manager: &str, verb: &str, kind: &str, name: &str) -> AdminRecord {
        AdminRecord {
            user: format!("{CONTROLLER_PREFIX}{manager}"),
            verb: verb.to_owned(),
            kind: kind.to_owned(),
            name: name.to_owned(),
            ..AdminRecord::default()
        }
    }

    pub fn is_refused(&self) -> bool {
        self.code.is_some_and(|code| code >= 400 && code != CLIENT_GONE)
    }

    /// Returns the key under which the record is coalesced with equal ones; `None` for a record of its own.
    /// Coalesced are refusals, which callers without rights can cause at will, and writes of controllers and of
    /// subresources, which may come from a loop.
    pub fn repeats_under(&self) -> Option<String> {
        let by_controller = self.code.is_none();
        if !by_controller && !self.is_refused() && self.subresource.is_none() {
            return None;
        }
        // The name is left out where the caller can choose it freely.
        let name = if self.is_refused() || by_controller { "" } else { self.name.as_str() };
        let acting = self.impersonated_user.as_deref().unwrap_or_default();
        let code = self.code.map(|code| code.to_string()).unwrap_or_default();
        let subresource = self.subresource.unwrap_or_default();
        Some([&self.user, acting, &self.verb, &self.kind, name, subresource, &code].join("\n"))
    }
}

/// Stores the records. Never waits and never fails: records that cannot be stored are counted.
pub trait AdminAudit: Send + Sync + 'static {
    fn record(&self, record: AdminRecord);
}

/// Stores no records. For tests, and for servers without an administrative audit.
pub struct NoAdminAudit;

impl AdminAudit for NoAdminAudit {
    fn record(&self, _: AdminRecord) {}
}

/// Fields of the metadata that every write changes.
const KEPT_BY_THE_SERVER: [&str; 6] =
    ["managedFields", "generation", "resourceVersion", "creationTimestamp", "uid", "selfLink"];
/// More names than a person reads. A field name that a client chose may also be long.
const CHANGED_MAX: usize = 32;
const FIELD_BYTES_MAX: usize = 128;
/// The depth of `metadata.labels.app`; fields below are reported as a whole.
const DEPTH_MAX: usize = 3;

/// Returns the sorted names of the fields that differ, as `a.b.c`. `old` is `None` for a new object.
pub fn changed_fields(old: Option<&Value>, new: &Value) -> Vec<String> {
    let mut changed = BTreeSet::new();
    let (empty, nothing) = (Map::new(), Map::new());
    let old = old.and_then(Value::as_object).unwrap_or(&empty);
    compare("", 1, old, new.as_object().unwrap_or(&nothing), &mut changed);
    let more = changed.len().saturating_sub(CHANGED_MAX);
    let mut names: Vec<String> = changed.into_iter().take(CHANGED_MAX).collect();
    if more > 0 {
        names.push(format!("and {more} more"));
    }
    names
}

fn compare(
    prefix: &str,
    depth: usize,
    old: &Map<String, Value>,
    new: &Map<String, Value>,
    changed: &mut BTreeSet<String>,
) {
    let keys: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    for key in keys {
        let (before, after) = (old.get(key), new.get(key));
        if before == after || (prefix == "metadata." && KEPT_BY_THE_SERVER.contains(&key.as_str())) {
            continue;
        }
        let name = format!("{prefix}{}", cut(key));
        let object = |value: Option<&Value>| value.and_then(Value::as_object).cloned();
        match (object(before), object(after)) {
            (None, None) => drop(changed.insert(name)),
            _ if depth >= DEPTH_MAX => drop(changed.insert(name)),
            (before, after) => compare(
                &format!("{name}."),
                depth + 1,
                &before.unwrap_or_default(),
                &after.unwrap_or_default(),
                changed,
            ),
        }
    }
}

fn cut(key: &str) -> &str {
    let end = (0..=FIELD_BYTES_MAX.min(key.len())).rev().find(|end| key.is_char_boundary(*end));
    &key[..end.unwrap_or(0)]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn changes_are_told_by_the_names_of_fields() {
        let check = |old: Option<Value>, new: Value, expected: &[&str]| {
            assert_eq!(changed_fields(old.as_ref(), &new), expected, "{old:?} {new}");
        };
        let old = json!({"metadata": {"name": "a", "uid": "1", "labels": {"x": "1"}}, "port": 80, "ip": "10.0.0.1"});
        check(Some(old.clone()), old.clone(), &[]);
        let mut new = old.clone();
        new["port"] = json!(81);
        new["metadata"]["generation"] = json!(7);
        new["metadata"]["managedFields"] = json!([1]);
        new["metadata"]["labels"] = json!({"x": "1", "app.io/y": "secret"});
        check(Some(old.clone()), new, &["metadata.labels.app.io/y", "port"]);
        check(
            Some(old.clone()),
            json!({"metadata": {"name": "a", "uid": "1"}, "port": 80}),
            &["ip", "metadata.labels.x"],
        );
        check(None, old, &["ip", "metadata.labels.x", "metadata.name", "port"]);
        check(Some(json!({"a": {"b": {"c": {"d": 1}}}})), json!({"a": {"b": {"c": {"d": 2}}}}), &["a.b.c"]);
    }

    #[test]
    fn the_names_of_fields_are_bounded() {
        let many: Map<String, Value> =
            (0..1000).map(|n| (format!("{n:04}{}", "ü".repeat(500)), json!(n))).collect();
        let names = changed_fields(None, &Value::Object(many));
        assert_eq!((names.len(), names.last().unwrap().as_str()), (CHANGED_MAX + 1, "and 968 more"));
        assert!(names.iter().all(|name| name.len() <= FIELD_BYTES_MAX));
    }

    #[test]
    fn what_somebody_can_cause_at_will_is_coalesced_and_a_write_is_not() {
        let record = |code: Option<u16>, subresource, name: &str| AdminRecord {
            user: "u".into(),
            verb: "update".into(),
            kind: "EService".into(),
            name: name.into(),
            code,
            subresource,
            ..AdminRecord::default()
        };
        assert_eq!(record(Some(200), None, "a").repeats_under(), None);
        // The client disconnected; the write may have happened.
        assert_eq!(record(Some(CLIENT_GONE), None, "a").repeats_under(), None);
        let refused = record(Some(403), None, "a").repeats_under();
        assert!(refused.is_some() && refused == record(Some(403), None, "b").repeats_under());
        assert!(record(None, None, "a").repeats_under().is_some());
        let status = record(Some(200), Some("status"), "a").repeats_under();
        assert!(status.is_some() && status != record(Some(200), Some("status"), "b").repeats_under());
    }
}
