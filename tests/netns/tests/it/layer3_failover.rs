//! Two gateways of a site on one LAN: packets go on when the active one is killed, and when it comes back.
//!
//! The hosts of the LAN have no route: the network of the other site is mapped into their LAN, the active gateway answers for it,
//! and the next one announces the hosts that are known.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testlab::causeway::wait_for;
use testlab::fleet::{CHANNEL_PORT, CloudHost, EdgeHost};
use testlab::net::{Echo, Host, Net, Plan, reach_ping, reach_tcp};

use crate::build;
use crate::layer3_connection::{EchoLoop, Flow};
use crate::layer3_lab::{PATIENCE, PORT};
use crate::presence_namespace::leftovers;

/// The gateways of the LAN, with their addresses in it. The first is preferred.
const GATEWAYS: [(&str, &str); 2] = [("edge-1", "10.2.0.11"), ("edge-2", "10.2.0.12")];
/// The host of the LAN, and the host of the other site: as its site knows it, and as the LAN does.
const HOST_B: &str = "10.2.0.2";
const HOST_A: (&str, &str) = ("10.1.0.2", "10.2.77.2");
const REPLY: Duration = Duration::from_secs(1);

/// `lan` is a switch; each link has a network of its own until the test joins them.
fn plan() -> Plan {
    let mut plan =
        Plan::new().router("internet").host("cloud").link("cloud", "internet", &["203.0.113.0/24"]);
    plan = plan
        .nat("nat-a")
        .link("nat-a", "internet", &["198.51.100.0/24"])
        .router("edge-a")
        .link("edge-a", "nat-a", &["192.168.1.0/24"])
        .host("host-a")
        .link("host-a", "edge-a", &["10.1.0.0/24"])
        .nat("nat-b")
        .link("nat-b", "internet", &["192.0.2.0/24"])
        .host("lan")
        .link("lan", "nat-b", &["192.168.9.0/24"]);
    for (place, (edge, _)) in GATEWAYS.into_iter().enumerate() {
        plan = plan.router(edge).link(edge, "nat-b", &[&format!("192.168.{}.0/24", place + 1)]).link(
            edge,
            "lan",
            &[&format!("10.3.{place}.0/24")],
        );
    }
    plan.host("host-b").link("host-b", "lan", &["10.3.9.0/24"])
}

fn ip(host: &Host, arguments: &str) {
    let output = host.command("ip").args(arguments.split(' ')).output().unwrap();
    assert!(output.status.success(), "ip {arguments}: {output:?}");
}

/// Joins the links of the LAN, and gives its hosts their addresses.
fn lay_lan(net: &Net) {
    let lan = net.host("lan").unwrap();
    ip(&lan, "link add br0 type bridge");
    ip(&lan, "link set br0 up");
    for port in ["edge-11", "edge-21", "host-b"] {
        ip(&lan, &format!("addr flush dev {port}"));
        ip(&lan, &format!("link set {port} master br0"));
    }
    let ends = GATEWAYS.map(|(edge, address)| (edge, "eth1", address));
    for (node, interface, address) in ends.into_iter().chain([("host-b", "eth0", HOST_B)]) {
        let host = net.host(node).unwrap();
        ip(&host, &format!("addr flush dev {interface}"));
        ip(&host, &format!("addr add {address}/16 dev {interface}"));
    }
}

fn apply(cloud: &CloudHost, mut object: Value) {
    object["apiVersion"] = json!("causeway.io/v1");
    cloud.apply(&object.to_string()).unwrap();
}

#[test]
fn layer3_a_connection_outlives_the_active_gateway_of_its_site_and_its_return() {
    let test = "layer3_a_connection_outlives_the_active_gateway_of_its_site_and_its_return";
    let Some(net) = build(test, &plan()) else { return };
    lay_lan(&net);
    let host = |name: &str| net.host(name).unwrap();
    let state = || -> Vec<BTreeSet<String>> {
        ["edge-a", "edge-1", "edge-2"].iter().map(|name| leftovers(&host(name))).collect()
    };
    let (before, folder) = (state(), tempfile::tempdir().unwrap());
    let channel = SocketAddr::new(net.ipv4("cloud").unwrap().into(), CHANNEL_PORT);
    let mut cloud = CloudHost::start(&host("cloud"), folder.path(), &[channel], &[]).unwrap();
    let mut edges = Vec::new();
    for (edge, site, address) in [
        ("edge-a", "edge-a", "10.1.0.1"),
        ("edge-1", "edge-b", GATEWAYS[0].1),
        ("edge-2", "edge-b", GATEWAYS[1].1),
    ] {
        let token =
            cloud.run(&["token", "create", "--site", site, "--gateway", edge, "--ip", address]).unwrap();
        let token = token.success().unwrap().trim().to_owned();
        edges.push(EdgeHost::join(&host(edge), folder.path(), edge, &token).unwrap());
        cloud.wait_gateway(edge, "is connected", PATIENCE, |gateway| gateway["connected"] == true).unwrap();
    }
    apply(
        &cloud,
        json!({"kind": "ESite", "metadata": {"name": "edge-a"}, "subnets": ["10.1.0.0/24"],
        "mappedSubnets": [{"subnet": "10.1.0.0/24", "as": "10.2.77.0/24"}]}),
    );
    apply(&cloud, json!({"kind": "ESite", "metadata": {"name": "edge-b"}, "subnets": ["10.2.0.0/24"]}));
    for (name, site, address) in [("host-a", "edge-a", HOST_A.0), ("host-b", "edge-b", HOST_B)] {
        apply(
            &cloud,
            json!({"kind": "EServer", "metadata": {"name": name}, "eSiteName": site, "ip": address}),
        );
    }
    apply(
        &cloud,
        json!({"kind": "ECommunity", "metadata": {"name": "all"}, "members": ["edge-a", "edge-b"]}),
    );
    let _servers = ["host-a", "host-b"]
        .map(|name| Echo::start(&host(name), format!("0.0.0.0:{PORT}").parse().unwrap()).unwrap());
    let pings = |from: &str, to: &str| reach_ping(&host(from), to.parse().unwrap(), REPLY).unwrap();
    for (from, to) in [("host-a", HOST_B), ("host-b", HOST_A.1)] {
        wait_for(&format!("{from} pings {to}"), || pings(from, to).then_some(())).unwrap();
    }
    let server = |address: &str| SocketAddr::new(address.parse().unwrap(), PORT);
    let seen = reach_tcp(&host("host-a"), server(HOST_B), PATIENCE).unwrap();
    assert_eq!(seen.ip().to_string(), HOST_A.1);

    let flows = [("host-a", HOST_B), ("host-b", HOST_A.1)].map(|(from, to)| {
        EchoLoop::start(&format!("from {from} to {to}"), Flow::connect(&host(from), server(to)))
    });
    let await_flows = |what: &str| {
        let begin = Instant::now();
        for flow in &flows {
            flow.await_echoes();
        }
        let longest = flows.each_ref().map(EchoLoop::take_longest);
        println!("{what}: both connections go on {:?} later, longest echoes {longest:?}", begin.elapsed());
    };
    await_flows("the first gateway is active");
    // Bytes of packets; keepalives have none. Each gateway shows them up to a second later.
    let carried = |edge: &EdgeHost| {
        edge.debug().ok()?["tunnel"]["peers"]["edge-a"]["sent"]["bytes"].as_u64().filter(|bytes| *bytes > 0)
    };
    wait_for("edge-1 carries them", || carried(&edges[1])).unwrap();
    assert_eq!(carried(&edges[2]), None, "edge-2 is standby");
    edges[1].unit.kill().unwrap();
    await_flows("the active gateway is killed");
    wait_for("edge-2 carries them", || carried(&edges[2])).unwrap();
    for (from, to) in [("host-a", HOST_B), ("host-b", HOST_A.1)] {
        wait_for(&format!("{from} pings {to}"), || pings(from, to).then_some(())).unwrap();
    }
    edges[1].restart().unwrap();
    cloud.wait_gateway("edge-1", "is connected", PATIENCE, |gateway| gateway["connected"] == true).unwrap();
    wait_for("edge-1 carries them again", || carried(&edges[1])).unwrap();
    await_flows("the first gateway is back");
    for flow in flows {
        flow.end();
    }
    for edge in &mut edges {
        assert!(edge.unit.process().unwrap().terminate().unwrap().success());
    }
    assert!(cloud.unit.process().unwrap().terminate().unwrap().success());
    assert_eq!(state(), before, "nothing is left");
}
