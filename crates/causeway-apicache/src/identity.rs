//! Local callers: who they are, and what they may read.
//!
//! `CallerAuthenticator` proves a caller by its client certificate or bearer token; the edge never lends an identity of its own.
//! `Authorizer` remembers what the API server allowed; `access_stream` tells it when that changes. Both go on from what they know while the cloud is away.

pub mod access_stream;
pub mod authenticate;
pub mod authorize;
pub mod tokens;

use serde::{Deserialize, Serialize};

use crate::subscriptions::SubscriptionCredential;

/// A user as Kubernetes describes it (`authentication.k8s.io/v1`).
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct UserInfo {
    #[serde(default)]
    pub username: String,
    #[serde(default)]
    pub uid: String,
    #[serde(default)]
    pub groups: Vec<String>,
}

/// An authenticated caller.
#[derive(Clone)]
pub struct LocalCaller {
    pub user: UserInfo,
    /// The proof that travels to the cloud. `None`: a client certificate that is no node's; it cannot act at the cloud.
    pub credential: Option<SubscriptionCredential>,
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
            user: UserInfo { username: common_name.to_owned(), uid: String::new(), groups },
            credential,
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

    pub fn from_token(user: UserInfo, token: &str) -> LocalCaller {
        LocalCaller { user, credential: Some(SubscriptionCredential::Token(token.to_owned())) }
    }

    /// The key under which decisions about this caller are remembered.
    pub fn key(&self) -> String {
        let mut groups = self.user.groups.clone();
        groups.sort();
        format!("{}\n{}\n{}", self.user.username, self.user.uid, groups.join("\n"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
