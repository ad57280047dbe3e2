//! Changes that edges must live through: a new CA, and a cloud that came back from a backup.

use causeway_api::management::paths;
use serde_json::json;
use testlab::causeway::{Cloud, Process, run, wait_for};
use testlab::https::{Client, Request};

use crate::{GROUP, Lab, admin, authorities, call, edge_credentials, join_token, path, revision, site};

/// Waits until this process of the edge has renewed its certificate `count` times.
fn wait_for_renewals(edge: &Process, count: usize) {
    let news = "has a new certificate";
    wait_for(news, || (edge.log().matches(news).count() >= count).then_some(()))
        .unwrap_or_else(|error| panic!("{error}\n{}", edge.log()));
}

/// The gateway's own object, as the gateway.
fn own_object(lab: &Lab, admin: &Client) -> u16 {
    let client = admin.with_certificate(edge_credentials(&lab.path("edge"))).unwrap();
    client.get(&path("egateways", "oslo")).unwrap().code
}

#[test]
fn a_new_authority_costs_no_edge() {
    let lab = Lab::start();
    let edge = lab.join("edge", &join_token(&lab.admin, "oslo"));
    let old_kubeconfig = std::fs::read_to_string(lab.cloud.kubeconfig()).unwrap();
    let before = authorities(&lab.admin);
    // A connected edge renews at a random time in the next ten seconds. This one is away, so that it cannot be early.
    drop(edge);

    call(&lab.admin, "ca/rotate", &json!({"step": "start"}));
    // The old admin is still one, and so is the new one that stands in the file.
    assert_eq!(lab.admin.get(&format!("{GROUP}/esites")).unwrap().code, 200);
    let during = wait_for("the kubeconfig follows", || {
        let text = std::fs::read_to_string(lab.cloud.kubeconfig()).unwrap();
        (text != old_kubeconfig).then(|| admin(&lab.cloud))
    })
    .unwrap();
    assert_eq!(during.authorities().len(), 2);
    // No gateway is lost by haste: the edge has not come over yet.
    let early = during.post(paths::CA_ROTATE, &json!({"step": "finish"})).unwrap();
    assert_eq!(early.code, 409, "{}", early.text());
    assert!(early.text().contains("oslo"), "{}", early.text());

    let old_certificate = std::fs::read(lab.path("edge/identity.pem")).unwrap();
    // An edge that starts is told with its first session.
    let edge = lab.edge("edge", &[]);
    wait_for_renewals(&edge, 1);
    assert_ne!(std::fs::read(lab.path("edge/identity.pem")).unwrap(), old_certificate);
    assert_eq!(own_object(&lab, &during), 200);

    let finished = wait_for("the change can be finished", || {
        let answer = during.post(paths::CA_ROTATE, &json!({"step": "finish"})).unwrap();
        (answer.code == 200).then(|| answer.json())
    })
    .unwrap();
    let after = wait_for("the kubeconfig follows again", || {
        let client = admin(&lab.cloud);
        (client.authorities().len() == 1).then_some(client)
    })
    .unwrap();
    assert_ne!(authorities(&after), before, "{finished}");
    // The old admin is out: its CA is not trusted any more, and it trusts only the old one.
    let refused = wait_for("the old admin is out", || {
        let answer = lab.admin.get(&format!("{GROUP}/esites"));
        answer.map_or(true, |answer| answer.code == 401).then_some(())
    });
    refused.unwrap();
    // A connected edge is told at once: it trusts both CAs until it has renewed, then only the new one.
    wait_for_renewals(&edge, 2);
    assert_eq!(own_object(&lab, &after), 200);
    assert!(!edge.log().contains("refused the identity of this edge"), "{}", edge.log());
}

#[test]
fn a_restored_cloud_is_known_to_its_edges_and_not_to_old_watches() {
    let mut lab = Lab::start();
    let channel = lab.cloud.channel.to_string();
    let edge = lab.join("edge", &join_token(&lab.admin, "oslo"));
    lab.admin.post(&format!("{GROUP}/esites"), &site("kept")).unwrap().success().unwrap();
    let backup = lab.path("backup");
    let made = lab.cloud.run(&["backup", backup.to_str().unwrap()]).unwrap();
    assert_eq!(made.code, 0, "{}", made.stderr);
    let authority = authorities(&lab.admin);
    lab.admin.post(&format!("{GROUP}/esites"), &site("lost")).unwrap().success().unwrap();
    let seen = revision(&lab.admin);
    drop(edge);
    lab.cloud.process.terminate().unwrap();

    let elsewhere = lab.path("elsewhere");
    std::fs::create_dir_all(&elsewhere).unwrap();
    std::fs::copy(lab.path("cloud/seal.key"), elsewhere.join("seal.key")).unwrap();
    let folder = elsewhere.to_str().unwrap();
    let restored =
        run(&["restore", backup.to_str().unwrap(), "--data-dir", folder]).unwrap().success().unwrap();
    assert!(restored.contains("epoch 2"), "{restored}");

    // The same channel address: edges dial where they dialled before.
    let cloud = Cloud::start_with(&elsewhere, &["--channel", &channel]).unwrap();
    let client = admin(&cloud);
    assert_eq!(authorities(&client), authority);
    assert_eq!(client.get(&path("esites", "kept")).unwrap().code, 200);
    assert_eq!(client.get(&path("esites", "lost")).unwrap().code, 404);

    // A revision that a client saw before must not pass for something newer: the watch is told to list anew.
    let old = client.get(&format!("{GROUP}/esites?watch=1&timeoutSeconds=5&resourceVersion={seen}")).unwrap();
    let gone = old.code == 410 || old.text().contains("\"code\":410");
    assert!(gone, "{}: {}", old.code, old.text());
    let fresh = revision(&client);
    assert!(fresh > seen, "revision {fresh} after {seen}: numbers are never given twice");

    let edge = lab.edge("edge", &[]);
    wait_for("the edge runs", || edge.log().contains("the edge runs").then_some(())).unwrap();
    assert_eq!(own_object(&lab, &client), 200);
    assert!(!edge.log().contains("refused the identity of this edge"), "{}", edge.log());
}

#[test]
fn a_deleted_gateway_is_out_and_comes_back_only_with_a_new_token() {
    let lab = Lab::start();
    let mut edge = lab.join("edge", &join_token(&lab.admin, "oslo"));
    edge.terminate().unwrap();
    let unused = call(&lab.admin, "tokens", &json!({"site": "oslo", "replace": true}));
    let unused = unused["token"].as_str().unwrap().to_owned();
    assert_eq!(own_object(&lab, &lab.admin), 200);

    // The gateway has left, but not for long enough to be called away: its deletion must be meant.
    let allow = serde_json::json!({"metadata": {"annotations": {"causeway.io/allow-delete": "true"}}});
    let allow = Request::new("PATCH", &path("egateways", "oslo"))
        .body("application/merge-patch+json", allow.to_string());
    lab.admin.send(&allow).unwrap().success().unwrap();
    let deleted = lab.admin.send(&Request::new("DELETE", &path("egateways", "oslo"))).unwrap();
    deleted.success().unwrap();
    // Not 404: the key itself is no longer believed.
    wait_for("the key is refused", || (own_object(&lab, &lab.admin) == 401).then_some(())).unwrap();
    let mut late = lab.edge("late", &["--join", &unused]);
    wait_for("its tokens are refused", || {
        (late.ended().is_some() || late.log().contains("was deleted")).then_some(())
    })
    .unwrap_or_else(|error| panic!("{error}\n{}", late.log()));
    assert!(!lab.path("late/identity.pem").exists(), "{}", late.log());

    // The object alone does not bring it back; a new token does, with a new key.
    let token = join_token(&lab.admin, "oslo");
    assert_eq!(own_object(&lab, &lab.admin), 401);
    let _edge = lab.join("new", &token);
    let client = lab.admin.with_certificate(edge_credentials(&lab.path("new"))).unwrap();
    assert_eq!(client.get(&path("egateways", "oslo")).unwrap().code, 200);
    assert_eq!(own_object(&lab, &lab.admin), 401);
}
