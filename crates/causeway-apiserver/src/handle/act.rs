//! Collects the admin audit record of one request that may change something, and records it with the response.
//!
//! The steps of the request add what they learn: caller, objects, changed fields. The target is known before the caller
//! is, so that a refusal for any reason is recorded. A client that disconnects before the response is recorded too,
//! because the write may have happened.

use std::net::SocketAddr;
use std::sync::Arc;

use causeway_api::request::resource::ResourceRequest;
use causeway_api::{Kind, ServedKind, Status};
use http::Method;
use serde_json::Value;

use crate::actions::{Actions, AdminAction, CallerAudit};
use crate::admin_audit::{AdminAudit, AdminRecord, CredentialName, changed_fields};
use crate::registry::WriteResult;
use crate::request::{ApiRequest, ObjectVerb, WriteTarget};
use crate::{Identity, Role};

/// The audit record of one request in flight.
pub(super) struct Act<'a> {
    audit: &'a dyn AdminAudit,
    client: SocketAddr,
    /// None: the request only reads, or has been recorded.
    record: Option<AdminRecord>,
    /// The names of objects that one request deletes; each has a record.
    names: Vec<String>,
    caller: Option<Arc<Identity>>,
    credential: Option<CredentialName>,
    impersonated: Option<String>,
}

impl<'a> Act<'a> {
    /// Begins a record. `target`: the object that an unparsable request names, for example one with wrong
    /// options.
    pub fn begin(
        audit: &'a dyn AdminAudit,
        ask: &Result<ApiRequest, Status>,
        target: impl FnOnce() -> Option<WriteTarget>,
        client: SocketAddr,
    ) -> Act<'a> {
        let record = match ask {
            // Events are reports, not administrative acts, and operators write many. Only their deletion is
            // recorded.
            Ok(ApiRequest::Object(ResourceRequest {
                resource: ServedKind { kind: Kind::Event, .. },
                verb: ObjectVerb::Create { .. } | ObjectVerb::Update { .. } | ObjectVerb::Patch { .. },
                ..
            })) => None,
            Ok(ApiRequest::Object(object)) => written(&object.verb).map(|action| AdminRecord {
                verb: object.verb.verb().as_str().to_owned(),
                kind: object.resource.kind.name().to_owned(),
                ..action
            }),
            Err(_) => target().filter(WriteTarget::is_administrative).map(|target| AdminRecord {
                verb: target.verb.as_str().to_owned(),
                kind: target.kind.name().to_owned(),
                name: target.name.chars().take(NAME_CHARS_MAX).collect(),
                subresource: target.status.then_some("status"),
                dry_run: target.dry_run,
                ..AdminRecord::default()
            }),
            _ => None,
        };
        let (names, caller, credential, impersonated) = (Vec::new(), None, None, None);
        Act { audit, client, record, names, caller, credential, impersonated }
    }

    /// Describes a call under `/causeway/v1/`, with its body as far as it was read. A call that the actions
    /// do not describe is recorded by its path, unless it is a GET.
    pub fn is_action(&mut self, actions: &dyn Actions, method: &Method, path: &str, body: &[u8]) {
        let unknown = || AdminAction {
            verb: method.as_str().to_ascii_lowercase(),
            kind: "Action".to_owned(),
            name: path.chars().take(NAME_CHARS_MAX).collect(),
            detail: None,
        };
        let action = match actions.administrative(method, path, body) {
            Some(action) => action,
            None if matches!(*method, Method::GET | Method::HEAD) => return,
            None => Some(unknown()),
        };
        self.record = action.map(|AdminAction { verb, kind, name, detail }| AdminRecord {
            verb,
            kind,
            name,
            detail,
            ..AdminRecord::default()
        });
    }

    /// The impersonation headers are refused.
    pub fn impersonation_refused(&mut self) {
        if let Some(record) = &mut self.record {
            record.detail = Some("impersonation refused".to_owned());
        }
    }

    /// Makes the audit for objects that an action writes, under the caller of this request.
    pub fn caller_audit(&self, audit: Arc<dyn AdminAudit>) -> CallerAudit {
        let caller = AdminRecord {
            user: self.caller.as_ref().map(|caller| caller.user.clone()).unwrap_or_default(),
            impersonated_user: self.impersonated.clone(),
            credential: self.credential.clone(),
            client: Some(self.client.ip().to_canonical().to_string()),
            ..AdminRecord::default()
        };
        CallerAudit { audit, caller }
    }

    /// Sets the identity and name of the presented credential.
    pub fn identified(&mut self, identity: &Arc<Identity>, credential: Option<CredentialName>) {
        self.caller = Some(identity.clone());
        self.credential = credential;
    }

    /// The user acts on behalf of another one; both are recorded.
    pub fn impersonates(&mut self, user: &str) {
        self.impersonated = Some(user.to_owned());
    }

    /// Marks a dry run. The body of a deletion may ask for it, too.
    pub fn is_dry_run(&mut self, dry_run: bool) {
        if let Some(record) = &mut self.record {
            record.dry_run = dry_run;
        }
    }

    /// Adds a written object; the server may have generated its name.
    pub fn has_written(&mut self, written: &WriteResult) {
        let Some(record) = &mut self.record else { return };
        let new: Value = serde_json::from_slice(&written.stored.value).unwrap_or_default();
        let old = written.before.as_ref().map(|before| serde_json::from_slice(before).unwrap_or_default());
        record.changed = changed_fields(old.as_ref(), &new);
        if let Some(name) = new.pointer("/metadata/name").and_then(Value::as_str) {
            record.name = name.to_owned();
        }
    }

    /// Adds deleted objects.
    pub fn has_deleted(&mut self, names: Vec<String>) {
        self.names = names;
    }

    /// Adds the name of what an action created, for example the id of a token.
    pub fn has_made(&mut self, name: Option<String>) {
        if let (Some(record), Some(name)) = (&mut self.record, name) {
            record.name = name;
        }
    }

    /// Writes the record with the code of the response.
    pub fn answered(&mut self, code: u16, reason: Option<&str>) {
        let Some(mut record) = self.record.take() else { return };
        // Without a credential there is no user to record; refused credentials are recorded where they are
        // checked.
        let Some(caller) = self.caller.take().filter(|caller| !caller.is_anonymous()) else { return };
        record.user = caller.user.clone();
        record.credential = self.credential.take();
        record.impersonated_user = self.impersonated.take();
        record.client = Some(self.client.ip().to_canonical().to_string());
        record.code = Some(code);
        record.reason = reason.filter(|reason| !reason.is_empty()).map(str::to_owned);
        let is_report = matches!(caller.role, Role::Gateway { .. }) && record.subresource.is_some();
        if is_report && !record.is_refused() {
            return;
        }
        if self.names.is_empty() {
            return self.audit.record(record);
        }
        for name in std::mem::take(&mut self.names) {
            self.audit.record(AdminRecord { name, ..record.clone() });
        }
    }
}

impl Drop for Act<'_> {
    fn drop(&mut self) {
        self.answered(crate::admin_audit::CLIENT_GONE, Some("ClientGone"));
    }
}

/// Longer than the name of any object.
const NAME_CHARS_MAX: usize = 253;

/// Returns the part of the record that is known before the write. None: the request only reads.
fn written(verb: &ObjectVerb) -> Option<AdminRecord> {
    let (name, status, dry_run) = match verb {
        ObjectVerb::Get { .. } | ObjectVerb::List(_) | ObjectVerb::Watch(_) => return None,
        ObjectVerb::Create { options, .. } => ("", false, options.dry_run),
        ObjectVerb::Update { name, status, options, .. }
        | ObjectVerb::Patch { name, status, options, .. } => (name.as_str(), *status, options.dry_run),
        ObjectVerb::Delete { name, options, .. } => (name.as_str(), false, options.dry_run),
        ObjectVerb::DeleteCollection { options, .. } => ("", false, options.dry_run),
    };
    Some(AdminRecord {
        name: name.chars().take(NAME_CHARS_MAX).collect(),
        subresource: status.then_some("status"),
        dry_run,
        ..AdminRecord::default()
    })
}
