//! Whole systems in network namespaces. Without root or the tools each test says why it is skipped.

#![allow(clippy::unwrap_used, clippy::panic)]

mod breaking;
mod carrying;
mod connecting;
mod diagnosing;
mod failing;
mod fleet;
mod how_to;
mod idling;
mod kafka;
mod kubernetes_addresses;
mod lab;
mod layer3_connection;
mod layer3_failover;
mod layer3_iperf;
mod layer3_lab;
mod layer3_lan;
mod layer3_leftovers;
mod layer3_limits;
mod layer3_names;
mod layer3_outages;
mod layer3_paths;
mod layer3_refusals;
mod layer3_relays;
mod layer3_routed;
mod layer3_soak;
mod layer3_switches;
mod learning;
mod lying;
mod mass;
mod nat_fleet;
mod neighbours;
mod open_vswitch;
mod presence_namespace;
mod presences;
mod programs;
mod readme;
mod remembering;
mod rows;
mod sites;
mod tunnel_crossing;
mod tunnel_equal_networks;
mod tunnel_lab;
mod tunnel_strangers;
mod tunnel_translated;
mod tunnel_wireguard;

use testlab::net::{Net, Plan};

/// Two sites behind NATs and a cloud on a public address, dual stack; everything crosses the router `internet`.
fn two_sites() -> Plan {
    Plan::new()
        .router("internet")
        .host("cloud")
        .link("cloud", "internet", &["203.0.113.0/24", "2001:db8:1::/64"])
        .nat("nat-a")
        .link("nat-a", "internet", &["198.51.100.0/24", "2001:db8:a::/64"])
        .nat("nat-b")
        .link("nat-b", "internet", &["192.0.2.0/24", "2001:db8:b::/64"])
        // The same private addresses at both sites, as everywhere.
        .host("edge-a")
        .link("edge-a", "nat-a", &["192.168.1.0/24", "fd00:1::/64"])
        .host("edge-b")
        .link("edge-b", "nat-b", &["192.168.1.0/24", "fd00:1::/64"])
}

/// The network of a plan; none, and the test's name with the reason printed, where none can be built.
fn build(test: &str, plan: &Plan) -> Option<Net> {
    if let Some(reason) = testlab::net::missing() {
        println!("skipped: {test} {reason}");
        return None;
    }
    Some(Net::build(plan).unwrap())
}
