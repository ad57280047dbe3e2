//! Callers of the Kubernetes API at the edge: each reads what its own rights allow, with and without the cloud.

use serde_json::{Value, json};
use testlab::causeway::wait_for;

use crate::edge_api::{EdgeLab, missing};

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
    let servers = "---\n{kind: ESite, apiVersion: causeway.io/v1, metadata: {name: Tokyo}, cache: [{resource: v1/namespaces}]}\n\
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
