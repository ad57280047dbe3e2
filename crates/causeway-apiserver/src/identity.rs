//! Who is asking.
//!
//! The server asks an `Authenticator` and gets an `Identity`, which `authorize` judges.
//! How credentials are issued, stored and revoked is left to whoever implements the trait.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use rustls::pki_types::CertificateDer;

pub use causeway_api::management::{ADMIN_GROUP, VIEWER_GROUP};

/// Kubernetes' group of every caller that presented a credential.
pub const AUTHENTICATED_GROUP: &str = "system:authenticated";
/// Kubernetes' group of callers without one.
pub const UNAUTHENTICATED_GROUP: &str = "system:unauthenticated";

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
    /// A user in no group that gives rights. Impersonation makes it: a credential without a role is refused.
    Unprivileged,
    /// Nobody presented a credential. Only the server itself makes this one.
    Anonymous,
}

impl Role {
    /// The role that membership gives, for certificates and impersonated users alike. Other groups give none, not even
    /// Kubernetes' `system:masters`.
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

/// What is known of an impersonated user beyond its name and groups.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Impersonation {
    /// The caller whose credential was accepted.
    pub by: Arc<Identity>,
    pub uid: Option<String>,
    pub extra: BTreeMap<String, Vec<String>>,
}

impl Identity {
    /// The caller whose credential was accepted: the impersonator, where there is one. Limits and audit records name it.
    pub fn caller(&self) -> &Identity {
        self.impersonation.as_ref().map_or(self, |impersonation| &impersonation.by)
    }

    /// The caller without a credential, under the names Kubernetes gives it.
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

    /// As `bearer`, from memory alone: no store, no network. Asked instead of it for an address that has presented too
    /// many wrong tokens, so that the right ones behind the same address still work and the wrong ones cost little.
    /// `None`: the token is wrong, or not in memory.
    fn bearer_in_memory(&self, _token: &str) -> Option<Identity> {
        None
    }

    /// Is an identity that was accepted earlier still good? Asked before each request on a connection with a
    /// client certificate, and about once a second for every watch; `false` ends the watch.
    fn still_valid(&self, _identity: &Identity) -> bool {
        true
    }

    /// The kind and id of a credential, for the administrative audit. Never a secret.
    fn credential_name(&self, identity: &Identity) -> Option<crate::admin_audit::CredentialName> {
        let id = identity.credential.as_deref()?.to_owned();
        Some(crate::admin_audit::CredentialName { kind: "credential".to_owned(), id })
    }

    /// A credential (`certificate` or `token`) was refused. Whoever keeps an audit log writes it down there.
    fn note_refusal(&self, client: SocketAddr, credential: &str, failure: &AuthFailure) {
        tracing::info!(%client, credential, reason = %failure, "authentication failed");
    }
}
