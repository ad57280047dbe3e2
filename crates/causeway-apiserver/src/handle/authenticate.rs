//! Authenticates a request by a client certificate that TLS has verified, by a bearer token, by a session of the
//! console, or as anonymous.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use causeway_api::Status;
use http::header;
use rustls::pki_types::CertificateDer;
use tokio_util::sync::CancellationToken;

use super::Handler;
use crate::console;
use crate::delegate::remote_identity;
use crate::{AuthFailure, Identity};

/// The client of one connection.
pub struct RequestPeer {
    pub address: SocketAddr,
    certificates: Vec<CertificateDer<'static>>,
    /// Computed once per connection; its validity is checked for each request.
    identity: OnceLock<Result<Arc<Identity>, AuthFailure>>,
}

impl RequestPeer {
    pub fn new(address: SocketAddr, certificates: Vec<CertificateDer<'static>>) -> RequestPeer {
        RequestPeer { address, certificates, identity: OnceLock::new() }
    }
}

/// The identity of a request, and the token that ends its streams.
pub(super) struct Authenticated {
    pub identity: Arc<Identity>,
    /// Cancelled when the server stops, or when the console session ends.
    pub stop: CancellationToken,
}

impl Handler {
    /// Authenticates a request. A valid certificate has precedence over the token. A wrong credential is an
    /// error even where none is needed.
    pub(super) async fn identify(
        &self,
        caller: &RequestPeer,
        head: &http::request::Parts,
    ) -> Result<Authenticated, Status> {
        if let Some(delegate) = &self.delegate {
            let judged = delegate.front_proxy(&caller.certificates);
            let identity = judged.and_then(|()| remote_identity(&head.headers));
            let identity = identity.map_err(|failure| self.refuse(caller, "front proxy", &failure))?;
            return Ok(Authenticated { identity: Arc::new(identity), stop: self.stop.clone() });
        }
        let by_certificate = self.by_certificate(caller);
        let token = head.headers.get(header::AUTHORIZATION).map(|value| bearer(value.as_bytes()));
        // A browser adds certificates and cookies by itself, also to requests of other origins' pages.
        let is_foreign_page = console::is_from_another_origin(&head.headers);
        let identity = match (by_certificate, token) {
            (Some(Ok(_)), None) if is_foreign_page => {
                return Err(Status::unauthorized(
                    "Unauthorized: this request comes from the page of another origin",
                ));
            }
            (Some(Ok(identity)), _) => identity,
            (_, Some(token)) => self.by_token(caller, token).await?,
            (_, None) if console::is_call_of_console(&head.headers) => return self.by_session(head),
            (Some(Err(failure)), None) => return Err(self.refuse(caller, "certificate", &failure)),
            (None, None) => Arc::new(Identity::anonymous()),
        };
        Ok(Authenticated { identity, stop: self.stop.clone() })
    }

    /// Authenticates a call of the console by its cookie. A wrong cookie is not counted as a wrong credential: it is
    /// looked up in memory, and every page that is left open presents one when its sign-in has ended.
    fn by_session(&self, head: &http::request::Parts) -> Result<Authenticated, Status> {
        let secret = console::session_cookie(&head.headers);
        let found =
            secret.and_then(|secret| self.sessions.find(secret, Instant::now(), &*self.authenticator));
        let found = found.ok_or_else(|| Status::unauthorized("Unauthorized: the sign-in has ended"))?;
        Ok(Authenticated { identity: found.identity, stop: found.stop })
    }

    fn by_certificate(&self, caller: &RequestPeer) -> Option<Result<Arc<Identity>, AuthFailure>> {
        if caller.certificates.is_empty() {
            return None;
        }
        let read = || self.authenticator.certificate(&caller.certificates).map(Arc::new);
        Some(match caller.identity.get_or_init(read) {
            Ok(identity) if self.authenticator.still_valid(identity) => Ok(identity.clone()),
            Ok(_) => Err(AuthFailure::Revoked),
            Err(failure) => Err(failure.clone()),
        })
    }

    pub(super) async fn by_token(
        &self,
        caller: &RequestPeer,
        token: Option<&str>,
    ) -> Result<Arc<Identity>, Status> {
        if let Some(wait) = self.failures.blocked(caller.address.ip()) {
            let known = token.and_then(|token| self.authenticator.bearer_in_memory(token));
            return known.map(Arc::new).ok_or_else(|| {
                self.metrics.rejected("failures");
                slow_down(wait)
            });
        }
        let checked = match token {
            Some(token) => self.authenticator.bearer(token).await,
            None => Err(AuthFailure::Malformed("only bearer tokens are taken".into())),
        };
        checked.map(Arc::new).map_err(|failure| self.refuse(caller, "token", &failure))
    }

    /// Records a refused credential in the audit log and counts it against its address.
    fn refuse(&self, caller: &RequestPeer, credential: &'static str, failure: &AuthFailure) -> Status {
        let address = caller.address.ip();
        if let AuthFailure::Unavailable(reason) = failure {
            tracing::warn!(reason, "the API server cannot check a credential; the client gets 503");
            return Status::unavailable("credentials cannot be checked right now", 1);
        }
        self.metrics.rejected("unauthorized");
        self.authenticator.note_refusal(caller.address, credential, failure);
        match self.failures.failed(address) {
            Some(wait) => slow_down(wait),
            None => Status::unauthorized("Unauthorized"),
        }
    }
}

fn slow_down(wait: std::time::Duration) -> Status {
    let seconds = u32::try_from(wait.as_secs()).unwrap_or(u32::MAX).saturating_add(1);
    Status::too_many_requests("too many wrong credentials from this address; try again later", seconds)
}

// Causeway's tokens have less than a hundred bytes; JSON web tokens of Kubernetes about a thousand.
pub(super) const TOKEN_BYTES_MAX: usize = 8 << 10;

/// Returns the token of an `Authorization` header; `None` for other schemes.
fn bearer(value: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(value).ok()?;
    let (scheme, token) = text.trim().split_once(' ')?;
    let token = token.trim();
    let fits = !token.is_empty() && token.len() <= TOKEN_BYTES_MAX;
    (scheme.eq_ignore_ascii_case("bearer") && fits).then_some(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_bearer_token_is_taken() {
        assert_eq!(bearer(b"Bearer abc"), Some("abc"));
        assert_eq!(bearer(b"bearer  abc "), Some("abc"));
        for other in [&b"Basic YTpi"[..], b"Bearer", b"Bearer ", b"", b"\xff\xfe", &[b'x'; 100_000]] {
            assert_eq!(bearer(other), None);
        }
    }
}
