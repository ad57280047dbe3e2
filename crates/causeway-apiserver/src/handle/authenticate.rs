//! Authenticates a request by a client certificate that TLS has verified, by a bearer token, or as anonymous.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use causeway_api::Status;
use http::header;
use rustls::pki_types::CertificateDer;

use super::Handler;
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

impl Handler {
    /// Authenticates a request. A valid certificate has precedence over the token. A wrong credential is an
    /// error even where none is needed.
    pub(super) async fn identify(
        &self,
        caller: &RequestPeer,
        head: &http::request::Parts,
    ) -> Result<Arc<Identity>, Status> {
        let by_certificate = self.by_certificate(caller);
        let token = head.headers.get(header::AUTHORIZATION).map(|value| bearer(value.as_bytes()));
        match (by_certificate, token) {
            (Some(Ok(identity)), _) => Ok(identity),
            (_, Some(token)) => self.by_token(caller, token).await,
            (Some(Err(failure)), None) => Err(self.refuse(caller, "certificate", &failure)),
            (None, None) => Ok(Arc::new(Identity::anonymous())),
        }
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

    async fn by_token(&self, caller: &RequestPeer, token: Option<&str>) -> Result<Arc<Identity>, Status> {
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
const TOKEN_BYTES_MAX: usize = 8 << 10;

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
