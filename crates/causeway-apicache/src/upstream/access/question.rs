//! A question about access, and the review by which the API server is asked.
//!
//! Values only. The field selector is part of the question: since Kubernetes 1.32 a node may list only its own pods.
//! Older API servers ignore the selector of a review.

use serde_json::{Value, json};

use crate::resource::SubscriptionScope;

/// One question about access.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct AccessQuestion {
    pub verb: &'static str,
    pub group: String,
    pub plural: String,
    /// Empty: all namespaces.
    pub namespace: String,
    /// Empty: all names.
    pub name: String,
    /// Empty: all objects. A selector of one name is in `name`.
    pub field_selector: String,
}

const VERBS: [&str; 3] = ["get", "list", "watch"];

/// The path of reviews in the caller's own name. They need no right but that of being authenticated.
pub const REVIEWS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";

impl AccessQuestion {
    pub fn about(verb: &'static str, scope: &SubscriptionScope) -> AccessQuestion {
        let name = scope.only_name();
        AccessQuestion {
            verb,
            group: scope.resource.group.clone(),
            plural: scope.resource.plural.clone(),
            namespace: scope.namespace.clone(),
            name: name.unwrap_or_default().to_owned(),
            field_selector: name.map_or_else(|| scope.field_selector.clone(), |_| String::new()),
        }
    }

    /// The verb of this text, if it reads.
    pub fn reading_verb(text: &str) -> Option<&'static str> {
        VERBS.into_iter().find(|verb| *verb == text)
    }

    /// The SelfSubjectAccessReview of the question.
    pub fn review(&self) -> Value {
        let mut attributes = json!({
            "verb": self.verb, "group": self.group, "resource": self.plural,
            "namespace": self.namespace, "name": self.name,
        });
        if !self.field_selector.is_empty() {
            attributes["fieldSelector"] = json!({"rawSelector": self.field_selector});
        }
        json!({
            "kind": "SelfSubjectAccessReview", "apiVersion": "authorization.k8s.io/v1",
            "spec": {"resourceAttributes": attributes},
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::ResourceName;

    #[test]
    fn a_review_has_the_name_or_the_selector_of_its_scope() {
        let pods = ResourceName::new("", "v1", "pods");
        let scope = SubscriptionScope {
            field_selector: "spec.nodeName=n1".into(),
            ..SubscriptionScope::all(pods.clone())
        };
        let review = AccessQuestion::about("list", &scope).review();
        let attributes = &review["spec"]["resourceAttributes"];
        assert_eq!(attributes["fieldSelector"], json!({"rawSelector": "spec.nodeName=n1"}));
        let named = AccessQuestion::about("get", &SubscriptionScope::one(pods, "shop", "a"));
        assert_eq!((named.name.as_str(), named.field_selector.as_str()), ("a", ""));
        assert!(named.review()["spec"]["resourceAttributes"]["fieldSelector"].is_null());
        assert_eq!(AccessQuestion::reading_verb("watch"), Some("watch"));
        assert_eq!(AccessQuestion::reading_verb("delete"), None);
    }
}
