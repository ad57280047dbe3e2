//! Discovery by kubectl: resources, versions, the meaning of fields, raw paths.

use serde_json::Value;

use crate::each_kubectl;
use crate::kubectl::Expected::{Prints, Refused, Shows};

const KINDS: [(&str, &str, &str); 8] = [
    ("esites", "est", "ESite"),
    ("egateways", "egw", "EGateway"),
    ("eservices", "esvc", "EService"),
    ("eservers", "esrv", "EServer"),
    ("epolicies", "epol", "EPolicy"),
    ("serviceexposes", "sx", "ServiceExpose"),
    ("virtualpresences", "vp", "VirtualPresence"),
    ("ecommunities", "ecom", "ECommunity"),
];

#[test]
fn every_kind_is_listed_in_both_groups_with_its_short_name() {
    each_kubectl(|_, kubectl| {
        let table = kubectl.ok("api-resources --no-headers");
        let rows: Vec<Vec<&str>> =
            table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>()).collect();
        for (plural, short, kind) in KINDS {
            for expected in
                [vec![plural, "v1", "false", kind], vec![plural, short, "causeway.io/v1", "false", kind]]
            {
                assert!(rows.contains(&expected), "{expected:?} is missing in\n{table}");
            }
        }
        let names = KINDS.map(|(plural, _, _)| format!("{plural}.causeway.io"));
        kubectl.row(
            "one group can be asked for",
            "api-resources --api-group=causeway.io -o name",
            Shows(&names.each_ref().map(String::as_str)),
        );
        kubectl.row(
            "verbs are told",
            "api-resources --api-group=causeway.io -o wide",
            Shows(&["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]),
        );
        kubectl.row("both groups have their version", "api-versions", Shows(&["causeway.io/v1\n", "\nv1\n"]));
    });
}

#[test]
fn fields_are_explained_from_the_schema() {
    each_kubectl(|_, kubectl| {
        kubectl.row(
            "a field has its type and its meaning",
            "explain serviceexpose.ePolicys",
            Shows(&["ServiceExpose", "ePolicys", "<[]string>", "subjects to use it"]),
        );
        kubectl.row(
            "all fields are shown at once",
            "explain serviceexpose --recursive",
            Shows(&["eServiceName", "dnsName", "eSites", "ePolicys", "conditions", "lastTransitionTime"]),
        );
        kubectl.row(
            "the core path explains itself too",
            "explain esite.subnets --api-version=v1",
            Shows(&["ESite", "v1", "subnets", "CIDRs"]),
        );
        kubectl.row(
            "nested fields are found",
            "explain eservice.healthCheck.intervalSeconds --api-version=causeway.io/v1",
            Shows(&["intervalSeconds", "<integer>"]),
        );
        kubectl.row("a short name is enough", "explain epol.limits", Shows(&["connectionsPerSecond"]));
        kubectl.row(
            "a field that does not exist is said so",
            "explain esite.colour",
            Refused(&["field \"colour\" does not exist"]),
        );
        for (_, short, kind) in KINDS {
            kubectl.row("every kind explains itself", &format!("explain {short}"), Shows(&[kind, "status"]));
        }
    });
}

#[test]
fn raw_paths_answer_as_they_do_in_kubernetes() {
    each_kubectl(|_, kubectl| {
        kubectl.row("it is ready", "get --raw /readyz", Prints("ok"));
        kubectl.row("it lives", "get --raw /livez", Prints("ok"));
        kubectl.row("it is healthy", "get --raw /healthz", Prints("ok"));
        kubectl.row(
            "it has a version",
            "get --raw /version",
            Shows(&["gitVersion", "\"major\"", "\"minor\""]),
        );
        kubectl.row("groups are listed", "get --raw /apis", Shows(&["APIGroupList", "causeway.io/v1"]));
        kubectl.row(
            "OpenAPI v3 has an index",
            "get --raw /openapi/v3",
            Shows(&["apis/causeway.io/v1", "api/v1"]),
        );
        kubectl.row("OpenAPI v2 is whole", "get --raw /openapi/v2", Shows(&["\"swagger\"", "ePolicys"]));
        kubectl.row(
            "an object has its path",
            "get --raw /apis/causeway.io/v1/esites/cloud",
            Shows(&["\"kind\":\"ESite\"", "\"apiVersion\":\"causeway.io/v1\""]),
        );
        kubectl.row(
            "the same object has its core path",
            "get --raw /api/v1/esites/cloud",
            Shows(&["\"kind\":\"ESite\"", "\"apiVersion\":\"v1\""]),
        );
        kubectl.row("a path that is none is not found", "get --raw /nowhere", Refused(&["NotFound"]));
        kubectl.row("both versions are told", "version", Shows(&["Client Version", "Server Version"]));
        let index: Value = serde_json::from_str(&kubectl.ok("get --raw /openapi/v3")).unwrap();
        let path = index["paths"]["apis/causeway.io/v1"]["serverRelativeURL"].as_str().unwrap();
        kubectl.row(
            "the index leads to the document",
            &format!("get --raw {path}"),
            Shows(&["\"openapi\"", "x-kubernetes-group-version-kind", "ePolicys"]),
        );
    });
}
