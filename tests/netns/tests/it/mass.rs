//! Much at once through presences: gigabytes, thousands of connections, a thousand UDP clients. Figures are printed.
//!
//! The client is at site b, the server at site a, the cloud between them; the bytes are made and summed by common programs.
//! `CAUSEWAY_SOAK=1` takes the long forms; `CAUSEWAY_BIN` names another binary, for figures that mean something.

mod bulk;
mod idle;
mod udp;

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::json;
use testlab::causeway::wait_for;
use testlab::fleet::Unit;
use testlab::net::reach_tcp;

use crate::presences::Fleet;

/// A service of site a for the client of site b, and where that finds it.
fn expose(fleet: &Fleet, protocol: &str, port: u16) -> SocketAddr {
    let name = format!("{}-{port}", protocol.to_lowercase());
    let service = json!({"ip": "10.0.1.2", "port": port, "protocol": protocol, "eSiteName": "edge-a"});
    fleet.post("eservices", "EService", &name, service);
    let expose = json!({"eServiceName": name, "eSites": ["edge-b"], "ePolicys": ["client-b"]});
    fleet.post("serviceexposes", "ServiceExpose", &name, expose);
    SocketAddr::new(fleet.presence_ip(&name, "edge-b"), port)
}

/// The fleet with its client known and let in, and the first connection made.
fn open(fleet: &Fleet) {
    fleet.post("eservers", "EServer", "client-b", json!({"ip": "10.0.0.2", "eSiteName": "edge-b"}));
    fleet.post("epolicies", "EPolicy", "client-b", json!({"allowedServers": ["client-b"]}));
    let echo = expose(fleet, "TCP", 7000);
    let client = fleet.host("client-b");
    wait_for("TCP crosses", || reach_tcp(&client, echo, Duration::from_secs(2)).ok()).unwrap();
}

/// The resident memory of a process, in KiB.
fn resident_kib(unit: &mut Unit) -> u64 {
    let pid = unit.process().unwrap().pid();
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").trim().parse().unwrap()
}
