//! Callers of the Kubernetes API at the edge: each reads what its own rights allow, with and without the cloud.

use std::time::Duration;

use serde_json::{Value, json};
use testlab::causeway::{Ran, wait_for};

use crate::edge_api::{EdgeLab, missing};
use crate::kubectl::Kubectl;

/// The deadline for a right that is taken away.
const HELD_WITHIN: Duration = Duration::from_secs(30);
const MAP: &str = "/api/v1/namespaces/default/configmaps/map-1";

fn service_account_token(lab: &EdgeLab, name: &str) -> String {
    let request = json!({"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "spec": {}});
    let file = lab.folder.path().join("token-request.json");
    std::fs::write(&file, request.to_string()).unwrap();
    let path = format!("/api/v1/namespaces/default/serviceaccounts/{name}/token");
    let answer = lab.direct().ok(&format!("create --raw {path} -f {}", file.display()));
    let answer: Value = serde_json::from_str(&answer).unwrap();
    answer["status"]["token"].as_str().unwrap().to_owned()
}

#[test]
fn callers_read_by_their_own_rights_with_and_without_the_cloud() {
    if let Some(reason) = missing() {
        println!("SKIPPED: callers of the Kubernetes API at the edge: {reason}");
        return;
    }
    let mut lab = EdgeLab::start();
    let direct = lab.direct();
    lab.config_map("map-1", "first");
    for line in [
        "create serviceaccount till",
        "create serviceaccount other",
        "create role reader --verb=get,list,watch --resource=configmaps",
        "create rolebinding till --role=reader --serviceaccount=default:till",
    ] {
        direct.ok(line);
    }
    let servers = "---\n{kind: ESite, apiVersion: causeway.io/v1, metadata: {name: Tokyo}, cache: [{resource: v1/namespaces}, {resource: v1/configmaps, namespace: default}]}\n\
         ---\n{kind: ESite, apiVersion: causeway.io/v1, metadata: {name: Osaka}}\n\
         ---\n{kind: EServer, apiVersion: causeway.io/v1, metadata: {name: node-a}, ip: 10.0.0.2, eSiteName: Tokyo}\n\
         ---\n{kind: EServer, apiVersion: causeway.io/v1, metadata: {name: node-b}, ip: 10.0.0.2, eSiteName: Osaka}\n";
    lab.cloud.apply(servers).unwrap();
    let (till, other) = (service_account_token(&lab, "till"), service_account_token(&lab, "other"));
    let forged = format!("{}AAAA", &till[..till.len() - 4]);
    let check = |lab: &EdgeLab, online: bool| {
        let get = |token: &str| lab.through_edge(token).run(&format!("get --raw {MAP}"));
        let seen = get(&till);
        assert!(seen.code == 0 && seen.stdout.contains("first"), "online {online}: {seen:?}");
        let denied = |token: &str, expected: &str| {
            let seen = get(token);
            assert!(
                seen.code != 0 && seen.stderr.contains(expected),
                "online {online}, {expected}: {seen:?}"
            );
        };
        denied(&other, "Forbidden");
        denied(&forged, "must be logged in");
        denied("nonsense", "must be logged in");
    };
    // The first read passes through; the second one is local.
    lab.through_edge(&till).ok(&format!("get --raw {MAP}"));
    lab.await_live("configmaps");
    check(&lab, true);

    // A node acts under its own name, from its own site only.
    let pods = "get --raw '/api/v1/pods?fieldSelector=spec.nodeName%3Dnode-a'";
    let node = lab.as_certified("system:node:node-a", "system:nodes");
    wait_for("the edge knows the CA of client certificates", || node.run(pods).success().ok())
        .unwrap_or_else(|error| panic!("{error}: {:?}\n{}", node.run(pods), lab.edge.log()));
    lab.await_live("pods");
    assert!(node.ok(pods).contains("PodList"));
    let refused = node.run(&format!("get --raw {MAP}"));
    assert!(
        refused.code != 0 && refused.stderr.contains("Forbidden"),
        "no pod of the node uses it: {refused:?}"
    );
    let stranger =
        lab.as_certified("system:node:node-b", "system:nodes").run("get --raw /api/v1/nodes/node-b");
    assert!(
        stranger.code != 0 && stranger.stderr.contains("Forbidden"),
        "a node of another site: {stranger:?}"
    );
    let admin = lab.as_certified("root", "system:masters").run("get --raw /api/v1/secrets");
    assert!(
        admin.code != 0 && admin.stderr.contains("Forbidden"),
        "no certificate but a node's passes: {admin:?}"
    );

    a_removed_binding_holds_soon(&lab, &till);
    check(&lab, true);

    lab.relay.cut();
    wait_for("the edge knows that the link is cut", || {
        lab.resource("configmaps").filter(|entry| entry["live"] == false).map(drop)
    })
    .unwrap();
    check(&lab, false);
    assert!(node.ok(pods).contains("PodList"));
    lab.restart_edge();
    check(&lab, false);
    assert!(lab.as_certified("system:node:node-a", "system:nodes").ok(pods).contains("PodList"));

    // A resource that the cloud pinned meanwhile is held from the next link on, although no client asked for it.
    assert!(lab.resource("namespaces").is_none());
    lab.relay.restore();
    lab.await_live("namespaces");
}

/// Takes a right away while its copy is in use, and gives it back.
fn a_removed_binding_holds_soon(lab: &EdgeLab, till: &str) {
    let (direct, caller) = (lab.direct(), lab.through_edge(till));
    let read = format!("get --raw {MAP}");
    // The second read counts on the stream of decisions, when the first one has asked.
    caller.ok(&read);
    caller.ok(&read);
    let since = std::time::Instant::now();
    direct.ok("delete rolebinding till");
    // By the age of the answer it would take a minute.
    let is_refused = || {
        let seen = caller.run(&read);
        seen.code != 0 && seen.stderr.contains("Forbidden")
    };
    while !is_refused() {
        let waited = since.elapsed();
        assert!(waited < HELD_WITHIN, "{waited:?}\n{}\n{}", lab.edge.log(), lab.cloud.process.log());
    }
    println!("a removed RoleBinding held at the edge after {:?}", since.elapsed());
    direct.ok("create rolebinding till --role=reader --serviceaccount=default:till");
    wait_for("the edge answers the caller again", || caller.run(&read).success().ok()).unwrap();
    lab.await_live("configmaps");
}

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// Creates a ConfigMap through a kubectl; the code and the text of the answer.
fn create(lab: &EdgeLab, kubectl: &Kubectl, name: &str) -> Ran {
    let object = json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": name}, "data": {"from": "site"}});
    let file = lab.folder.path().join(format!("{name}.json"));
    std::fs::write(&file, object.to_string()).unwrap();
    kubectl.run(&format!("create --raw {MAPS} -f {}", file.display()))
}

fn patch(kubectl: &Kubectl, name: &str, field: &str) -> Ran {
    kubectl.run(&format!("patch configmap {name} --type=merge -p {{\"data\":{{\"{field}\":\"site\"}}}}"))
}

#[test]
fn listed_resources_are_written_without_the_cloud_and_sent_under_the_same_caller() {
    if let Some(reason) = missing() {
        println!("SKIPPED: writes of listed resources at the edge: {reason}");
        return;
    }
    let mut lab = EdgeLab::start_with(&[
        ("CAUSEWAY_KUBERNETES_OFFLINE_WRITES", "v1/configmaps"),
        ("CAUSEWAY_KUBERNETES_PIN", "v1/services"),
        ("CAUSEWAY_KUBERNETES_PIN_NODE", "node-a"),
    ]);
    let direct = lab.direct();
    for line in [
        "create serviceaccount till",
        "create serviceaccount other",
        "create role writer --verb=get,list,watch,create,patch,delete --resource=configmaps",
        "create rolebinding till --role=writer --serviceaccount=default:till",
        "create rolebinding other --role=writer --serviceaccount=default:other",
        "create serviceaccount narrow",
        "create role reader --verb=get,list,watch --resource=configmaps",
        "create role narrow --verb=patch --resource=configmaps --resource-name=kept",
        "create rolebinding narrow --role=narrow --serviceaccount=default:narrow",
        "create rolebinding reading --role=reader --serviceaccount=default:narrow",
    ] {
        direct.ok(line);
    }
    let servers = "---\n{kind: EServer, apiVersion: causeway.io/v1, metadata: {name: node-a}, ip: 10.0.0.2, eSiteName: Tokyo}\n";
    lab.cloud.apply(servers).unwrap();
    let (till, other) = (service_account_token(&lab, "till"), service_account_token(&lab, "other"));
    let (caller, stranger) = (lab.through_edge(&till), lab.through_edge(&other));
    // Rights are known from writes that the API server answered.
    for name in ["kept", "lost", "removed", "spare"] {
        create(&lab, &caller, name).success().unwrap();
    }
    patch(&caller, "kept", "before").success().unwrap();
    caller.ok(&format!("delete --raw {MAPS}/spare"));
    let narrow = lab.through_edge(&service_account_token(&lab, "narrow"));
    patch(&narrow, "kept", "before").success().unwrap();
    caller.ok("get configmaps -o name");
    stranger.ok("get configmaps -o name");
    // kubectl reads an object before it patches it. A right counts without the cloud when it was used with it, also for a name that is new.
    assert!(caller.run("get configmap new").stderr.contains("not found"));
    caller.ok("get configmap lost -o name");
    narrow.ok("get configmap lost -o name");
    lab.await_live("configmaps");

    lab.relay.cut();
    wait_for("the edge knows that the link is cut", || {
        lab.resource("configmaps").filter(|entry| entry["live"] == false).map(drop)
    })
    .unwrap();
    for name in ["new", "met", "taken"] {
        create(&lab, &caller, name).success().unwrap();
    }
    // An earlier attempt may have reached the API server, and its answer was lost with the link: the object has the written fields.
    direct.ok("create configmap met --from-literal=from=site");
    direct.ok("create configmap taken --from-literal=from=cluster");
    patch(&caller, "kept", "during").success().unwrap();
    patch(&caller, "lost", "during").success().unwrap();
    caller.ok(&format!("delete --raw {MAPS}/removed"));
    let refused = create(&lab, &stranger, "stranger");
    assert!(refused.code != 0, "it has made no such write before: {refused:?}");
    let again = create(&lab, &caller, "new");
    assert!(again.code != 0 && again.stderr.contains("already exists"), "{again:?}");
    let elsewhere = patch(&narrow, "lost", "narrow");
    let is_refused = elsewhere.code != 0 && elsewhere.stderr.contains("no such write");
    assert!(is_refused, "its role names another object: {elsewhere:?}");
    // The cluster goes on.
    direct.ok("patch configmap kept --type=merge -p {\"data\":{\"cluster\":\"yes\"}}");
    direct.ok("delete configmap lost");
    let seen = |lab: &EdgeLab| {
        let caller = lab.through_edge(&till);
        let new: Value = serde_json::from_str(&caller.ok("get configmap new -o json")).unwrap();
        assert!(new["metadata"]["annotations"]["causeway.io/pending"].is_string(), "{new}");
        let names = caller.ok("get configmaps -o name");
        assert!(names.contains("configmap/new") && !names.contains("configmap/removed"), "{names}");
        assert!(caller.ok("get configmap kept -o json").contains("during"));
    };
    seen(&lab);
    lab.restart_edge();
    seen(&lab);

    lab.relay.restore();
    wait_for("the log is sent", || {
        lab.dump().filter(|dump| dump["writes"]["pending"] == 0 && dump["connected"] == true)
    })
    .unwrap_or_else(|error| {
        panic!("{error}: {}\n{}", lab.dump().unwrap_or_default()["writes"], lab.edge.log())
    });
    let kept = direct.ok("get configmap kept -o json");
    for field in ["before", "during", "cluster"] {
        assert!(kept.contains(field), "both sides changed it: {kept}");
    }
    let names = direct.ok("get configmaps -o name");
    assert!(names.contains("configmap/new") && !names.contains("configmap/removed"), "{names}");
    assert!(!names.contains("configmap/lost") && !names.contains("configmap/stranger"), "{names}");
    let writes = lab.dump().unwrap()["writes"].clone();
    let refusals = writes["refusals"].to_string();
    assert!(
        writes["dropped"] == 2 && refusals.contains("default/lost") && refusals.contains("default/taken"),
        "the conflicts are reported, and an object with the written fields is none: {writes}"
    );
    let new: Value = serde_json::from_str(&direct.ok("get configmap new -o json")).unwrap();
    assert!(new["metadata"]["annotations"].is_null(), "the mark stays at the site: {new}");
    let services = wait_for("the pinned resource is held", || {
        lab.resource("services").filter(|entry| entry["live"] == true)
    });
    assert_eq!(services.unwrap()["pinnedBy"], "edge");
}
