//! Decides which answers about access a change of an RBAC object may change.
//!
//! Values only. An answer is asked again when it may be another one; the API server alone decides. Objects that cannot be read
//! affect every answer.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;
use serde_json::Value;

use super::question::AccessQuestion;
use crate::upstream::cluster::UpstreamIdentity;

/// The part of a Role, ClusterRole, RoleBinding or ClusterRoleBinding that decides. Roles have rules, bindings have subjects.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize)]
pub struct RbacObject {
    #[serde(default)]
    rules: Option<Vec<PolicyRule>>,
    #[serde(default)]
    subjects: Option<Vec<Subject>>,
    #[serde(default, rename = "roleRef")]
    role_ref: Value,
}

#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PolicyRule {
    #[serde(default)]
    verbs: Vec<String>,
    #[serde(default)]
    api_groups: Vec<String>,
    #[serde(default)]
    resources: Vec<String>,
    #[serde(default)]
    resource_names: Vec<String>,
}

#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize)]
struct Subject {
    #[serde(default)]
    kind: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    namespace: String,
}

/// One change of such an object.
#[derive(Debug)]
pub struct RbacChange {
    /// Empty for objects of the cluster.
    pub namespace: String,
    pub is_binding: bool,
    /// The object before and after. An object that cannot be read is `None`, and so is one that was not there.
    before: Option<RbacObject>,
    now: Option<RbacObject>,
    is_readable: bool,
}

const NODE_PREFIX: &str = "system:node:";
const NODES_GROUP: &str = "system:nodes";

impl RbacObject {
    pub fn read(body: &[u8]) -> Option<RbacObject> {
        serde_json::from_slice(body).ok()
    }

    /// Returns true if a subject is one node, so that nodes are not alike.
    pub fn names_node(&self) -> bool {
        let subjects = self.subjects.iter().flatten();
        subjects.into_iter().any(|subject| subject.kind == "User" && subject.name.starts_with(NODE_PREFIX))
    }

    fn may_name(&self, identity: &UpstreamIdentity) -> bool {
        self.subjects.iter().flatten().any(|subject| subject.may_be(identity))
    }

    fn may_allow(&self, question: &AccessQuestion) -> bool {
        self.rules.iter().flatten().any(|rule| rule.may_allow(question))
    }
}

impl PolicyRule {
    fn may_allow(&self, question: &AccessQuestion) -> bool {
        let has =
            |values: &[String], wanted: &str| values.iter().any(|value| value == "*" || value == wanted);
        has(&self.verbs, question.verb)
            && has(&self.api_groups, &question.group)
            && has(&self.resources, &question.plural)
            && (self.resource_names.is_empty() || self.resource_names.contains(&question.name))
    }
}

impl Subject {
    fn may_be(&self, identity: &UpstreamIdentity) -> bool {
        match identity {
            UpstreamIdentity::Own => true,
            UpstreamIdentity::Node(_) => match self.kind.as_str() {
                // A decision that is shared counts for every node.
                "User" => self.name.starts_with(NODE_PREFIX),
                "Group" => self.name == NODES_GROUP || is_for_everyone(&self.name),
                "ServiceAccount" => false,
                _ => true,
            },
            UpstreamIdentity::Token(token) => match account_of(token) {
                None => true,
                Some((namespace, name)) => match self.kind.as_str() {
                    "ServiceAccount" => self.namespace == namespace && self.name == name,
                    "User" => self.name == format!("system:serviceaccount:{namespace}:{name}"),
                    "Group" => {
                        is_for_everyone(&self.name)
                            || self.name == "system:serviceaccounts"
                            || self.name == format!("system:serviceaccounts:{namespace}")
                    }
                    _ => true,
                },
            },
        }
    }
}

fn is_for_everyone(group: &str) -> bool {
    matches!(group, "system:authenticated" | "system:unauthenticated")
}

/// The service account that a token names. The token is not verified here: the API server does that when it is asked.
fn account_of(token: &str) -> Option<(String, String)> {
    let claims = claims(token)?;
    let mut parts = claims["sub"].as_str()?.strip_prefix("system:serviceaccount:")?.split(':');
    match (parts.next(), parts.next(), parts.next()) {
        (Some(namespace), Some(name), None) => Some((namespace.to_owned(), name.to_owned())),
        _ => None,
    }
}

/// The time at which a token says that it expires, in Unix seconds.
pub fn expiry_of(token: &str) -> Option<i64> {
    claims(token)?["exp"].as_i64()
}

fn claims(token: &str) -> Option<Value> {
    let payload = token.split('.').nth(1)?;
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(payload).ok()?).ok()
}

impl RbacChange {
    pub fn new(namespace: &str, is_binding: bool, before: Option<&[u8]>, now: Option<&[u8]>) -> RbacChange {
        let read = |body: Option<&[u8]>| body.map(RbacObject::read);
        let (before, now) = (read(before), read(now));
        let is_readable = before != Some(None) && now != Some(None);
        RbacChange {
            namespace: namespace.to_owned(),
            is_binding,
            before: before.flatten(),
            now: now.flatten(),
            is_readable,
        }
    }

    /// Returns true if nothing that decides is different: labels, annotations, managed fields.
    pub fn is_empty(&self) -> bool {
        self.is_readable && self.before == self.now
    }

    /// Returns true if the answer to a caller's question may be another one after the change.
    pub fn affects(&self, identity: &UpstreamIdentity, question: &AccessQuestion) -> bool {
        if self.is_empty() || !(self.namespace.is_empty() || self.namespace == question.namespace) {
            return false;
        }
        let sides = || self.before.iter().chain(&self.now);
        !self.is_readable
            || match self.is_binding {
                true => sides().any(|side| side.may_name(identity)),
                false => sides().any(|side| side.may_allow(question)),
            }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn question(namespace: &str, name: &str) -> AccessQuestion {
        AccessQuestion {
            verb: "get",
            group: String::new(),
            plural: "configmaps".into(),
            namespace: namespace.into(),
            name: name.into(),
            field_selector: String::new(),
        }
    }

    fn token(subject: &str) -> UpstreamIdentity {
        let claims = URL_SAFE_NO_PAD.encode(json!({"sub": subject, "exp": 77}).to_string());
        UpstreamIdentity::Token(format!("e30.{claims}.x"))
    }

    fn till() -> UpstreamIdentity {
        token("system:serviceaccount:shop:till")
    }

    fn removed_binding(namespace: &str, subject: Value) -> RbacChange {
        let binding = json!({"roleRef": {"name": "reader"}, "subjects": [subject]}).to_string();
        RbacChange::new(namespace, true, Some(binding.as_bytes()), None)
    }

    #[test]
    fn a_binding_affects_the_callers_that_it_names() {
        let check = |subject: Value, identity: &UpstreamIdentity, expected: bool| {
            let change = removed_binding("shop", subject.clone());
            assert_eq!(change.affects(identity, &question("shop", "a")), expected, "{subject}");
        };
        let account = |namespace: &str, name: &str| json!({"kind": "ServiceAccount", "namespace": namespace, "name": name});
        let group = |name: &str| json!({"kind": "Group", "name": name});
        check(account("shop", "till"), &till(), true);
        check(account("shop", "other"), &till(), false);
        check(account("bank", "till"), &till(), false);
        check(group("system:serviceaccounts:shop"), &till(), true);
        check(group("system:nodes"), &till(), false);
        check(group("system:authenticated"), &till(), true);
        check(json!({"kind": "User", "name": "system:serviceaccount:shop:till"}), &till(), true);
        check(json!({"kind": "User", "name": "ann"}), &till(), false);
        // A token that does not tell its owner.
        check(account("shop", "other"), &UpstreamIdentity::Token("opaque".into()), true);
        let node = UpstreamIdentity::Node("n1".into());
        check(group("system:nodes"), &node, true);
        check(group("ops"), &node, false);
        check(account("shop", "till"), &node, false);
        check(json!({"kind": "User", "name": "system:node:n2"}), &node, true);
    }

    #[test]
    fn a_change_stays_in_its_namespace_and_a_role_in_its_rules() {
        let account = || json!({"kind": "ServiceAccount", "namespace": "shop", "name": "till"});
        assert!(!removed_binding("bank", account()).affects(&till(), &question("shop", "a")));
        assert!(!removed_binding("shop", account()).affects(&till(), &question("", "")));
        assert!(removed_binding("", account()).affects(&till(), &question("shop", "a")), "a cluster binding");
        let role = |names: Value| {
            json!({"rules": [{"verbs": ["get"], "apiGroups": [""], "resources": ["configmaps"], "resourceNames": names}]})
                .to_string()
        };
        let changed = |before: &str, now: &str| {
            RbacChange::new("shop", false, Some(before.as_bytes()), Some(now.as_bytes()))
        };
        let narrowed = changed(&role(json!(["a", "b"])), &role(json!(["b"])));
        assert!(narrowed.affects(&till(), &question("shop", "a")));
        assert!(!narrowed.affects(&till(), &question("shop", "c")));
        assert!(changed(&role(json!([])), r#"{"rules": []}"#).affects(&till(), &question("shop", "c")));
        let same = changed(&role(json!(["a"])), &role(json!(["a"])));
        assert!(same.is_empty() && !same.affects(&till(), &question("shop", "a")), "labels only");
        assert!(changed("no json", "{}").affects(&till(), &question("shop", "c")), "unknown");
    }

    #[test]
    fn a_binding_of_one_node_and_the_end_of_a_token_are_seen() {
        let names = |subject: Value| {
            RbacObject::read(json!({"subjects": [subject]}).to_string().as_bytes()).unwrap().names_node()
        };
        assert!(names(json!({"kind": "User", "name": "system:node:n1"})));
        assert!(!names(json!({"kind": "Group", "name": "system:nodes"})));
        let UpstreamIdentity::Token(text) = till() else { panic!("a token") };
        assert_eq!((expiry_of(&text), expiry_of("opaque")), (Some(77), None));
    }
}
