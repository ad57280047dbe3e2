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

/// One authorized call. `path` is the path after `/causeway/v1/`, without a slash at either end.
#[derive(Debug, Clone)]
pub struct ActionRequest {
    pub method: Method,
    pub path: String,
    pub query: Option<String>,
    pub body: Bytes,
    /// Records the objects that the action writes. The server records the action itself.
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
    /// A response of unknown length, such as a backup. An error closes the connection, so that the client
    /// notices it. The server makes one when the caller's credential is revoked.
    Stream(Pin<Box<dyn Stream<Item = std::io::Result<Bytes>> + Send>>),
    /// As `Stream`, for responses without an end: a server that stops does not wait for them, and they just end with the
    /// caller's credential.
    Endless(Pin<Box<dyn Stream<Item = std::io::Result<Bytes>> + Send>>),
}

pub struct ActionResponse {
    pub code: StatusCode,
    pub content_type: &'static str,
    pub body: ActionBody,
    /// The name of the object that the action created, for the administrative audit. Never a secret.
    pub made: Option<String>,
}

/// The verb, kind and name of a call, for the administrative audit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdminAction {
    pub verb: String,
    pub kind: String,
    pub name: String,
    /// Further information. Never a secret.
    pub detail: Option<String>,
}

impl ActionResponse {
    pub fn json(code: StatusCode, body: impl Into<Bytes>) -> ActionResponse {
        let body = ActionBody::Bytes(body.into());
        ActionResponse { code, content_type: "application/json", body, made: None }
    }

    /// Sets the name of the created object.
    pub fn made(self, name: impl Into<String>) -> ActionResponse {
        ActionResponse { made: Some(name.into()), ..self }
    }
}

/// The refusal of an action. The server responds with a Kubernetes `Status` of this code.
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

    /// Returns the change or disclosure that a call asks for, judged by method, path and body alone.
    /// `Some(None)`: the call needs no record. `None`: the implementation does not know the call; the server
    /// then records it by its path, unless it is a GET.
    fn administrative(&self, _method: &Method, _path: &str, _body: &[u8]) -> Option<Option<AdminAction>> {
        None
    }
}
