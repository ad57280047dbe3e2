//! Two sites with 10.0.0.0/24 each, mapped and translated: programs of every kind cross, with and without checksum offloads, and no
//! real address of the other site is seen in a LAN.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::process::{Child, Stdio};

use serde_json::Value;
use testlab::causeway::wait_for;
use testlab::net::{Echo, Net};

use crate::build;
use crate::presence_namespace::leftovers;
use crate::tunnel_lab::{Site, TunnelHost, plan, run, start, wait_ping};
use crate::tunnel_translated::{
    CLIENT, LAN, PRESENCE, SERVER, Sniffer, expect, is_client_address, sctp, start_translated,
};

/// The networks under which the sites of a mapped pair see each other.
const MAPPED: [&str; 2] = ["100.64.1.0/24", "100.71.2.0/24"];
/// The server and its client as the other site sees them in a mapped pair.
const MAPPED_SERVER: &str = "100.71.2.88";
const MAPPED_CLIENT: &str = "100.64.1.77";
/// The largest packet of the far LAN.
const SMALL_MTU: &str = "1280";

/// Fewer than one packet in this many is lost, in one of these runs.
const LOSS_MAX: u64 = 100;
const UDP_RUNS: usize = 5;

#[derive(Clone, Copy, PartialEq, Debug)]
enum Pair {
    Mapped,
    Translated,
}

#[test]
fn mapped_networks_carry_every_program() {
    check("mapped_networks_carry_every_program", Pair::Mapped, true);
}

#[test]
fn mapped_networks_carry_every_program_without_offloads() {
    check("mapped_networks_carry_every_program_without_offloads", Pair::Mapped, false);
}

#[test]
fn translated_services_carry_every_program() {
    check("translated_services_carry_every_program", Pair::Translated, true);
}

#[test]
fn translated_services_carry_every_program_without_offloads() {
    check("translated_services_carry_every_program_without_offloads", Pair::Translated, false);
}

fn check(test: &str, pair: Pair, has_offloads: bool) {
    let Some(net) = build(test, &plan(&LAN, &LAN)) else { return };
    let programs = ["tcpdump", "ethtool", "iperf3", "traceroute", "python3"];
    let is_absent = |program: &&&str| !run(&net, "gw-a", program, &["--version"]).status.success();
    if let Some(program) = programs.iter().find(is_absent) {
        println!("skipped: {test} needs {program} (.ci/needs test installs it)");
        return;
    }
    if !has_offloads {
        switch_offloads_off(&net);
    }
    // Beside the addresses that both hosts have, so that it shows which one crosses.
    for (host, address) in [("client-a", CLIENT), ("client-b", SERVER)] {
        expect(&net, host, "ip", &["addr", "add", &format!("{address}/24"), "dev", "eth0"]);
        for network in ["198.18.0.0/16", MAPPED[0], MAPPED[1]] {
            expect(&net, host, "ip", &["route", "add", network, "via", "10.0.0.1", "src", address]);
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let sniffers = [
        Sniffer::start(&net, "gw-a", "client-a", folder.path()),
        Sniffer::start(&net, "gw-b", "client-b", folder.path()),
    ];
    let before = gateways_of(&net);
    let (mut hosts, target) = match pair {
        Pair::Mapped => (start_mapped(&net), MAPPED_SERVER),
        Pair::Translated => (start_translated(&net), PRESENCE),
    };
    wait_ping(&net, "client-a", target);
    let _echo = Echo::start(&net.host("client-b").unwrap(), "0.0.0.0:7000".parse().unwrap()).unwrap();

    trace(&net, target);
    large_datagram(&net, target);
    let seen = sctp(&net, target);
    let (client, word) = seen.split_once(' ').unwrap();
    assert_eq!(word, "raw sctp");
    match pair {
        Pair::Mapped => assert_eq!(client, MAPPED_CLIENT),
        Pair::Translated => assert!(is_client_address(client.parse::<IpAddr>().unwrap()), "{client}"),
    }
    {
        let _server = Iperf::start(&net);
        udp_load(&net, target);
        small_path(&net, target);
        bulk(&net, target);
    }

    wait_for("tcpdump has seen SCTP at both sites", || {
        let is_there = |sniffer: &Sniffer| sniffer.text().to_lowercase().contains("sctp");
        sniffers.iter().all(is_there).then_some(())
    })
    .unwrap();
    let [at_a, at_b] = sniffers.each_ref().map(Sniffer::text);
    assert!(line_with(&at_a, CLIENT).is_some() && line_with(&at_a, target).is_some());
    assert_eq!(line_with(&at_a, SERVER), None, "the real address of the server at the site of its client");
    assert!(line_with(&at_b, SERVER).is_some() && line_with(&at_b, client).is_some());
    assert_eq!(line_with(&at_b, CLIENT), None, "the real address of the client at the site of the server");
    expect(&net, "gw-b", "ip", &["link", "set", "client-b", "mtu", "1500"]);
    hosts.iter_mut().for_each(TunnelHost::stop);
    assert_eq!(
        gateways_of(&net),
        before,
        "interfaces, addresses, routes, neighbours and sockets are as before"
    );
}

/// The state of the hosts of both gateways.
fn gateways_of(net: &Net) -> [BTreeSet<String>; 2] {
    ["gw-a", "gw-b"].map(|gateway| leftovers(&net.host(gateway).unwrap()))
}

/// The first line of tcpdump that names an address, with or without a port.
fn line_with<'a>(text: &'a str, address: &str) -> Option<&'a str> {
    let names = |word: &str| {
        let rest = word.strip_prefix(address);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', ':', ',']))
    };
    text.lines().find(|line| line.split_whitespace().any(names))
}

/// Full checksums on every hop: a wrong one is dropped by the receiver.
fn switch_offloads_off(net: &Net) {
    let hops = [
        ("client-a", "eth0"),
        ("gw-a", "client-a"),
        ("gw-a", "eth0"),
        ("internet", "gw-a"),
        ("internet", "gw-b"),
        ("gw-b", "eth0"),
        ("gw-b", "client-b"),
        ("client-b", "eth0"),
    ];
    for (host, interface) in hops {
        expect(
            net,
            host,
            "ethtool",
            &["-K", interface, "tx", "off", "tso", "off", "gso", "off", "gro", "off"],
        );
    }
}

fn start_mapped(net: &Net) -> [TunnelHost; 2] {
    let mut sites = ["a", "b"].map(|name| Site::new(name, &LAN));
    for (site, mapped) in sites.iter_mut().zip(MAPPED) {
        site.mapped = vec![(LAN[0], mapped)];
    }
    let [a, b] = &mut sites;
    start(net, a, b)
}

/// Every hop answers, the last one is the server, and none is a real address of the other site.
fn trace(net: &Net, target: &str) {
    let said = run(net, "client-a", "traceroute", &["-n", "-q", "3", "-w", "5", "-m", "6", target]);
    let text = String::from_utf8_lossy(&said.stdout).into_owned();
    // A line has the number of the hop, and its address before the first of three times; a late reply is a star.
    let address =
        |line: &'_ str| line.split_whitespace().skip(1).find(|word| *word != "*").map(str::to_owned);
    let hops: Vec<String> = text.lines().skip(1).map(|line| address(line).unwrap_or_default()).collect();
    let ends = (hops.first().map(String::as_str), hops.last().map(String::as_str));
    assert_eq!(ends, (Some("10.0.0.1"), Some(target)), "{text}");
    assert!(hops.len() == 3 && !hops[1].is_empty(), "client, gateway, gateway, server: {text}");
    assert!(hops[1..].iter().all(|hop| !hop.starts_with("10.0.0.")), "{text}");
}

/// A datagram of nearly 64 KiB comes back: fragments both ways.
fn large_datagram(net: &Net, target: &str) {
    let said = run(net, "client-a", "python3", &["-c", LARGE_DATAGRAM, target]);
    assert_eq!(String::from_utf8_lossy(&said.stdout).trim(), "whole", "{said:?}");
}

// The answer has one line more than the question.
const LARGE_DATAGRAM: &str = "
import os, socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(2)
word = os.urandom(65400)
for _ in range(10):
    s.sendto(word, (sys.argv[1], 7000))
    try:
        answer = s.recv(65536)
    except TimeoutError:
        continue
    print('whole' if answer.split(b'\\n', 1)[1] == word else 'changed')
    break
";

/// A server of iperf3; ended when dropped.
struct Iperf(Child);

impl Iperf {
    fn start(net: &Net) -> Iperf {
        let host = net.host("client-b").unwrap();
        let mut command = host.command("iperf3");
        let server = Iperf(command.args(["-s", "-p", "5201"]).stdout(Stdio::null()).spawn().unwrap());
        // Not by a connection: iperf3 takes it for a client, and refuses the next one until it has given this one up.
        wait_for("iperf3 listens", || {
            let listed = run(net, "client-b", "ss", &["-Hltn", "sport", "=", ":5201"]);
            (!listed.stdout.is_empty()).then_some(())
        })
        .unwrap();
        server
    }
}

impl Drop for Iperf {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a client of iperf3 and returns its report.
fn iperf(net: &Net, target: &str, more: &[&str]) -> Value {
    let mut arguments = vec!["-c", target, "-p", "5201", "-t", "1", "-J"];
    arguments.extend(more);
    let said = run(net, "client-a", "iperf3", &arguments);
    assert!(said.status.success(), "{said:?}");
    serde_json::from_slice(&said.stdout).unwrap()
}

fn udp_load(net: &Net, target: &str) {
    for size in ["64", "1200"] {
        // About 800 packets a second: a loaded machine carries them too.
        let rate = if size == "64" { "400K" } else { "8M" };
        // A machine that stands still for a moment fills the socket of iperf3: a path that loses packets loses them every time.
        let is_whole = |_: &usize| {
            let report = iperf(net, target, &["-u", "-b", rate, "-l", size]);
            let sum = &report["end"]["sum"];
            let (packets, lost) = (sum["packets"].as_u64().unwrap(), sum["lost_packets"].as_u64().unwrap());
            println!("iperf3 -u with {size} bytes: {packets} packets, {lost} lost");
            packets > 100 && lost * LOSS_MAX < packets
        };
        assert!(
            (0..UDP_RUNS).any(|run| is_whole(&run)),
            "in each of {UDP_RUNS} runs packets of {size} bytes are lost"
        );
    }
}

/// The far LAN carries 1280 bytes: packets with DF of this size cross, and the sender of a larger one learns the size.
fn small_path(net: &Net, target: &str) {
    expect(net, "gw-b", "ip", &["link", "set", "client-b", "mtu", SMALL_MTU]);
    expect(net, "client-b", "ip", &["link", "set", "eth0", "mtu", SMALL_MTU]);
    let ping = |size: &str| {
        let said =
            run(net, "client-a", "ping", &["-c", "2", "-W", "2", "-n", "-M", "do", "-s", size, target]);
        let text =
            format!("{}{}", String::from_utf8_lossy(&said.stdout), String::from_utf8_lossy(&said.stderr));
        (said.status.success(), text)
    };
    // 28 bytes are the headers of IP and ICMP.
    let (passed, text) = ping("1253");
    assert!(!passed && text.contains(SMALL_MTU), "{text}");
    let (passed, text) = ping("1252");
    assert!(passed, "{text}");
}

/// TCP in both directions, over the path that has become small.
fn bulk(net: &Net, target: &str) {
    for more in [&[][..], &["-R"]] {
        let report = iperf(net, target, more);
        let received = report["end"]["sum_received"]["bytes"].as_u64().unwrap();
        assert!(received > 100_000, "{report}");
    }
}
