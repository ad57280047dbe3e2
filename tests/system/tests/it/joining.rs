//! Admission and removal of gateways: tokens, edges, revocation, the change of CA.

use testlab::causeway::{Process, command, daemon, finish, wait_for};

use crate::Lab;

impl Lab {
    /// Starts an edge and waits until it holds its certificate.
    pub fn join(&self, name: &str, token: &str) -> Process {
        let process = self.edge(name, &["--join", token]);
        let certificate = self.path(name).join("identity.pem");
        wait_for("the edge is enrolled", || certificate.exists().then_some(()))
            .unwrap_or_else(|error| panic!("{error}\n{}", process.log()));
        process
    }

    pub fn edge(&self, name: &str, more: &[&str]) -> Process {
        let folder = self.path(name);
        let arguments =
            [&["edge", "--data-dir", folder.to_str().unwrap(), "--admin", "127.0.0.1:0"], more].concat();
        Process::spawn(daemon(&arguments).unwrap(), self.path(&format!("{name}.log"))).unwrap()
    }
}

#[test]
fn a_token_makes_site_and_gateway_and_lets_one_edge_in() {
    let lab = Lab::start();
    let token = lab.run(&["token", "create", "--site", "Oslo", "--gateway", "oslo-1"]);
    let token = token.trim();
    assert_eq!(token.lines().count(), 1);
    let gateway = lab.cloud.object("egateway", "oslo-1").unwrap();
    assert_eq!(gateway["eSiteName"], "Oslo");
    assert_eq!(gateway["virtualPresenceIPcidr"], "198.18.0.0/16");
    assert!(gateway["ip"].is_null());
    assert!(lab.cloud.object("esite", "Oslo").is_some());

    let mut edge = lab.join("edge", token);
    edge.terminate().unwrap();
    // Afterwards the data dir is enough.
    let mut again = lab.edge("edge", &[]);
    wait_for("the edge runs again", || again.log().contains("oslo-1").then_some(())).unwrap();
    assert!(again.ended().is_none(), "{}", again.log());

    // The token is used up: another machine cannot come in with it.
    let mut other = lab.edge("other", &["--join", token]);
    wait_for("the other edge is refused", || {
        (other.ended().is_some() || other.log().to_lowercase().contains("used")).then_some(())
    })
    .unwrap();
    assert!(!lab.path("other").join("identity.pem").exists());
}

#[test]
fn a_gateway_cannot_stand_at_two_sites() {
    let lab = Lab::start();
    lab.run(&["token", "create", "--site", "Oslo", "--gateway", "one"]);
    let ran = lab.cloud.run(&["token", "create", "--site", "Bergen", "--gateway", "one"]).unwrap();
    assert_eq!(ran.code, 1);
    assert!(ran.stderr.contains("stands at the site Oslo"), "{}", ran.stderr);
}

#[test]
fn a_token_sets_the_address_of_a_gateway_that_has_none() {
    let lab = Lab::start();
    let create = |gateway: &str, ip: &str| {
        let ip = if ip.is_empty() { vec![] } else { vec!["--ip", ip] };
        let base = ["token", "create", "--site", "Oslo", "--gateway", gateway];
        lab.cloud.run(&[&base[..], &ip].concat()).unwrap()
    };
    let check = |gateway: &str, ip: &str, code: i32, words: &str, stands: &str| {
        let ran = create(gateway, ip);
        assert!(ran.code == code && ran.stderr.contains(words), "{gateway} {ip}: {ran:?}");
        let object = lab.cloud.object("egateway", gateway);
        assert_eq!(
            object.and_then(|object| object["ip"].as_str().map(str::to_owned)).unwrap_or_default(),
            stands
        );
    };
    check("new", "10.0.0.1", 0, "", "10.0.0.1");
    check("later", "", 0, "EGateway later has no ip", "");
    check("later", "10.0.0.2", 0, "", "10.0.0.2");
    check("later", "10.0.0.2", 0, "", "10.0.0.2");
    check("later", "", 0, "", "10.0.0.2");
    check("later", "10.0.0.3", 1, "kubectl patch egateway later", "10.0.0.2");
    check("never", "224.0.0.1", 1, "ip", "");
    assert!(lab.cloud.object("egateway", "never").is_none());
    let wrong = create("never", "router");
    assert_eq!(wrong.code, 2, "{wrong:?}");
}

#[test]
fn tokens_are_listed_without_their_secret_and_can_be_deleted() {
    let lab = Lab::start();
    let token = lab.run(&["token", "create", "--site", "Oslo"]);
    let listed = lab.run(&["token", "list"]);
    assert!(listed.contains("site Oslo, gateway Oslo"), "{listed}");
    assert!(!listed.contains(token.trim()));
    let id = listed.lines().nth(1).unwrap().split_whitespace().next().unwrap().to_owned();
    assert_eq!(lab.run(&["token", "delete", &id]), format!("token/{id} deleted\n"));
    assert!(!lab.run(&["token", "list"]).contains(&id));
    let mut edge = lab.edge("edge", &["--join", token.trim()]);
    wait_for("the edge is refused", || {
        (edge.ended().is_some() || edge.log().contains("delete")).then_some(())
    })
    .unwrap();
    assert!(!lab.path("edge").join("identity.pem").exists());
}

#[test]
fn a_viewer_may_look_and_not_touch() {
    let lab = Lab::start();
    let token = lab.run(&["token", "create", "--role", "viewer", "--ttl", "1h"]);
    let admin = std::fs::read_to_string(lab.cloud.kubeconfig()).unwrap();
    // The admin's file with another user: everything up to its users stays.
    let certificate =
        |line: &&str| !line.contains("client-certificate-data") && !line.contains("client-key-data");
    let mut viewer: String = admin.lines().filter(certificate).map(|line| format!("{line}\n")).collect();
    viewer = viewer.replace("user:\n", &format!("user:\n    token: {}\n", token.trim()));
    let path = lab.path("viewer.kubeconfig");
    std::fs::write(&path, &viewer).unwrap();
    let run = |arguments: &[&str], input: Option<&str>| {
        let mut command = command(arguments).unwrap();
        command.env("CAUSEWAY_KUBECONFIG", &path);
        finish(command, input).unwrap()
    };
    let seen = run(&["get", "esites", "-o", "name"], None);
    assert_eq!(seen.stdout, "esite/cloud\n", "{}\n{viewer}", seen.stderr);
    assert_eq!(run(&["status"], None).code, 0);
    for (arguments, input) in [
        (&["apply", "-f", "-"][..], Some("{kind: ESite, apiVersion: v1, metadata: {name: a}}")),
        (&["delete", "esite", "cloud"], None),
        (&["token", "create", "--site", "x"], None),
        (&["backup", "-"], None),
        (&["revoke", "x"], None),
        (&["ca", "rotate"], None),
    ] {
        let ran = run(arguments, input);
        assert_eq!(ran.code, 1, "{arguments:?}: {}{}", ran.stdout, ran.stderr);
        assert!(ran.stderr.contains("admin kubeconfig"), "{arguments:?}: {}", ran.stderr);
    }
}

#[test]
fn a_revoked_gateway_is_out_and_may_come_back_with_a_new_token() {
    let lab = Lab::start();
    let token = lab.run(&["token", "create", "--site", "Oslo"]);
    let mut edge = lab.join("edge", token.trim());
    edge.terminate().unwrap();
    let revoked = lab.run(&["revoke", "Oslo"]);
    assert_eq!(revoked, "egateway/Oslo revoked (1 keys)\n");
    let token = lab.run(&["token", "create", "--site", "Oslo"]);
    lab.join("new-edge", token.trim());
}

#[test]
fn a_second_host_needs_a_name_of_its_own_or_replaces_the_first() {
    let lab = Lab::start();
    let token = lab.run(&["token", "create", "--site", "Oslo"]);
    let _edge = lab.join("edge", token.trim());
    lab.cloud.wait_condition("egateway", "Oslo", "Connected", "True").unwrap();
    let refused = |arguments: &[&str], parts: &[&str]| {
        let ran = lab.cloud.run(arguments).unwrap();
        assert_eq!((ran.code, ran.stdout.as_str()), (1, ""), "{arguments:?}");
        for part in parts {
            assert!(ran.stderr.contains(part), "{part} is missing in {}", ran.stderr);
        }
    };
    let create = ["token", "create", "--site", "Oslo"];
    refused(&create, &["Oslo is enrolled and connected", "--gateway Oslo-2", "--replace", "for good"]);
    refused(&["token", "create", "--site", "Rome", "--uses", "2"], &["uses", "--gateway NAME2"]);
    assert!(lab.cloud.object("egateway", "Rome").is_none(), "a refusal leaves nothing behind");
    lab.run(&["token", "create", "--site", "Oslo", "--gateway", "Oslo-2"]);

    let replacing = lab.cloud.run(&["token", "create", "--site", "Oslo", "--replace"]).unwrap();
    assert_eq!(replacing.code, 0, "{}", replacing.stderr);
    assert!(replacing.stderr.contains("enrolled and connected now"), "{}", replacing.stderr);
    // Revoking closes the open token and says so; the other gateway's stays.
    let revoked = lab.run(&["revoke", "Oslo"]);
    let id = revoked.lines().nth(1).and_then(|line| line.strip_prefix("token/")).unwrap();
    assert!(revoked.starts_with("egateway/Oslo revoked (1 keys)\n") && id.ends_with(" closed"), "{revoked}");
    let mut thief = lab.edge("thief", &["--join", replacing.stdout.trim()]);
    wait_for("the thief is refused", || thief.ended()).unwrap();
    assert!(!lab.path("thief").join("identity.pem").exists(), "{}", thief.log());
    let listed = lab.run(&["token", "list"]);
    assert!(listed.contains("gateway Oslo-2"), "{listed}");
}

#[test]
fn a_kubeconfig_is_made_for_somebody_and_taken_back() {
    let lab = Lab::start();
    let server = format!("https://localhost:{}", lab.cloud.api.port());
    let arguments = ["kubeconfig", "--server", &server, "--role", "viewer", "--user", "ann", "--ttl", "8h"];
    let made = lab.cloud.run(&arguments).unwrap();
    assert_eq!(made.code, 0, "{}", made.stderr);
    assert!(
        made.stdout.contains(&format!("server: {server}\n")) && !made.stderr.contains("Warning"),
        "{made:?}"
    );
    let path = lab.path("ann.kubeconfig");
    std::fs::write(&path, &made.stdout).unwrap();
    let as_ann = |arguments: &[&str]| {
        let mut command = command(arguments).unwrap();
        command.env("CAUSEWAY_KUBECONFIG", &path);
        finish(command, None).unwrap()
    };
    assert_eq!(as_ann(&["get", "esites", "-o", "name"]).stdout, "esite/cloud\n");
    assert_eq!(as_ann(&["kubeconfig", "--role", "admin"]).code, 1, "a viewer makes nobody an admin");

    let listed = lab.run(&["kubeconfig", "--list"]);
    let row = listed.lines().find(|line| line.contains("ann")).unwrap();
    assert!(row.contains("viewer") && row.contains("good"), "{listed}");
    let serial = row.split_whitespace().next().unwrap();
    assert_eq!(
        lab.run(&["revoke", "--certificate", serial]),
        format!("certificate/{serial} of ann revoked\n")
    );
    let refused = as_ann(&["get", "esites"]);
    assert!(refused.code == 1 && refused.stderr.contains("revoked"), "{}", refused.stderr);

    // The admin's own is revoked; the kubeconfig on the host goes on working.
    let old = std::fs::read_to_string(lab.cloud.kubeconfig()).unwrap();
    std::fs::write(&path, &old).unwrap();
    lab.run(&["revoke", "--certificate", "current"]);
    assert_eq!(as_ann(&["get", "esites"]).code, 1);
    assert_eq!(lab.run(&["get", "esites", "-o", "name"]), "esite/cloud\n");
    assert_ne!(std::fs::read_to_string(lab.cloud.kubeconfig()).unwrap(), old);

    let unknown =
        lab.cloud.run(&["kubeconfig", "--server", "https://203.0.113.9:7443", "--ttl", "1h"]).unwrap();
    assert!(unknown.stderr.contains("--api-name 203.0.113.9"), "{}", unknown.stderr);
}

#[test]
fn the_authority_changes_without_losing_the_admin() {
    let lab = Lab::start();
    let before = lab.run(&["ca", "show"]);
    assert_eq!(before.lines().count(), 2, "{before}");
    let during = lab.run(&["ca", "rotate"]);
    assert!(during.lines().count() >= 3, "{during}");
    assert_eq!(lab.run(&["get", "esites", "-o", "name"]), "esite/cloud\n");
    let after = lab.run(&["ca", "rotate", "--finish"]);
    assert_eq!(after.lines().count(), 2, "{after}");
    assert_ne!(before, after);
    assert_eq!(lab.run(&["get", "esites", "-o", "name"]), "esite/cloud\n");
    assert!(lab.run(&["ca", "show", "--pem"]).starts_with("-----BEGIN CERTIFICATE-----"));
}
