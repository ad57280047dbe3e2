//! Identities of callers, and the trait that authenticates them.
//!
//! The server calls an `Authenticator` and gets an `Identity`, which `authorize` judges. The implementation
//! of the trait decides how credentials are issued, stored and revoked.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use rustls::pki_types::CertificateDer;

pub use causeway_api::management::{ADMIN_GROUP, VIEWER_GROUP};

/// Kubernetes' group of every caller that presented a credential.
pub const AUTHENTICATED_GROUP: &str = "system:authenticated";
/// Kubernetes' group of callers without a credential.
pub const UNAUTHENTICATED_GROUP: &str = "system:unauthenticated";

/// The role of an identity; `authorize` holds its rules.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Role {
    Admin,
    Viewer,
    /// One gateway of one site, as its certificate states.
    Gateway {
        site: String,
        gateway: String,
    },
    /// A user in no group that gives rights. Only impersonation makes it: a credential without a role is
    /// refused.
    Unprivileged,
    /// A user whom a front proxy named. Access to objects is decided by the `AccessDelegate` of the server.
    Delegated,
    /// The request has no credential. Only the server itself makes this role.
    Anonymous,
}

impl Role {
    /// Returns the role of a member of these groups, for certificates and impersonated users alike. Other
    /// groups give no role, not even Kubernetes' `system:masters`.
    pub fn of_groups<S: AsRef<str>>(groups: &[S]) -> Option<Role> {
        let has = |wanted: &str| groups.iter().any(|group| group.as_ref() == wanted);
        match () {
            () if has(ADMIN_GROUP) => Some(Role::Admin),
            () if has(VIEWER_GROUP) => Some(Role::Viewer),
            () => None,
        }
    }
}

/// A caller whose credential was accepted.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Identity {
    pub user: String,
    pub groups: Vec<String>,
    pub role: Role,
    /// Names the credential (a hash of the key or of the token), so that it can be revoked while in use.
    pub credential: Option<Arc<str>>,
    /// Set when an admin acts as this user.
    pub impersonation: Option<Arc<Impersonation>>,
}

/// The properties of an impersonated user beyond its name and groups.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Impersonation {
    /// The caller whose credential was accepted.
    pub by: Arc<Identity>,
    pub uid: Option<String>,
    pub extra: BTreeMap<String, Vec<String>>,
}

impl Identity {
    /// Returns the identity of the accepted credential: the impersonator, if there is one. Limits and audit
    /// records name it.
    pub fn caller(&self) -> &Identity {
        self.impersonation.as_ref().map_or(self, |impersonation| &impersonation.by)
    }

    /// Returns the identity of a caller without a credential, with the names that Kubernetes gives it.
    pub fn anonymous() -> Identity {
        Identity {
            user: "system:anonymous".to_owned(),
            groups: vec![UNAUTHENTICATED_GROUP.to_owned()],
            role: Role::Anonymous,
            credential: None,
            impersonation: None,
        }
    }

    pub fn is_anonymous(&self) -> bool {
        self.role == Role::Anonymous
    }
}

/// The reason why a credential was not accepted. Every variant but `Unavailable` is answered with 401.
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
    /// The credential could not be checked; the caller is not at fault and gets 503.
    #[error("credentials cannot be checked right now: {0}")]
    Unavailable(String),
}

/// Turns credentials into identities. Called for every request, so it must respond from memory where it can.
pub trait Authenticator: Send + Sync + 'static {
    /// Authenticates a chain from a finished TLS handshake: rustls has verified it against the client CAs.
    fn certificate(&self, chain: &[CertificateDer<'_>]) -> Result<Identity, AuthFailure>;

    fn bearer<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Result<Identity, AuthFailure>>;

    /// As `bearer`, from memory alone: no store, no network. Called instead of `bearer` for an address that
    /// has presented too many wrong tokens, so that valid tokens behind the same address still work and wrong
    /// ones cost little. `None`: the token is wrong, or not in memory.
    fn bearer_in_memory(&self, _token: &str) -> Option<Identity> {
        None
    }

    /// Returns true while an identity that was accepted earlier is still valid. Called before each request on
    /// a connection with a client certificate, and about once a second for every watch; `false` ends the
    /// watch.
    fn still_valid(&self, _identity: &Identity) -> bool {
        true
    }

    /// Returns the kind and id of a credential, for the administrative audit. Never a secret.
    fn credential_name(&self, identity: &Identity) -> Option<crate::admin_audit::CredentialName> {
        let id = identity.credential.as_deref()?.to_owned();
        Some(crate::admin_audit::CredentialName { kind: "credential".to_owned(), id })
    }

    /// Records that a credential (`certificate` or `token`) was refused. An implementation with an audit log
    /// writes to it here.
    fn note_refusal(&self, client: SocketAddr, credential: &str, failure: &AuthFailure) {
        tracing::info!(%client, credential, reason = %failure, "authentication failed");
    }
}
