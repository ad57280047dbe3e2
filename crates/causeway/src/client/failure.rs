//! Errors of a call to the API server, with advice on what to try.

use std::error::Error;
use std::fmt::Write;

use causeway_api::error_chain;
use http::StatusCode;
use serde::Deserialize;

use crate::output;

#[derive(Debug, thiserror::Error)]
pub enum CallError {
    #[error("{server} cannot be reached: {}\n  the address comes from {origin}\n  {}", reason(source.as_ref()), advice(source.as_ref()))]
    Unreachable { server: String, origin: String, source: Box<dyn Error + Send + Sync> },
    #[error("{}", status.explain(server))]
    Refused { server: String, status: Box<ApiRefusal> },
    #[error("{server} answered something that is not JSON: is it a Causeway cloud?")]
    InvalidJson { server: String, source: serde_json::Error },
    #[error("{server} answers without end")]
    TooLong { server: String },
    #[error("`{path}` cannot be asked for")]
    Path { path: String, source: http::Error },
    #[error("the body of the request to {path} cannot be encoded")]
    RequestBody { path: String, source: serde_json::Error },
}

/// A refusal of the API server. Its kind is decided once, from the response; callers compare neither codes nor words.
#[derive(Clone, Debug, PartialEq)]
pub struct ApiRefusal {
    pub kind: RefusalKind,
    pub message: String,
    code: u16,
    causes: Vec<RefusalCause>,
}

/// The refusals that a command tells apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalKind {
    /// 401: the server does not accept the credential.
    Unauthenticated,
    /// 403: the credential may not do this.
    Forbidden,
    /// 403: the object is one that is not deleted by mistake; the deletion needs `--force`.
    Protected,
    /// 404: the object does not exist, and the server knows its kind.
    MissingObject,
    /// 404: the server is a Kubernetes API and does not know the path.
    MissingPath,
    /// 404 without a `Status`: most likely not a Causeway cloud.
    ForeignServer,
    /// 409: another field manager owns the applied fields.
    FieldConflict,
    /// 410: the revision is older than the history.
    Expired,
    /// 429.
    TooManyRequests,
    /// 503.
    Unavailable,
    /// 507: the disk or the store is full.
    StorageFull,
    /// All other refusals; their message says everything.
    Other,
}

/// The parts of a Kubernetes `Status` that are read.
#[derive(Default, Deserialize)]
#[serde(default)]
struct RefusalStatus {
    kind: String,
    reason: RefusalReason,
    message: String,
    details: RefusalDetails,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RefusalDetails {
    name: String,
    causes: Vec<RefusalCause>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct RefusalCause {
    reason: CauseReason,
    field: String,
    message: String,
}

/// The words in `reason` that matter here.
#[derive(Clone, Copy, Default, PartialEq, Eq, Deserialize)]
enum RefusalReason {
    NotFound,
    Conflict,
    #[default]
    #[serde(other)]
    Other,
}

/// The words in `details.causes[].reason` that matter here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
enum CauseReason {
    DeletionProtected,
    #[default]
    #[serde(other)]
    Other,
}

impl CallError {
    pub fn refused(server: &str, code: StatusCode, body: &[u8]) -> CallError {
        let status = Box::new(ApiRefusal::new(code.as_u16(), body));
        CallError::Refused { server: server.to_owned(), status }
    }

    /// The kind of a refusal. `None`: the server did not refuse.
    pub fn refusal(&self) -> Option<RefusalKind> {
        match self {
            CallError::Refused { status, .. } => Some(status.kind),
            _ => None,
        }
    }

    /// Returns whether the server answered with 404, whatever it misses.
    pub fn is_not_found(&self) -> bool {
        self.refusal().is_some_and(RefusalKind::is_not_found)
    }

    /// The deletion needs `--force`.
    pub fn is_protected(&self) -> bool {
        self.refusal() == Some(RefusalKind::Protected)
    }
}

impl RefusalKind {
    /// Returns whether the response had the code 404.
    pub fn is_not_found(self) -> bool {
        matches!(self, RefusalKind::MissingObject | RefusalKind::MissingPath | RefusalKind::ForeignServer)
    }

    fn of(code: u16, status: &RefusalStatus) -> RefusalKind {
        let is_status = status.kind == STATUS_KIND;
        let RefusalDetails { name, causes } = &status.details;
        match code {
            401 => RefusalKind::Unauthenticated,
            403 if causes.iter().any(|cause| cause.reason == CauseReason::DeletionProtected) => {
                RefusalKind::Protected
            }
            403 => RefusalKind::Forbidden,
            404 if !is_status => RefusalKind::ForeignServer,
            404 if status.reason == RefusalReason::NotFound && !name.is_empty() => RefusalKind::MissingObject,
            404 => RefusalKind::MissingPath,
            // Only a conflict of server-side apply names fields.
            409 if status.reason == RefusalReason::Conflict && !causes.is_empty() => {
                RefusalKind::FieldConflict
            }
            410 => RefusalKind::Expired,
            429 => RefusalKind::TooManyRequests,
            503 => RefusalKind::Unavailable,
            507 => RefusalKind::StorageFull,
            _ => RefusalKind::Other,
        }
    }
}

/// The `kind` of every refusal of a Kubernetes API.
const STATUS_KIND: &str = "Status";

impl ApiRefusal {
    /// `body` is a `Status`, or whatever else a server answers.
    fn new(code: u16, body: &[u8]) -> ApiRefusal {
        let mut status: RefusalStatus = serde_json::from_slice(body).unwrap_or_default();
        if status.kind != STATUS_KIND {
            let text: String = String::from_utf8_lossy(body).chars().take(200).collect();
            status = RefusalStatus { message: text.trim().to_owned(), ..RefusalStatus::default() };
        }
        let kind = RefusalKind::of(code, &status);
        ApiRefusal { kind, message: status.message, code, causes: status.details.causes }
    }

    fn explain(&self, server: &str) -> String {
        let mut text = output::plain(&self.message);
        if text.is_empty() {
            text = format!("{server} answered with code {}", self.code);
        }
        // Causes that the message does not contain already.
        for cause in &self.causes {
            if !self.message.contains(&cause.message) {
                let _ =
                    write!(text, "\n  {}: {}", output::plain(&cause.field), output::plain(&cause.message));
            }
        }
        let advice = match self.kind {
            RefusalKind::Unauthenticated => {
                "the server does not accept this credential: it may be revoked, expired, or of another cloud"
            }
            RefusalKind::Forbidden => "this credential may not do that: use an admin kubeconfig",
            RefusalKind::ForeignServer => "this server does not know our kinds: is it a Causeway cloud?",
            RefusalKind::FieldConflict => {
                "another field manager owns these fields: change them there, or take them over with --force-conflicts"
            }
            RefusalKind::TooManyRequests => "too many requests: try again in a moment",
            RefusalKind::Unavailable => {
                "the server cannot do that right now: look at /readyz?verbose on its admin port"
            }
            RefusalKind::StorageFull => "the server's disk or store is full: free some space there",
            // The message says what to do.
            RefusalKind::Protected
            | RefusalKind::MissingObject
            | RefusalKind::MissingPath
            | RefusalKind::Expired
            | RefusalKind::Other => return text,
        };
        format!("{text}\n  {advice}")
    }
}

/// The chain of an error without the layers of the HTTP client, which say nothing to a user.
fn reason(error: &dyn Error) -> String {
    const LAYERS: [&str; 4] =
        ["ServiceError: ", "client error (Connect): ", "tcp connect error: ", "dns error: "];
    let chain = error_chain(error);
    let text = LAYERS.iter().fold(chain.as_str(), |text, layer| text.strip_prefix(layer).unwrap_or(text));
    text.to_owned()
}

fn advice(error: &dyn Error) -> &'static str {
    let text = error_chain(error).to_lowercase();
    if text.contains("refused") {
        "is `causeway cloud` running there, and on this port?"
    } else if text.contains("not valid for name") || text.contains("notvalidforname") {
        "the server's certificate does not name this host: start the cloud with --api-name HOST (or --advertise HOST:PORT), or use a name it has (`causeway kubeconfig --server URL`)"
    } else if text.contains("certificate") || text.contains("unknownissuer") {
        "the server is not the one this kubeconfig was made for: fetch a new one with `causeway kubeconfig`"
    } else if text.contains("corrupt message") {
        "this port does not speak TLS: the API of a cloud has port 7443, unless its --api says otherwise"
    } else if text.contains("dns") || text.contains("lookup") {
        "check the host name"
    } else if text.contains("timed out") || text.contains("elapsed") || text.contains("unreachable") {
        "check the network and the firewall between here and there"
    } else {
        "check that the server runs and that this host can reach it"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_fields_and_says_what_to_try() {
        let check = |code: u16, body: &str, expected: &[&str]| {
            let error = CallError::refused("https://a", StatusCode::from_u16(code).unwrap(), body.as_bytes());
            for part in expected {
                assert!(error.to_string().contains(part), "{part} is missing in {error}");
            }
        };
        check(
            422,
            r#"{"kind":"Status","message":"EService \"a\" is invalid","details":{"causes":[{"field":"port","message":"must be 1 to 65535"}]}}"#,
            &["is invalid", "port: must be 1 to 65535"],
        );
        check(403, r#"{"kind":"Status","message":"no"}"#, &["no", "admin kubeconfig"]);
        let protected = r#"{"kind":"Status","message":"no: --force","details":{"causes":[{"reason":"DeletionProtected","message":"no"}]}}"#;
        let refused = CallError::refused("https://a", StatusCode::FORBIDDEN, protected.as_bytes());
        assert!(refused.is_protected() && refused.to_string() == "no: --force", "{refused}");
        check(404, "404 page not found", &["404 page not found", "is it a Causeway cloud?"]);
        check(
            409,
            r#"{"kind":"Status","reason":"Conflict","message":"Apply failed with 1 conflict","details":{"causes":[{"field":".ip","message":"conflict with \"kubectl\""}]}}"#,
            &["--force-conflicts", ".ip"],
        );
        check(500, "", &["https://a answered with code 500"]);
    }

    #[test]
    fn a_server_that_cannot_be_verified_is_told_apart() {
        let check = |error: rustls::CertificateError, expected: &[&str]| {
            let source = Box::new(std::io::Error::other(rustls::Error::InvalidCertificate(error)));
            let (server, origin) = ("https://203.0.113.9:7443".to_owned(), "a file".to_owned());
            let text = CallError::Unreachable { server, origin, source }.to_string();
            for part in expected {
                assert!(text.contains(part), "{part} is missing in {text}");
            }
        };
        let expected = rustls::pki_types::ServerName::try_from("203.0.113.9").unwrap();
        let presented = vec!["DnsName(\"localhost\")".to_owned()];
        check(
            rustls::CertificateError::NotValidForNameContext { expected, presented },
            &["--api-name", "--advertise", "203.0.113.9"],
        );
        check(rustls::CertificateError::NotValidForName, &["--api-name", "--advertise"]);
        check(rustls::CertificateError::UnknownIssuer, &["fetch a new one with `causeway kubeconfig`"]);
    }

    #[test]
    fn the_layers_of_the_http_client_are_not_shown() {
        let check = |text: &str, expected: &[&str]| {
            let source = Box::new(std::io::Error::other(text.to_owned()));
            let (server, origin) = ("https://a:7445".to_owned(), "a file".to_owned());
            let shown = CallError::Unreachable { server, origin, source }.to_string();
            assert!(!shown.contains("ServiceError") && !shown.contains("client error"), "{shown}");
            for part in expected {
                assert!(shown.contains(part), "{part} is missing in {shown}");
            }
        };
        check(
            "ServiceError: client error (Connect): tcp connect error: Connection refused (os error 111)",
            &["cannot be reached: Connection refused", "is `causeway cloud` running there"],
        );
        check(
            "ServiceError: client error (Connect): dns error: failed to lookup address information",
            &["cannot be reached: failed to lookup", "check the host name"],
        );
        check(
            "ServiceError: client error (Connect): received corrupt message of type InvalidContentType",
            &["does not speak TLS", "7443"],
        );
    }

    #[test]
    fn the_kind_of_a_refusal_follows_from_code_and_status() {
        let check = |code: u16, body: &str, expected: RefusalKind| {
            let error = CallError::refused("s", StatusCode::from_u16(code).unwrap(), body.as_bytes());
            assert_eq!(error.refusal(), Some(expected), "{code} {body}");
        };
        let missing = r#"{"kind":"Status","reason":"NotFound","details":{"name":"a","kind":"esites"}}"#;
        check(404, missing, RefusalKind::MissingObject);
        check(404, r#"{"kind":"Status","reason":"NotFound"}"#, RefusalKind::MissingPath);
        check(404, "404 page not found", RefusalKind::ForeignServer);
        let causes = r#"{"kind":"Status","reason":"Conflict","details":{"causes":[{"field":".ip"}]}}"#;
        check(409, causes, RefusalKind::FieldConflict);
        check(409, r#"{"kind":"Status","reason":"Conflict","details":{"name":"a"}}"#, RefusalKind::Other);
        check(409, r#"{"kind":"Status","reason":"AlreadyExists"}"#, RefusalKind::Other);
        let protected =
            r#"{"kind":"Status","details":{"causes":[{"reason":"Newer"},{"reason":"DeletionProtected"}]}}"#;
        check(403, protected, RefusalKind::Protected);
        check(403, r#"{"kind":"Status","reason":"AWordOfANewerServer"}"#, RefusalKind::Forbidden);
        check(410, r#"{"kind":"Status","reason":"Expired"}"#, RefusalKind::Expired);
        check(418, "", RefusalKind::Other);
    }
}
