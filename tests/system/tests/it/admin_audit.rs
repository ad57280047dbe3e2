//! Every administrative change is found with `causeway audit --admin`: objects, tokens, revocations, backups, steps of the CA.

use causeway_api::management::paths;
use serde_json::Value;
use testlab::causeway::wait_for;
use testlab::https::{Client, Request};

use crate::Lab;

/// The records that these filters select.
fn told(lab: &Lab, filters: &[&str]) -> Vec<Value> {
    let ran = lab.cloud.run(&[&["audit", "--admin", "--json"], filters].concat()).unwrap();
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    ran.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn everything_an_administrator_does_is_recorded_with_its_actor() {
    let mut lab = Lab::start();
    let site = "apiVersion: causeway.io/v1\nkind: ESite\nmetadata: {name: Oslo, labels: {a: secret-value}}\n";
    lab.cloud.apply(site).unwrap().success().unwrap();
    let token = lab.run(&["token", "create", "--site", "Oslo"]);
    let _edge = lab.join("edge", token.trim());
    lab.run(&["revoke", "Oslo"]);
    let file = lab.path("backup.jsonl");
    lab.run(&["backup", file.to_str().unwrap()]);
    lab.run(&["ca", "rotate"]);
    lab.cloud
        .apply("apiVersion: causeway.io/v1\nkind: ESite\nmetadata: {name: gone}\n")
        .unwrap()
        .success()
        .unwrap();
    lab.run(&["delete", "esite", "gone"]);
    let expected = [
        ("create", "JoinToken", 201),
        ("revoke", "EGateway", 200),
        ("backup", "Store", 200),
        ("rotate-start", "CertificateAuthority", 200),
        ("delete", "ESite", 200),
    ];
    for (verb, kind, code) in expected {
        let line = wait_for(verb, || told(&lab, &["--verb", verb, "--kind", kind]).pop()).unwrap();
        assert_eq!(line["code"], code, "{line}");
        let credential = line["credential"]["kind"].as_str();
        assert!(
            line["user"].as_str().is_some_and(|user| !user.is_empty()) && credential == Some("certificate"),
            "{line}"
        );
    }
    let applied = told(&lab, &["--kind", "ESite", "--name", "Oslo"]);
    assert!(
        applied[0]["changed"].as_array().unwrap().contains(&"metadata.labels.a".into()),
        "{}",
        applied[0]
    );
    // The objects that `token create` makes are recorded under the user who called it.
    let made = told(&lab, &["--kind", "EGateway", "--name", "Oslo", "--verb", "create"]);
    let token_made = told(&lab, &["--kind", "JoinToken", "--verb", "create"]);
    assert_eq!(made.len(), 1, "{made:?}");
    assert_eq!((&made[0]["user"], &made[0]["code"]), (&token_made[0]["user"], &201.into()), "{made:?}");
    assert_eq!(made[0]["credential"], token_made[0]["credential"]);
    // Controllers are named, and only their first few writes of a kind have lines of their own.
    assert!(!told(&lab, &["--user", "system:causeway-cloud"]).is_empty());
    let ran = lab.cloud.run(&["audit", "--admin"]).unwrap();
    assert!(
        ran.stdout.contains("JoinToken") && ran.stderr.contains("0 lost"),
        "{} {}",
        ran.stdout,
        ran.stderr
    );
    lab.cloud.process.terminate().unwrap();
    let text = std::fs::read_to_string(lab.path("cloud/audit/admin.jsonl")).unwrap();
    let secret = token.trim().rsplit('.').next().unwrap();
    assert!(!text.contains("secret-value") && !text.contains(secret), "no values, no secrets");
}

#[test]
fn refusals_do_not_push_out_what_administrators_did_and_viewers_do_not_read_it() {
    let lab = Lab::start();
    lab.cloud
        .apply("apiVersion: causeway.io/v1\nkind: ESite\nmetadata: {name: first}\n")
        .unwrap()
        .success()
        .unwrap();
    let viewer = lab.run(&["token", "create", "--role", "viewer"]);
    let admin = Client::from_kubeconfig(&lab.cloud.kubeconfig()).unwrap();
    let viewer = admin.with_bearer(viewer.trim()).unwrap();
    for number in 0..60 {
        let path = format!("/apis/causeway.io/v1/esites/{number}");
        assert_eq!(viewer.send(&Request::new("DELETE", &path)).unwrap().code, 403);
    }
    assert_eq!(viewer.get(paths::ADMIN_AUDIT).unwrap().code, 403);
    wait_for("the first five have lines", || (told(&lab, &["--verb", "delete"]).len() >= 5).then_some(()))
        .unwrap();
    let refused = told(&lab, &["--verb", "delete"]);
    assert!(refused.len() <= 7, "the others are told as a count: {refused:?}");
    assert_eq!(told(&lab, &["--name", "first"]).len(), 1);
}
