//! Hosts without any route: their gateway answers ARP and neighbour discovery for translated services, for the clients of
//! such services, and for mapped networks inside their LAN.

use std::net::{IpAddr, SocketAddr};

use serde_json::json;
use testlab::causeway::wait_for;
use testlab::net::{Host, reach_tcp, reach_udp};

use crate::layer3_lab::{Layer3, PATIENCE, PORT};

fn ip(host: &Host, arguments: &str) -> String {
    let output = host.command("ip").args(arguments.split(' ')).output().unwrap();
    assert!(output.status.success(), "ip {arguments}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn remove_default_routes(host: &Host) {
    ip(host, "route del default");
    ip(host, "-6 route del default");
}

/// The host knows an address by the hardware address of its gateway, which no host of the LAN has.
fn assert_answered(host: &Host, address: IpAddr, gateway: &Host, interface: &str) {
    let link = ip(gateway, &format!("-o link show {interface}"));
    let hardware =
        link.split_whitespace().skip_while(|word| *word != "link/ether").nth(1).unwrap().to_owned();
    let known = ip(host, &format!("neigh show {address}"));
    assert!(known.contains(&hardware), "{address} is not at {hardware}: {known}");
}

fn assert_silent(host: &Host, address: IpAddr) {
    assert!(reach_tcp(host, SocketAddr::new(address, PORT), PATIENCE).is_err(), "{address}");
    let known = ip(host, &format!("neigh show {address}"));
    assert!(!known.contains("lladdr"), "{known}");
}

#[test]
fn layer3_translated_services_and_their_clients_are_found_by_arp_and_neighbour_discovery() {
    let test = "layer3_translated_services_and_their_clients_are_found_by_arp_and_neighbour_discovery";
    let Some(lab) = Layer3::start(test) else { return };
    for (edge, ip, range) in [
        ("edge-a", "10.1.0.1", "10.1.0.128/25,fd00:a::8000/113"),
        ("edge-b", "10.2.0.1", "10.2.0.128/25,fd00:b::8000/113"),
    ] {
        lab.apply(json!({"kind": "EGateway", "metadata": {"name": edge}, "eSiteName": edge, "ip": ip,
            "virtualPresenceIPcidr": range}));
    }
    let (client, server) = (lab.host("host-a"), lab.host("host-b"));
    remove_default_routes(&client);
    remove_default_routes(&server);
    lab.policy(json!({"allowedSites": ["edge-a"]}));
    for (name, is_v6) in [("plc", false), ("plc6", true)] {
        lab.apply(json!({"kind": "EService", "metadata": {"name": name}, "eSiteName": "edge-b",
            "ip": lab.address("host-b", is_v6), "protocol": "IP"}));
        lab.apply(json!({"kind": "ServiceExpose", "metadata": {"name": name}, "eServiceName": name,
            "eSites": ["edge-a"], "ePolicys": ["narrow"], "mode": "translate"}));
    }
    // The upper half of the range of the server's gateway.
    let client_ranges = [("10.2.0.192", "10.2.0.254"), ("fd00:b::c000", "fd00:b::ffff")];
    for (service, (first, last)) in ["plc", "plc6"].into_iter().zip(client_ranges) {
        let presence = lab.presence(service, "edge-a");
        wait_for(&format!("{service} answers at {presence}"), || lab.pings("host-a", presence).then_some(()))
            .unwrap_or_else(|error| panic!("{error}: {}", ip(&client, "neigh")));
        let to = SocketAddr::new(presence, PORT);
        let seen = reach_tcp(&client, to, PATIENCE).unwrap().ip().to_canonical();
        assert_eq!(reach_udp(&client, to, PATIENCE).unwrap().ip().to_canonical(), seen);
        let [first, last]: [IpAddr; 2] = [first.parse().unwrap(), last.parse().unwrap()];
        assert!((first..=last).contains(&seen), "the server sees {seen}");
        assert_answered(&client, presence, &lab.host("edge-a"), "host-a");
        assert_answered(&server, seen, &lab.host("edge-b"), "host-b");
    }
    // Addresses of the range that no service has.
    for address in ["10.1.0.150", "fd00:a::8888"] {
        assert_silent(&client, address.parse().unwrap());
    }
    lab.end();
}

/// A second network of the LAN of edge-a, wide enough for networks of other sites, and the part of it that is the site's.
const WIDE: [(&str, &str, &str); 2] = [
    ("10.201.0.1/16", "10.201.1.2/16", "10.201.1.0/24"),
    ("fd00:201::1/48", "fd00:201:0:1::2/48", "fd00:201:0:1::/64"),
];

#[test]
fn layer3_mapped_networks_inside_the_lan_are_found_by_arp_and_neighbour_discovery() {
    let test = "layer3_mapped_networks_inside_the_lan_are_found_by_arp_and_neighbour_discovery";
    let Some(lab) = Layer3::start(test) else { return };
    let (client, gateway) = (lab.host("host-a"), lab.host("edge-a"));
    remove_default_routes(&client);
    for (at_gateway, at_host, _) in WIDE {
        let flag = if at_host.contains(':') { " nodad" } else { "" };
        ip(&gateway, &format!("addr add {at_gateway} dev host-a{flag}"));
        ip(&client, &format!("addr add {at_host} dev eth0{flag}"));
    }
    lab.apply(json!({"kind": "ESite", "metadata": {"name": "edge-a"}, "subnets": WIDE.map(|(_, _, subnet)| subnet)}));
    lab.apply(
        json!({"kind": "ESite", "metadata": {"name": "edge-b"}, "subnets": ["10.2.0.0/24", "fd00:b::/64"],
        "mappedSubnets": [{"subnet": "10.2.0.0/24", "as": "10.201.77.0/24"},
            {"subnet": "fd00:b::/64", "as": "fd00:201:0:77::/64"}]}),
    );
    lab.community(&["edge-a", "edge-b"], None);
    for (wire, own) in [("10.201.77.2", "10.201.1.2"), ("fd00:201:0:77::2", "fd00:201:0:1::2")] {
        let (wire, own): (IpAddr, IpAddr) = (wire.parse().unwrap(), own.parse().unwrap());
        wait_for(&format!("{wire} answers"), || lab.pings("host-a", wire).then_some(()))
            .unwrap_or_else(|error| panic!("{error}: {}", ip(&client, "neigh")));
        let to = SocketAddr::new(wire, PORT);
        for seen in [reach_tcp(&client, to, PATIENCE), reach_udp(&client, to, PATIENCE)] {
            assert_eq!(seen.unwrap().ip().to_canonical(), own);
        }
        assert_answered(&client, wire, &gateway, "host-a");
        // The host of the other site begins too.
        wait_for(&format!("{own} answers"), || lab.pings("host-b", own).then_some(())).unwrap();
    }
    // Addresses of the LAN outside the mapped network.
    for address in ["10.201.78.2", "fd00:201:0:78::2"] {
        assert_silent(&client, address.parse().unwrap());
    }
    for (at_gateway, ..) in WIDE {
        ip(&gateway, &format!("addr del {at_gateway} dev host-a"));
    }
    lab.end();
}
