//! Acknowledged writes stay: restarts, crashes, backups.

use std::os::unix::fs::PermissionsExt;

use testlab::causeway::{Cloud, run};

use crate::{Lab, examples, site};

#[test]
fn a_restart_keeps_everything() {
    let mut lab = Lab::start();
    lab.run(&["apply", "-f", &examples()]);
    wait_until_presented(&lab);
    let token = lab.run(&["token", "create", "--site", "Oslo"]);
    let before = lab.run(&["get", "all", "-o", "json"]);
    let authority = lab.run(&["ca", "show"]);
    let kubeconfig = std::fs::read_to_string(lab.cloud.kubeconfig()).unwrap();
    assert_eq!(lab.cloud.process.terminate().unwrap().code(), Some(0), "{}", lab.cloud.process.log());

    lab.cloud = Cloud::start(&lab.path("cloud")).unwrap();
    // Same objects at the same revisions: nothing was written because of the restart, except perhaps
    // conditions that were still on their way.
    let objects = |text: &str| -> serde_json::Value {
        let mut list: serde_json::Value = serde_json::from_str(text).unwrap();
        for item in list["items"].as_array_mut().unwrap() {
            item["metadata"]["resourceVersion"] = "".into();
            item["status"] = "".into();
        }
        list
    };
    assert_eq!(objects(&lab.run(&["get", "all", "-o", "json"])), objects(&before));
    assert_eq!(lab.run(&["ca", "show"]), authority);
    assert!(!token.is_empty() && lab.run(&["token", "list"]).contains("site Oslo"));
    // The port is another, so the kubeconfig is; the authority is not.
    let authority_of = |text: &str| -> String {
        text.lines().find(|line| line.contains("certificate-authority-data")).unwrap().to_owned()
    };
    let kubeconfig_after = std::fs::read_to_string(lab.cloud.kubeconfig()).unwrap();
    assert_eq!(authority_of(&kubeconfig_after), authority_of(&kubeconfig));
}

/// Until every exposure of the examples has its addresses: nothing is on its way any more.
fn wait_until_presented(lab: &Lab) {
    let names = lab.run(&["get", "sx", "-o", "name"]);
    for name in names.lines().filter_map(|line| line.split_once('/')).map(|(_, name)| name) {
        lab.cloud.wait_condition("sx", name, "Ready", "True").unwrap();
    }
}

#[test]
fn an_acknowledged_write_survives_kill_nine() {
    let mut lab = Lab::start();
    for round in 0..3 {
        let name = format!("site-{round}");
        assert_eq!(lab.apply(&site(&name)), format!("esite/{name} created\n"));
        lab.cloud.process.kill().unwrap();
        lab.cloud = Cloud::start(&lab.path("cloud")).unwrap();
        for earlier in 0..=round {
            assert!(lab.cloud.object("esite", &format!("site-{earlier}")).is_some(), "site-{earlier}");
        }
    }
}

#[test]
fn a_data_dir_belongs_to_one_process() {
    let lab = Lab::start();
    let mut second = Cloud::spawn(&lab.path("cloud"), &[]).unwrap();
    // Its log replaces the first one's file; the first keeps writing to its own.
    let status = testlab::causeway::wait_for("the second cloud ends", || second.ended()).unwrap();
    assert_eq!(status.code(), Some(1));
    assert!(second.log().contains(&format!("process {}", lab.cloud.process.pid())), "{}", second.log());
    assert_eq!(lab.run(&["get", "esites", "-o", "name"]), "esite/cloud\n");
}

#[test]
fn a_backup_brings_everything_back_elsewhere() {
    let lab = Lab::start();
    lab.run(&["apply", "-f", &examples()]);
    lab.run(&["token", "create", "--site", "Oslo"]);
    wait_until_presented(&lab);
    let backup = lab.path("causeway.backup");
    let backup = backup.to_str().unwrap();
    let made = lab.cloud.run(&["backup", backup]).unwrap();
    assert_eq!(made.code, 0, "{}", made.stderr);
    assert!(made.stderr.contains("objects") && made.stderr.contains("revision"), "{}", made.stderr);
    let seal_key = lab.path("cloud/seal.key").display().to_string();
    assert!(made.stderr.contains(&format!("Copy {seal_key}")), "{}", made.stderr);
    assert_eq!(std::fs::metadata(backup).unwrap().permissions().mode() & 0o777, 0o600);
    let piped = lab.run(&["backup", "-"]);
    assert_eq!(piped.lines().count(), std::fs::read_to_string(backup).unwrap().lines().count());
    let names = lab.run(&["get", "all", "-o", "name"]);
    let authority = lab.run(&["ca", "show"]);

    // A store that holds something is left alone, also by a damaged backup.
    let elsewhere = lab.path("elsewhere");
    let folder = elsewhere.to_str().unwrap();
    let damaged = lab.path("damaged.backup");
    let text = std::fs::read_to_string(backup).unwrap();
    std::fs::write(&damaged, text.replacen("berlin", "merlin", 1)).unwrap();
    let refused = run(&["restore", damaged.to_str().unwrap(), "--data-dir", folder]).unwrap();
    assert_eq!(refused.code, 1, "{}", refused.stdout);
    // It leaves no store behind, and no new CA is made in its place.
    assert!(!elsewhere.join("store.db").exists());
    let mut too_early = Cloud::spawn(&elsewhere, &[]).unwrap();
    let status = testlab::causeway::wait_for("the cloud refuses to start", || too_early.ended()).unwrap();
    assert_eq!(status.code(), Some(1));
    assert!(too_early.log().contains("--new-fleet"), "{}", too_early.log());
    let restored = run(&["restore", backup, "--data-dir", folder]).unwrap().success().unwrap();
    assert!(restored.contains("epoch 2") || restored.contains("epoch 1"), "{restored}");
    let again = run(&["restore", backup, "--data-dir", folder]).unwrap();
    assert_eq!(again.code, 1);
    assert!(again.stderr.contains("not empty"), "{}", again.stderr);

    std::fs::copy(lab.path("cloud/seal.key"), elsewhere.join("seal.key")).unwrap();
    let other = Cloud::start(&elsewhere).unwrap();
    assert_eq!(other.run(&["get", "all", "-o", "name"]).unwrap().success().unwrap(), names);
    assert_eq!(other.run(&["ca", "show"]).unwrap().success().unwrap(), authority);
    let ran = other.run(&["restore", backup, "--data-dir", folder]).unwrap();
    assert!(ran.code == 1 && ran.stderr.contains("in use"), "{}", ran.stderr);
}
