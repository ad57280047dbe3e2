//! Paths between two edges of a community of which the cloud is no member: at once over the channel, then directly where
//! their NATs allow it, and through a relay where they do not.

use std::time::{Duration, Instant};

use serde_json::Value;
use testlab::causeway::wait_for;
use testlab::net::Traffic;

use crate::layer3_connection::{BULK, Flow, MARK, count_bytes, counted};
use crate::layer3_lab::Layer3;

/// Rounds of a search end in vain after about five seconds; this is the time in which no direct path may come.
const SEARCH: Duration = Duration::from_secs(8);
/// A connection goes on through the relay within 2 s on a machine of its own; a loaded one needs longer.
const PAUSE_MAX: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Nat {
    /// Packets to the port of the tunnel are let in from everywhere.
    FullCone,
    /// One outside port for all destinations, another one than inside, and replies only.
    PortRestricted,
    /// A random outside port for each destination.
    Symmetric,
}

/// Makes the NAT of a site behave so. All of them masquerade from the beginning.
pub fn set_nat(lab: &Layer3, node: &str, nat: Nat) {
    let inside = "192.168.1.0/24";
    let edge = lab.net.ipv4(&node.replace("nat", "edge")).unwrap();
    let rules = match nat {
        Nat::FullCone => format!(
            "chain pre {{ type nat hook prerouting priority dstnat;\nip saddr != {inside} udp dport 7446 dnat ip to {edge}:7446\n}}\n"
        ),
        // Before the chain that masquerades.
        Nat::PortRestricted | Nat::Symmetric => {
            let port = if nat == Nat::Symmetric { "fully-random" } else { "to :17446" };
            format!(
                "chain out {{ type nat hook postrouting priority srcnat - 1;\nip saddr {inside} udp sport 7446 masquerade {port}\n}}\n"
            )
        }
    };
    // As routers do, the NAT drops what is not for it. Otherwise a probe that comes first takes the outside port for
    // itself, and the mapping of the edge gets another one.
    let drop = "chain guard { type filter hook input priority 0;\nudp dport { 7446, 17446 } drop\n}\n";
    lab.nft(node, &format!("table inet lab_nat_kind {{\n{rules}{drop}}}\n"));
}

/// The internet loses the packets that the sites send each other; both still reach the cloud.
pub fn cut_direct_path(lab: &Layer3) {
    let rules = "ip saddr 198.51.100.0/24 ip daddr 192.0.2.0/24 drop\nip saddr 192.0.2.0/24 ip daddr 198.51.100.0/24 drop\n";
    lab.nft(
        "internet",
        &format!("table inet lab_cut {{\nchain cut {{ type filter hook forward priority 0;\n{rules}}}\n}}\n"),
    );
}

pub fn restore_direct_path(lab: &Layer3) {
    lab.nft("internet", "delete table inet lab_cut\n");
}

/// Returns the state of the path from one edge to the other.
pub fn path(lab: &Layer3, from: usize, to: &str) -> Value {
    lab.edges[from].debug().unwrap()["tunnel"]["peers"][to].clone()
}

/// Both edges send through NATs of these kinds. `direct`: a direct path must come, else none may.
fn check(test: &str, nats: [Nat; 2], direct: bool) {
    let Some(lab) = Layer3::start(test) else { return };
    set_nat(&lab, "nat-a", nats[0]);
    set_nat(&lab, "nat-b", nats[1]);
    let begin = Instant::now();
    lab.community(&["edge-a", "edge-b"], None);
    lab.await_crossing("host-a", "host-b", false);
    println!("{nats:?}: packets cross {:?} after the community was applied", begin.elapsed());
    let target = lab.address("host-b", false);
    let is_direct = || {
        lab.pings("host-a", target);
        let ends = [path(&lab, 0, "edge-b"), path(&lab, 1, "edge-a")];
        ends.iter().all(|end| end["path"] == "direct").then_some(ends)
    };
    if direct {
        let ends = wait_for("the path is direct", is_direct).unwrap();
        println!("{nats:?}: direct {:?} after the community was applied: {ends:?}", begin.elapsed());
    } else {
        let deadline = Instant::now() + SEARCH;
        while Instant::now() < deadline {
            assert!(is_direct().is_none(), "{nats:?}");
        }
        wait_for("the edge says why", || {
            lab.pings("host-a", target);
            let end = path(&lab, 0, "edge-b");
            let why = end["notDirect"].as_str().is_some_and(|why| why.contains("NAT or firewall"));
            (end["path"] == "relayed" && end["relay"] == "cloud" && why).then_some(())
        })
        .unwrap();
    }
    lab.await_crossing("host-b", "host-a", true);
    lab.end();
}

#[test]
fn layer3_two_full_cone_nats_become_direct() {
    check("layer3_two_full_cone_nats_become_direct", [Nat::FullCone, Nat::FullCone], true);
}

#[test]
fn layer3_two_port_restricted_nats_become_direct() {
    check("layer3_two_port_restricted_nats_become_direct", [Nat::PortRestricted, Nat::PortRestricted], true);
}

#[test]
fn layer3_a_full_cone_and_a_port_restricted_nat_become_direct() {
    let test = "layer3_a_full_cone_and_a_port_restricted_nat_become_direct";
    check(test, [Nat::FullCone, Nat::PortRestricted], true);
}

#[test]
fn layer3_a_symmetric_nat_and_a_full_cone_become_direct() {
    check("layer3_a_symmetric_nat_and_a_full_cone_become_direct", [Nat::Symmetric, Nat::FullCone], true);
}

#[test]
fn layer3_a_port_restricted_and_a_full_cone_nat_become_direct() {
    let test = "layer3_a_port_restricted_and_a_full_cone_nat_become_direct";
    check(test, [Nat::PortRestricted, Nat::FullCone], true);
}

#[test]
fn layer3_a_full_cone_and_a_symmetric_nat_become_direct() {
    check("layer3_a_full_cone_and_a_symmetric_nat_become_direct", [Nat::FullCone, Nat::Symmetric], true);
}

#[test]
fn layer3_a_port_restricted_and_a_symmetric_nat_stay_relayed() {
    let test = "layer3_a_port_restricted_and_a_symmetric_nat_stay_relayed";
    check(test, [Nat::PortRestricted, Nat::Symmetric], false);
}

#[test]
fn layer3_a_symmetric_and_a_port_restricted_nat_stay_relayed() {
    let test = "layer3_a_symmetric_and_a_port_restricted_nat_stay_relayed";
    check(test, [Nat::Symmetric, Nat::PortRestricted], false);
}

#[test]
fn layer3_two_symmetric_nats_stay_relayed() {
    check("layer3_two_symmetric_nats_stay_relayed", [Nat::Symmetric, Nat::Symmetric], false);
}

#[test]
fn layer3_a_connection_survives_the_loss_and_the_return_of_the_direct_path() {
    let test = "layer3_a_connection_survives_the_loss_and_the_return_of_the_direct_path";
    let Some(lab) = Layer3::start(test) else { return };
    set_nat(&lab, "nat-a", Nat::PortRestricted);
    set_nat(&lab, "nat-b", Nat::PortRestricted);
    lab.community(&["edge-a", "edge-b"], None);
    lab.await_crossing("host-a", "host-b", false);
    let mut flow = Flow::open(&lab, "host-a", "host-b");
    let (after, _) = flow.echo_until(&lab, "direct", &Value::Null);
    println!("direct after {after:?}");
    count_bytes(&lab, "cloud");
    cut_direct_path(&lab);
    // An echo that is sent after the cut shows how long the connection stands still.
    let cut = Instant::now();
    flow.echo(MARK);
    let pause = cut.elapsed();
    let (after, longest) = flow.echo_until(&lab, "relayed", &"cloud".into());
    let pause = pause.max(longest);
    println!("the direct path is cut: relayed after {after:?}, longest pause {pause:?} (goal: 2 s)");
    assert!(pause < PAUSE_MAX, "{pause:?}");
    // There is no direct path, and the relay sees the connection's bytes.
    let before = counted(&lab, "cloud").1;
    flow.bulk();
    let relayed = counted(&lab, "cloud").1 - before;
    println!("{} MiB there and back through the relay: {relayed} bytes", BULK >> 20);
    assert!(relayed > 2 * BULK as u64, "{relayed}");
    assert_eq!(path(&lab, 0, "edge-b")["path"], "relayed");
    restore_direct_path(&lab);
    let (after, longest) = flow.echo_until(&lab, "direct", &Value::Null);
    println!("the direct path is back: direct after {after:?}, longest pause {longest:?}");
    assert!(longest < PAUSE_MAX, "{longest:?}");
    lab.end();
}

#[test]
fn layer3_no_session_is_opened_before_a_host_sends() {
    let test = "layer3_no_session_is_opened_before_a_host_sends";
    let Some(mut lab) = Layer3::start(test) else { return };
    lab.community(&["edge-a", "edge-b"], None);
    let known = |from: usize, to: &str| path(&lab, from, to)["path"].is_string();
    wait_for("both edges know each other", || (known(0, "edge-b") && known(1, "edge-a")).then_some(()))
        .unwrap();
    // No host has sent a packet yet: no session is opened.
    assert_eq!(path(&lab, 0, "edge-b")["path"], "none");
    lab.net.block("nat-a", Traffic::Udp).unwrap();
    lab.await_crossing("host-a", "host-b", false);
    let is_carried = || (path(&lab, 0, "edge-b")["path"] == "channel").then_some(());
    wait_for("the edge says that packets take the channel", is_carried).unwrap();
    // The cloud tells the same, with the reason: `causeway status` asks it.
    let told = || {
        let status = lab.cloud.run(&["status", "--json"]).ok()?.json().ok()?;
        let paths = status["tunnelPaths"].as_array()?.clone();
        let is_meant = |path: &&Value| path["gateway"] == "edge-a" && path["peer"] == "edge-b";
        let path = paths.iter().find(is_meant)?;
        (path["path"] == "channel" && path["notDirect"].is_string() && path["sentBytes"].as_u64()? > 0)
            .then_some(())
    };
    wait_for("the cloud tells that packets take the channel, and why", told).unwrap();
    lab.net.allow("nat-a", Traffic::Udp).unwrap();
    lab.end();
}
