//! Routed networks: members of a community reach each other with their real addresses, as policies allow.

use std::net::SocketAddr;
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

#[test]
fn layer3_members_of_a_large_community_become_peers_with_their_first_packet() {
    let test = "layer3_members_of_a_large_community_become_peers_with_their_first_packet";
    // Three members are more than one: only the cloud is a peer before a packet crosses.
    let large = "[cloud]\ncommunity-peers-max = 1\n";
    let Some(mut lab) = Layer3::start_configured(test, false, &[], large) else { return };
    lab.community(&["cloud", "edge-a", "edge-b"], None);
    let peers = |lab: &Layer3, edge: usize| {
        let dump = lab.edges[edge].debug().ok()?;
        dump["tunnel"]["peers"].as_object().map(|peers| peers.keys().cloned().collect::<Vec<_>>())
    };
    let cloud_alone = Some(vec!["cloud".to_owned()]);
    // Each edge shows its peers up to a second after it has them; a neighbour would be there from the start.
    for edge in 0..2 {
        wait_for(
            &format!("edge {edge} has the cloud alone as its peer, because no packet has crossed"),
            || (peers(&lab, edge) == cloud_alone).then_some(()),
        )
        .unwrap();
    }
    let begin = Instant::now();
    lab.await_crossing("host-a", "host-b", false);
    println!("the first packets cross {:?} after the first was sent", begin.elapsed());
    let both = Some(vec!["cloud".to_owned(), "edge-b".to_owned()]);
    wait_for("edge-a shows its neighbour", || (peers(&lab, 0) == both).then_some(())).unwrap();
    lab.await_crossing("host-b", "host-a", true);
    lab.await_crossing("host-a", "host-c", false);
    // The neighbours are in the persisted netmap, and a new session repeats them.
    lab.edges[0].unit.kill().unwrap();
    lab.edges[0].restart().unwrap();
    wait_for("edge-a has its neighbour again", || (peers(&lab, 0) == both).then_some(())).unwrap();
    lab.await_crossing("host-b", "host-a", false);
    let there = lab.address("host-b", false);
    lab.community(&["cloud", "edge-a"], None);
    stops(&lab, "host-a", there);
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
        lab.apply(object);
    }
    let presence = lab.presence("plc", "edge-a");
    wait_for("the server answers", || lab.pings("host-a", presence).then_some(())).unwrap();
    let seen = reach_tcp(&lab.host("host-a"), SocketAddr::new(presence, PORT), PATIENCE).unwrap().ip();
    assert!(is_client_address(seen.to_canonical()), "the server sees {seen}");
    // The policy goes, and with it every packet.
    lab.policy(json!({"allowedSites": []}));
    wait_for("packets stop", || (!lab.pings("host-a", presence)).then_some(())).unwrap();
    lab.end();
}
