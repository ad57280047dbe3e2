//! The lab itself: it builds what it says, blocks what it says, and leaves nothing behind.

use std::net::{IpAddr, SocketAddr};
use std::process::Command;
use std::time::{Duration, Instant};

use testlab::net::{Cut, Echo, Fault, Host, Net, Traffic, reach_tcp, reach_udp};
use testlab::relay::{Faults, Relay};

use crate::{build, two_sites};

/// For what must work. Nothing waits this long when all is well.
const PATIENCE: Duration = Duration::from_secs(10);
/// For what must not work.
const SHORT: Duration = Duration::from_millis(500);

/// A server at the cloud's address of either family.
fn echo(net: &Net, port: u16) -> Echo {
    Echo::start(&net.host("cloud").unwrap(), format!("[::]:{port}").parse().unwrap()).unwrap()
}

fn cloud_v4(net: &Net, echo: &Echo) -> SocketAddr {
    SocketAddr::new(net.ipv4("cloud").unwrap().into(), echo.address.port())
}

fn cloud_v6(net: &Net, echo: &Echo) -> SocketAddr {
    SocketAddr::new(net.ipv6("cloud").unwrap().into(), echo.address.port())
}

/// The address under which the server sees a host: over UDP and TCP the same.
fn seen_as(host: &Host, to: SocketAddr) -> IpAddr {
    let udp = reach_udp(host, to, PATIENCE).unwrap().ip().to_canonical();
    let tcp = reach_tcp(host, to, PATIENCE).unwrap().ip().to_canonical();
    assert_eq!(udp, tcp);
    udp
}

#[test]
fn two_hosts_behind_nats_reach_a_server_and_cannot_be_reached() {
    let Some(net) = build("two_hosts_behind_nats_reach_a_server_and_cannot_be_reached", &two_sites()) else {
        return;
    };
    let server = echo(&net, 7000);
    for (edge, nat) in [("edge-a", "nat-a"), ("edge-b", "nat-b")] {
        let host = net.host(edge).unwrap();
        assert_eq!(seen_as(&host, cloud_v4(&net, &server)), IpAddr::from(net.ipv4(nat).unwrap()));
        assert_eq!(seen_as(&host, cloud_v6(&net, &server)), IpAddr::from(net.ipv6(nat).unwrap()));
    }
    let hidden = Echo::start(&net.host("edge-a").unwrap(), "0.0.0.0:7000".parse().unwrap()).unwrap();
    let cloud = net.host("cloud").unwrap();
    for address in [net.ipv4("edge-a").unwrap(), net.ipv4("nat-a").unwrap()] {
        let address = SocketAddr::new(address.into(), hidden.address.port());
        assert!(reach_udp(&cloud, address, SHORT).is_err(), "{address}");
        assert!(reach_tcp(&cloud, address, SHORT).is_err(), "{address}");
    }
}

#[test]
fn what_is_blocked_is_blocked_and_nothing_else() {
    let Some(mut net) = build("what_is_blocked_is_blocked_and_nothing_else", &two_sites()) else { return };
    let server = echo(&net, 7000);
    let to = cloud_v4(&net, &server);
    let (a, b) = (net.host("edge-a").unwrap(), net.host("edge-b").unwrap());
    net.block("nat-a", Traffic::Udp).unwrap();
    assert!(reach_udp(&a, to, SHORT).is_err());
    assert!(reach_udp(&a, cloud_v6(&net, &server), SHORT).is_err());
    assert!(reach_tcp(&a, to, PATIENCE).is_ok());
    assert!(reach_udp(&b, to, PATIENCE).is_ok());
    net.allow("nat-a", Traffic::Udp).unwrap();
    assert!(reach_udp(&a, to, PATIENCE).is_ok());

    net.impose("internet", Fault::Reject(Traffic::Tcp)).unwrap();
    let begin = Instant::now();
    assert!(reach_tcp(&a, to, PATIENCE).is_err());
    assert!(begin.elapsed() < PATIENCE, "the sender is told");
    assert!(reach_udp(&a, to, PATIENCE).is_ok());
}

#[test]
fn random_loss_meets_its_share() {
    let Some(mut net) = build("random_loss_meets_its_share", &two_sites()) else { return };
    let server = echo(&net, 7000);
    let (host, to) = (net.host("edge-a").unwrap(), cloud_v4(&net, &server));
    net.impose("nat-a", Fault::Lose(Traffic::Udp, 500)).unwrap();
    let count = host
        .inside(|| {
            let socket = std::net::UdpSocket::bind("0.0.0.0:0")?;
            socket.set_read_timeout(Some(SHORT))?;
            for _ in 0..400 {
                socket.send_to(b"x", to)?;
            }
            let mut count = 0;
            while socket.recv(&mut [0; 64]).is_ok() {
                count += 1;
            }
            Ok(count)
        })
        .unwrap();
    let crossed = host.crossed("eth0").unwrap();
    // A byte behind IP and UDP went out so often, and little else.
    assert!((400 * 29..400 * 29 + 15_000).contains(&crossed.bytes()), "{crossed:?}");
    // Both ways: a quarter comes back.
    assert!((50..160).contains(&count), "{count} of 400");
}

#[test]
fn a_cut_link_is_dead_until_it_is_restored_and_shows_what_it_should() {
    let Some(mut net) =
        build("a_cut_link_is_dead_until_it_is_restored_and_shows_what_it_should", &two_sites())
    else {
        return;
    };
    let server = echo(&net, 7000);
    let host = net.host("edge-a").unwrap();
    for (node, how, carrier) in [
        ("edge-a", Cut::Unplugged, false),
        ("edge-a", Cut::Down, false),
        ("edge-a", Cut::Silent, true),
        // One hop away: nothing to be seen at the edge either.
        ("nat-a", Cut::Unplugged, true),
        ("nat-a", Cut::Down, true),
        ("cloud", Cut::Unplugged, true),
    ] {
        net.cut(node, how).unwrap();
        assert!(reach_udp(&host, cloud_v4(&net, &server), SHORT).is_err(), "{node} {how:?}");
        assert_eq!(has_carrier(&host), carrier, "{node} {how:?}");
        net.restore(node).unwrap();
        assert!(has_carrier(&host), "{node} {how:?}");
        for to in [cloud_v4(&net, &server), cloud_v6(&net, &server)] {
            reach_udp(&host, to, PATIENCE).unwrap_or_else(|error| panic!("{node} {how:?} {to}: {error}"));
            reach_tcp(&host, to, PATIENCE).unwrap_or_else(|error| panic!("{node} {how:?} {to}: {error}"));
        }
    }
}

fn has_carrier(host: &Host) -> bool {
    let output = host.command("ip").args(["-o", "link", "show", "eth0"]).output().unwrap();
    String::from_utf8_lossy(&output.stdout).contains("LOWER_UP")
}

#[test]
fn a_changed_address_is_the_one_that_is_seen() {
    let Some(mut net) = build("a_changed_address_is_the_one_that_is_seen", &two_sites()) else { return };
    let server = echo(&net, 7000);
    let host = net.host("edge-a").unwrap();
    let to = cloud_v4(&net, &server);
    net.readdress("nat-a", &["198.51.100.77", "2001:db8:a::77"]).unwrap();
    assert_eq!(seen_as(&host, to).to_string(), "198.51.100.77");
    assert_eq!(seen_as(&host, cloud_v6(&net, &server)).to_string(), "2001:db8:a::77");
    net.readdress("edge-a", &["192.168.1.9"]).unwrap();
    assert_eq!(net.ipv4("edge-a").unwrap().to_string(), "192.168.1.9");
    seen_as(&host, to);
    seen_as(&host, cloud_v6(&net, &server));
}

#[test]
fn a_relay_inside_a_host_stands_between() {
    let Some(net) = build("a_relay_inside_a_host_stands_between", &two_sites()) else { return };
    let server = echo(&net, 7000);
    let internet = net.host("internet").unwrap();
    let listen = SocketAddr::new(net.gateway_ipv4("nat-a").unwrap().into(), 0);
    let relay = Relay::start_in(&internet, listen, cloud_v4(&net, &server), 1).unwrap();
    let host = net.host("edge-a").unwrap();
    let delay = Duration::from_millis(200);
    relay.set_both(&Faults { delay, ..Faults::default() });
    for reach in [reach_udp, reach_tcp] {
        let begin = Instant::now();
        let seen = reach(&host, relay.address(), PATIENCE).unwrap().ip().to_canonical();
        assert!(begin.elapsed() >= 2 * delay, "{:?}", begin.elapsed());
        // The relay is who the server sees.
        assert_eq!(seen, IpAddr::from(net.gateway_ipv4("cloud").unwrap()));
    }
}

#[test]
fn nothing_is_left_of_a_network_that_is_dropped() {
    let Some(net) = build("nothing_is_left_of_a_network_that_is_dropped", &two_sites()) else { return };
    let host = net.host("edge-a").unwrap();
    let name = host.namespace().to_owned();
    let mut sleeper = host.command("sleep").arg("1000").spawn().unwrap();
    let listed =
        || String::from_utf8(Command::new("ip").args(["netns", "list"]).output().unwrap().stdout).unwrap();
    assert!(listed().contains(&name));
    drop((net, host));
    assert!(!listed().contains(&name));
    assert!(!sleeper.wait().unwrap().success(), "what ran in it was killed");
}

#[test]
fn what_a_killed_run_left_behind_is_removed() {
    let Some(net) = build("what_a_killed_run_left_behind_is_removed", &two_sites()) else { return };
    // As a process that is gone would have named it: the first one of all has another start than 1.
    let name = "cwlab-1-1-0-left";
    let add = Command::new("ip").args(["netns", "add", name]).status().unwrap();
    let again = build("again", &two_sites());
    let listed =
        String::from_utf8(Command::new("ip").args(["netns", "list"]).output().unwrap().stdout).unwrap();
    assert!(!listed.contains(name), "added: {add}");
    // Ours are left alone.
    assert!(listed.contains(net.host("edge-a").unwrap().namespace()));
    drop(again);
}
