//! TCP connections between members outlive their gateways' processes, the cloud, and UDP: the packets of a host wait for
//! nothing but a path.

use std::time::{Duration, Instant};

use serde_json::Value;
use testlab::causeway::wait_for;
use testlab::net::Traffic;

use crate::layer3_connection::{EchoLoop, Flow};
use crate::layer3_lab::{Layer3, PATIENCE};
use crate::layer3_paths::{Nat, path, set_nat};

/// A connection without the cloud in its path feels nothing of the cloud. Generous: the machine may run other tests.
const UNDISTURBED: Duration = Duration::from_secs(5);

/// Both edges behind NATs that let a direct path pass, and a connection between their hosts, on the direct path.
pub fn started(test: &str, members: &[&str]) -> Option<(Layer3, EchoLoop)> {
    let lab = Layer3::start(test)?;
    set_nat(&lab, "nat-a", Nat::PortRestricted);
    set_nat(&lab, "nat-b", Nat::PortRestricted);
    lab.community(members, None);
    lab.await_crossing("host-a", "host-b", false);
    let mut flow = Flow::open(&lab, "host-a", "host-b");
    println!("direct after {:?}", flow.echo_until(&lab, "direct", &Value::Null).0);
    Some((lab, EchoLoop::start("from host-a to host-b", flow)))
}

pub fn await_path(lab: &Layer3, wanted: &str) -> Duration {
    let begin = Instant::now();
    wait_for(&format!("the path is {wanted}"), || {
        let ends = [path(lab, 0, "edge-b"), path(lab, 1, "edge-a")];
        ends.iter().all(|end| end["path"] == wanted).then_some(())
    })
    .unwrap_or_else(|error| panic!("{error}: {:?}", [path(lab, 0, "edge-b"), path(lab, 1, "edge-a")]));
    begin.elapsed()
}

#[test]
fn layer3_connections_survive_the_loss_of_the_cloud_and_of_an_edge_without_the_cloud() {
    let test = "layer3_connections_survive_the_loss_of_the_cloud_and_of_an_edge_without_the_cloud";
    let Some((mut lab, direct)) = started(test, &["cloud", "edge-a", "edge-b"]) else { return };
    lab.await_crossing("host-a", "host-c", false);
    let through_cloud = EchoLoop::start("from host-a to host-c", Flow::open(&lab, "host-a", "host-c"));
    through_cloud.await_echoes();
    direct.take_longest();
    lab.cloud.unit.kill().unwrap();
    let killed = Instant::now();
    direct.await_echoes();
    // An edge is killed and restarted while the cloud is away: keys, netmap and neighbours come from its disk.
    lab.edges[0].unit.kill().unwrap();
    let without_cloud = direct.take_longest();
    println!("the cloud is killed: the longest echo between the edges took {without_cloud:?}");
    assert!(without_cloud < UNDISTURBED);
    let edge_killed = Instant::now();
    lab.edges[0].restart().unwrap();
    direct.await_echoes();
    println!(
        "edge-a is killed and restarted without the cloud: the connection goes on {:?} later, longest echo {:?}",
        edge_killed.elapsed(),
        direct.take_longest()
    );
    println!("both know it as direct after {:?} more", await_path(&lab, "direct"));
    assert!(lab.cloud.unit.process().is_err(), "the cloud was away the whole time");
    lab.cloud.restart().unwrap();
    let ready = Instant::now();
    through_cloud.await_echoes();
    println!(
        "the cloud is ready again {:?} after it was killed: the connection to its host goes on {:?} later, longest echo {:?}",
        killed.elapsed(),
        ready.elapsed(),
        through_cloud.take_longest()
    );
    for edge in ["edge-a", "edge-b"] {
        lab.cloud
            .wait_gateway(edge, "is connected", PATIENCE, |gateway| gateway["connected"] == true)
            .unwrap();
    }
    direct.await_echoes();
    println!("the longest echo between the edges meanwhile took {:?}", direct.take_longest());
    for connection in [direct, through_cloud] {
        connection.end();
    }
    lab.end();
}

#[test]
fn layer3_a_connection_survives_that_udp_is_blocked_in_mid_transfer() {
    let test = "layer3_a_connection_survives_that_udp_is_blocked_in_mid_transfer";
    let Some((mut lab, connection)) = started(test, &["edge-a", "edge-b"]) else { return };
    connection.await_echoes();
    connection.take_longest();
    // The tunnel and the channel over QUIC alike: only TCP leaves the site of edge-a.
    lab.net.block("nat-a", Traffic::Udp).unwrap();
    let begin = Instant::now();
    connection.await_echoes();
    println!(
        "UDP is blocked: the transfer goes on {:?} later, longest echo {:?}",
        begin.elapsed(),
        connection.take_longest()
    );
    let took = await_path(&lab, "channel");
    connection.await_echoes();
    println!("both know the path as the channel after {took:?} more");
    lab.net.allow("nat-a", Traffic::Udp).unwrap();
    let begin = Instant::now();
    connection.await_echoes();
    println!("UDP is allowed: the path is direct after {:?}", await_path(&lab, "direct"));
    connection.await_echoes();
    println!("{:?} after UDP was allowed: longest echo {:?}", begin.elapsed(), connection.take_longest());
    connection.end();
    lab.end();
}
