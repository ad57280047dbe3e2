//! Presence ranges inside the LAN of a site: hosts without any route find presences by ARP and neighbour discovery.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use serde_json::{Value, json};
use testlab::causeway::wait_for;
use testlab::net::{Host, reach_tcp};

use crate::presence_namespace::leftovers;
use crate::presences::Fleet;

const PATIENCE: Duration = Duration::from_secs(10);
const SITE: &str = "edge-a";
/// The address that a host of the LAN has, inside the range.
const TAKEN: &str = "10.0.0.130";
const UNALLOCATED: [&str; 2] = ["10.0.0.200", "fd00:10::8888"];

fn ip(host: &Host, arguments: &str) -> String {
    let output = host.command("ip").args(arguments.split(' ')).output().unwrap();
    assert!(output.status.success(), "ip {arguments}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Exposes a service of site `b` to all hosts of site `a`.
fn expose(fleet: &Fleet, name: &str) {
    let service = json!({"ip": "10.0.1.2", "port": 7000, "protocol": "TCP", "eSiteName": "edge-b"});
    fleet.post("eservices", "EService", name, service);
    let expose = json!({"eServiceName": name, "dnsName": format!("{name}.test"), "eSites": [SITE],
        "ePolicys": ["all"]});
    fleet.post("serviceexposes", "ServiceExpose", name, expose);
}

fn presence(fleet: &Fleet, service: &str, is_v4: bool) -> IpAddr {
    let found = wait_for("the service has an address", || {
        let path = "/apis/causeway.io/v1/virtualpresences";
        let list = fleet.cloud.call(|api| api.get(path)?.success()).ok()?;
        let items = list["items"].as_array()?.clone();
        let addresses = items.iter().filter(|item| item["eServiceName"] == service);
        addresses
            .filter_map(|item| item["virtualIp"].as_str()?.parse().ok())
            .find(|ip: &IpAddr| ip.is_ipv4() == is_v4)
    });
    found.unwrap()
}

fn wait_reach(client: &Host, address: IpAddr) {
    let to = SocketAddr::new(address, 7000);
    let seen = wait_for("the presence answers", || reach_tcp(client, to, Duration::from_secs(2)).ok());
    let seen = seen.unwrap_or_else(|error| panic!("{to}: {error}: {}", ip(client, "neigh")));
    // The server of the other site sees its own gateway.
    assert_eq!(seen.ip(), "10.0.1.1".parse::<IpAddr>().unwrap());
}

/// The client has asked the LAN for an address, and no host has answered.
fn assert_no_answer(client: &Host, address: &str) {
    let to = SocketAddr::new(address.parse().unwrap(), 7000);
    assert!(reach_tcp(client, to, PATIENCE).is_err(), "{to}");
    let known = ip(client, &format!("neigh show {address}"));
    assert!(!known.contains("lladdr"), "{known}");
}

#[test]
fn a_host_without_any_route_reaches_presences_inside_its_own_network() {
    let test = "a_host_without_any_route_reaches_presences_inside_its_own_network";
    let Some(mut fleet) = Fleet::start(test) else { return };
    let client = fleet.host("client-a");
    ip(&client, "route del default");
    ip(&client, "-6 route del default");
    ip(&client, &format!("addr add {TAKEN}/24 dev eth0"));
    client.ask_for_names("10.0.0.1".parse().unwrap()).unwrap();
    let gateway = json!({"apiVersion": "causeway.io/v1", "kind": "EGateway", "metadata": {"name": SITE},
        "eSiteName": SITE, "ip": "10.0.0.1", "virtualPresenceIPcidr": "10.0.0.128/25,fd00:10::8000/113"});
    fleet.cloud.apply(&gateway.to_string()).unwrap();
    fleet.post("epolicies", "EPolicy", "all", json!({"allowedSites": [SITE]}));
    expose(&fleet, "web");
    let [v4, v6] = [true, false].map(|is_v4| presence(&fleet, "web", is_v4));
    wait_reach(&client, v4);
    wait_reach(&client, v6);

    // By name, with the resolver of the host.
    let output = client.command("getent").args(["ahosts", "web.test"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!([v4, v6].iter().all(|address| text.contains(&address.to_string())), "{text}");
    UNALLOCATED.iter().for_each(|address| assert_no_answer(&client, address));

    // The next address of the range is that of a host of the LAN: it keeps it, and the gateway says so.
    expose(&fleet, "second");
    assert_eq!(presence(&fleet, "second", true), TAKEN.parse::<IpAddr>().unwrap());
    let second = presence(&fleet, "second", false);
    wait_reach(&client, second);
    let state = wait_for("the gateway reports the address that is taken", || {
        let state = fleet.edges[0].debug().ok()?["neighbours"].clone();
        state["troubles"].to_string().contains(TAKEN).then_some(state)
    });
    let state: Value = state.unwrap();
    assert_eq!(state["interfaces"]["client-a"]["addresses"], 3, "{state}");
    // Its own uplink is no network of the range.
    assert_eq!(state["interfaces"].as_object().unwrap().len(), 1, "{state}");

    let (host, before) = (fleet.host(SITE), fleet.before.clone());
    assert!(leftovers(&host) != before, "there is something to be left");
    fleet.edges[0].unit.kill().unwrap();
    wait_for("nothing is left of the gateway", || (leftovers(&host) == before).then_some(())).unwrap();
    ip(&client, "neigh flush all");
    for address in [v4, v6] {
        assert_no_answer(&client, &address.to_string());
    }
    fleet.edges[0].restart().unwrap();
    wait_reach(&client, v4);
    wait_reach(&client, v6);
}
