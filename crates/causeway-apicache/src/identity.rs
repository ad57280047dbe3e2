//! Local callers: who they are, and what they may read.
//!
//! `CallerAuthenticator` proves a caller by its client certificate or bearer token; the edge never lends an identity of its own.
//! `Authorizer` remembers what the API server allowed; `access_stream` tells it when that changes. Both go on from what they know while the cloud is away.

pub mod access_stream;
pub mod authenticate;
pub mod authorize;
pub mod tokens;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::subscriptions::SubscriptionCredential;
use crate::upstream::access::rbac::expiry_of;

/// A user as Kubernetes describes it (`authentication.k8s.io/v1`).
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct UserInfo {
    #[serde(default)]
    pub username: String,
    #[serde(default)]
    pub uid: String,
    #[serde(default)]
    pub groups: Vec<String>,
    /// Further facts from the authenticator of the cluster, for example the scopes of a token. An authorizer may look at them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub extra: BTreeMap<String, Vec<String>>,
}

/// An authenticated caller.
#[derive(Clone)]
pub struct LocalCaller {
    pub user: UserInfo,
    /// The proof that travels to the cloud. `None`: a client certificate that is no node's; it cannot act at the cloud.
    pub credential: Option<SubscriptionCredential>,
    /// The certificate of its connection, when that is the proof.
    pub certificate: Option<ProvedCertificate>,
}

/// The bounds of a client certificate that a handshake has verified. A connection lives longer than a handshake.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProvedCertificate {
    /// Unix seconds.
    pub not_after: i64,
    /// The client CA of the cluster, as PEM, at the time of the handshake.
    pub client_ca: Option<Arc<str>>,
}

const NODE_PREFIX: &str = "system:node:";
const NODES_GROUP: &str = "system:nodes";
const AUTHENTICATED: &str = "system:authenticated";

impl LocalCaller {
    /// The caller of a verified client certificate: the common name is the user, the organizations are its groups.
    pub fn from_certificate(common_name: &str, organizations: Vec<String>) -> LocalCaller {
        let node = common_name
            .strip_prefix(NODE_PREFIX)
            .filter(|_| organizations.iter().any(|group| group == NODES_GROUP));
        let credential = node.map(|node| SubscriptionCredential::Node(node.to_owned()));
        let mut groups = organizations;
        groups.push(AUTHENTICATED.into());
        LocalCaller {
            user: UserInfo { username: common_name.to_owned(), groups, ..UserInfo::default() },
            credential,
            certificate: None,
        }
    }

    /// A node of the site, as its certificate names it.
    pub fn node(name: &str) -> LocalCaller {
        LocalCaller::from_certificate(&format!("{NODE_PREFIX}{name}"), vec![NODES_GROUP.to_owned()])
    }

    /// The node that the caller proved to be.
    pub fn node_name(&self) -> Option<&str> {
        match &self.credential {
            Some(SubscriptionCredential::Node(node)) => Some(node),
            _ => None,
        }
    }

    /// The end that the credential names, in Unix seconds.
    pub fn ends_at(&self) -> Option<i64> {
        match &self.credential {
            Some(SubscriptionCredential::Token(token)) => expiry_of(token),
            _ => self.certificate.as_ref().map(|certificate| certificate.not_after),
        }
    }

    pub fn from_token(user: UserInfo, token: &str) -> LocalCaller {
        let credential = Some(SubscriptionCredential::Token(token.to_owned()));
        LocalCaller { user, credential, certificate: None }
    }

    /// The key under which decisions about this caller are remembered: everything that an authorizer sees of it. JSON, so that no name can
    /// contain what separates two of them.
    pub fn key(&self) -> String {
        let UserInfo { username, uid, groups, extra } = &self.user;
        let mut groups = groups.clone();
        groups.sort();
        let extra: BTreeMap<_, _> = extra.iter().filter(|(name, _)| !name.starts_with(TOKEN_EXTRA)).collect();
        json!([username, uid, groups, extra]).to_string()
    }
}

/// The fields that tell to what a token is bound (its own number, its pod, its node). No authenticator but that of the API server may set them. A
/// caller keeps its rights when its token is renewed, and the edge checks the pod itself.
const TOKEN_EXTRA: &str = "authentication.kubernetes.io/";

/// The user name in the key of a caller.
pub fn username_of_key(key: &str) -> String {
    let parts: Value = serde_json::from_str(key).unwrap_or_default();
    parts[0].as_str().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_of_a_caller_has_all_that_an_authorizer_sees() {
        let key = |user: Value| {
            let user: UserInfo = serde_json::from_value(user).unwrap();
            LocalCaller::from_token(user, "t").key()
        };
        let plain = key(json!({"username": "ann", "groups": ["a", "b"]}));
        assert_eq!(username_of_key(&plain), "ann");
        assert_eq!(key(json!({"username": "ann", "groups": ["b", "a"], "extra": {}})), plain);
        let scoped =
            |scope: &str| key(json!({"username": "ann", "groups": ["a", "b"], "extra": {"scopes": [scope]}}));
        assert!(scoped("all") != plain && scoped("all") != scoped("read"));
        let number = format!("{TOKEN_EXTRA}credential-id");
        let renewed = json!({"username": "ann", "groups": ["a", "b"], "extra": {number: ["JTI=1"]}});
        assert_eq!(key(renewed), plain);
        // A group that looks like the end of a name.
        assert_ne!(
            key(json!({"username": "ann", "uid": "u\na"})),
            key(json!({"username": "ann", "uid": "u", "groups": ["a"]}))
        );
        assert_ne!(
            key(json!({"username": "ann", "groups": ["a\nb"]})),
            key(json!({"username": "ann", "groups": ["a", "b"]}))
        );
    }

    #[test]
    fn only_a_certificate_of_a_node_can_act_at_the_cloud() {
        let check = |name: &str, groups: &[&str], expected: Option<&str>| {
            let groups = groups.iter().map(|group| (*group).to_owned()).collect();
            let node = match LocalCaller::from_certificate(name, groups).credential {
                Some(SubscriptionCredential::Node(node)) => Some(node),
                _ => None,
            };
            assert_eq!(node.as_deref(), expected, "{name}");
        };
        check("system:node:n1", &["system:nodes"], Some("n1"));
        check("system:node:n1", &["system:masters"], None);
        check("admin", &["system:masters"], None);
    }
}
