//! Ways in which an edge gets its session: over QUIC, over TCP, through a proxy, over a bad line; and their times.

use std::net::SocketAddr;
use std::time::Duration;

use testlab::fleet::Proxy;
use testlab::net::Traffic;
use testlab::relay::Faults;

use crate::nat_fleet::{EDGE, Fleet, NAT, PATIENCE, channel};

#[test]
fn an_edge_behind_a_nat_with_only_a_token_is_connected_within_a_second() {
    let Some(mut fleet) = Fleet::start("an_edge_behind_a_nat_with_only_a_token_is_connected_within_a_second")
    else {
        return;
    };
    let begin = fleet.join(&[]);
    fleet.await_transport("quic", PATIENCE);
    let took = begin.elapsed();
    println!("connected after {took:?}, enrolment and the start of the process included");
    // As a user sees it, and complete.
    let status = fleet.cloud.run(&["status", "--json"]).unwrap().json().unwrap();
    let gateway =
        status["gateways"].as_array().unwrap().iter().find(|gateway| gateway["name"] == EDGE).unwrap();
    println!("{gateway}");
    assert_eq!(gateway["site"], EDGE);
    assert_eq!(gateway["connected"], true);
    assert_eq!(gateway["transport"], "quic");
    assert!(gateway["rttMs"].as_f64().is_some_and(|rtt| rtt > 0.0 && rtt < 1000.0), "{gateway}");
    assert!(
        gateway["sentBytes"].as_u64() > Some(0) && gateway["receivedBytes"].as_u64() > Some(0),
        "{gateway}"
    );
    assert!(gateway["since"].is_string(), "{gateway}");
    assert!(took < Duration::from_secs(1), "{took:?}");
}

#[test]
fn with_udp_blocked_from_the_start_an_edge_is_connected_over_tcp_within_five_seconds() {
    let test = "with_udp_blocked_from_the_start_an_edge_is_connected_over_tcp_within_five_seconds";
    let Some(mut fleet) = Fleet::start(test) else { return };
    fleet.net.block(NAT, Traffic::Udp).unwrap();
    let begin = fleet.join(&[]);
    fleet.await_transport("tcp", PATIENCE);
    let took = begin.elapsed();
    println!("UDP blocked: connected over TCP after {took:?}, enrolment included");
    assert!(took < Duration::from_secs(5), "{took:?}");
}

#[test]
fn with_only_a_proxy_open_an_edge_is_connected() {
    let test = "with_only_a_proxy_open_an_edge_is_connected";
    if let Some(reason) = Proxy::missing() {
        println!("skipped: {test} {reason}");
        return;
    }
    let Some(mut fleet) = Fleet::start(test) else { return };
    // Nothing is forwarded any more; the proxy stands on the NAT itself, as on a company's border.
    fleet.net.block(NAT, Traffic::All).unwrap();
    let direct = channel(fleet.net.ipv4("cloud").unwrap());
    assert!(!fleet.net.host(EDGE).unwrap().connects(direct, Duration::from_millis(500)));
    let address = SocketAddr::new(fleet.net.gateway_ipv4(EDGE).unwrap().into(), 3128);
    let _proxy = Proxy::start(&fleet.net.host(NAT).unwrap(), fleet.folder.path(), address).unwrap();
    let begin = fleet.join(&[("HTTPS_PROXY", &format!("http://{address}"))]);
    fleet.await_transport("tcp", PATIENCE);
    println!("through tinyproxy: connected after {:?}, enrolment included", begin.elapsed());
}

#[test]
fn over_a_line_with_loss_and_delay_an_edge_is_connected() {
    let test = "over_a_line_with_loss_and_delay_an_edge_is_connected";
    for transport in ["quic", "tcp"] {
        let Some((mut fleet, relay)) = Fleet::start_behind_relay(test) else { return };
        let half = Duration::from_millis(50);
        relay.set_both(&Faults { delay: half, loss: 0.05, ..Faults::default() });
        if transport == "tcp" {
            fleet.net.block(NAT, Traffic::Udp).unwrap();
        }
        let begin = fleet.join(&[]);
        let (gateway, _) = fleet.await_transport(transport, PATIENCE);
        println!(
            "5 % loss, 100 ms: connected over {transport} after {:?}, enrolment included",
            begin.elapsed()
        );
        // The first attempt may have been taken by the cloud just when the edge gave it up: its own new interfaces made it doubt the path.
        let (gateway, _) = fleet.await_heard(&gateway, PATIENCE);
        // Through three keepalives it stays.
        let (later, _) = (0..3)
            .fold((gateway.clone(), Duration::ZERO), |(before, _), _| fleet.await_heard(&before, PATIENCE));
        println!("{later}");
        assert_eq!(later["since"], gateway["since"], "one session");
        assert!(later["rttMs"].as_f64() >= Some(100.0), "{later}");
    }
}
