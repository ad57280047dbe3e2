//! Reviews of the caller's own identity and rights, for `kubectl auth whoami` and `kubectl auth can-i`.
//!
//! The results come from the same `authorize` that protects the objects.

mod protobuf;

use causeway_api::management::paths;
use causeway_api::{ApiVersion, GROUP, Kind, Status, Time};
use http::Method;
use serde_json::{Value, json};

use crate::authorize::{RequestedAccess, authorize};
use crate::request::ReviewRequest;
use crate::request::Verb;
use crate::request::media::BodyFormat;
use crate::{Identity, Role, body};

/// Parses a review: JSON, or Kubernetes' protobuf if the content type says so.
pub fn parse(review: ReviewRequest, content_type: Option<&str>, bytes: &[u8]) -> Result<Value, Status> {
    match content_type {
        Some(protobuf::MEDIA_TYPE) => protobuf::decode(review, bytes)
            .ok_or_else(|| Status::bad_request("the body is no review in protobuf")),
        _ => Ok(body::parse(BodyFormat::Json, bytes).map_err(Status::bad_request)?.value),
    }
}

pub fn answer(review: ReviewRequest, identity: &Identity, body: &Value, now: Time) -> Result<Value, Status> {
    if !body.is_object() {
        return Err(Status::bad_request("the body must be a review object"));
    }
    Ok(match review {
        ReviewRequest::SelfSubject => subject(identity, now),
        ReviewRequest::SelfAccess => access(identity, body)?,
        ReviewRequest::SelfRules => rules(identity, body),
    })
}

fn subject(identity: &Identity, now: Time) -> Value {
    let mut user = json!({ "username": identity.user, "groups": identity.groups });
    if let Some(credential) = &identity.credential {
        user["extra"] = json!({ "authentication.kubernetes.io/credential-id": [credential] });
    }
    if let Some(impersonation) = &identity.impersonation {
        if let Some(uid) = &impersonation.uid {
            user["uid"] = json!(uid);
        }
        if !impersonation.extra.is_empty() {
            user["extra"] = json!(impersonation.extra);
        }
    }
    json!({
        "kind": "SelfSubjectReview",
        "apiVersion": "authentication.k8s.io/v1",
        "metadata": { "creationTimestamp": now.to_string() },
        "status": { "userInfo": user },
    })
}

fn access(identity: &Identity, body: &Value) -> Result<Value, Status> {
    let spec = body.get("spec").cloned().unwrap_or_default();
    let denied = match (spec.get("resourceAttributes"), spec.get("nonResourceAttributes")) {
        (Some(attributes), None) => resource_denied(identity, attributes),
        (None, Some(attributes)) => path_denied(identity, attributes),
        _ => {
            let why = "exactly one of nonResourceAttributes or resourceAttributes must be specified";
            return Err(Status::bad_request(why));
        }
    };
    let status = match denied {
        None => json!({ "allowed": true }),
        Some(why) => json!({ "allowed": false, "reason": why }),
    };
    Ok(json!({
        "kind": "SelfSubjectAccessReview",
        "apiVersion": "authorization.k8s.io/v1",
        "metadata": { "creationTimestamp": null },
        "spec": spec,
        "status": status,
    }))
}

fn text<'a>(attributes: &'a Value, name: &str) -> &'a str {
    attributes.get(name).and_then(Value::as_str).unwrap_or_default()
}

/// Returns the first reason for a denial. A star stands for all values, and all of them must be allowed.
fn resource_denied(identity: &Identity, attributes: &Value) -> Option<&'static str> {
    let name = Some(text(attributes, "name")).filter(|name| !name.is_empty());
    let subresource = text(attributes, "subresource");
    let (group, resource) = (text(attributes, "group"), text(attributes, "resource"));
    let is_served = |kind: &Kind| {
        let in_group = group == "*" || kind.versions().iter().any(|version| version.group() == group);
        let with_subresource = subresource.is_empty() || (subresource == "status" && kind.has_status());
        in_group && with_subresource && (resource == "*" || resource == kind.plural())
    };
    let kinds: Vec<Kind> = Kind::SERVED.into_iter().filter(is_served).collect();
    let verbs: Vec<Verb> = match text(attributes, "verb") {
        "*" => Verb::ALL.to_vec(),
        verb => Verb::ALL.into_iter().filter(|known| known.as_str() == verb).collect(),
    };
    if kinds.is_empty() || verbs.is_empty() {
        return authorize(identity, &RequestedAccess::Foreign).err().map(|denied| denied.0);
    }
    let status = subresource == "status";
    let wishes = kinds.iter().flat_map(|kind| verbs.iter().map(move |verb| (*kind, *verb)));
    wishes
        .map(|(kind, verb)| authorize(identity, &RequestedAccess::Object { verb, kind, name, status }))
        .find_map(Result::err)
        .map(|denied| denied.0)
}

fn path_denied(identity: &Identity, attributes: &Value) -> Option<&'static str> {
    let method =
        Method::from_bytes(text(attributes, "verb").to_uppercase().as_bytes()).unwrap_or(Method::GET);
    let path = text(attributes, "path").trim_matches('/');
    let wish = match path.split_once("causeway/v1/") {
        Some(("", path)) => RequestedAccess::Action { method: &method, path },
        _ if ["healthz", "livez", "readyz", "version"].contains(&path) => RequestedAccess::Probe,
        _ if ["api", "apis", "openapi"].iter().any(|root| path.starts_with(root)) => {
            RequestedAccess::Description
        }
        _ => RequestedAccess::Foreign,
    };
    authorize(identity, &wish).err().map(|denied| denied.0)
}

fn rules(identity: &Identity, body: &Value) -> Value {
    let groups = ["", GROUP];
    let kinds: Vec<&str> = Kind::ALL.iter().map(|kind| kind.plural()).collect();
    let foreign: Vec<&str> = Kind::FOREIGN.iter().map(|kind| kind.plural()).collect();
    let statuses: Vec<String> = kinds.iter().map(|kind| format!("{kind}/status")).collect();
    let everything: Vec<String> = kinds.iter().map(ToString::to_string).chain(statuses).collect();
    let resources = match &identity.role {
        Role::Admin => json!([{ "verbs": ["*"], "apiGroups": ["*"], "resources": ["*"] }]),
        Role::Viewer => {
            let verbs = ["get", "list", "watch"];
            let events = ApiVersion::Events.group();
            json!([
                { "verbs": verbs, "apiGroups": groups, "resources": everything },
                { "verbs": verbs, "apiGroups": ["", events], "resources": foreign },
            ])
        }
        Role::Gateway { gateway, .. } => json!([
            { "verbs": ["get"], "apiGroups": groups, "resources": ["egateways", "egateways/status"],
              "resourceNames": [gateway] },
        ]),
        Role::Delegated | Role::Unprivileged | Role::Anonymous => json!([]),
    };
    let probes = ["/healthz", "/livez", "/readyz", "/version"];
    let descriptions = ["/api", "/api/*", "/apis", "/apis/*", "/openapi/*"];
    let mut paths = vec![json!({ "verbs": ["get"], "nonResourceURLs": probes })];
    match identity.role {
        Role::Admin => paths = vec![json!({ "verbs": ["*"], "nonResourceURLs": ["*"] })],
        Role::Viewer => {
            paths.push(json!({ "verbs": ["get"], "nonResourceURLs": descriptions }));
            paths.push(json!({ "verbs": ["get"], "nonResourceURLs": [paths::STATUS, paths::AUDIT, paths::ACCESS, paths::PATHS, paths::CACHES] }));
        }
        Role::Gateway { .. } | Role::Delegated | Role::Unprivileged => {
            paths.push(json!({ "verbs": ["get"], "nonResourceURLs": descriptions }));
        }
        Role::Anonymous => {}
    }
    json!({
        "kind": "SelfSubjectRulesReview",
        "apiVersion": "authorization.k8s.io/v1",
        "metadata": { "creationTimestamp": null },
        "spec": body.get("spec").cloned().unwrap_or_else(|| json!({})),
        "status": { "resourceRules": resources, "nonResourceRules": paths, "incomplete": false },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(role: Role) -> Identity {
        Identity {
            user: "ann".into(),
            groups: vec!["causeway:viewer".into()],
            role,
            credential: Some("x".into()),
            impersonation: None,
        }
    }

    #[test]
    fn may_i_is_answered_as_the_guard_would() {
        let gateway = Role::Gateway { site: "s".into(), gateway: "gw".into() };
        let check = |role: &Role, verb: &str, resource: &str, rest: Value, allowed: bool| {
            let mut attributes = json!({ "verb": verb, "resource": resource, "group": GROUP });
            attributes.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
            let body = json!({ "spec": { "resourceAttributes": attributes } });
            let found =
                answer(ReviewRequest::SelfAccess, &identity(role.clone()), &body, Time::from_second(0))
                    .unwrap();
            assert_eq!(found["status"]["allowed"], allowed, "{role:?} {body}");
        };
        check(&Role::Admin, "*", "*", json!({}), true);
        check(&Role::Admin, "create", "pods", json!({"group": ""}), true);
        check(&Role::Viewer, "list", "esites", json!({}), true);
        check(&Role::Viewer, "list", "esites", json!({"group": ""}), true);
        check(&Role::Viewer, "create", "esites", json!({}), false);
        check(&Role::Viewer, "*", "esites", json!({}), false);
        check(&Role::Viewer, "get", "*", json!({}), true);
        check(&Role::Viewer, "get", "pods", json!({"group": ""}), false);
        check(&gateway, "get", "egateways", json!({"name": "gw"}), true);
        check(&gateway, "get", "egateways", json!({}), false);
        check(&gateway, "get", "egateways", json!({"name": "gw", "subresource": "status"}), true);
        check(&gateway, "patch", "egateways", json!({"name": "gw", "subresource": "status"}), false);
        check(&Role::Unprivileged, "get", "esites", json!({}), false);
        check(&Role::Admin, "impersonate", "users", json!({"group": "", "name": "ann"}), true);
        check(&Role::Viewer, "impersonate", "users", json!({"group": "", "name": "ann"}), false);
        check(&gateway, "patch", "egateways", json!({"name": "gw"}), false);
        let both = json!({"spec": {}});
        let refused = answer(ReviewRequest::SelfAccess, &identity(Role::Admin), &both, Time::from_second(0));
        assert_eq!(refused.unwrap_err().code, 400);
        let path = |role: Role, path: &str| {
            let body = json!({ "spec": { "nonResourceAttributes": { "verb": "get", "path": path } } });
            answer(ReviewRequest::SelfAccess, &identity(role), &body, Time::from_second(0)).unwrap()["status"]
                ["allowed"]
                == true
        };
        assert!(path(Role::Viewer, paths::STATUS));
        assert!(!path(Role::Viewer, paths::TOKENS));
        assert!(path(Role::Viewer, "/healthz"));
        assert!(!path(Role::Viewer, "/metrics"));
    }

    #[test]
    fn whoami_names_user_groups_and_credential() {
        let found =
            answer(ReviewRequest::SelfSubject, &identity(Role::Viewer), &json!({}), Time::from_second(0))
                .unwrap();
        assert_eq!(found["status"]["userInfo"]["username"], "ann");
        assert_eq!(found["status"]["userInfo"]["groups"], json!(["causeway:viewer"]));
    }
}
