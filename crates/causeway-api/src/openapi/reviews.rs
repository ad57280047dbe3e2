//! The review kinds in OpenAPI: requests about the caller itself, which are answered and never stored.
//!
//! The schemas are Kubernetes' own, restricted to the fields that are answered here. `v2` and `v3` put them
//! beside the stored kinds.

use serde_json::{Map, Value, json};

use crate::discovery::{REVIEWS, ReviewKind};

const PACKAGE: &str = "io.k8s.api.";
const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";

/// The definitions of the reviews of `group`, or of all, with references of the form `{prefix}NAME`.
pub(super) fn definitions(prefix: &str, group: Option<&str>) -> Map<String, Value> {
    let mut all = Map::new();
    for review in REVIEWS.into_iter().filter(|review| group.is_none_or(|group| review.group == group)) {
        let kind = review.kind;
        let part = |name: &str| json!({ "$ref": format!("{prefix}{}", long_name(&review, name)) });
        let mut properties = Map::from_iter([
            ("apiVersion".to_owned(), text("The group and version of this object.")),
            ("kind".to_owned(), text("The kind of this object.")),
            ("metadata".to_owned(), json!({ "$ref": format!("{prefix}{OBJECT_META}") })),
        ]);
        for (name, schema) in parts(&review) {
            let field = if name.ends_with("Spec") { "spec" } else { "status" };
            properties.insert(field.to_owned(), part(&name));
            all.insert(long_name(&review, &name), schema);
        }
        all.insert(
            long_name(&review, kind),
            json!({
                "type": "object",
                "description": description(&review),
                "properties": properties,
                "x-kubernetes-group-version-kind": [gvk(&review)],
            }),
        );
    }
    all
}

/// The path of a review.
pub(super) fn path(review: &ReviewKind) -> String {
    format!("/apis/{}/v1/{}", review.group, review.plural)
}

pub(super) fn gvk(review: &ReviewKind) -> Value {
    json!({ "group": review.group, "kind": review.kind, "version": "v1" })
}

/// Returns the operation in the form common to both OpenAPI versions: a create, answered with the object and
/// its status.
pub(super) fn operation(review: &ReviewKind) -> Value {
    let group = if review.group.starts_with("authentication") { "Authentication" } else { "Authorization" };
    json!({
        "description": format!("create a {}", review.kind),
        "operationId": format!("create{group}V1{}", review.kind),
        "tags": [format!("{}_v1", group.to_lowercase())],
        "x-kubernetes-action": "post",
        "x-kubernetes-group-version-kind": gvk(review),
    })
}

pub(super) fn reference(prefix: &str, review: &ReviewKind) -> Value {
    json!({ "$ref": format!("{prefix}{}", long_name(review, review.kind)) })
}

fn long_name(review: &ReviewKind, name: &str) -> String {
    let group = review.group.split('.').next().unwrap_or_default();
    format!("{PACKAGE}{group}.v1.{name}")
}

fn description(review: &ReviewKind) -> &'static str {
    match review.kind {
        "SelfSubjectReview" => {
            "SelfSubjectReview returns the identity of the caller, including impersonation."
        }
        "SelfSubjectAccessReview" => "SelfSubjectAccessReview tells whether the caller may do an action.",
        _ => "SelfSubjectRulesReview lists the permitted actions of the caller.",
    }
}

/// The types inside a review, by their short names.
fn parts(review: &ReviewKind) -> Vec<(String, Value)> {
    let named = |part: &str, properties: Value| {
        (format!("{}{part}", review.kind), json!({ "type": "object", "properties": properties }))
    };
    let texts =
        || json!({ "type": "array", "items": { "type": "string" }, "x-kubernetes-list-type": "atomic" });
    let rules = |properties: Value| {
        let rule = json!({ "type": "object", "properties": properties });
        json!({ "type": "array", "items": rule, "x-kubernetes-list-type": "atomic" })
    };
    match review.kind {
        "SelfSubjectReview" => vec![named(
            "Status",
            json!({ "userInfo": { "type": "object", "description": "The caller.", "properties": {
                "username": text("The name of the user."),
                "uid": text("Distinguishes users with the same name, if set."),
                "groups": texts(),
                "extra": { "type": "object", "additionalProperties": texts() },
            } } }),
        )],
        "SelfSubjectAccessReview" => vec![
            named(
                "Spec",
                json!({
                    "resourceAttributes": { "type": "object", "properties": {
                        "group": text("API group; * means all."), "name": text("Name of the object; empty means all."),
                        "namespace": text("Not used: all kinds are cluster-scoped."),
                        "resource": text("Resource, such as esites; * means all."),
                        "subresource": text("Subresource, such as status."),
                        "verb": text("Verb, such as get; * means all."), "version": text("API version."),
                    } },
                    "nonResourceAttributes": { "type": "object", "properties": {
                        "path": text("Path of the URL."), "verb": text("HTTP verb, in lower case."),
                    } },
                }),
            ),
            named(
                "Status",
                json!({
                    "allowed": { "type": "boolean", "description": "True if the caller may." },
                    "denied": { "type": "boolean", "description": "Not used: an action that is not allowed is denied." },
                    "evaluationError": text("Not used."), "reason": text("Reason of the decision."),
                }),
            ),
        ],
        _ => vec![
            named("Spec", json!({ "namespace": text("Not used: all kinds are cluster-scoped.") })),
            named(
                "Status",
                json!({
                    "resourceRules": rules(json!({
                        "verbs": texts(), "apiGroups": texts(), "resources": texts(), "resourceNames": texts(),
                    })),
                    "nonResourceRules": rules(json!({ "verbs": texts(), "nonResourceURLs": texts() })),
                    "incomplete": { "type": "boolean", "description": "True if rules are missing; always false." },
                    "evaluationError": text("Not used."),
                }),
            ),
        ],
    }
}

fn text(description: &str) -> Value {
    json!({ "type": "string", "description": description })
}
