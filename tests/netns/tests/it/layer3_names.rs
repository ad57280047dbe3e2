//! Two sites with equal networks, mapped by the cloud or by hand: hosts reach each other by name and by address.

use std::net::{IpAddr, SocketAddr};

use serde_json::{Value, json};
use testlab::causeway::wait_for;
use testlab::net::{reach_tcp, reach_udp};

use crate::layer3_lab::{EQUAL_NETWORKS, Layer3, PATIENCE, PORT};

/// The address that both edges have in their site, with DNS.
const GATEWAY: &str = "10.0.0.1";
/// Both hosts have these.
const HOSTS: [&str; 2] = ["10.0.0.2", "fd00:10::2"];
const EDGES: [(&str, &str); 2] = [("host-a", "edge-a"), ("host-b", "edge-b")];

fn started(test: &str) -> Option<Layer3> {
    let lab = Layer3::start_equal(test)?;
    for (host, edge) in EDGES {
        lab.apply(json!({"kind": "EGateway", "metadata": {"name": edge}, "eSiteName": edge, "ip": GATEWAY}));
        lab.host(host).ask_for_names(GATEWAY.parse().unwrap()).unwrap();
    }
    Some(lab)
}

/// The hosts of both edges under their addresses of this family.
fn name_hosts(lab: &Layer3, address: &str) {
    for (host, edge) in EDGES {
        lab.apply(json!({"kind": "EServer", "metadata": {"name": host}, "eSiteName": edge, "ip": address}));
    }
}

fn object(lab: &Layer3, plural: &str, name: &str) -> Value {
    lab.cloud.call(|api| api.get(&format!("/apis/causeway.io/v1/{plural}/{name}"))?.success()).unwrap()
}

/// The name of a host, and its addresses as the resolver of another host says.
fn resolve(lab: &Layer3, from: &str, name: &str) -> Vec<IpAddr> {
    let output = lab.host(from).command("getent").args(["ahosts", name]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut addresses: Vec<IpAddr> =
        text.lines().filter_map(|line| line.split_whitespace().next()?.parse().ok()).collect();
    addresses.dedup();
    addresses
}

/// Both hosts reach each other by name, and by the address that the name has; each sees the address of the other that its own
/// names have. Ping, TCP and UDP.
fn check_both_ways(lab: &Layer3, wire: [IpAddr; 2]) {
    for (from, to) in [(0, 1), (1, 0)] {
        let (client, (target, edge)) = (EDGES[from].0, EDGES[to]);
        let name = format!("{target}.{edge}.causeway.internal");
        wait_for(&format!("{client} finds {name} at {}", wire[to]), || {
            (resolve(lab, client, &name) == [wire[to]]).then_some(())
        })
        .unwrap_or_else(|error| panic!("{error}: {:?}", resolve(lab, client, &name)));
        wait_for(&format!("{client} pings {}", wire[to]), || lab.pings(client, wire[to]).then_some(()))
            .unwrap();
        let (host, server) = (lab.host(client), SocketAddr::new(wire[to], PORT));
        for seen in [reach_tcp(&host, server, PATIENCE), reach_udp(&host, server, PATIENCE)] {
            assert_eq!(seen.unwrap().ip().to_canonical(), wire[from], "{client} to {server}");
        }
        let said = host.command("ping").args(["-n", "-c", "1", "-W", "5", &name]).output().unwrap();
        assert!(said.status.success(), "{said:?}");
        let said = host.command("python3").args(["-c", CONNECT_BY_NAME, &name, &PORT.to_string()]).output();
        let said = said.unwrap();
        let seen: SocketAddr = String::from_utf8_lossy(&said.stdout).trim().parse().unwrap();
        assert_eq!(seen.ip().to_canonical(), wire[from], "{client} to {name}: {said:?}");
    }
}

const CONNECT_BY_NAME: &str = "
import socket, sys
s = socket.create_connection((sys.argv[1], int(sys.argv[2])), 10)
print(s.makefile().readline().strip())
";

#[test]
fn layer3_equal_networks_are_mapped_by_the_cloud_and_reached_by_name_and_by_address() {
    let test = "layer3_equal_networks_are_mapped_by_the_cloud_and_reached_by_name_and_by_address";
    let Some(mut lab) = started(test) else { return };
    // One range serves one address family.
    for (_, edge) in EDGES {
        lab.apply(json!({"kind": "ESite", "metadata": {"name": edge}, "subnets": [EQUAL_NETWORKS[0]]}));
    }
    name_hosts(&lab, HOSTS[0]);
    lab.community(&["cloud", "edge-a", "edge-b"], None);
    for (place, (_, edge)) in EDGES.into_iter().enumerate() {
        let other = EDGES[1 - place].1;
        wait_for(&format!("the condition of {edge} names both sites"), || {
            let site = object(&lab, "esites", edge);
            let condition = site["status"]["conditions"]
                .as_array()?
                .iter()
                .find(|condition| condition["type"] == "SubnetsDistinct" && condition["status"] == "False")?;
            let message = condition["message"].as_str()?;
            (message.contains(other) && message.contains(EQUAL_NETWORKS[0])).then_some(())
        })
        .unwrap_or_else(|error| panic!("{error}: {}", object(&lab, "esites", edge)));
    }
    lab.apply(json!({"kind": "ECommunity", "metadata": {"name": "all"},
        "members": ["cloud", "edge-a", "edge-b"], "mapFrom": "100.64.0.0/10"}));
    let wire = EDGES.map(|(_, edge)| mapped_host(&lab, edge));
    println!("the cloud presents {EDGES:?} at {wire:?}");
    assert_ne!(wire[0], wire[1]);
    check_both_ways(&lab, wire);
    // A member without an overlap sees the same addresses and is seen under its own.
    for (place, (host, _)) in EDGES.into_iter().enumerate() {
        wait_for(&format!("host-c pings {host}"), || lab.pings("host-c", wire[place]).then_some(())).unwrap();
        let server = SocketAddr::new(wire[place], PORT);
        let seen = reach_tcp(&lab.host("host-c"), server, PATIENCE).unwrap();
        assert_eq!(seen.ip().to_canonical(), lab.address("host-c", false));
    }
    // The allocation is a stored record.
    lab.cloud.unit.kill().unwrap();
    lab.cloud.restart().unwrap();
    for edge in ["edge-a", "edge-b"] {
        lab.cloud
            .wait_gateway(edge, "is connected", PATIENCE, |gateway| gateway["connected"] == true)
            .unwrap();
    }
    assert_eq!(EDGES.map(|(_, edge)| mapped_host(&lab, edge)), wire, "after the restart of the cloud");
    check_both_ways(&lab, wire);
    lab.end();
}

/// The address under which other sites see the host of an edge, from the status of the ESite.
fn mapped_host(lab: &Layer3, edge: &str) -> IpAddr {
    let found = wait_for(&format!("{edge} has a mapped network"), || {
        let site = object(lab, "esites", edge);
        let mapped = site["status"]["mappedSubnets"].as_array()?.first()?.clone();
        (mapped["subnet"] == EQUAL_NETWORKS[0]).then_some(())?;
        let (network, length) = mapped["as"].as_str()?.split_once('/')?;
        assert_eq!(length, "24");
        let [a, b, c, _] = network.parse::<std::net::Ipv4Addr>().ok()?.octets();
        Some(IpAddr::from([a, b, c, 2]))
    });
    found.unwrap()
}

#[test]
fn layer3_equal_networks_are_mapped_by_hand_and_reached_by_name_and_by_address() {
    let test = "layer3_equal_networks_are_mapped_by_hand_and_reached_by_name_and_by_address";
    let Some(lab) = started(test) else { return };
    let mapped = [("100.71.1.0/24", "fd99:1::/64"), ("100.71.2.0/24", "fd99:2::/64")];
    for ((_, edge), (v4, v6)) in EDGES.into_iter().zip(mapped) {
        lab.apply(json!({"kind": "ESite", "metadata": {"name": edge}, "subnets": EQUAL_NETWORKS,
            "mappedSubnets": [{"subnet": EQUAL_NETWORKS[0], "as": v4}, {"subnet": EQUAL_NETWORKS[1], "as": v6}]}));
    }
    lab.community(&["edge-a", "edge-b"], None);
    for (address, wire) in HOSTS.into_iter().zip([["100.71.1.2", "100.71.2.2"], ["fd99:1::2", "fd99:2::2"]]) {
        name_hosts(&lab, address);
        check_both_ways(&lab, wire.map(|address| address.parse().unwrap()));
    }
    lab.end();
}
