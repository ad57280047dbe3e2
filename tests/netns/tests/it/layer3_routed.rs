//! Routed networks: members of a community reach each other with their real addresses, as policies allow.

use std::time::{Duration, Instant};

use serde_json::json;
use testlab::causeway::wait_for;
use testlab::net::Traffic;

use crate::layer3_lab::Layer3;

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
