//! Who is asking.
//!
//! The server asks an `Authenticator` and gets an `Identity`, which `authorize` judges.
//! How credentials are issued, stored and revoked is left to whoever implements the trait.

use std::net::SocketAddr;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use rustls::pki_types::CertificateDer;

/// What an identity may do; `authorize` holds the rules.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Role {
    Admin,
    Viewer,
    /// One gateway of one site, as its certificate says.
    Gateway {
        site: String,
        gateway: String,
    },
    /// Nobody presented a credential. Only the server itself makes this one.
    Anonymous,
}

/// A caller whose credential was accepted.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Identity {
    pub user: String,
    pub groups: Vec<String>,
    pub role: Role,
    /// Names the credential (a hash of the key or of the token), so that it can be revoked while in use.
    pub credential: Option<Arc<str>>,
}

impl Identity {
    /// The caller without a credential, under the names Kubernetes gives it.
    pub fn anonymous() -> Identity {
        Identity {
            user: "system:anonymous".to_owned(),
            groups: vec!["system:unauthenticated".to_owned()],
            role: Role::Anonymous,
            credential: None,
        }
    }

    pub fn is_anonymous(&self) -> bool {
        self.role == Role::Anonymous
    }
}

/// Why a credential was not accepted. Every variant but `Unavailable` is answered with 401.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AuthFailure {
    #[error("the credential cannot be read: {0}")]
    Malformed(String),
    #[error("the credential is not known")]
    Unknown,
    #[error("the credential has expired")]
    Expired,
    #[error("the credential is not valid yet: check the clocks")]
    NotYetValid,
    #[error("the credential was revoked")]
    Revoked,
    /// The credential could not be checked; the caller is not to blame and gets 503.
    #[error("credentials cannot be checked right now: {0}")]
    Unavailable(String),
}

/// Turns credentials into identities. Called for every request, so it must answer from memory where it can.
pub trait Authenticator: Send + Sync + 'static {
    /// The chain comes from a finished TLS handshake: rustls has verified it against the client CAs.
    fn certificate(&self, chain: &[CertificateDer<'_>]) -> Result<Identity, AuthFailure>;

    fn bearer<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Result<Identity, AuthFailure>>;

    /// Is an identity that was accepted earlier still good? Asked before each request on a connection with a
    /// client certificate, and about once a second for every watch; `false` ends the watch.
    fn still_valid(&self, _identity: &Identity) -> bool {
        true
    }

    /// A credential (`certificate` or `token`) was refused. Whoever keeps an audit log writes it down there.
    fn note_refusal(&self, client: SocketAddr, credential: &str, failure: &AuthFailure) {
        tracing::info!(%client, credential, reason = %failure, "authentication failed");
    }
}
