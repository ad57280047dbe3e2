//! Responses to requests that are not carried: a status, a reason, and for gRPC a gRPC status. Pure.

use std::time::Duration;

use bytes::Bytes;
use causeway_channel::link::ResetCode;
use http::header::{self, HeaderMap, HeaderValue};
use http::{Response, StatusCode};

use super::headers;
use crate::audit::ConnectionEnd;
use crate::live::CutReason;
use crate::policy::{self, PolicyRefusal};

/// Why a request did not get a response of a backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProxyError {
    pub status: StatusCode,
    /// For metrics, the audit and the header `causeway-refusal`.
    pub word: &'static str,
    pub text: String,
    pub end: ConnectionEnd,
    /// Time after which the client may retry.
    pub again: Option<Duration>,
}

impl ProxyError {
    pub fn bad_request(text: impl ToString) -> ProxyError {
        ProxyError::new(StatusCode::BAD_REQUEST, "malformed", text.to_string(), ConnectionEnd::Refused)
    }

    pub fn timeout(text: impl Into<String>) -> ProxyError {
        ProxyError::new(StatusCode::GATEWAY_TIMEOUT, "timeout", text.into(), ConnectionEnd::Timeout)
    }

    /// The backend was connected, and its response is not valid HTTP.
    pub fn bad_gateway(text: impl Into<String>) -> ProxyError {
        ProxyError::new(StatusCode::BAD_GATEWAY, "backend-reset", text.into(), ConnectionEnd::BackendReset)
    }

    pub fn away(text: impl Into<String>) -> ProxyError {
        ProxyError::new(StatusCode::SERVICE_UNAVAILABLE, "site-away", text.into(), ConnectionEnd::LinkLost)
    }

    /// This gateway has reached one of its own bounds.
    pub fn full(what: &'static str) -> ProxyError {
        ProxyError::from(&PolicyRefusal::Full { what })
    }

    /// The shared entry has no service with this name.
    pub fn unknown_name(text: impl Into<String>) -> ProxyError {
        ProxyError::new(StatusCode::NOT_FOUND, "unknown-name", text.into(), ConnectionEnd::Refused)
    }

    /// The name exists, but its service is not available at this entry.
    pub fn misdirected(text: impl Into<String>) -> ProxyError {
        ProxyError::new(StatusCode::MISDIRECTED_REQUEST, "misdirected", text.into(), ConnectionEnd::Refused)
    }

    fn new(status: StatusCode, word: &'static str, text: String, end: ConnectionEnd) -> ProxyError {
        ProxyError { status, word, text, end, again: None }
    }

    /// Returns the response, in the format that the client accepts.
    pub fn response(&self, form: ErrorFormat) -> Response<Bytes> {
        let mut response = match form {
            ErrorFormat::Grpc => self.grpc(),
            ErrorFormat::Json => self.with_body("application/json", self.json()),
            ErrorFormat::Text => self.with_body("text/plain; charset=utf-8", format!("{}\n", self.text)),
        };
        let headers = response.headers_mut();
        headers.insert(headers::REFUSAL, HeaderValue::from_static(self.word));
        if matches!(self.status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
            // Limits are per second, and a lost link is dialled again at once.
            let seconds = self.again.map_or(1, |again| again.as_millis().div_ceil(1000).clamp(1, 60) as u64);
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }

    fn with_body(&self, content_type: &'static str, body: String) -> Response<Bytes> {
        let mut response = Response::new(Bytes::from(body));
        *response.status_mut() = self.status;
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
        response
    }

    fn json(&self) -> String {
        format!("{}\n", serde_json::json!({ "error": self.text, "reason": self.word }))
    }

    /// Returns a Trailers-Only response: the head is also the end.
    fn grpc(&self) -> Response<Bytes> {
        let mut response = Response::new(Bytes::new());
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert("grpc-status", HeaderValue::from_static(grpc_status(self.status)));
        if let Ok(message) = HeaderValue::from_str(&grpc_message(&self.text)) {
            headers.insert("grpc-message", message);
        }
        response
    }
}

/// The format of a refusal that a client accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorFormat {
    Grpc,
    Json,
    Text,
}

impl ErrorFormat {
    pub fn wanted(request: &HeaderMap) -> ErrorFormat {
        let accepts =
            |value: &HeaderValue| value.to_str().is_ok_and(|text| text.contains("application/json"));
        match () {
            () if headers::is_grpc(request) => ErrorFormat::Grpc,
            () if request.get_all(header::ACCEPT).iter().any(accepts) => ErrorFormat::Json,
            () => ErrorFormat::Text,
        }
    }
}

impl From<&PolicyRefusal> for ProxyError {
    fn from(refusal: &PolicyRefusal) -> ProxyError {
        let (status, end) = match refusal {
            PolicyRefusal::NoNetmap => (StatusCode::SERVICE_UNAVAILABLE, ConnectionEnd::Refused),
            PolicyRefusal::NoService { .. } | PolicyRefusal::NoNode { .. } => {
                (StatusCode::NOT_FOUND, ConnectionEnd::Refused)
            }
            PolicyRefusal::NotExposed { .. }
            | PolicyRefusal::PortClosed { .. }
            | PolicyRefusal::NotAllowed { .. }
            | PolicyRefusal::NotItsHost { .. }
            | PolicyRefusal::RequestNotAllowed { .. } => (StatusCode::FORBIDDEN, ConnectionEnd::Refused),
            PolicyRefusal::Limit { .. } => (StatusCode::TOO_MANY_REQUESTS, ConnectionEnd::Limit),
            PolicyRefusal::Full { .. } => (StatusCode::SERVICE_UNAVAILABLE, ConnectionEnd::Limit),
            PolicyRefusal::SiteAway { .. } => (StatusCode::SERVICE_UNAVAILABLE, ConnectionEnd::LinkLost),
            PolicyRefusal::BackendDown { .. } | PolicyRefusal::BackendDenied { .. } => {
                (StatusCode::BAD_GATEWAY, ConnectionEnd::BackendDown)
            }
            PolicyRefusal::SiteRefused { code, .. } => of_code(*code),
            PolicyRefusal::Malformed { .. } => (StatusCode::BAD_REQUEST, ConnectionEnd::Refused),
        };
        let text = match refusal {
            PolicyRefusal::Malformed { why } => format!("malformed request: {why}"),
            _ => refusal.to_string(),
        };
        let again = match refusal {
            PolicyRefusal::Limit { retry_after, .. } => *retry_after,
            _ => None,
        };
        ProxyError { again, ..ProxyError::new(status, refusal.word(), text, end) }
    }
}

/// The status and the end of a request whose stream another gateway reset.
fn of_code(code: ResetCode) -> (StatusCode, ConnectionEnd) {
    match code {
        ResetCode::NotAllowed => (StatusCode::FORBIDDEN, ConnectionEnd::Refused),
        ResetCode::Revoked => (StatusCode::FORBIDDEN, ConnectionEnd::Revoked),
        ResetCode::Limit => (StatusCode::TOO_MANY_REQUESTS, ConnectionEnd::Limit),
        ResetCode::BackendDown => (StatusCode::BAD_GATEWAY, ConnectionEnd::BackendDown),
        ResetCode::Timeout => (StatusCode::GATEWAY_TIMEOUT, ConnectionEnd::Timeout),
        ResetCode::Malformed | ResetCode::Internal | ResetCode::Other(_) => {
            (StatusCode::BAD_GATEWAY, ConnectionEnd::Refused)
        }
        ResetCode::NoRoute | ResetCode::Abandoned | ResetCode::Refused | ResetCode::Draining => {
            (StatusCode::SERVICE_UNAVAILABLE, ConnectionEnd::LinkLost)
        }
    }
}

impl From<ResetCode> for ProxyError {
    /// The other gateway reset the stream before it responded.
    fn from(code: ResetCode) -> ProxyError {
        let (status, end) = of_code(code);
        let word = policy::word_of_code(code);
        ProxyError::new(status, word, format!("the gateway of the service reset the stream: {code}"), end)
    }
}

impl From<&CutReason> for ProxyError {
    fn from(cut: &CutReason) -> ProxyError {
        match cut {
            CutReason::Revoked(refusal) | CutReason::Limit(refusal) => {
                ProxyError { end: cut.end(), ..ProxyError::from(refusal) }
            }
            CutReason::Stopped => ProxyError { end: cut.end(), ..ProxyError::away("this gateway stops") },
        }
    }
}

/// Returns how a request ended to which the other gateway itself responded, by the word of its refusal.
pub fn end_of_word(word: &str) -> ConnectionEnd {
    match word {
        "backend-down" => ConnectionEnd::BackendDown,
        "backend-reset" => ConnectionEnd::BackendReset,
        "timeout" => ConnectionEnd::Timeout,
        "site-away" => ConnectionEnd::LinkLost,
        "limit" => ConnectionEnd::Limit,
        _ => ConnectionEnd::Refused,
    }
}

/// Returns the gRPC status by gRPC's own table of HTTP statuses, with two exceptions: PERMISSION_DENIED for a
/// policy and RESOURCE_EXHAUSTED for a limit.
fn grpc_status(status: StatusCode) -> &'static str {
    match status.as_u16() {
        400 => "13",
        403 => "7",
        404 => "12",
        429 => "8",
        504 => "4",
        _ => "14",
    }
}

/// Percent-encodes everything but plain text, as the protocol requires.
fn grpc_message(text: &str) -> String {
    let mut message = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b' '..=b'~' if byte != b'%' => message.push(char::from(byte)),
            _ => message.push_str(&format!("%{byte:02X}")),
        }
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused() -> ProxyError {
        let path = "/\"x\"".to_owned();
        ProxyError::from(&PolicyRefusal::RequestNotAllowed { method: "GET".into(), path })
    }

    #[test]
    fn a_refusal_is_told_in_the_form_that_was_asked_for() {
        let text = refused().response(ErrorFormat::Text);
        assert_eq!((text.status().as_u16(), &text.body()[..]), (403, &b"no rule allows GET /\"x\"\n"[..]));
        assert_eq!(text.headers()["causeway-refusal"], "request-not-allowed");
        let json = refused().response(ErrorFormat::Json);
        let said: serde_json::Value = serde_json::from_slice(json.body()).unwrap();
        assert_eq!(said["error"], "no rule allows GET /\"x\"");
        assert_eq!(said["reason"], "request-not-allowed");
        let grpc = refused().response(ErrorFormat::Grpc);
        assert_eq!((grpc.status().as_u16(), grpc.body().len()), (200, 0));
        assert_eq!(grpc.headers()["grpc-status"], "7");
        assert_eq!(grpc.headers()["content-type"], "application/grpc");
    }

    #[test]
    fn each_refusal_has_its_status() {
        let check =
            |refusal: PolicyRefusal, status: u16| assert_eq!(ProxyError::from(&refusal).status, status);
        let policy = "p".into();
        check(PolicyRefusal::Limit { policy, what: "requests per second", retry_after: None }, 429);
        check(PolicyRefusal::SiteAway { site: "oslo".into() }, 503);
        check(PolicyRefusal::BackendDown { service: "web".into() }, 502);
        check(PolicyRefusal::NotExposed { service: "web".into(), site: "oslo".into() }, 403);
        assert_eq!(ProxyError::from(ResetCode::NotAllowed).status, 403);
        assert_eq!(ProxyError::from(ResetCode::Abandoned).status, 503);
        assert_eq!(ProxyError::from(ResetCode::Timeout).status, 504);
        let limit = ProxyError::from(ResetCode::Limit).response(ErrorFormat::Text);
        assert_eq!(limit.headers()["retry-after"], "1");
        let retry_after = Some(Duration::from_millis(1500));
        let limit = PolicyRefusal::Limit { policy: "p".into(), what: "requests per second", retry_after };
        let limit = ProxyError::from(&limit).response(ErrorFormat::Text);
        assert_eq!(limit.headers()["retry-after"], "2", "whole seconds");
    }

    #[test]
    fn a_message_of_grpc_is_plain() {
        assert_eq!(grpc_message("100% ü\n"), "100%25 %C3%BC%0A");
    }
}
