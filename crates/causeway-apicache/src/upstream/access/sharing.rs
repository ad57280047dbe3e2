//! Decides which answers about access count for more than one caller.
//!
//! The node authorizer of Kubernetes treats all nodes alike, with their own names exchanged: a node may read Services, its own Node and
//! its own lease. An answer for one node therefore counts for every node when the question names no object but one of the node's own name,
//! unless a binding of the cluster names a node as a user. Secrets and ConfigMaps are granted by the pods of a node; they are named, so
//! they are never shared. Tokens have answers of their own.

use super::question::AccessQuestion;
use crate::upstream::cluster::UpstreamIdentity;

/// The key of a decision.
#[derive(Clone, PartialEq, Eq, Hash)]
pub enum DecisionKey {
    Caller(UpstreamIdentity, AccessQuestion),
    /// Any node; its own name in the question is replaced by `OWN_NAME`.
    AnyNode(AccessQuestion),
}

// No name of an object has such characters. A selector may; such a question is not shared, because its answer does not apply to other questions.
const OWN_NAME: &str = "{node}";

impl DecisionKey {
    /// `nodes_are_alike`: no binding of the cluster names a node.
    pub fn new(identity: &UpstreamIdentity, question: &AccessQuestion, nodes_are_alike: bool) -> DecisionKey {
        match identity {
            UpstreamIdentity::Node(node)
                if nodes_are_alike
                    && !question.field_selector.contains(OWN_NAME)
                    && (question.name.is_empty() || is_own_object(node, question)) =>
            {
                DecisionKey::AnyNode(anonymous(node, question))
            }
            _ => DecisionKey::caller(identity, question),
        }
    }

    pub fn caller(identity: &UpstreamIdentity, question: &AccessQuestion) -> DecisionKey {
        DecisionKey::Caller(identity.clone(), question.clone())
    }

    pub fn is_shared(&self) -> bool {
        matches!(self, DecisionKey::AnyNode(_))
    }
}

/// Objects that a node has under its own name. A Secret or ConfigMap that happens to be named like a node is granted by pods.
fn is_own_object(node: &str, question: &AccessQuestion) -> bool {
    let resource = (question.group.as_str(), question.plural.as_str());
    question.name == node
        && matches!(
            resource,
            ("", "nodes") | ("coordination.k8s.io", "leases") | ("storage.k8s.io", "csinodes")
        )
}

fn anonymous(node: &str, question: &AccessQuestion) -> AccessQuestion {
    let replaced = |value: &str| if value == node { OWN_NAME.to_owned() } else { value.to_owned() };
    let term = |term: &str| match term.split_once('=') {
        // `==` and `!=` are kept apart by the rest of the term.
        Some((field, value)) => format!("{field}={}", replaced(value.strip_prefix('=').unwrap_or(value))),
        None => term.to_owned(),
    };
    let fields: Vec<String> = question.field_selector.split(',').map(term).collect();
    AccessQuestion { name: replaced(&question.name), field_selector: fields.join(","), ..question.clone() }
}

/// Returns true if the API server gave this reason for an answer that counts for one user only.
pub fn is_personal(reason: &str) -> bool {
    reason.contains("to User ") || reason.contains("to ServiceAccount ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(plural: &str, name: &str, fields: &str) -> AccessQuestion {
        AccessQuestion {
            verb: "list",
            group: String::new(),
            plural: plural.into(),
            namespace: String::new(),
            name: name.into(),
            field_selector: fields.into(),
        }
    }

    #[test]
    fn nodes_share_what_cannot_depend_on_their_names() {
        let node = |name: &str| UpstreamIdentity::Node(name.into());
        let is_same = |left: (&str, AccessQuestion), right: (&str, AccessQuestion), alike: bool| {
            DecisionKey::new(&node(left.0), &left.1, alike)
                == DecisionKey::new(&node(right.0), &right.1, alike)
        };
        let services = || question("services", "", "");
        assert!(is_same(("a", services()), ("b", services()), true));
        assert!(!is_same(("a", services()), ("b", services()), false), "a binding names a node");
        assert!(is_same(("a", question("nodes", "a", "")), ("b", question("nodes", "b", "")), true));
        assert!(!is_same(("a", question("nodes", "b", "")), ("b", question("nodes", "b", "")), true));
        let pods = |node: &str| question("pods", "", &format!("spec.nodeName={node}"));
        assert!(is_same(("a", pods("a")), ("b", pods("b")), true));
        assert!(!is_same(("a", pods("b")), ("b", pods("b")), true), "pods of another node");
        let not = |node: &str| question("pods", "", &format!("spec.nodeName!={node}"));
        assert!(!is_same(("a", pods("a")), ("b", not("b")), true), "the opposite selector");
        assert!(is_same(("a", pods("a")), ("b", question("pods", "", "spec.nodeName==b")), true));
        // The answer to a malformed question would end the subscriptions of every node.
        assert!(!is_same(("a", pods("a")), ("b", pods("{node}")), true), "the placeholder itself");
        assert!(!is_same(("a", pods("a")), ("b", question("pods", "", "spec.nodeName===b")), true));
        let secret = || question("secrets", "till", "");
        assert!(!is_same(("a", secret()), ("b", secret()), true), "granted by the pods of a node");
        let named = |name: &str| question("secrets", name, "");
        assert!(!is_same(("a", named("a")), ("b", named("b")), true), "a Secret that is named like a node");
        assert!(!is_same(("a", services()), ("a", question("services", "", "x=y")), true));
    }

    #[test]
    fn callers_with_tokens_share_nothing() {
        let token = |text: &str| UpstreamIdentity::Token(text.into());
        let key = |text: &str| DecisionKey::new(&token(text), &question("services", "", ""), true);
        assert!(key("a") != key("b") && key("a") == key("a") && !key("a").is_shared());
    }

    #[test]
    fn the_reason_of_an_answer_tells_whose_it_is() {
        let reason = |subject: &str| {
            format!("RBAC: allowed by ClusterRoleBinding \"x\" of ClusterRole \"y\" to {subject}")
        };
        assert!(is_personal(&reason("User \"system:node:a\"")));
        assert!(is_personal(&reason("ServiceAccount \"till/shop\"")));
        assert!(!is_personal(&reason("Group \"system:nodes\"")) && !is_personal(""));
    }
}
