//! Routed networks: members of a community reach each other with their real addresses, as policies allow.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use serde_json::json;
use testlab::causeway::wait_for;
use testlab::net::{Traffic, reach_tcp};

use crate::layer3_lab::{Layer3, PATIENCE, PORT};
use crate::tunnel_translated::is_client_address;

/// A removed member or policy stops flows within this time.
const STOP: Duration = Duration::from_secs(1);

#[test]
fn layer3_hosts_of_members_reach_each_other_with_their_real_addresses() {
    let test = "layer3_hosts_of_members_reach_each_other_with_their_real_addresses";
    let Some(lab) = Layer3::start(test) else { return };
    let target = lab.address("host-a", false);
    assert!(!lab.pings("host-c", target), "no community permits it");
    let begin = Instant::now();
    lab.community(&["cloud", "edge-a", "edge-b"], None);
    for is_v6 in [false, true] {
        for (from, to) in
            [("host-c", "host-a"), ("host-a", "host-c"), ("host-a", "host-b"), ("host-b", "host-a")]
        {
            lab.await_crossing(from, to, is_v6);
        }
    }
    println!("everything crosses {:?} after the community was applied", begin.elapsed());
    lab.end();
}

#[test]
fn layer3_a_member_that_leaves_and_a_policy_that_goes_stop_flows() {
    let test = "layer3_a_member_that_leaves_and_a_policy_that_goes_stop_flows";
    let Some(lab) = Layer3::start(test) else { return };
    lab.policy(json!({"allowedSites": ["cloud"], "ports": ["icmp", "tcp/7000", "udp/7000"]}));
    lab.community(&["cloud", "edge-a"], Some(&["narrow"]));
    lab.await_crossing("host-c", "host-a", false);
    let (there, back) = (lab.address("host-a", false), lab.address("host-c", false));
    assert!(!lab.pings("host-a", back), "the policy names who may begin");
    lab.policy(json!({"allowedSites": ["cloud"], "ports": ["tcp/7000"]}));
    stops(&lab, "host-c", there);
    lab.community(&["cloud", "edge-a"], None);
    lab.await_crossing("host-a", "host-c", false);
    lab.community(&["cloud", "edge-b"], None);
    stops(&lab, "host-c", there);
    lab.end();
}

/// Ping, which waits a second itself, must fail soon and stay so.
fn stops(lab: &Layer3, from: &str, to: std::net::IpAddr) {
    let begin = Instant::now();
    wait_for("packets stop", || (!lab.pings(from, to)).then_some(())).unwrap();
    let took = begin.elapsed();
    println!("packets stopped {took:?} after the change");
    assert!(took < 3 * STOP, "{took:?}, of which the last ping waits one second");
    assert!(!lab.pings(from, to));
}

#[test]
fn layer3_packets_ride_the_channel_while_udp_is_blocked() {
    let test = "layer3_packets_ride_the_channel_while_udp_is_blocked";
    let Some(mut lab) = Layer3::start(test) else { return };
    lab.net.block("nat-a", Traffic::Udp).unwrap();
    lab.community(&["cloud", "edge-a", "edge-b"], None);
    lab.await_crossing("host-a", "host-c", false);
    lab.await_crossing("host-a", "host-b", false);
    lab.net.allow("nat-a", Traffic::Udp).unwrap();
    lab.await_crossing("host-b", "host-a", false);
    lab.end();
}

#[test]
fn layer3_a_translated_service_crosses_between_sites_without_a_community() {
    let test = "layer3_a_translated_service_crosses_between_sites_without_a_community";
    let Some(lab) = Layer3::start(test) else { return };
    let server = lab.address("host-b", false);
    lab.policy(json!({"allowedSites": ["edge-a"]}));
    for object in [
        json!({"kind": "EService", "metadata": {"name": "plc"}, "eSiteName": "edge-b", "ip": server, "protocol": "IP"}),
        json!({"kind": "ServiceExpose", "metadata": {"name": "plc"}, "eServiceName": "plc", "eSites": ["edge-a"],
            "ePolicys": ["narrow"], "mode": "translate"}),
    ] {
        let mut object = object;
        object["apiVersion"] = json!("causeway.io/v1");
        lab.cloud.apply(&object.to_string()).unwrap();
    }
    let presence = wait_for("the service has an address", || {
        let path = "/apis/causeway.io/v1/virtualpresences";
        let list = lab.cloud.call(|api| api.get(path)?.success()).ok()?;
        let made = list["items"].as_array()?.iter().find(|item| item["eServiceName"] == "plc")?;
        made["virtualIp"].as_str()?.parse::<IpAddr>().ok()
    });
    let presence = presence.unwrap();
    wait_for("the server answers", || lab.pings("host-a", presence).then_some(())).unwrap();
    let seen = reach_tcp(&lab.host("host-a"), SocketAddr::new(presence, PORT), PATIENCE).unwrap().ip();
    assert!(is_client_address(seen.to_canonical()), "the server sees {seen}");
    // The policy goes, and with it every packet.
    lab.policy(json!({"allowedSites": []}));
    wait_for("packets stop", || (!lab.pings("host-a", presence)).then_some(())).unwrap();
    lab.end();
}
