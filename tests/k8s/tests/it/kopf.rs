//! kopf from PyPI, a framework for operators: it looks for namespaces, adds a finalizer, writes status, runs timers and posts
//! events. The operator itself is in `python/kopf_operator.py`.

use std::process::Command;

use serde_json::Value;
use testlab::causeway::{Process, finish, wait_for};

use crate::{Lab, here};

/// The folder in which the lab keeps a Python with kopf; the script brings it when it is missing.
fn python() -> String {
    let ran = finish(Command::new(here("lab/install-kopf")), None).unwrap().success().unwrap();
    ran.lines().last().unwrap().to_owned()
}

struct Operator(Process);

impl Operator {
    /// `scope` is how it is told which namespaces to look at.
    fn start(lab: &Lab, scope: &str) -> Operator {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).arg(python());
        command.args(["-m", "kopf", "run", "--standalone", scope, &here("python/kopf_operator.py")]);
        command.env("KUBECONFIG", lab.cloud.kubeconfig()).env("HOME", lab.path("home"));
        command.env("PYTHONDONTWRITEBYTECODE", "1");
        Operator(Process::spawn(command, lab.path("kopf.log")).unwrap())
    }

    /// Waits until something holds; shows the operator's log when it does not.
    fn until<T>(&self, what: &str, condition: impl FnMut() -> Option<T>) -> T {
        wait_for(what, condition).unwrap_or_else(|error| panic!("{error}\n{}", self.0.log()))
    }
}

fn service(lab: &Lab, name: &str) -> Option<Value> {
    lab.cloud.object("eservice", name)
}

fn write(lab: &Lab, name: &str, port: u16) {
    let text = format!(
        "{{kind: EService, apiVersion: causeway.io/v1, metadata: {{name: {name}}}, ip: 10.0.0.1, port: {port}, eSiteName: cloud}}\n"
    );
    lab.cloud.apply(&text).unwrap().success().unwrap();
}

/// The events about a service that the operator posted, as `reason: message`.
fn told(lab: &Lab, name: &str) -> Vec<String> {
    let client = testlab::https::Client::from_kubeconfig(&lab.cloud.kubeconfig()).unwrap();
    let path = format!(
        "/api/v1/namespaces/default/events?fieldSelector=involvedObject.name={name},source=kopf,involvedObject.kind=EService"
    );
    let list: Value = serde_json::from_str(&client.get(&path).unwrap().text()).unwrap();
    let text = |event: &Value, field: &str| event[field].as_str().unwrap_or_default().to_owned();
    let events = list["items"].as_array().unwrap_or_else(|| panic!("{list}")).iter();
    events.map(|event| format!("{}: {}", text(event, "reason"), text(event, "message"))).collect()
}

fn condition(service: &Value, kind: &str) -> Option<Value> {
    service["status"]["conditions"].as_array()?.iter().find(|condition| condition["type"] == kind).cloned()
}

fn ticks(lab: &Lab, name: &str) -> u64 {
    let ticks = service(lab, name)
        .and_then(|service| service["metadata"]["annotations"]["example.com/ticks"].as_str()?.parse().ok());
    ticks.unwrap_or(0)
}

fn story(scope: &str) {
    let mut lab = Lab::start();
    write(&lab, "before", 80);
    let operator = Operator::start(&lab, scope);
    operator
        .until("an object from before the operator is seen", || condition(&service(&lab, "before")?, "Seen"));
    write(&lab, "web", 80);
    let seen = operator.until("a condition is in the status", || condition(&service(&lab, "web")?, "Seen"));
    assert_eq!((&seen["reason"], &seen["message"]), (&"ByOperator".into(), &"web".into()));
    operator.until("our own conditions stay", || condition(&service(&lab, "web")?, "Ready"));
    let finalizers = service(&lab, "web").unwrap()["metadata"]["finalizers"].clone();
    assert_eq!(finalizers.as_array().map(Vec::len), Some(1), "{finalizers}");
    operator.until("an event is posted", || {
        told(&lab, "web").contains(&"Greeted: the operator has seen web".to_owned()).then_some(())
    });
    operator.until("the timer runs", || (ticks(&lab, "web") >= 3).then_some(()));

    write(&lab, "web", 8080);
    operator.until("a change is told", || {
        told(&lab, "web").contains(&"Moved: from port 80 to port 8080".to_owned()).then_some(())
    });

    // Its watches break and begin again.
    lab.kill();
    lab.start_again();
    let before = ticks(&lab, "web");
    operator.until("the timer runs on after a restart", || (ticks(&lab, "web") > before + 1).then_some(()));
    write(&lab, "after", 80);
    operator
        .until("an object from after the restart is seen", || condition(&service(&lab, "after")?, "Seen"));

    lab.cloud.run(&["delete", "eservice", "web"]).unwrap().success().unwrap();
    operator.until("the finalizer is taken off and the object is gone", || {
        service(&lab, "web").is_none().then_some(())
    });
    operator.until("the last event outlives the object", || {
        told(&lab, "web").contains(&"Farewell: the operator lets web go".to_owned()).then_some(())
    });
}

#[test]
fn an_operator_of_kopf_runs_on_services_in_all_namespaces() {
    story("--all-namespaces");
}

#[test]
fn an_operator_of_kopf_finds_its_namespace() {
    story("--namespace=default");
}
