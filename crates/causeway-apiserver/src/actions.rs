//! Actions: the requests under `/causeway/v1/...` that are not about one object.
//!
//! The server authenticates, authorizes and reads the body; an `Actions` does the rest.

use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::Stream;
use futures_util::future::BoxFuture;
use http::{Method, StatusCode};

use crate::Identity;
use crate::admin_audit::{AdminAudit, AdminRecord};

/// One call, already authorized. `path` is what follows `/causeway/v1/`, without a slash at either end.
#[derive(Debug, Clone)]
pub struct ActionRequest {
    pub method: Method,
    pub path: String,
    pub query: Option<String>,
    pub body: Bytes,
    /// For objects that the action writes. The action itself is recorded by the server.
    pub audit: CallerAudit,
}

/// Records the objects that an action writes under the caller of the action.
#[derive(Clone)]
pub struct CallerAudit {
    pub(crate) audit: Arc<dyn AdminAudit>,
    /// User, impersonated user, credential and client.
    pub(crate) caller: AdminRecord,
}

impl CallerAudit {
    /// Records a write that succeeded. `written` says verb, kind, name and changed fields.
    pub fn record(&self, code: StatusCode, written: AdminRecord) {
        let AdminRecord { user, impersonated_user, credential, client, .. } = self.caller.clone();
        let code = Some(code.as_u16());
        self.audit.record(AdminRecord { user, impersonated_user, credential, client, code, ..written });
    }
}

impl std::fmt::Debug for CallerAudit {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "CallerAudit({})", self.caller.user)
    }
}

pub enum ActionBody {
    Bytes(Bytes),
    /// For answers of unknown length, such as a backup. An error cuts the connection, so that the client notices.
    Stream(Pin<Box<dyn Stream<Item = std::io::Result<Bytes>> + Send>>),
    /// The same for answers that go on: a server that stops does not wait for their end.
    Endless(Pin<Box<dyn Stream<Item = std::io::Result<Bytes>> + Send>>),
}

pub struct ActionResponse {
    pub code: StatusCode,
    pub content_type: &'static str,
    pub body: ActionBody,
    /// The name of what was made, for the administrative audit. Never a secret.
    pub made: Option<String>,
}

/// What a call does, for the administrative audit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdminDeed {
    pub verb: String,
    pub kind: String,
    pub name: String,
    /// Never a secret.
    pub detail: Option<String>,
}

impl ActionResponse {
    pub fn json(code: StatusCode, body: impl Into<Bytes>) -> ActionResponse {
        let body = ActionBody::Bytes(body.into());
        ActionResponse { code, content_type: "application/json", body, made: None }
    }

    /// Names what was made.
    pub fn made(self, name: impl Into<String>) -> ActionResponse {
        ActionResponse { made: Some(name.into()), ..self }
    }
}

/// A refused action. The server answers with a Kubernetes `Status` of this code.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ActionRefusal {
    pub code: StatusCode,
    pub message: String,
}

impl ActionRefusal {
    pub fn new(code: StatusCode, message: impl Into<String>) -> ActionRefusal {
        ActionRefusal { code, message: message.into() }
    }

    pub fn bad_request(message: impl Into<String>) -> ActionRefusal {
        ActionRefusal::new(StatusCode::BAD_REQUEST, message)
    }

    pub fn not_found(message: impl Into<String>) -> ActionRefusal {
        ActionRefusal::new(StatusCode::NOT_FOUND, message)
    }

    pub fn forbidden(message: impl Into<String>) -> ActionRefusal {
        ActionRefusal::new(StatusCode::FORBIDDEN, message)
    }

    pub fn conflict(message: impl Into<String>) -> ActionRefusal {
        ActionRefusal::new(StatusCode::CONFLICT, message)
    }

    pub fn unavailable(message: impl Into<String>) -> ActionRefusal {
        ActionRefusal::new(StatusCode::SERVICE_UNAVAILABLE, message)
    }

    pub fn internal(message: impl Into<String>) -> ActionRefusal {
        ActionRefusal::new(StatusCode::INTERNAL_SERVER_ERROR, message)
    }
}

pub trait Actions: Send + Sync + 'static {
    fn call<'a>(
        &'a self,
        identity: &'a Identity,
        request: ActionRequest,
    ) -> BoxFuture<'a, Result<ActionResponse, ActionRefusal>>;

    /// What a call changes or gives away, from its words alone. `Some(None)`: nothing worth a record. `None`: not known here;
    /// it is then recorded by its path, unless it is a GET.
    fn administrative(&self, _method: &Method, _path: &str, _body: &[u8]) -> Option<Option<AdminDeed>> {
        None
    }
}
