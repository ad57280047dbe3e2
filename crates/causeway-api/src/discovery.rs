//! Discovery documents: the groups, versions and resources of the server.
//!
//! Clients ask for them in the old form (one document per group) or aggregated (one for everything); both are
//! made from the same list. Short names and the category appear only under the group path: under both,
//! `kubectl get causeway` would print every object twice.

use serde_json::{Value, json};

use crate::{ApiVersion, GROUP, Kind, VERSION};

/// The category of all kinds: `kubectl get causeway`.
pub const CATEGORY: &str = "causeway";

const VERBS: [&str; 8] = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];
const READ_VERBS: [&str; 3] = ["get", "list", "watch"];
const STATUS_VERBS: [&str; 3] = ["get", "patch", "update"];

/// Versions of the aggregated form that clients ask for, newest first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AggregatedDiscovery {
    V2,
    V2Beta1,
}

impl AggregatedDiscovery {
    pub fn api_version(self) -> &'static str {
        match self {
            AggregatedDiscovery::V2 => "apidiscovery.k8s.io/v2",
            AggregatedDiscovery::V2Beta1 => "apidiscovery.k8s.io/v2beta1",
        }
    }

    /// The `v=` of the media type, for example in `application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList`.
    pub fn version(self) -> &'static str {
        match self {
            AggregatedDiscovery::V2 => "v2",
            AggregatedDiscovery::V2Beta1 => "v2beta1",
        }
    }
}

/// Kinds that are created for an answer and never stored: the caller's identity and permissions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReviewKind {
    pub group: &'static str,
    pub plural: &'static str,
    pub singular: &'static str,
    pub kind: &'static str,
}

pub const REVIEWS: [ReviewKind; 3] = [
    ReviewKind {
        group: "authentication.k8s.io",
        plural: "selfsubjectreviews",
        singular: "selfsubjectreview",
        kind: "SelfSubjectReview",
    },
    ReviewKind {
        group: "authorization.k8s.io",
        plural: "selfsubjectaccessreviews",
        singular: "selfsubjectaccessreview",
        kind: "SelfSubjectAccessReview",
    },
    ReviewKind {
        group: "authorization.k8s.io",
        plural: "selfsubjectrulesreviews",
        singular: "selfsubjectrulesreview",
        kind: "SelfSubjectRulesReview",
    },
];

/// `/api`.
pub fn api_versions(server_address: &str) -> Value {
    json!({
        "kind": "APIVersions",
        "versions": [VERSION],
        "serverAddressByClientCIDRs": [{ "clientCIDR": "0.0.0.0/0", "serverAddress": server_address }],
    })
}

/// `/apis`.
pub fn group_list() -> Value {
    let groups: Vec<Value> = groups().map(group_body).collect();
    json!({ "kind": "APIGroupList", "apiVersion": "v1", "groups": groups })
}

/// `/apis/GROUP`; none for a group that does not exist.
pub fn group(name: &str) -> Option<Value> {
    let mut document = groups().find(|group| *group == name).map(group_body)?;
    document["kind"] = "APIGroup".into();
    document["apiVersion"] = "v1".into();
    Some(document)
}

/// `/api/v1` with the empty group, or `/apis/GROUP/v1`; none for a group that does not exist.
pub fn resource_list(group: &str) -> Option<Value> {
    let (group_version, resources) = match group {
        "" => (ApiVersion::Core.as_str().to_string(), kind_resources(ApiVersion::Core)),
        GROUP => (ApiVersion::Group.as_str().to_string(), kind_resources(ApiVersion::Group)),
        events if events == ApiVersion::Events.group() => {
            (ApiVersion::Events.as_str().to_string(), kind_resources(ApiVersion::Events))
        }
        other => (format!("{other}/v1"), review_resources(other)?),
    };
    Some(json!({
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": group_version,
        "resources": resources,
    }))
}

/// `/api` in the aggregated form.
pub fn aggregated_core(form: AggregatedDiscovery) -> Value {
    aggregated(form, vec![aggregated_item("", aggregated_kinds(ApiVersion::Core))])
}

/// `/apis` in the aggregated form.
pub fn aggregated_groups(form: AggregatedDiscovery) -> Value {
    let items = groups().map(|group| match group {
        GROUP => aggregated_item(group, aggregated_kinds(ApiVersion::Group)),
        events if events == ApiVersion::Events.group() => {
            aggregated_item(events, aggregated_kinds(ApiVersion::Events))
        }
        other => aggregated_item(other, aggregated_reviews(other)),
    });
    aggregated(form, items.collect())
}

fn groups() -> impl Iterator<Item = &'static str> {
    let mut groups: Vec<&str> = REVIEWS.into_iter().map(|review| review.group).collect();
    groups.dedup();
    [GROUP, ApiVersion::Events.group()].into_iter().chain(groups)
}

fn group_body(name: &str) -> Value {
    let version = json!({ "groupVersion": format!("{name}/v1"), "version": "v1" });
    json!({ "name": name, "versions": [version], "preferredVersion": version })
}

fn kind_resources(version: ApiVersion) -> Vec<Value> {
    let resources = |kind: Kind| {
        std::iter::once(kind_resource(kind, version)).chain(kind.has_status().then(|| status_resource(kind)))
    };
    kinds(version).flat_map(resources).collect()
}

fn kind_resource(kind: Kind, version: ApiVersion) -> Value {
    let mut resource = json!({
        "name": kind.plural(),
        "singularName": kind.singular(),
        "namespaced": kind.is_namespaced(),
        "kind": kind.name(),
        "verbs": verbs(kind),
    });
    name_shortly(&mut resource, kind, version);
    resource
}

fn kinds(version: ApiVersion) -> impl Iterator<Item = Kind> {
    Kind::SERVED.into_iter().filter(move |kind| kind.versions().contains(&version))
}

fn verbs(kind: Kind) -> &'static [&'static str] {
    if kind.is_read_only() { &READ_VERBS } else { &VERBS }
}

fn name_shortly(resource: &mut Value, kind: Kind, version: ApiVersion) {
    if version == ApiVersion::Group || !kind.is_ours() {
        resource["shortNames"] = json!([kind.short()]);
    }
    if version == ApiVersion::Group {
        resource["categories"] = json!([CATEGORY]);
    }
}

fn status_resource(kind: Kind) -> Value {
    json!({
        "name": format!("{}/status", kind.plural()),
        "singularName": "",
        "namespaced": false,
        "kind": kind.name(),
        "verbs": STATUS_VERBS,
    })
}

fn review_resources(group: &str) -> Option<Vec<Value>> {
    let of_group = REVIEWS.into_iter().filter(|review| review.group == group);
    let resource = |review: ReviewKind| {
        json!({
            "name": review.plural,
            "singularName": review.singular,
            "namespaced": false,
            "kind": review.kind,
            "verbs": ["create"],
        })
    };
    let resources: Vec<Value> = of_group.map(resource).collect();
    (!resources.is_empty()).then_some(resources)
}

fn aggregated(form: AggregatedDiscovery, items: Vec<Value>) -> Value {
    json!({
        "kind": "APIGroupDiscoveryList",
        "apiVersion": form.api_version(),
        "metadata": {},
        "items": items,
    })
}

fn aggregated_item(group: &str, resources: Vec<Value>) -> Value {
    let metadata = if group.is_empty() { json!({}) } else { json!({ "name": group }) };
    json!({
        "metadata": metadata,
        "versions": [{ "version": "v1", "resources": resources, "freshness": "Current" }],
    })
}

fn aggregated_kinds(version: ApiVersion) -> Vec<Value> {
    let resource = |kind: Kind| {
        let response_kind = json!({ "group": version.group(), "version": VERSION, "kind": kind.name() });
        let mut resource = json!({
            "resource": kind.plural(),
            "responseKind": response_kind,
            "scope": if kind.is_namespaced() { "Namespaced" } else { "Cluster" },
            "singularResource": kind.singular(),
            "verbs": verbs(kind),
        });
        if kind.has_status() {
            let status =
                json!({ "subresource": "status", "responseKind": response_kind, "verbs": STATUS_VERBS });
            resource["subresources"] = json!([status]);
        }
        name_shortly(&mut resource, kind, version);
        resource
    };
    kinds(version).map(resource).collect()
}

fn aggregated_reviews(group: &str) -> Vec<Value> {
    let of_group = REVIEWS.into_iter().filter(|review| review.group == group);
    let resource = |review: ReviewKind| {
        json!({
            "resource": review.plural,
            "responseKind": { "group": review.group, "version": "v1", "kind": review.kind },
            "scope": "Cluster",
            "singularResource": review.singular,
            "verbs": ["create"],
        })
    };
    of_group.map(resource).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_found_under_both_paths_and_short_names_under_one() {
        for kind in Kind::ALL {
            for (group, short) in [("", false), (GROUP, true)] {
                let list = resource_list(group).unwrap();
                let resources = list["resources"].as_array().unwrap();
                let found = resources.iter().find(|resource| resource["name"] == kind.plural()).unwrap();
                assert_eq!(found["kind"], kind.name());
                assert_eq!(found["shortNames"] == json!([kind.short()]), short);
                assert!(resources.iter().any(|r| r["name"] == format!("{}/status", kind.plural())));
            }
        }
        assert_eq!(resource_list("apps"), None);
    }

    #[test]
    fn the_kinds_of_kubernetes_are_told_as_kubernetes_tells_them() {
        let check = |group: &str, name: &str, namespaced: bool, writable: bool| {
            let list = resource_list(group).unwrap();
            let resources = list["resources"].as_array().unwrap();
            let found = resources.iter().find(|resource| resource["name"] == name).unwrap();
            assert_eq!(found["namespaced"], namespaced, "{group} {name}");
            let verbs = found["verbs"].as_array().unwrap();
            assert_eq!(verbs.contains(&json!("create")), writable, "{group} {name}");
            assert!(!resources.iter().any(|other| other["name"] == format!("{name}/status")));
        };
        check("", "namespaces", false, false);
        check("", "services", true, false);
        check("", "events", true, true);
        check("events.k8s.io", "events", true, true);
        assert_eq!(resource_list("events.k8s.io").unwrap()["groupVersion"], "events.k8s.io/v1");
    }

    #[test]
    fn both_forms_tell_the_same_resources() {
        let names = |resources: &Value, key: &str| {
            let names = resources.as_array().unwrap().iter().map(|r| r[key].as_str().unwrap().to_string());
            names.filter(|name| !name.contains('/')).collect::<Vec<_>>()
        };
        let all = aggregated_groups(AggregatedDiscovery::V2);
        for item in all["items"].as_array().unwrap() {
            let old = resource_list(item["metadata"]["name"].as_str().unwrap()).unwrap();
            let new = &item["versions"][0]["resources"];
            assert_eq!(names(&old["resources"], "name"), names(new, "resource"));
        }
        assert_eq!(all["items"].as_array().unwrap().len(), group_list()["groups"].as_array().unwrap().len());
        let core = aggregated_core(AggregatedDiscovery::V2Beta1);
        assert_eq!(core["apiVersion"], "apidiscovery.k8s.io/v2beta1");
        assert_eq!(core["items"][0]["metadata"], json!({}));
    }

    #[test]
    fn a_group_names_its_version() {
        assert_eq!(group(GROUP).unwrap()["preferredVersion"]["groupVersion"], "causeway.io/v1");
        assert_eq!(group("apps"), None);
    }
}
