//! Connections that outlive the keys of the tunnel. `CAUSEWAY_SOAK=1` waits until they were renewed.

use std::time::{Duration, Instant};

use testlab::net::reach_ping;

use crate::layer3_connection::{EchoLoop, Flow};
use crate::layer3_lab::Layer3;
use crate::layer3_outages::started;
use crate::layer3_paths::path;
use crate::nat_fleet::soak;

/// Keys are renewed after 120 seconds. Less time than this lies between two sights of one handshake.
const RENEWED: u32 = 60;
const DAY: u32 = 24 * 3600;
const LONG: Duration = Duration::from_secs(130);
const SHORT: Duration = Duration::from_secs(5);
/// Less than any TCP connection or person would call a pause.
const REPLY: Duration = Duration::from_secs(5);

/// The second of the day in a time of RFC 3339.
fn second(time: &str) -> u32 {
    let part = |at: usize| time[at..at + 2].parse::<u32>().unwrap();
    part(11) * 3600 + part(14) * 60 + part(17)
}

#[test]
fn layer3_connections_outlive_the_keys_of_the_tunnel_soak() {
    let test = "layer3_connections_outlive_the_keys_of_the_tunnel_soak";
    let Some((lab, direct)) = started(test, &["cloud", "edge-a", "edge-b"]) else { return };
    lab.await_crossing("host-a", "host-c", false);
    let to_cloud = EchoLoop::start("from host-a to host-c", Flow::open(&lab, "host-a", "host-c"));
    let handshakes = |lab: &Layer3| {
        ["edge-b", "cloud"].map(|peer| path(lab, 0, peer)["lastHandshake"].as_str().unwrap().to_owned())
    };
    let (begin, first) = (Instant::now(), handshakes(&lab));
    let (mut pings, mut lost) = (0, 0);
    direct.take_longest();
    while begin.elapsed() < if soak() { LONG } else { SHORT } {
        pings += 1;
        lost += u32::from(!reach_ping(&lab.host("host-a"), lab.address("host-b", false), REPLY).unwrap());
    }
    for connection in [&direct, &to_cloud] {
        connection.await_echoes();
    }
    let last = handshakes(&lab);
    println!(
        "{:?}: handshakes {first:?}, then {last:?}; {} blocks between the edges, {} to the cloud, longest echo {:?} and {:?}; \
         {lost} of {pings} pings lost",
        begin.elapsed(),
        direct.blocks(),
        to_cloud.blocks(),
        direct.take_longest(),
        to_cloud.take_longest()
    );
    assert_eq!(lost, 0);
    if soak() {
        let later = |(first, last): (&String, &String)| (DAY + second(last) - second(first)) % DAY;
        assert!(
            first.iter().zip(&last).map(later).all(|seconds| (RENEWED..DAY / 2).contains(&seconds)),
            "the keys were renewed"
        );
        assert_eq!(path(&lab, 0, "edge-b")["path"], "direct");
    }
    for connection in [direct, to_cloud] {
        connection.end();
    }
    lab.end();
}
