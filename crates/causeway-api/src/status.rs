//! Kubernetes' `Status`: the response for every refusal, and for the success of a deletion.
//!
//! One constructor per refusal, so that code, reason and wording belong together. The server maps its
//! internal errors to these; nothing here knows of HTTP beyond the number.

use std::fmt::Display;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::field::FieldError;
use crate::meta::ListMeta;
use crate::{ApiVersion, Kind};

/// The response to a request that returns no object.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// Always Status.
    pub kind: String,
    /// Always v1.
    pub api_version: String,
    /// Metadata of the response; empty.
    #[serde(default)]
    pub metadata: ListMeta,
    /// Success or Failure.
    pub status: String,
    /// Description of the result, for users.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Reason of the result, as one word for programs.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Further details.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<StatusDetails>,
    /// The HTTP status code.
    #[serde(default)]
    pub code: u16,
}

/// Details of the result.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct StatusDetails {
    /// Name of the object concerned.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// API group of the object concerned.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub group: String,
    /// Kind or resource of the object concerned.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// UID of the object concerned.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// One entry per error.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub causes: Vec<StatusCause>,
    /// Seconds after which a retry is useful.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after_seconds: Option<u32>,
}

/// One error.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct StatusCause {
    /// Reason of the error, as one word for programs.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Description of the error, for users.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Path of the field. Example: endpoints[1].port.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub field: String,
}

impl From<&FieldError> for StatusCause {
    fn from(error: &FieldError) -> StatusCause {
        StatusCause {
            reason: error.reason.cause().into(),
            message: error.message.clone(),
            field: error.path.clone(),
        }
    }
}

impl Status {
    /// The object is deleted.
    pub fn deleted(version: ApiVersion, kind: Kind, name: &str, uid: &str) -> Status {
        let details = StatusDetails { uid: uid.into(), ..about(version, kind.plural(), name) };
        Status { status: "Success".into(), details: Some(details), ..Status::failure(200, "", "") }
    }

    /// 400: the request is malformed.
    pub fn bad_request(message: impl Display) -> Status {
        Status::failure(400, "BadRequest", message)
    }

    /// 401: the client is not authenticated.
    pub fn unauthorized(message: impl Display) -> Status {
        Status::failure(401, "Unauthorized", message)
    }

    /// 403: the client is authenticated, but not authorized. `action` reads like "delete egateways".
    pub fn forbidden(user: &str, action: impl Display, why: impl Display) -> Status {
        Status::failure(403, "Forbidden", format!("user \"{user}\" may not {action}: {why}"))
    }

    /// 404: no such object.
    pub fn not_found(version: ApiVersion, kind: Kind, name: &str) -> Status {
        Status::resource_not_found(version.group(), kind.plural(), name)
    }

    /// 404: no such object of a resource that need not be one of Causeway's kinds.
    pub fn resource_not_found(group: &str, plural: &str, name: &str) -> Status {
        let dot = if group.is_empty() { "" } else { "." };
        let message = format!("{plural}{dot}{group} \"{name}\" not found");
        let (name, group, kind) = (name.into(), group.into(), plural.into());
        Status::failure(404, "NotFound", message).with(StatusDetails {
            name,
            group,
            kind,
            ..StatusDetails::default()
        })
    }

    /// 404: no such path.
    pub fn no_such_path(path: &str) -> Status {
        let shown: String = path.chars().take(200).collect();
        Status::failure(404, "NotFound", format!("the server has no resource at {shown}"))
    }

    /// 405: the path exists, but does not support this method.
    pub fn method_not_allowed(method: &str, path: &str) -> Status {
        let shown: String = path.chars().take(200).collect();
        Status::failure(405, "MethodNotAllowed", format!("{method} is not supported at {shown}"))
    }

    /// 406: none of the media types the client accepts can be written.
    pub fn not_acceptable(supported: &[&str]) -> Status {
        let message = format!("only the following media types can be written: {}", supported.join(", "));
        Status::failure(406, "NotAcceptable", message)
    }

    /// 408: the request took too long to arrive.
    pub fn request_timeout(message: impl Display) -> Status {
        Status::failure(408, "Timeout", message)
    }

    /// 409: an object of this name exists.
    pub fn already_exists(version: ApiVersion, kind: Kind, name: &str) -> Status {
        let message = format!("{} \"{name}\" already exists", resource(version, kind));
        Status::failure(409, "AlreadyExists", message).with(about(version, kind.plural(), name))
    }

    /// 409: another client wrote in between.
    pub fn conflict(version: ApiVersion, kind: Kind, name: &str, why: impl Display) -> Status {
        let resource = resource(version, kind);
        let message = format!("Operation cannot be fulfilled on {resource} \"{name}\": {why}");
        Status::failure(409, "Conflict", message).with(about(version, kind.plural(), name))
    }

    /// 409 with the message on which client-go retries.
    pub fn object_modified(version: ApiVersion, kind: Kind, name: &str) -> Status {
        let why =
            "the object has been modified; please apply your changes to the latest version and try again";
        Status::conflict(version, kind, name, why)
    }

    /// 409 of server-side apply: fields that other managers own. `ownership::ServerSideApplyError` has the
    /// message.
    pub fn apply_conflict(message: impl Display, causes: Vec<StatusCause>) -> Status {
        let details = StatusDetails { causes, ..StatusDetails::default() };
        Status::failure(409, "Conflict", message).with(details)
    }

    /// 410: the revision or continue token is older than the history.
    pub fn expired(message: impl Display) -> Status {
        Status::failure(410, "Expired", message)
    }

    /// 413: the body is too big.
    pub fn too_large(bytes_max: usize) -> Status {
        let message = format!("the request body is larger than {bytes_max} bytes");
        Status::failure(413, "RequestEntityTooLarge", message)
    }

    /// 415: the server does not support the media type of the body.
    pub fn unsupported_media_type(found: &str, supported: &[&str]) -> Status {
        let found: String = found.chars().take(100).collect();
        let message = format!(
            "the body of the request was in the unknown format {found:?}; accepted media types: {}",
            supported.join(", ")
        );
        Status::failure(415, "UnsupportedMediaType", message)
    }

    /// 422: the object is invalid, field by field.
    pub fn invalid(version: ApiVersion, kind: Kind, name: &str, errors: &[FieldError]) -> Status {
        let all = errors.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let all = if errors.len() == 1 { all } else { format!("[{all}]") };
        let group = version.group();
        let kind_name = if group.is_empty() { kind.name().to_string() } else { format!("{kind}.{group}") };
        let causes = errors.iter().map(StatusCause::from).collect();
        let details = StatusDetails { causes, ..about(version, kind.name(), name) };
        Status::failure(422, "Invalid", format!("{kind_name} \"{name}\" is invalid: {all}")).with(details)
    }

    /// 422: options of a request, or another value that is no stored object, are wrong.
    pub fn invalid_options(group: &str, kind: &str, errors: &[FieldError]) -> Status {
        let all = errors.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let causes = errors.iter().map(StatusCause::from).collect();
        let details =
            StatusDetails { group: group.into(), kind: kind.into(), causes, ..StatusDetails::default() };
        Status::failure(422, "Invalid", format!("{kind}.{group} \"\" is invalid: {all}")).with(details)
    }

    /// 429: this client sends too many requests.
    pub fn too_many_requests(message: impl Display, retry_after_seconds: u32) -> Status {
        Status::failure(429, "TooManyRequests", message).retry_after(retry_after_seconds)
    }

    /// 500: an internal error of the server.
    pub fn internal(message: impl Display) -> Status {
        Status::failure(500, "InternalError", format!("Internal error occurred: {message}"))
    }

    /// 503: temporarily unavailable.
    pub fn unavailable(message: impl Display, retry_after_seconds: u32) -> Status {
        Status::failure(503, "ServiceUnavailable", message).retry_after(retry_after_seconds)
    }

    /// 504: another component did not answer the server in time.
    pub fn timeout(message: impl Display, retry_after_seconds: u32) -> Status {
        Status::failure(504, "Timeout", message).retry_after(retry_after_seconds)
    }

    /// 507: the store is full; reads continue.
    pub fn storage_full(message: impl Display) -> Status {
        Status::failure(507, "InsufficientStorage", message)
    }

    pub fn is_failure(&self) -> bool {
        self.status != "Success"
    }

    /// Returns the JSON for a client.
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a Status has only string keys and numbers")
    }

    fn failure(code: u16, reason: &str, message: impl Display) -> Status {
        Status {
            kind: "Status".into(),
            api_version: "v1".into(),
            metadata: ListMeta::default(),
            status: "Failure".into(),
            message: message.to_string(),
            reason: reason.into(),
            details: None,
            code,
        }
    }

    fn with(mut self, details: StatusDetails) -> Status {
        self.details = Some(details);
        self
    }

    /// Adds the time after which to retry.
    pub fn retry_after(mut self, seconds: u32) -> Status {
        self.details.get_or_insert_default().retry_after_seconds = Some(seconds);
        self
    }
}

impl Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Status {}

fn about(version: ApiVersion, kind: &str, name: &str) -> StatusDetails {
    StatusDetails {
        name: name.into(),
        group: version.group().into(),
        kind: kind.into(),
        ..StatusDetails::default()
    }
}

/// `esites.causeway.io`, or `esites` under the core path.
fn resource(version: ApiVersion, kind: Kind) -> String {
    match version.group() {
        "" => kind.plural().into(),
        group => format!("{}.{group}", kind.plural()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_refusal_has_the_form_kubernetes_clients_read() {
        let errors = [FieldError::invalid("ip", "x", "no")];
        let status = Status::invalid(ApiVersion::Group, Kind::EService, "web", &errors);
        assert_eq!(
            serde_json::to_value(&status).unwrap(),
            json!({
                "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "reason": "Invalid", "code": 422,
                "message": "EService.causeway.io \"web\" is invalid: ip: Invalid value: \"x\": no",
                "details": {
                    "name": "web", "group": "causeway.io", "kind": "EService",
                    "causes": [{"reason": "FieldValueInvalid", "message": "Invalid value: \"x\": no", "field": "ip"}],
                },
            })
        );
    }

    #[test]
    fn the_group_is_told_only_under_the_group_path() {
        let message = |version| Status::not_found(version, Kind::EPolicy, "p").message;
        assert_eq!(message(ApiVersion::Group), "epolicies.causeway.io \"p\" not found");
        assert_eq!(message(ApiVersion::Core), "epolicies \"p\" not found");
    }

    #[test]
    fn a_deletion_is_a_success() {
        let status = Status::deleted(ApiVersion::Core, Kind::ESite, "a", "u");
        assert_eq!(
            serde_json::to_value(&status).unwrap(),
            json!({
                "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 200,
                "details": {"name": "a", "kind": "esites", "uid": "u"},
            })
        );
    }

    #[test]
    fn trying_again_is_told_in_the_details() {
        assert_eq!(Status::unavailable("no", 3).details.unwrap().retry_after_seconds, Some(3));
    }
}
