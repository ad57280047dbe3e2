//! Bad input over HTTP: every row gets its 4xx with the field or the words, and leaves nothing behind.
//!
//! All rows run against one cloud. Afterwards it still answers, holds exactly what it held, has not panicked and has
//! not grown. The rows are in the files beside; the name of each is the sentence that must be true.

mod callers;
mod objects;
mod patches;
mod requests;

use causeway_api::management::paths;
use serde_json::{Value, json};
use testlab::causeway::wait_for;
use testlab::https::{Answer, Client, Request};

use crate::{GROUP, KINDS, Lab, call, edge_credentials, join_token, path, site, viewer};

/// The caller.
#[derive(Clone, Copy, Debug)]
enum Who {
    Admin,
    Viewer,
    /// The gateway `oslo`, with its certificate.
    Gateway,
    Nobody,
    /// A bearer token that no cloud issued.
    Guesser,
    /// A client certificate of some other CA.
    Foreign,
}

/// The words in which the answer names the mistake.
enum Told {
    /// `details.causes` names this field.
    Field(&'static str),
    /// The message has these words.
    Words(&'static str),
    /// It was done, as far as a dry run does something, with this warning.
    Warning(&'static str),
    /// TLS ended before any request, with this alert.
    Alert(&'static str),
}

struct Row {
    says: &'static str,
    who: Who,
    ask: Request,
    code: u16,
    reason: &'static str,
    told: Told,
}

impl Row {
    fn by(mut self, who: Who) -> Row {
        self.who = who;
        self
    }
}

/// The object is understood and wrong: 422, and the field is named.
fn wrong(says: &'static str, ask: Request, field: &'static str) -> Row {
    Row { says, who: Who::Admin, ask, code: 422, reason: "Invalid", told: Told::Field(field) }
}

fn refused(says: &'static str, ask: Request, code: u16, reason: &'static str, words: &'static str) -> Row {
    Row { says, who: Who::Admin, ask, code, reason, told: Told::Words(words) }
}

fn warned(says: &'static str, ask: Request, code: u16, warning: &'static str) -> Row {
    Row { says, who: Who::Admin, ask, code, reason: "", told: Told::Warning(warning) }
}

fn cut_off(says: &'static str, ask: Request, alert: &'static str) -> Row {
    Row { says, who: Who::Admin, ask, code: 0, reason: "", told: Told::Alert(alert) }
}

fn get(path: &str) -> Request {
    Request::new("GET", path)
}

/// A create of `body` under the group's path.
fn create(plural: &str, body: &Value) -> Request {
    Request::new("POST", &format!("{GROUP}/{plural}")).json(body)
}

fn named(name: &str, fields: Value) -> Value {
    let mut object = fields;
    object["metadata"]["name"] = name.into();
    object
}

#[test]
fn bad_input_is_refused_with_its_field_and_changes_nothing() {
    let lab = Lab::start();
    let edge = furnish(&lab);
    let callers = Callers::of(&lab);
    let before = everything(&lab);
    let resident_before = resident_bytes(lab.cloud.process.pid());

    let rows: Vec<Row> = [objects::rows(), requests::rows(), patches::rows(), callers::rows()]
        .into_iter()
        .flatten()
        .chain(moving(&lab))
        .collect();
    let count = rows.len();
    let wrong: Vec<String> = rows.iter().filter_map(|row| check(&callers, row).err()).collect();
    assert!(wrong.is_empty(), "{} of {count} rows:\n{}", wrong.len(), wrong.join("\n"));
    assert!(count >= 80, "{count} rows");

    assert_eq!(lab.admin.get("/readyz").unwrap().code, 200);
    assert_eq!(everything(&lab), before);
    let log = lab.cloud.process.log();
    assert!(!log.contains("panicked"), "{log}");
    let peak = peak_bytes(lab.cloud.process.pid());
    println!("{count} rows; resident before {} KiB, peak {} KiB", resident_before >> 10, peak >> 10);
    assert!(peak < resident_before + (200 << 20), "{peak} bytes");
    drop(edge);
}

/// Two sites with the same range, a service, and a presence whose address is therefore taken.
fn furnish(lab: &Lab) -> testlab::causeway::Process {
    let token = join_token(&lab.admin, "oslo");
    let edge = lab.join("edge", &token);
    let gateway = json!({"virtualPresenceIPcidr": "10.20.0.0/24"});
    let patch = Request::new("PATCH", &path("egateways", "oslo"));
    let patch = patch.body("application/merge-patch+json", gateway.to_string());
    lab.admin.send(&patch).unwrap().success().unwrap();
    let bergen = named("bergen", json!({"eSiteName": "bergen", "virtualPresenceIPcidr": "10.20.0.0/24"}));
    for (plural, object) in [
        ("esites", site("bergen")),
        ("egateways", bergen),
        ("eservices", named("web", json!({"ip": "192.0.2.7", "port": 80, "eSiteName": "bergen"}))),
        (
            "virtualpresences",
            named("taken", json!({"virtualIp": "10.20.0.9", "eServiceName": "web", "eSiteName": "oslo"})),
        ),
    ] {
        lab.admin.send(&create(plural, &object)).unwrap().success().unwrap();
    }
    edge
}

struct Callers {
    admin: Client,
    viewer: Client,
    gateway: Client,
    nobody: Client,
    guesser: Client,
    foreign: Client,
}

impl Callers {
    fn of(lab: &Lab) -> Callers {
        let admin = lab.admin.clone();
        Callers {
            viewer: viewer(&admin),
            gateway: admin.with_certificate(edge_credentials(&lab.path("edge"))).unwrap(),
            nobody: admin.nobody().unwrap(),
            guesser: admin.with_bearer("cwa1.AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA").unwrap(),
            foreign: admin.with_certificate(callers::foreign_credentials()).unwrap(),
            admin,
        }
    }

    fn client(&self, who: Who) -> &Client {
        match who {
            Who::Admin => &self.admin,
            Who::Viewer => &self.viewer,
            Who::Gateway => &self.gateway,
            Who::Nobody => &self.nobody,
            Who::Guesser => &self.guesser,
            Who::Foreign => &self.foreign,
        }
    }
}

/// The one check that every row goes through.
fn check(callers: &Callers, row: &Row) -> Result<(), String> {
    let fail = |what: String| {
        let (method, path) = (&row.ask.method, row.ask.path.chars().take(120).collect::<String>());
        Err(format!("- {} ({:?} {method} {path}): {what}", row.says, row.who))
    };
    let answer = match callers.client(row.who).send(&row.ask) {
        Ok(answer) => answer,
        Err(error) => {
            return match row.told {
                Told::Alert(alert) if format!("{error:#}").contains(alert) => Ok(()),
                _ => fail(format!("no answer: {error:#}")),
            };
        }
    };
    let body = answer.json();
    let shown = || format!("{}: {:.600}", answer.code, answer.text());
    if answer.code != row.code {
        return fail(format!("expected {}, got {}", row.code, shown()));
    }
    if let Told::Warning(words) = row.told {
        let warnings = answer.headers_named("warning");
        let found = warnings.iter().any(|warning| warning.starts_with("299 ") && warning.contains(words));
        return if found { Ok(()) } else { fail(format!("no warning {words:?} in {warnings:?}")) };
    }
    if !is_status(&answer, &body, row) {
        return fail(format!("expected a Status of reason {}, got {}", row.reason, shown()));
    }
    let told = match row.told {
        Told::Field(field) => body["details"]["causes"]
            .as_array()
            .is_some_and(|causes| causes.iter().any(|cause| cause["field"] == field)),
        Told::Words(words) => body["message"].as_str().is_some_and(|message| message.contains(words)),
        Told::Warning(_) | Told::Alert(_) => false,
    };
    // A refusal must not be a place to store megabytes either.
    match told && answer.body.len() < 16 << 10 {
        true => Ok(()),
        false => fail(shown()),
    }
}

fn is_status(answer: &Answer, body: &Value, row: &Row) -> bool {
    body["kind"] == "Status"
        && body["apiVersion"] == "v1"
        && body["status"] == "Failure"
        && body["code"] == answer.code
        && body["reason"] == row.reason
}

/// Rows that need something from the running cloud: tokens of its pages, revisions, the uid of an object.
fn moving(lab: &Lab) -> Vec<Row> {
    let page = lab.admin.get(&format!("{GROUP}/egateways?limit=1")).unwrap().success().unwrap();
    let token = page["metadata"]["continue"].as_str().unwrap();
    let revision = page["metadata"]["resourceVersion"].as_str().unwrap();
    let truncated = &token[..token.len() / 2];
    let list = |plural: &str, query: &str| get(&format!("{GROUP}/{plural}?{query}"));
    vec![
        refused(
            "a continue token of another collection is refused",
            list("esites", &format!("limit=1&continue={token}")),
            400,
            "BadRequest",
            "another collection",
        ),
        refused(
            "half a continue token is refused",
            list("egateways", &format!("limit=1&continue={truncated}")),
            400,
            "BadRequest",
            "continue",
        ),
        refused(
            "a continue token allows no revision beside it",
            list("egateways", &format!("limit=1&continue={token}&resourceVersion={revision}")),
            400,
            "BadRequest",
            "not allowed when using continue",
        ),
        refused(
            "an update of an older revision is a conflict",
            Request::new("PUT", &path("esites", "bergen")).json(&json!({
                "metadata": {"name": "bergen", "resourceVersion": "1"}, "subnets": ["10.0.0.0/8"]
            })),
            409,
            "Conflict",
            "the object has been modified",
        ),
    ]
}

/// Every object and every token, without what the cloud itself writes about them.
fn everything(lab: &Lab) -> Vec<Value> {
    let list = |plural: &&str| {
        let mut list = lab.admin.get(&format!("{GROUP}/{plural}")).unwrap().success().unwrap();
        let mut items = list["items"].take();
        for item in items.as_array_mut().unwrap() {
            item["status"] = Value::Null;
            for own in ["managedFields", "resourceVersion"] {
                item["metadata"][own] = Value::Null;
            }
        }
        items
    };
    let mut all: Vec<Value> = KINDS.iter().map(list).collect();
    all.push(lab.admin.get(paths::TOKENS).unwrap().success().unwrap());
    all.push(lab.admin.get(paths::CA).unwrap().success().unwrap());
    all
}

fn resident_bytes(pid: u32) -> u64 {
    memory_bytes(pid, "VmRSS:")
}

fn peak_bytes(pid: u32) -> u64 {
    memory_bytes(pid, "VmHWM:")
}

fn memory_bytes(pid: u32, name: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

#[test]
fn a_status_in_an_ordinary_update_is_left_out() {
    let lab = Lab::start();
    lab.admin.post(&format!("{GROUP}/esites"), &site("oslo")).unwrap().success().unwrap();
    let false_words = json!([{
        "type": "Ready", "status": "True", "reason": "Lie", "message": "", "lastTransitionTime": "2020-01-01T00:00:00Z"
    }]);
    let mut object = site("oslo");
    object["status"] = json!({"conditions": false_words});
    object["subnets"] = json!(["10.1.0.0/16"]);
    let patch = |path: &str, object: &Value| {
        Request::new("PATCH", path).body("application/merge-patch+json", object.to_string())
    };
    let written = lab.admin.send(&patch(&path("esites", "oslo"), &object)).unwrap().success().unwrap();
    assert_eq!(written["subnets"][0], "10.1.0.0/16");
    assert!(!written["status"].to_string().contains("Lie"), "{written}");
    let stored = lab.admin.get(&path("esites", "oslo")).unwrap().success().unwrap();
    assert!(!stored["status"].to_string().contains("Lie"), "{stored}");
    // And the other way round: the status subresource leaves the rest alone.
    object["subnets"] = json!([]);
    let status = format!("{}/status", path("esites", "oslo"));
    let written = lab.admin.send(&patch(&status, &object)).unwrap().success().unwrap();
    assert_eq!(written["subnets"][0], "10.1.0.0/16");
}

#[test]
fn a_token_that_was_deleted_or_has_expired_opens_nothing() {
    let lab = Lab::start();
    let made = call(&lab.admin, "tokens", &json!({"role": "viewer", "ttlSeconds": 1}));
    let short = lab.admin.with_bearer(made["token"].as_str().unwrap()).unwrap();
    wait_for("the token expires", || {
        (short.get(&format!("{GROUP}/esites")).unwrap().code == 401).then_some(())
    })
    .unwrap();
    let made = call(&lab.admin, "tokens", &json!({"role": "viewer", "ttlSeconds": 3600}));
    let viewer = lab.admin.with_bearer(made["token"].as_str().unwrap()).unwrap();
    assert_eq!(viewer.get(&format!("{GROUP}/esites")).unwrap().code, 200);
    let id = made["id"].as_str().unwrap();
    lab.admin.send(&Request::new("DELETE", &format!("{}/{id}", paths::TOKENS))).unwrap().success().unwrap();
    wait_for("the deleted token is out", || {
        (viewer.get(&format!("{GROUP}/esites")).unwrap().code == 401).then_some(())
    })
    .unwrap();
}
