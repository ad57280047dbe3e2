//! The link of an edge: it comes up by itself, comes back by itself, and ends when it must.

use std::time::{Duration, Instant};

use serde_json::Value;
use testlab::causeway::{Cloud, Process, wait_for};

use crate::Lab;

impl Lab {
    /// The line of a gateway in `causeway status --json`.
    fn gateway(&self, name: &str) -> Option<Value> {
        let status = self.cloud.run(&["status", "--json"]).ok()?.json().ok()?;
        status["gateways"].as_array()?.iter().find(|gateway| gateway["name"] == name).cloned()
    }

    /// Waits until the gateway is connected, and returns its line.
    pub fn connected(&self, name: &str, edge: &Process) -> Value {
        let line = || self.gateway(name).filter(|gateway| gateway["connected"] == true);
        wait_for("the edge is connected", line).unwrap_or_else(|error| {
            panic!("{error}\nedge:\n{}\ncloud:\n{}", edge.log(), self.cloud.process.log())
        })
    }

    fn disconnected(&self, name: &str) -> Value {
        let line = || self.gateway(name).filter(|gateway| gateway["connected"] == false);
        wait_for("the edge is not connected", line).unwrap()
    }

    /// The same cloud again, on the same ports.
    pub fn restart(&mut self) {
        let (api, channel) = (self.cloud.api.to_string(), self.cloud.channel.to_string());
        let flags = ["--api", &api, "--channel", &channel];
        self.cloud = Cloud::start_with(&self.path("cloud"), &flags).unwrap();
    }
}

#[test]
fn an_edge_with_only_a_token_is_connected_and_shown() {
    let lab = Lab::start();
    for (name, flags, transport) in [
        ("auto", &[][..], "quic"),
        ("quic", &["--transport", "quic"], "quic"),
        ("tcp", &["--transport", "tcp"], "tcp"),
    ] {
        let token = lab.run(&["token", "create", "--site", "Oslo", "--gateway", name]);
        let begun = Instant::now();
        let mut edge = lab.edge(name, &[&["--join", token.trim()], flags].concat());
        lab.connected(name, &edge);
        println!("{name}: connected and seen after {:?}", begun.elapsed());
        // The round trip is known when the first ping has come back, a moment after the welcome.
        let measured = || lab.gateway(name).filter(|gateway| gateway["rttMs"].is_number());
        let line = wait_for("the round trip is measured", measured).unwrap();
        assert_eq!(line["transport"], transport, "{line}");
        assert_eq!(line["site"], "Oslo");
        assert!(line["since"].is_string(), "{line}");
        assert!(line["sentBytes"].as_u64() > Some(0) && line["receivedBytes"].as_u64() > Some(0), "{line}");
        let shown = lab.run(&["status"]);
        let row = shown.lines().find(|row| row.starts_with(name)).unwrap().to_owned();
        assert!(row.contains(transport) && row.contains("yes"), "{shown}");

        // An edge that says goodbye is known to be gone at once, not after its silence.
        assert_eq!(edge.terminate().unwrap().code(), Some(0), "{}", edge.log());
        assert!(lab.disconnected(name)["since"].is_string());
    }
}

#[test]
fn a_cloud_that_restarts_or_dies_finds_its_edges_again() {
    let mut lab = Lab::start();
    let token = lab.run(&["token", "create", "--site", "Oslo"]);
    let mut edge = lab.join("edge", token.trim());
    lab.connected("Oslo", &edge);

    lab.cloud.process.terminate().unwrap();
    lab.restart();
    lab.connected("Oslo", &edge);

    // Killed, it tells no peer; the restarted one does not know the old links and says so.
    lab.cloud.process.kill().unwrap();
    lab.restart();
    let begun = Instant::now();
    lab.connected("Oslo", &edge);
    println!("back {:?} after the cloud was ready again", begun.elapsed());

    // Without a cloud the edge goes on trying, and ends in order when it is told to.
    lab.cloud.process.kill().unwrap();
    let gone = edge.log().len();
    wait_for("the edge notices", || edge.log()[gone..].contains("no link to the cloud").then_some(()))
        .unwrap();
    assert!(edge.ended().is_none(), "{}", edge.log());
    assert_eq!(edge.terminate().unwrap().code(), Some(0), "{}", edge.log());
}

#[test]
fn a_revoked_gateway_loses_its_session_within_a_second() {
    for transport in ["quic", "tcp"] {
        let lab = Lab::start();
        let token = lab.run(&["token", "create", "--site", "Oslo"]);
        let mut edge = lab.edge("edge", &["--join", token.trim(), "--transport", transport]);
        lab.connected("Oslo", &edge);
        lab.run(&["revoke", "Oslo"]);
        let begun = Instant::now();
        lab.disconnected("Oslo");
        let took = begun.elapsed();
        assert!(took < Duration::from_secs(1), "{took:?}");
        let status = wait_for("the edge gives up", || edge.ended()).unwrap();
        assert_eq!(status.code(), Some(1));
        assert!(edge.log().contains("new token"), "{}", edge.log());
        assert_eq!(lab.gateway("Oslo").unwrap()["connected"], false);
    }
}

#[test]
fn a_double_of_an_edge_takes_over_and_the_old_one_does_not_disturb_it() {
    let lab = Lab::start();
    let token = lab.run(&["token", "create", "--site", "Oslo"]);
    let mut edge = lab.join("edge", token.trim());
    let first = lab.connected("Oslo", &edge);

    // Its machine is restored from an image while the old one still runs.
    let copied = std::process::Command::new("cp")
        .args(["-r", lab.path("edge").to_str().unwrap(), lab.path("double").to_str().unwrap()])
        .status()
        .unwrap();
    assert!(copied.success());
    let double = lab.edge("double", &[]);
    wait_for("the double has taken over", || {
        let line = lab.gateway("Oslo")?;
        (line["connected"] == true && line["since"] != first["since"]).then_some(())
    })
    .unwrap_or_else(|error| panic!("{error}\n{}", double.log()));

    // The end of the old one leaves the new one alone.
    edge.kill().unwrap();
    lab.connected("Oslo", &double);
}

#[test]
fn a_gateway_that_is_deleted_has_no_session() {
    let lab = Lab::start();
    let token = lab.run(&["token", "create", "--site", "Oslo"]);
    let mut edge = lab.join("edge", token.trim());
    lab.connected("Oslo", &edge);
    lab.cloud.wait_condition("egateway", "Oslo", "Connected", "True").unwrap();
    for kind in ["esite", "egateway"] {
        let refused = lab.cloud.run(&["delete", kind, "Oslo"]).unwrap();
        assert!(refused.code == 1 && refused.stderr.contains("causeway delete --force"), "{refused:?}");
    }
    lab.run(&["delete", "egateway", "Oslo", "--force"]);
    let status = wait_for("the edge gives up", || edge.ended()).unwrap();
    assert_eq!(status.code(), Some(1), "{}", edge.log());
}

#[test]
fn a_probe_goes_to_the_edge_and_back() {
    let lab = Lab::start();
    let token = lab.run(&["token", "create", "--site", "Oslo"]);
    let away = lab.cloud.run(&["doctor", "Oslo"]).unwrap();
    assert!(away.code == 1 && away.stdout.contains("never connected"), "{away:?}");
    let edge = lab.join("edge", token.trim());
    lab.connected("Oslo", &edge);
    let condition = lab.cloud.wait_condition("egateway", "Oslo", "Connected", "True").unwrap();
    assert_eq!(condition["reason"], "Connected");
    let seen = lab.cloud.run(&["doctor", "Oslo"]).unwrap();
    assert!(seen.stdout.contains("1000 bytes went there and back"), "{seen:?}");
}

/// Name and version of the program under test, as an edge says them.
const SOFTWARE: &str = concat!("causeway ", env!("CARGO_PKG_VERSION"));

#[test]
fn why_and_when_a_gateway_left_outlives_the_cloud() {
    let mut lab = Lab::start();
    let rows = ["Stopped", "LinkLost", "Revoked"];
    let mut edges = rows.map(|name| {
        let token = lab.run(&["token", "create", "--site", "Oslo", "--gateway", name]);
        // Over TCP the kernel of a killed process says at once that it is gone.
        let edge = lab.edge(name, &["--join", token.trim(), "--transport", "tcp"]);
        lab.connected(name, &edge);
        lab.cloud.wait_condition("egateway", name, "Connected", "True").unwrap();
        edge
    });
    edges[0].terminate().unwrap();
    edges[1].kill().unwrap();
    lab.run(&["revoke", rows[2]]);
    let mut before = Vec::new();
    for name in rows {
        assert_eq!(lab.disconnected(name)["lastDisconnectReason"], name, "told at once");
        let condition = lab.cloud.wait_condition("egateway", name, "Connected", "False").unwrap();
        assert_eq!(condition["reason"], name, "{condition}");
        before.push(lab.gateway(name).unwrap()["lastSeen"].clone());
    }
    lab.cloud.process.terminate().unwrap();
    lab.restart();
    for (name, before) in rows.iter().zip(&before) {
        let line = lab.gateway(name).unwrap();
        assert!(before.is_string(), "{line}");
        assert_eq!(line["software"], SOFTWARE, "the version is that of the last session: {line}");
        assert_eq!(
            (&line["lastSeen"], &line["lastDisconnectReason"]),
            (before, &Value::from(*name)),
            "{line}"
        );
    }
    let version = SOFTWARE.strip_prefix("causeway ").unwrap();
    let table = lab.run(&["status"]);
    let row = table.lines().find(|row| row.starts_with("Stopped ")).unwrap();
    assert!(table.contains("VERSION") && row.split_whitespace().any(|cell| cell == version), "{table}");
    let wide = lab.run(&["get", "egateways", "-o", "wide"]);
    let row = wide.lines().find(|row| row.starts_with("Stopped ")).unwrap();
    assert!(wide.contains("VERSION") && row.split_whitespace().any(|cell| cell == version), "{wide}");
    // Back again, it is connected; why it had been away is still told.
    let edge = lab.edge("Stopped", &["--transport", "tcp"]);
    assert_eq!(lab.connected("Stopped", &edge)["lastDisconnectReason"], "Stopped");
    let condition = lab.cloud.wait_condition("egateway", "Stopped", "Connected", "True").unwrap();
    assert_eq!(condition["reason"], "Connected");
}
