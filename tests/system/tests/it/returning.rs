//! A store that was lost or put back: the fleet is not replaced, and what was thrown out stays out. Data dirs have one role.

use std::path::Path;

use testlab::causeway::{Cloud, Process, Ran, run, wait_for};

use crate::Lab;

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn lose_store(data_dir: &Path) {
    for name in ["store.db", "store.db-wal", "store.db-shm"] {
        let _ = std::fs::remove_file(data_dir.join(name));
    }
}

fn ends(mut process: Process) -> String {
    let status = wait_for("the process ends", || process.ended()).unwrap();
    assert_eq!(status.code(), Some(1), "{}", process.log());
    process.log()
}

#[track_caller]
fn says(log: &str, parts: &[&str]) {
    for part in parts {
        assert!(log.contains(part), "{part} is missing in {log}");
    }
}

#[test]
fn a_lost_store_is_no_first_start_and_a_restore_does_not_unrevoke() {
    let mut lab = Lab::start();
    let token = lab.run(&["token", "create", "--site", "Oslo"]);
    let mut edge = lab.join("edge", token.trim());
    edge.terminate().unwrap();
    let unused = lab.run(&["token", "create", "--site", "Rome"]);
    let viewer = lab.run(&["token", "create", "--role", "viewer", "--json"]);
    let viewer: serde_json::Value = serde_json::from_str(&viewer).unwrap();
    let backup = lab.path("backup");
    lab.run(&["backup", text(&backup)]);
    lab.run(&["revoke", "Oslo"]);
    lab.run(&["token", "delete", viewer["id"].as_str().unwrap()]);
    let mut user = lab.join("user", unused.trim());
    user.terminate().unwrap();
    let log = std::fs::read_to_string(lab.path("cloud/revocations.jsonl")).unwrap();
    says(&log, &["\"kind\":\"key\"", "\"kind\":\"api-token\""]);
    assert_eq!(lab.cloud.process.terminate().unwrap().code(), Some(0));

    let (data_dir, kubeconfig) = (lab.path("cloud"), lab.path("cloud/admin.kubeconfig"));
    let before = std::fs::read_to_string(&kubeconfig).unwrap();
    lose_store(&data_dir);
    let refused = ends(Cloud::spawn(&data_dir, &[]).unwrap());
    says(&refused, &["seal.key, admin.kubeconfig", "causeway restore", "--new-fleet"]);
    assert_eq!(std::fs::read_to_string(&kubeconfig).unwrap(), before);

    let restore = |folder: &Path, more: &[&str]| -> Ran {
        run(&[&["restore", text(&backup), "--data-dir", text(folder)], more].concat()).unwrap()
    };
    // On another host without the log: it is said what that means. With it: it is applied and kept.
    let alone = restore(&lab.path("alone"), &[]);
    assert_eq!(alone.code, 0, "{}", alone.stderr);
    says(&alone.stderr, &["no revocation log", "believed again", "--list"]);
    let elsewhere = lab.path("elsewhere");
    let given = restore(&elsewhere, &["--revocations", text(&lab.path("cloud/revocations.jsonl"))]);
    says(&given.success().unwrap(), &["the store is as it was at 20", "1 gateways revoked: Oslo"]);
    assert!(elsewhere.join("revocations.jsonl").exists());

    let restored = restore(&data_dir, &[]).success().unwrap();
    says(
        &restored,
        &["ago", "1 gateways revoked: Oslo", "1 join tokens used or closed", "1 API tokens deleted"],
    );
    lab.cloud = Cloud::start_with(&data_dir, &["--channel", &lab.cloud.channel.to_string()]).unwrap();
    assert!(!lab.run(&["token", "list"]).contains("role viewer"));
    let thief = lab.edge("thief", &["--join", unused.trim()]);
    says(&ends(thief), &["already used"]);
    let revoked = lab.edge("edge", &[]);
    says(&ends(revoked), &["revoked"]);
}

#[test]
fn a_store_put_back_as_an_older_file_does_not_unrevoke() {
    let mut lab = Lab::start();
    let token = lab.run(&["token", "create", "--site", "Oslo"]);
    lab.join("edge", token.trim()).terminate().unwrap();
    lab.cloud.process.terminate().unwrap();
    let copy = lab.path("copy.db");
    std::fs::copy(lab.path("cloud/store.db"), &copy).unwrap();
    let channel = lab.cloud.channel.to_string();
    lab.cloud = Cloud::start_with(&lab.path("cloud"), &["--channel", &channel]).unwrap();
    lab.run(&["revoke", "Oslo"]);
    lab.cloud.process.terminate().unwrap();
    lose_store(&lab.path("cloud"));
    std::fs::copy(&copy, lab.path("cloud/store.db")).unwrap();
    lab.cloud = Cloud::start_with(&lab.path("cloud"), &["--channel", &channel]).unwrap();
    says(&lab.cloud.process.log(), &["put back from an older copy"]);
    let revoked = lab.edge("edge", &[]);
    says(&ends(revoked), &["revoked"]);
}

#[test]
fn a_data_dir_has_one_role() {
    let mut lab = Lab::start();
    let token = lab.run(&["token", "create", "--site", "Oslo"]);
    lab.join("edge", token.trim()).terminate().unwrap();
    lab.cloud.process.terminate().unwrap();
    let cloud_on_edge = || ends(Cloud::spawn(&lab.path("edge"), &[]).unwrap());
    let edge_on_cloud = || ends(lab.edge("cloud", &[]));
    says(&cloud_on_edge(), &["belongs to an edge", "causeway edge", "--data-dir"]);
    says(&edge_on_cloud(), &["belongs to a cloud", "causeway cloud", "--data-dir"]);
    // Data dirs of older programs have no marker.
    for name in ["edge", "cloud"] {
        std::fs::remove_file(lab.path(name).join("role")).unwrap();
    }
    says(&cloud_on_edge(), &["identity.pem"]);
    says(&edge_on_cloud(), &["seal.key"]);
    assert!(!lab.path("edge/store.db").exists() && !lab.path("cloud/identity.pem").exists());
    lab.cloud = Cloud::start(&lab.path("cloud")).unwrap();
}
