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

/// The part of a Kubernetes `Status` that is shown.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ApiRefusal {
    pub kind: String,
    pub code: u16,
    pub reason: String,
    pub message: String,
    pub details: RefusalDetails,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct RefusalDetails {
    pub name: String,
    pub kind: String,
    pub causes: Vec<RefusalCause>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct RefusalCause {
    pub reason: String,
    pub field: String,
    pub message: String,
}

impl CallError {
    pub fn refused(server: &str, code: StatusCode, body: &[u8]) -> CallError {
        let mut status: ApiRefusal = serde_json::from_slice(body).unwrap_or_default();
        if status.kind != "Status" {
            let text: String = String::from_utf8_lossy(body).chars().take(200).collect();
            status = ApiRefusal { message: text.trim().to_owned(), ..ApiRefusal::default() };
        }
        status.code = code.as_u16();
        CallError::Refused { server: server.to_owned(), status: Box::new(status) }
    }

    /// The code of a refusal.
    pub fn code(&self) -> Option<u16> {
        match self {
            CallError::Refused { status, .. } => Some(status.code),
            _ => None,
        }
    }
}

impl CallError {
    /// The deletion needs `--force`.
    pub fn is_protected(&self) -> bool {
        matches!(self, CallError::Refused { status, .. } if status.is_protected())
    }
}

impl ApiRefusal {
    /// The object is not there, but the server knows its kind.
    pub fn is_missing_object(&self) -> bool {
        self.code == 404 && self.reason == "NotFound" && !self.details.name.is_empty()
    }

    /// The object is one that is not deleted by mistake.
    fn is_protected(&self) -> bool {
        self.code == 403 && self.details.causes.iter().any(|cause| cause.reason == "DeletionProtected")
    }

    fn explain(&self, server: &str) -> String {
        let mut text = output::plain(&self.message);
        if text.is_empty() {
            text = format!("{server} answered with code {}", self.code);
        }
        // Causes that the message does not contain already.
        for cause in &self.details.causes {
            if !self.message.contains(&cause.message) {
                let _ =
                    write!(text, "\n  {}: {}", output::plain(&cause.field), output::plain(&cause.message));
            }
        }
        let advice = match self.code {
            401 => {
                "the server does not accept this credential: it may be revoked, expired, or of another cloud"
            }
            // The message says what to do.
            403 if self.is_protected() => return text,
            403 => "this credential may not do that: use an admin kubeconfig",
            404 if self.kind != "Status" => "this server does not know our kinds: is it a Causeway cloud?",
            409 if self.reason == "Conflict"
                && text.contains("conflict")
                && !self.details.causes.is_empty() =>
            {
                "another field manager owns these fields: change them there, or take them over with --force-conflicts"
            }
            429 => "too many requests: try again in a moment",
            503 => "the server cannot do that right now: look at /readyz?verbose on its admin port",
            507 => "the server's disk or store is full: free some space there",
            _ => return text,
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
    fn only_a_missing_object_counts_as_missing() {
        let missing = |body: &str| match CallError::refused("s", StatusCode::NOT_FOUND, body.as_bytes()) {
            CallError::Refused { status, .. } => status.is_missing_object(),
            _ => false,
        };
        assert!(missing(r#"{"kind":"Status","reason":"NotFound","details":{"name":"a","kind":"esites"}}"#));
        assert!(!missing("404 page not found"));
    }
}
