//! The door for what is no object: `/causeway/v1/...`.
//!
//! The server authenticates, authorizes and reads the body; an `Actions` does the rest.

use std::pin::Pin;

use bytes::Bytes;
use futures_util::Stream;
use futures_util::future::BoxFuture;
use http::{Method, StatusCode};

use crate::Identity;

/// One call, already authorized. `path` is what follows `/causeway/v1/`, without a slash at either end.
#[derive(Debug, Clone)]
pub struct ActionRequest {
    pub method: Method,
    pub path: String,
    pub query: Option<String>,
    pub body: Bytes,
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
