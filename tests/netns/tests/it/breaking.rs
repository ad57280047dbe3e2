//! Faults that a session survives: blocked UDP, other addresses, links that are cut. Times are printed.

use std::time::{Duration, Instant};

use testlab::net::{Cut, Traffic};

use crate::nat_fleet::{EDGE, Fleet, NAT, PATIENCE, soak};

/// Back on QUIC has no bound in time, except that it must happen.
const BACK_ON_QUIC: Duration = Duration::from_secs(180);

#[test]
fn udp_that_is_blocked_during_traffic_moves_the_session_to_tcp_and_back() {
    let test = "udp_that_is_blocked_during_traffic_moves_the_session_to_tcp_and_back";
    let Some(mut fleet) = Fleet::connected(test) else { return };
    fleet.net.block(NAT, Traffic::Udp).unwrap();
    // Something waits to be told, as in traffic.
    fleet.change();
    let (before, took) = fleet.await_transport("tcp", PATIENCE);
    println!("UDP blocked during traffic: on TCP after {took:?}");
    assert!(took < Duration::from_secs(10), "{took:?}");
    fleet.await_heard(&before, PATIENCE);

    fleet.net.allow(NAT, Traffic::Udp).unwrap();
    let (before, took) = fleet.await_transport("quic", BACK_ON_QUIC);
    println!("UDP allowed again: back on QUIC after {took:?}");
    fleet.await_heard(&before, PATIENCE);
}

#[test]
fn a_quic_session_survives_other_addresses() {
    let Some(mut fleet) = Fleet::connected("a_quic_session_survives_other_addresses") else { return };
    let first = fleet.gateway();
    for (node, address) in [(EDGE, "192.168.1.77"), (NAT, "198.51.100.77")] {
        fleet.net.readdress(node, &[address]).unwrap();
        let before = fleet.gateway();
        fleet.change();
        let (gateway, took) = fleet.await_heard(&before, PATIENCE);
        println!("{node} has the address {address}: heard after {took:?}");
        // The same session, and with it every stream that was open.
        assert_eq!(gateway["since"], first["since"], "{gateway}");
        assert_eq!(gateway["transport"], "quic");
    }
}

#[test]
fn a_quic_session_survives_a_nat_that_forgot() {
    let Some((mut fleet, relay)) = Fleet::start_behind_relay("a_quic_session_survives_a_nat_that_forgot")
    else {
        return;
    };
    fleet.join(&[]);
    let (first, _) = fleet.await_transport("quic", PATIENCE);
    for round in 0..3 {
        relay.rebind();
        let before = fleet.gateway();
        let (gateway, took) = fleet.await_heard(&before, PATIENCE);
        println!("the NAT forgot, round {round}: heard after {took:?}");
        assert_eq!(gateway["since"], first["since"], "{gateway}");
    }
}

#[test]
fn a_killed_cloud_has_its_edge_back_soon_after_it_is_ready() {
    let Some(mut fleet) = Fleet::connected("a_killed_cloud_has_its_edge_back_soon_after_it_is_ready") else {
        return;
    };
    for round in 0..3 {
        fleet.cloud.unit.kill().unwrap();
        let begin = Instant::now();
        fleet.cloud.restart().unwrap();
        let ready = begin.elapsed();
        let (gateway, took) = fleet.await_connected(PATIENCE);
        let transport = &gateway["transport"];
        println!(
            "kill -9, round {round}: ready after {ready:?}, the edge back {took:?} later over {transport}"
        );
        // The longest pause between two attempts, and the time to dial.
        assert!(took < Duration::from_secs(8), "{took:?}");
    }
}

#[test]
fn a_cut_that_the_edge_can_see_is_over_three_seconds_after_the_link() {
    let test = "a_cut_that_the_edge_can_see_is_over_three_seconds_after_the_link";
    let Some(mut fleet) = Fleet::connected(test) else { return };
    for how in [Cut::Unplugged, Cut::Down] {
        cut(&mut fleet, EDGE, how, Duration::from_secs(3));
    }
}

#[test]
fn a_cut_that_the_edge_cannot_see_is_over_eight_seconds_after_the_link() {
    let test = "a_cut_that_the_edge_cannot_see_is_over_eight_seconds_after_the_link";
    let Some(mut fleet) = Fleet::connected(test) else { return };
    cut(&mut fleet, EDGE, Cut::Silent, Duration::from_secs(8));
    cut(&mut fleet, NAT, Cut::Unplugged, Duration::from_secs(8));
}

/// Cuts the link for 1 and 30 s, and for 300 s in the long form. The edge is never started again.
fn cut(fleet: &mut Fleet, node: &str, how: Cut, bound: Duration) {
    let lengths: &[u64] = if soak() { &[1, 30, 300] } else { &[1, 30] };
    for length in lengths {
        let before = fleet.settle();
        fleet.net.cut(node, how).unwrap();
        fleet.change();
        // Not to wait for something: the length of the cut is the test.
        std::thread::sleep(Duration::from_secs(*length));
        let during = fleet.gateway();
        let unchanged = during["generation"].is_null() || during["generation"] == before["generation"];
        assert!(unchanged, "nothing crosses a cut link: {during} after {before}");
        if *length >= 30 {
            assert_eq!(during["connected"], false, "the cloud knows: {during}");
        }
        // The clock starts before the link is back, so it is never kinder than the truth.
        let begin = Instant::now();
        fleet.net.restore(node).unwrap();
        let (gateway, _) = fleet.await_heard(&during, PATIENCE);
        let took = begin.elapsed();
        let transport = &gateway["transport"];
        println!("{node} {how:?} for {length} s: back after {took:?} over {transport}");
        assert!(took < bound, "{took:?}");
    }
}
