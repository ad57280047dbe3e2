//! Serves callers of an aggregated API: kube-apiserver authenticates them and forwards their requests, and the cluster's own
//! rules decide.
//!
//! A server with an `AccessDelegate` accepts no other callers. The connection must present the certificate of the front proxy; the
//! user and its groups are in `X-Remote-User` and `X-Remote-Group`, which are believed from that peer alone. Access to objects is
//! decided by the delegate, with the names that this server itself has parsed; discovery is open to every user.

use causeway_api::ApiVersion;
use futures_util::future::BoxFuture;
use http::HeaderMap;
use rustls::pki_types::CertificateDer;

use crate::authorize::RequestedAccess;
use crate::{AuthFailure, Identity, Role};

const USER: &str = "x-remote-user";
const GROUP: &str = "x-remote-group";
/// Longer than any name or list of groups of a cluster; a table of decisions is keyed by it.
const NAMES_BYTES_MAX: usize = 16 << 10;

/// The answer of the cluster about one access.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DelegatedDecision {
    Allowed,
    Denied,
    /// The cluster could not be asked; the caller gets 503.
    Unavailable(String),
}

/// Authenticates the front proxy, and asks the cluster for its decisions.
pub trait AccessDelegate: Send + Sync + 'static {
    /// Judges a chain that rustls has verified against the CA of the front proxy.
    fn front_proxy(&self, chain: &[CertificateDer<'_>]) -> Result<(), AuthFailure>;

    /// Decides whether a user may access objects of an API group.
    fn review<'a>(
        &'a self,
        identity: &'a Identity,
        version: ApiVersion,
        access: &'a RequestedAccess<'a>,
    ) -> BoxFuture<'a, DelegatedDecision>;
}

/// Returns the user that the front proxy names.
pub(crate) fn remote_identity(headers: &HeaderMap) -> Result<Identity, AuthFailure> {
    let texts = |name: &str| -> Result<Vec<String>, AuthFailure> {
        let text = |value: &http::HeaderValue| {
            let text = std::str::from_utf8(value.as_bytes());
            text.map(str::to_owned).map_err(|_| AuthFailure::Malformed(format!("{name} is no UTF-8 text")))
        };
        headers.get_all(name).iter().map(text).collect()
    };
    let (mut users, groups) = (texts(USER)?, texts(GROUP)?);
    let user = match (users.pop(), users.is_empty()) {
        (Some(user), true) if !user.is_empty() => user,
        _ => return Err(AuthFailure::Malformed(format!("{USER} must name one user"))),
    };
    let bytes = user.len() + groups.iter().map(String::len).sum::<usize>();
    if bytes > NAMES_BYTES_MAX {
        return Err(AuthFailure::Malformed("the names of user and groups are too long".to_owned()));
    }
    Ok(Identity { user, groups, role: Role::Delegated, credential: None, impersonation: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_remote_user_has_exactly_one_name() {
        let check = |pairs: &[(&'static str, &str)], expected: Option<(&str, &[&str])>| {
            let mut headers = HeaderMap::new();
            for (name, value) in pairs {
                headers.append(*name, value.parse().unwrap());
            }
            let found = remote_identity(&headers).ok();
            assert!(found.as_ref().is_none_or(|found| found.role == Role::Delegated));
            let found = found.map(|found| (found.user, found.groups));
            let expected = expected.map(|(user, groups)| {
                (user.to_owned(), groups.iter().map(|group| (*group).to_owned()).collect::<Vec<_>>())
            });
            assert_eq!(found, expected, "{pairs:?}");
        };
        check(&[(USER, "ann")], Some(("ann", &[])));
        check(&[(USER, "ann"), (GROUP, "a"), (GROUP, "b")], Some(("ann", &["a", "b"])));
        check(&[(GROUP, "system:masters")], None);
        check(&[(USER, "")], None);
        check(&[(USER, "ann"), (USER, "bob")], None);
        let long = "x".repeat(NAMES_BYTES_MAX);
        check(&[(USER, "ann"), (GROUP, &long)], None);
    }
}
