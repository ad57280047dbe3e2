//! Maps errors to the `Status` that a client receives. No other module does so.
//!
//! Causes inside the server are logged here, once, and reported to the client in general words. Mistakes of
//! the client are reported exactly.

use causeway_api::status::{StatusCause, StatusDetails};
use causeway_api::{ApiVersion, FieldReason, Kind, Status, error_chain};
use causeway_store::{Revision, StoreError};

use crate::authorize::{AccessDenied, RequestedAccess};
use crate::{ActionRefusal, Identity};

/// A refusal of the registry, by the reason that a caller can react to. Each variant carries the `Status` for
/// the client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RegistryError {
    /// The request is malformed.
    BadRequest(Box<Status>),
    /// The caller may not do it, or the object is protected.
    Forbidden(Box<Status>),
    /// There is no object of this name.
    NotFound(Box<Status>),
    /// The name is taken.
    AlreadyExists(Box<Status>),
    /// The object was changed since it was read, or another manager owns a field.
    Conflict(Box<Status>),
    /// The revision or continue token is older than the history.
    Expired(Box<Status>),
    /// The object, or the request, is too large.
    TooLarge(Box<Status>),
    /// A field of the object is invalid.
    Invalid(Box<Status>),
    /// A limit of the server is reached.
    TooManyRequests(Box<Status>),
    /// The store does not respond, or not in time; a write may or may not have happened.
    Unavailable(Box<Status>),
    /// The store has no space left; reads still work.
    StorageFull(Box<Status>),
    /// An error inside the server.
    Internal(Box<Status>),
}

impl RegistryError {
    pub fn status(&self) -> &Status {
        match self {
            RegistryError::BadRequest(status)
            | RegistryError::Forbidden(status)
            | RegistryError::NotFound(status)
            | RegistryError::AlreadyExists(status)
            | RegistryError::Conflict(status)
            | RegistryError::Expired(status)
            | RegistryError::TooLarge(status)
            | RegistryError::Invalid(status)
            | RegistryError::TooManyRequests(status)
            | RegistryError::Unavailable(status)
            | RegistryError::StorageFull(status)
            | RegistryError::Internal(status) => status,
        }
    }

    /// Returns true if the object was refused because another object has the value of one of its fields.
    pub fn is_duplicate_value(&self) -> bool {
        let causes = self.status().details.iter().flat_map(|details| &details.causes);
        matches!(self, RegistryError::Invalid(_))
            && causes.into_iter().any(|cause| cause.reason == FieldReason::Duplicate.cause())
    }
}

/// The one place where the codes and reasons of a registry's `Status` become a variant. Clients of the API, such as the
/// command line, read codes and reasons of responses on their own.
impl From<Status> for RegistryError {
    fn from(status: Status) -> RegistryError {
        let variant = match (status.code, status.reason.as_str()) {
            (400, _) => RegistryError::BadRequest,
            (403, _) => RegistryError::Forbidden,
            (404, _) => RegistryError::NotFound,
            (409, "AlreadyExists") => RegistryError::AlreadyExists,
            (409, _) => RegistryError::Conflict,
            (410, _) => RegistryError::Expired,
            (413, _) => RegistryError::TooLarge,
            (422, _) => RegistryError::Invalid,
            (429, _) => RegistryError::TooManyRequests,
            (503 | 504, _) => RegistryError::Unavailable,
            (507, _) => RegistryError::StorageFull,
            _ => RegistryError::Internal,
        };
        variant(Box::new(status))
    }
}

impl From<RegistryError> for Status {
    fn from(error: RegistryError) -> Status {
        error.status().clone()
    }
}

impl std::fmt::Display for RegistryError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.status().message)
    }
}

impl std::error::Error for RegistryError {}

/// The object of an operation, for the error text.
#[derive(Debug, Clone, Copy)]
pub struct ErrorSubject<'a> {
    pub version: ApiVersion,
    pub kind: Kind,
    pub name: &'a str,
}

pub fn from_store(error: &StoreError, about: ErrorSubject<'_>) -> Status {
    let ErrorSubject { version, kind, name } = about;
    match error {
        StoreError::AlreadyExists { .. } => Status::already_exists(version, kind, name),
        StoreError::NotFound { .. } => Status::not_found(version, kind, name),
        StoreError::Conflict { .. } => Status::object_modified(version, kind, name),
        StoreError::Compacted { .. } => {
            Status::expired("The resourceVersion for the provided list is too old.")
        }
        StoreError::Future { requested, current } => too_large_revision(*requested, *current),
        StoreError::TooLarge { limit_bytes, .. } => object_too_large(about, *limit_bytes),
        StoreError::Full { .. } => {
            // The monitor of the store logs it once; a line per request would fill the remaining space.
            tracing::debug!(error = error_chain(error), "the store is full");
            Status::storage_full("the store has no room left: nothing was written, reading goes on")
        }
        StoreError::Unavailable { .. } => {
            tracing::debug!(error = error_chain(error), "the store did not respond");
            Status::unavailable("the store does not answer; a write may or may not have happened", 1)
        }
        StoreError::Closed => Status::unavailable("the server is shutting down", 1),
        StoreError::Lagged => Status::unavailable("the store was too busy", 1),
        StoreError::Invalid { .. }
        | StoreError::Corrupt { .. }
        | StoreError::TooNew { .. }
        | StoreError::NotEmpty { .. } => {
            tracing::error!(error = error_chain(error), kind = kind.name(), name, "the store failed");
            Status::internal("the store failed; the server's log says how")
        }
    }
}

/// Returns 413 for one object, whose limit may be lower than that of a request.
pub fn object_too_large(about: ErrorSubject<'_>, bytes_max: usize) -> Status {
    let mut status = Status::too_large(bytes_max);
    status.message = format!("{} \"{}\" would take more than {bytes_max} bytes", about.kind, about.name);
    status
}

/// Returns 504 with the text by which client-go knows that it must list again.
pub fn too_large_revision(requested: Revision, current: Revision) -> Status {
    let message = format!("Too large resource version: {requested}, current: {current}");
    let mut status = Status::timeout(message, 1);
    status.details.get_or_insert_default().causes.push(StatusCause {
        reason: "ResourceVersionTooLarge".into(),
        message: "Too large resource version".into(),
        field: String::new(),
    });
    status
}

/// Returns 422 without fields: the patch could not be applied.
pub fn unprocessable(message: impl std::fmt::Display) -> Status {
    let mut status = Status::bad_request(message);
    status.code = 422;
    status.reason = "Invalid".into();
    status
}

/// Returns 403 in the form of Kubernetes, which names verb, resource and user.
pub fn forbidden(
    identity: &Identity,
    version: ApiVersion,
    wish: &RequestedAccess<'_>,
    denied: AccessDenied,
) -> Status {
    let user = &identity.user;
    let RequestedAccess::Object { verb, kind, name, status } = wish else {
        return Status::forbidden(user, "use this path", denied.0);
    };
    let sub = if *status { "/status" } else { "" };
    let (resource, verb, group) = (format!("{}{sub}", kind.plural()), verb.as_str(), version.group());
    let dot = if group.is_empty() { "" } else { "." };
    let mut refused = Status::forbidden(user, "", "");
    let shown = name.map(|name| format!(" \"{name}\"")).unwrap_or_default();
    refused.message = format!(
        "{resource}{dot}{group}{shown} is forbidden: User \"{user}\" cannot {verb} resource \"{resource}\" in API group \"{group}\" at the cluster scope: {}",
        denied.0
    );
    refused.details = Some(StatusDetails {
        name: name.unwrap_or_default().into(),
        group: group.into(),
        kind: kind.plural().into(),
        ..StatusDetails::default()
    });
    refused
}

/// Returns 403 for an object that is protected from deletion, in the form Kubernetes uses for its own
/// objects.
pub fn not_deletable(about: ErrorSubject<'_>, why: &str) -> Status {
    let ErrorSubject { version, kind, name } = about;
    let (group, plural) = (version.group(), kind.plural());
    let dot = if group.is_empty() { "" } else { "." };
    let mut status = Status::forbidden("", "", "");
    status.message = format!("{plural}{dot}{group} \"{name}\" is forbidden: {why}");
    status.details = Some(StatusDetails {
        name: name.into(),
        group: group.into(),
        kind: plural.into(),
        ..StatusDetails::default()
    });
    status
}

/// Returns 403 in the form of Kubernetes, for a caller that may not impersonate a user.
pub fn cannot_impersonate(caller: &Identity, resource: &str, group: &str, name: &str) -> Status {
    let user = &caller.user;
    let shown: String = name.chars().take(200).collect();
    let mut refused = Status::forbidden(user, "", "");
    refused.message = format!(
        "{resource} \"{shown}\" is forbidden: User \"{user}\" cannot impersonate resource \"{resource}\" in API group \"{group}\" at the cluster scope: only an admin may impersonate"
    );
    refused.details = Some(StatusDetails {
        name: shown,
        group: group.into(),
        kind: resource.into(),
        ..StatusDetails::default()
    });
    refused
}

pub fn from_action(refusal: ActionRefusal) -> Status {
    let mut status = Status::bad_request(refusal.message);
    status.code = refusal.code.as_u16();
    status.reason = match status.code {
        400 => "BadRequest",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "NotFound",
        405 => "MethodNotAllowed",
        409 => "Conflict",
        410 => "Expired",
        413 => "RequestEntityTooLarge",
        422 => "Invalid",
        429 => "TooManyRequests",
        503 => "ServiceUnavailable",
        504 => "Timeout",
        _ => "InternalError",
    }
    .into();
    status
}
