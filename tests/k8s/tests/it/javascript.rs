//! The official JavaScript client from npm: its informer lives through restarts of the cloud. The client's side is in
//! `javascript/informer.mjs`.

use std::process::Command;

use serde_json::Value;
use testlab::causeway::{Process, finish, wait_for};

use crate::{Lab, here, site};

/// The folder of the client; the script brings it when it is missing. None, with a reason, on a machine without node.
fn client() -> Option<String> {
    let ran = finish(Command::new(here("lab/install-js-client")), None).unwrap();
    if ran.code == 3 {
        println!("SKIPPED: {}", ran.stderr.trim());
        return None;
    }
    Some(ran.success().unwrap().lines().last().unwrap().to_owned())
}

struct Informer(Process);

impl Informer {
    fn start(lab: &Lab, folder: &str) -> Informer {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--", "node"]).arg(here("javascript/informer.mjs"));
        command.arg(folder).arg(lab.cloud.kubeconfig()).env("HOME", lab.path("home"));
        Informer(Process::spawn(command, lab.path("informer.log")).unwrap())
    }

    fn lines(&self) -> Vec<Value> {
        self.0.log().lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    fn until(&self, what: &str, holds: impl Fn(&[Value]) -> bool) {
        wait_for(what, || holds(&self.lines()).then_some(()))
            .unwrap_or_else(|error| panic!("{error}\n{}", self.0.log()));
    }

    /// Waits until this change of an object is told; its status may have changed since.
    fn until_told(&self, name: &str, change: &str, subnets: &[&str]) {
        let is_it = |line: &Value| {
            line["name"] == name
                && line["change"] == change
                && (subnets.is_empty() || line["subnets"] == serde_json::json!(subnets))
        };
        self.until(&format!("{change} of {name} with {subnets:?} is told"), |lines| lines.iter().any(is_it));
    }
}

#[test]
fn an_informer_of_the_javascript_client_lives_through_restarts() {
    let Some(folder) = client() else { return };
    let mut lab = Lab::start();
    lab.cloud.apply(&site("oslo", "10.1.0.0/16")).unwrap().success().unwrap();
    let informer = Informer::start(&lab, &folder);
    informer.until("it finds the namespace", |lines| {
        lines.iter().any(|line| line["namespaces"] == serde_json::json!(["default"]))
    });
    informer.until_told("oslo", "add", &["10.1.0.0/16"]);
    informer
        .until("it reads events of the newer group", |lines| lines.iter().any(|line| line["events"] == true));
    lab.cloud.apply(&site("bergen", "10.2.0.0/16")).unwrap().success().unwrap();
    informer.until_told("bergen", "add", &["10.2.0.0/16"]);

    for round in 0..2 {
        // Once killed, once told to stop: the watch breaks, or ends in order.
        match round {
            0 => lab.kill(),
            _ => drop(lab.cloud.process.terminate().unwrap()),
        }
        lab.start_again();
        let subnet = format!("10.3.{round}.0/24");
        lab.cloud.apply(&site("oslo", &subnet)).unwrap().success().unwrap();
        informer.until_told("oslo", "update", &[&subnet]);
        let new = format!("tromso-{round}");
        lab.cloud.apply(&site(&new, "10.4.0.0/16")).unwrap().success().unwrap();
        informer.until_told(&new, "add", &[]);
    }
    lab.cloud.run(&["delete", "esite", "bergen"]).unwrap().success().unwrap();
    informer.until_told("bergen", "delete", &[]);
    let cached = informer.lines().into_iter().rev().find(|line| line["change"] == "delete").unwrap();
    assert_eq!(cached["cached"], serde_json::json!(["cloud", "oslo", "tromso-0", "tromso-1"]));
}
