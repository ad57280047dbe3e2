//! Objects through the command line: apply, get, watch, describe, delete.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use serde_json::Value;
use testlab::causeway::{Cloud, finish, wait_for};

use crate::{Lab, data, examples, site};

#[test]
fn the_documents_objects_apply_word_for_word() {
    let lab = Lab::start();
    let file = data("gateway-with-presence.json");
    let all = [
        "esite/TokyoChibaSite1",
        "egateway/TokyoChibaGateway",
        "virtualpresence/vp1",
        "eservice/TykyoChibaNginx",
        "eserver/Server1",
        "epolicy/Policy1",
        "serviceexpose/TykyoChibaNginx",
    ];
    let lines = |outcome: &str| all.map(|name| format!("{name} {outcome}\n")).concat();
    assert_eq!(lab.run(&["apply", "-f", &file]), lines("created"));
    assert_eq!(lab.run(&["apply", "-f", &file]), lines("unchanged"));

    let missing = lab.cloud.wait_condition("sx", "TykyoChibaNginx", "PoliciesResolved", "False").unwrap();
    assert!(missing["message"].as_str().unwrap().contains("Policy2"), "{missing}");
    let presence = wait_for("the presence gets its site", || {
        lab.cloud.object("vp", "vp1").filter(|presence| presence["eSiteName"] == "TokyoChibaSite1")
    });
    presence.unwrap();

    let policy = "{kind: EPolicy, apiVersion: v1, metadata: {name: Policy2}, allowedServers: [Server1]}";
    assert_eq!(lab.apply(policy), "epolicy/Policy2 created\n");
    lab.cloud.wait_condition("sx", "TykyoChibaNginx", "Ready", "True").unwrap();
    lab.run(&["delete", "epolicy", "Policy1", "Policy2"]);
    let denied = lab.cloud.wait_condition("sx", "TykyoChibaNginx", "PoliciesResolved", "False").unwrap();
    assert!(denied["message"].as_str().unwrap().contains("no client may use the service"), "{denied}");
}

#[test]
fn a_syntax_error_is_shown_at_its_place_and_nothing_is_applied() {
    let lab = Lab::start();
    let good = lab.path("good.yaml");
    std::fs::write(&good, site("Good")).unwrap();
    let broken = data("comma-missing.json");
    let ran = lab.cloud.run(&["apply", "-f", good.to_str().unwrap(), "-f", &broken]).unwrap();
    assert_eq!(ran.code, 1);
    for part in ["comma-missing.json:11:5", "expected `,` or `}`", "\"eSiteName\": \"TokyoChibaSite1\""] {
        assert!(ran.stderr.contains(part), "{part} is missing in {}", ran.stderr);
    }
    assert!(lab.cloud.object("esite", "Good").is_none());
}

#[test]
fn the_examples_become_ready_and_are_shown_in_every_form() {
    let lab = Lab::start();
    let applied = lab.run(&["apply", "-f", &examples()]);
    let count = applied.lines().count();
    let ending = |word: &str| applied.lines().filter(|line| line.ends_with(word)).count();
    // The cloud's own site and gateway were there before.
    assert_eq!((ending(" created"), ending(" configured")), (count - 2, 2), "{applied}");
    lab.cloud.wait_condition("sx", "plant-dashboard", "Ready", "True").unwrap();
    lab.cloud.wait_condition("vp", "orders-at-berlin", "Ready", "True").unwrap();

    let table = lab.run(&["get", "esites"]);
    assert!(table.starts_with("NAME"), "{table}");
    assert!(table.contains("\nberlin "), "{table}");
    // Objects of the controller are marked, and are not in the files.
    let everything = lab.run(&["get", "all", "-l", "!causeway.io/made-by", "-o", "name"]);
    assert_eq!(everything.lines().count(), count, "{everything}");
    let made = lab.run(&["get", "vp", "-l", "causeway.io/made-by=causeway", "-o", "name"]);
    assert!(made.starts_with("virtualpresence/"), "{made}");
    let list: Value = serde_json::from_str(&lab.run(&["get", "esites", "-o", "json"])).unwrap();
    assert_eq!((list["kind"].as_str(), list["items"].as_array().map(Vec::len)), (Some("List"), Some(3)));
    assert!(list["items"][0]["metadata"]["managedFields"].is_null());
    let one = lab.run(&["get", "esite/oslo", "-o", "yaml"]);
    assert!(one.contains("kind: ESite"), "{one}");
    // The output of get is valid input of apply.
    assert_eq!(lab.apply(&one), "esite/oslo unchanged\n");
    assert_eq!(lab.run(&["get", "esites", "-l", "country=de", "-o", "name"]), "esite/berlin\n");
    let by_field = lab.run(&["get", "eservices", "--field-selector", "eSiteName=oslo", "-o", "name"]);
    assert_eq!(by_field, "eservice/depot-sensors\n");
    let described = lab.run(&["describe", "esite", "berlin"]);
    for part in [
        "Name:                   berlin",
        "egateway/berlin-gateway (eSiteName)",
        "serviceexpose/orders (eSites)",
        "Ready",
    ] {
        assert!(described.contains(part), "{part} is missing in\n{described}");
    }
    let status: Value = serde_json::from_str(&lab.run(&["status", "--json"])).unwrap();
    let gateways = status["gateways"].as_array().unwrap();
    let berlin = gateways.iter().find(|gateway| gateway["name"] == "berlin-gateway").unwrap();
    for key in
        ["site", "connected", "transport", "rttMs", "sentBytes", "receivedBytes", "since", "generation"]
    {
        assert!(berlin.get(key).is_some(), "{key} is missing in {berlin}");
    }
    assert!(lab.run(&["status"]).contains("dashboard.plant.example"));

    // The cloud's own site and gateway are in the files too, and are not deleted by mistake.
    let deleted = lab.cloud.run(&["delete", "-f", &examples()]).unwrap();
    assert_eq!((deleted.code, deleted.stdout.lines().count()), (1, count - 2), "{deleted:?}");
    for part in ["esite/cloud", "egateway/cloud", "causeway.io/allow-delete", "causeway delete --force"] {
        assert!(deleted.stderr.contains(part), "{part} is missing in {}", deleted.stderr);
    }
    assert!(!deleted.stderr.contains("admin kubeconfig"), "{}", deleted.stderr);
    // Objects of the controller go with their exposures, a moment later.
    let own = "esite/cloud\negateway/cloud\n";
    wait_for("the rest is gone", || (lab.run(&["get", "all", "-o", "name"]) == own).then_some(())).unwrap();

    let uids = || {
        lab.run(&["get", "all", "-o", "json"])
            .lines()
            .filter(|line| line.contains("\"uid\""))
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let before = uids();
    let tried = lab.run(&["delete", "esite", "cloud", "--force", "--dry-run"]);
    assert_eq!((tried.as_str(), uids()), ("esite/cloud deleted (dry run)\n", before.clone()));
    for kind in ["esite", "egateway"] {
        assert_eq!(lab.run(&["delete", kind, "cloud", "--force"]), format!("{kind}/cloud deleted\n"));
    }
    wait_for("the cloud makes its own objects again", || {
        let now = uids();
        (now.len() == 2 && now.iter().all(|uid| !before.contains(uid))).then_some(())
    })
    .unwrap();
}

#[test]
fn a_watch_shows_what_happens() {
    let lab = Lab::start();
    let mut watch = lab.cloud.client(&["get", "esites", "-o", "name", "-w"]).unwrap();
    let mut child = watch.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert_eq!(lines.next().unwrap(), "esite/cloud");
    lab.apply(&site("Oslo"));
    // Conditions may be written in between; they are changes too.
    let mut next_about = |name: &str| lines.by_ref().find(|line| line.contains(name)).unwrap();
    assert_eq!(next_about("Oslo"), "esite/Oslo");
    lab.run(&["delete", "esite", "Oslo"]);
    assert_eq!(next_about("deleted"), "esite/Oslo (deleted)");
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn mistakes_have_their_exit_codes_and_say_what_to_do() {
    let lab = Lab::start();
    lab.apply(&site("Oslo"));
    let check = |arguments: &[&str], input: Option<&str>, code: i32, part: &str| {
        let ran = finish(lab.cloud.client(arguments).unwrap(), input).unwrap();
        assert_eq!(ran.code, code, "{arguments:?}: {}", ran.stderr);
        assert!(ran.stderr.contains(part), "{arguments:?}: {part} is missing in {}", ran.stderr);
    };
    check(&["get", "esite", "Nowhere"], None, 1, "Nowhere");
    check(&["get", "pods"], None, 2, "esites");
    check(&["get", "esites", "a", "-l", "x=y"], None, 2, "not both");
    check(&["get", "esites", "-l", "=="], None, 1, "");
    check(&["delete", "esite", "Nowhere"], None, 1, "Nowhere");
    check(&["delete", "esite", "Nowhere", "--ignore-not-found"], None, 0, "");
    check(&["delete", "esites"], None, 2, "--all");
    check(&["apply", "-f", "-"], Some(""), 1, "no object");
    check(
        &["apply", "-f", "-"],
        Some("{kind: ESite, apiVersion: v1, metadata: {name: a}, subnets: [nonsense]}"),
        1,
        "subnets",
    );
    let misspelt = Some("{kind: ESite, apiVersion: v1, metadata: {name: a}, colour: red}");
    check(&["apply", "-f", "-"], misspelt, 1, "unknown field \"colour\"");
    check(&["apply", "-f", "-", "--validate=warn"], misspelt, 0, "Warning: ");
    check(&["token", "create", "--site", "cloud"], None, 1, "this cloud itself");
    check(&["token", "delete", "nonsense"], None, 1, "nonsense");
    check(&["revoke", "nobody"], None, 1, "nobody");
    check(&["ca", "rotate", "--finish"], None, 1, "start one with `causeway ca rotate`");
}

#[test]
fn fields_have_owners_and_a_conflict_names_them() {
    let lab = Lab::start();
    let with = |subnet: &str| {
        format!("{{kind: ESite, apiVersion: causeway.io/v1, metadata: {{name: Oslo}}, subnets: [{subnet}]}}")
    };
    lab.apply(&with("10.1.0.0/16"));
    let as_other = |more: &[&str]| {
        let arguments = [&["apply", "-f", "-", "--field-manager", "other"], more].concat();
        finish(lab.cloud.client(&arguments).unwrap(), Some(&with("10.2.0.0/16"))).unwrap()
    };
    let refused = as_other(&[]);
    assert_eq!(refused.code, 1);
    assert!(
        refused.stderr.contains("--force-conflicts") && refused.stderr.contains("subnets"),
        "{}",
        refused.stderr
    );
    let dry = as_other(&["--force-conflicts", "--dry-run"]);
    assert_eq!(dry.stdout, "esite/Oslo configured (dry run)\n");
    assert_eq!(lab.cloud.object("esite", "Oslo").unwrap()["subnets"][0], "10.1.0.0/16");
    assert_eq!(as_other(&["--force-conflicts"]).stdout, "esite/Oslo configured\n");
    assert_eq!(lab.cloud.object("esite", "Oslo").unwrap()["subnets"][0], "10.2.0.0/16");
}

#[test]
fn a_watch_goes_on_when_the_cloud_comes_back() {
    let mut lab = Lab::start();
    let api = lab.cloud.api.to_string();
    let mut watch = lab.cloud.client(&["get", "esites", "-o", "name", "-w"]).unwrap();
    let mut child = watch.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert_eq!(lines.next().unwrap(), "esite/cloud");
    lab.cloud.process.kill().unwrap();
    // On the same port, as a service that is restarted.
    lab.cloud = Cloud::start_with(&lab.path("cloud"), &["--api", &api]).unwrap();
    lab.apply(&site("Oslo"));
    assert!(lines.any(|line| line == "esite/Oslo"));
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_misspelt_field_is_refused_unless_the_user_says_otherwise() {
    let lab = Lab::start();
    let expose = "{kind: ServiceExpose, apiVersion: causeway.io/v1, metadata: {name: web}, eServiceName: web, \
                  eSites: [cloud], ePolicies: [office]}";
    let file = lab.path("expose.yaml");
    std::fs::write(&file, expose).unwrap();
    let file = file.to_str().unwrap();
    let ran = lab.cloud.run(&["apply", "-f", file]).unwrap();
    assert_eq!(ran.code, 1, "{}", ran.stdout);
    for part in ["serviceexpose/web", "ePolicies", "did you mean", "ePolicys"] {
        assert!(ran.stderr.contains(part), "{part} is missing in {}", ran.stderr);
    }
    assert!(lab.cloud.object("sx", "web").is_none(), "an exposure that no client may use was created");
    let warned = lab.cloud.run(&["apply", "-f", file, "--validate=warn"]).unwrap();
    assert_eq!(
        (warned.code, warned.stdout.as_str()),
        (0, "serviceexpose/web created\n"),
        "{}",
        warned.stderr
    );
    assert!(warned.stderr.contains("ePolicies"), "{}", warned.stderr);
    let ignored = lab.cloud.run(&["apply", "-f", file, "--validate", "ignore"]).unwrap();
    assert_eq!((ignored.code, ignored.stderr.as_str()), (0, ""));
}

#[test]
fn bash_completes_the_names_of_objects() {
    let lab = Lab::start();
    lab.apply(&format!("{}\n---\n{}", site("berlin"), site("bergen")));
    let check = |words: &[&str], expected: &[&str]| {
        let script = format!(
            "source <(causeway completions bash); COMP_WORDS=({}); COMP_CWORD={}; \
             _causeway_with_names causeway {} {}; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
            words.join(" "),
            words.len() - 1,
            words[words.len() - 1],
            words[words.len() - 2],
        );
        let found = lab.cloud.shell(&script).unwrap();
        let mut found: Vec<&str> = found.lines().filter(|line| !line.is_empty()).collect();
        found.sort_unstable();
        assert_eq!(found, expected, "{words:?}");
    };
    check(&["causeway", "get", "esites", "ber"], &["bergen", "berlin"]);
    check(&["causeway", "describe", "est", "berl"], &["berlin"]);
    check(&["causeway", "doctor", "berg"], &["bergen"]);
    check(&["causeway", "get", "esi"], &["esites"]);
    check(&["causeway", "vers"], &["version"]);
}
