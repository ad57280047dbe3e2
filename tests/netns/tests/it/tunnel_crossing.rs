//! Packets between two sites through the layer 3 tunnel: routed, mapped, refused, too large, forged.

use std::net::SocketAddr;

use causeway_gateway::audit::{AuditDecision, AuditRecord, ConnectionEnd};
use causeway_gateway::tun::PeerPath;
use causeway_netmap::TunnelCipher;
use testlab::causeway::wait_for;
use testlab::net::{Echo, Net, reach_tcp, reach_udp};

use crate::build;
use crate::presence_namespace::leftovers;
use crate::tunnel_lab::{PATIENCE, PORT, Site, TunnelHost, ping, plan, run, start, view, wait_ping};

const LAN_A: [&str; 2] = ["10.1.0.0/24", "fd00:1::/64"];
const LAN_B: [&str; 2] = ["10.2.0.0/24", "fd00:2::/64"];

pub fn routed(test: &str) -> Option<(Net, Site, Site)> {
    let net = build(test, &plan(&LAN_A, &LAN_B))?;
    Some((net, Site::new("a", &LAN_A), Site::new("b", &LAN_B)))
}

pub fn dropped(host: &TunnelHost, reason: &str) -> u64 {
    host.state().dropped.get(reason).copied().unwrap_or(0)
}

#[test]
fn hosts_of_two_sites_reach_each_other_with_their_real_addresses() {
    let test = "hosts_of_two_sites_reach_each_other_with_their_real_addresses";
    let Some((net, mut a, mut b)) = routed(test) else { return };
    let gateway = net.host("gw-a").unwrap();
    let before = leftovers(&gateway);
    for cipher in [TunnelCipher::Aes256Gcm, TunnelCipher::ChaCha20Poly1305] {
        (a.cipher, b.cipher) = (cipher, cipher);
        let mut hosts = start(&net, &mut a, &mut b);
        for (from, to) in [("client-a", "10.2.0.2"), ("client-b", "10.1.0.2"), ("client-a", "fd00:2::2")] {
            wait_ping(&net, from, to);
        }
        assert!(!ping(&net, "client-a", "10.9.0.2", &[]));
        let server = net.host("client-b").unwrap();
        let address: SocketAddr = "10.2.0.2:7000".parse().unwrap();
        let _echo = Echo::start(&server, "0.0.0.0:7000".parse().unwrap()).unwrap();
        let client = net.host("client-a").unwrap();
        let seen = reach_tcp(&client, address, PATIENCE).unwrap();
        assert_eq!(seen.ip().to_string(), "10.1.0.2", "the server sees the real address");
        assert_eq!(reach_udp(&client, address, PATIENCE).unwrap().ip().to_string(), "10.1.0.2");
        wait_for("the state of the peer", || {
            let state = hosts[0].state();
            let peer = state.peers.get("gw-b")?;
            let crossed = peer.sent.packets > 0 && peer.received.packets > 0;
            (peer.path == PeerPath::Direct && crossed && peer.last_handshake.is_some()).then_some(())
        })
        .unwrap();
        hosts.iter_mut().for_each(TunnelHost::stop);
        let allowed = hosts[0].records.0.lock().unwrap();
        let record =
            allowed.iter().find(|record| record.protocol == "tcp").expect("a record of the connection");
        assert_eq!((record.service.as_str(), record.rule.as_deref()), ("ip/10.2.0.2:7000", Some("north")));
        assert!(record.packets > Some(3) && record.sent_bytes > 0 && record.received_bytes > 0, "{record:?}");
    }
    assert_eq!(leftovers(&gateway), before, "nothing is left");
}

#[test]
fn equal_networks_are_mapped_and_no_checksum_is_wrong() {
    let test = "equal_networks_are_mapped_and_no_checksum_is_wrong";
    let lan = ["10.0.0.0/24", "fd00:1::/64"];
    let Some(net) = build(test, &plan(&lan, &lan)) else { return };
    let mut sites = ["a", "b"].map(|name| Site::new(name, &lan));
    sites[0].mapped = vec![("10.0.0.0/24", "100.64.1.0/24"), ("fd00:1::/64", "fd99:1:2:3::/64")];
    sites[1].mapped = vec![("10.0.0.0/24", "100.71.2.0/24"), ("fd00:1::/64", "fd98:7:7:3::/64")];
    // Without offloads every hop sends full checksums, and a wrong one is dropped by the receiver.
    for (host, interface) in
        [("client-a", "eth0"), ("client-b", "eth0"), ("gw-a", "client-a"), ("gw-b", "client-b")]
    {
        let off = run(
            &net,
            host,
            "ethtool",
            &["-K", interface, "tx", "off", "tso", "off", "gso", "off", "gro", "off"],
        );
        if !off.status.success() {
            println!("skipped: {test} ethtool is missing");
            return;
        }
    }
    let [a, b] = &mut sites;
    let hosts = start(&net, a, b);
    for (from, to) in [("client-a", "100.71.2.2"), ("client-b", "100.64.1.2"), ("client-a", "fd98:7:7:3::2")]
    {
        wait_ping(&net, from, to);
    }
    let (client, server) = (net.host("client-a").unwrap(), net.host("client-b").unwrap());
    let _echo = Echo::start(&server, "[::]:7000".parse().unwrap()).unwrap();
    for (to, seen) in [("100.71.2.2:7000", "100.64.1.2"), ("[fd98:7:7:3::2]:7000", "fd99:1:2:3::2")] {
        let to: SocketAddr = to.parse().unwrap();
        assert_eq!(reach_tcp(&client, to, PATIENCE).unwrap().ip().to_canonical().to_string(), seen);
        assert_eq!(reach_udp(&client, to, PATIENCE).unwrap().ip().to_canonical().to_string(), seen);
    }
    // An ICMP error is translated inside, or the sender would not know it.
    let closed = run(&net, "client-a", "python3", &["-c", UDP_TO_CLOSED_PORT, "100.71.2.2"]);
    assert_eq!(String::from_utf8_lossy(&closed.stdout).trim(), "refused", "{closed:?}");
    assert_eq!((dropped(&hosts[0], "spoofed"), dropped(&hosts[1], "spoofed")), (0, 0));
}

const UDP_TO_CLOSED_PORT: &str = "
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(10)
s.connect((sys.argv[1], 9))
s.send(b'x')
try:
    s.recv(1)
    print('answered')
except ConnectionRefusedError:
    print('refused')
";

#[test]
fn a_policy_that_goes_ends_flows_and_refused_packets_are_answered_at_once() {
    let test = "a_policy_that_goes_ends_flows_and_refused_packets_are_answered_at_once";
    let Some((net, mut a, mut b)) = routed(test) else { return };
    let hosts = start(&net, &mut a, &mut b);
    wait_ping(&net, "client-a", "10.2.0.2");
    let mut denied = view(&a, &b);
    denied.communities.get_mut("north").unwrap().policies = Some(Vec::new());
    hosts[0].netmaps.send_replace(denied.into());
    let is_revoked = |record: &AuditRecord| record.end == ConnectionEnd::Revoked && record.packets > Some(0);
    wait_for("the flow is ended and recorded", || {
        hosts[0].records.0.lock().unwrap().iter().any(is_revoked).then_some(())
    })
    .unwrap();
    wait_for("no flow", || (hosts[0].state().flows == 0).then_some(())).unwrap();
    // TCP is reset by the near gateway: no timeout.
    let refused = run(&net, "client-a", "python3", &["-c", CONNECT, "10.2.0.2"]);
    assert_eq!(String::from_utf8_lossy(&refused.stdout).trim(), "refused", "{refused:?}");
    let said = run(&net, "client-a", "ping", &["-c", "1", "-W", "1", "-n", "10.2.0.2"]);
    assert!(String::from_utf8_lossy(&said.stdout).contains("Packet filtered"), "{said:?}");
    let tcp = denial(&hosts[0], "tcp");
    assert_eq!(
        (tcp.service.as_str(), tcp.gateway.as_str(), tcp.site.as_str()),
        ("ip/10.2.0.2:7000", "gw-a", "a")
    );
    assert_eq!((tcp.end, tcp.packets, tcp.rule), (ConnectionEnd::Refused, Some(1), None));
    assert!(tcp.client.is_some_and(|client| client.starts_with("10.1.0.2:")));
    assert_eq!(tcp.reason.as_deref(), Some("no policy allows it"));
    assert_eq!(denial(&hosts[0], "icmp").service, "ip/10.2.0.2");
    // The far gateway decides for itself.
    hosts[0].netmaps.send_replace(view(&a, &b).into());
    let mut denied = view(&b, &a);
    denied.communities.get_mut("north").unwrap().policies = Some(Vec::new());
    hosts[1].netmaps.send_replace(denied.into());
    wait_for("refused by the far gateway", || {
        let said = run(&net, "client-a", "ping", &["-c", "1", "-W", "1", "-n", "10.2.0.2"]);
        let filtered = String::from_utf8_lossy(&said.stdout).contains("Packet filtered");
        (filtered && dropped(&hosts[1], "refused") > 0).then_some(())
    })
    .unwrap();
    let far = denial(&hosts[1], "icmp");
    assert_eq!((far.service.as_str(), far.gateway.as_str(), far.site.as_str()), ("ip/10.2.0.2", "gw-b", "a"));
}

/// Waits for the record of a refused packet of this protocol.
fn denial(host: &TunnelHost, protocol: &str) -> AuditRecord {
    let is_denial =
        |record: &&AuditRecord| record.decision == AuditDecision::Deny && record.protocol == protocol;
    let found = || host.records.0.lock().unwrap().iter().find(is_denial).cloned();
    wait_for("the refusal is in the audit", found)
        .unwrap_or_else(|error| panic!("{error}: {:?}", host.records.0.lock().unwrap()))
}

const CONNECT: &str = "
import socket, sys
s = socket.socket()
s.settimeout(10)
try:
    s.connect((sys.argv[1], 7000))
    print('connected')
except ConnectionRefusedError:
    print('refused')
";

#[test]
fn large_packets_cross_a_small_path_and_the_sender_learns_the_size() {
    let test = "large_packets_cross_a_small_path_and_the_sender_learns_the_size";
    let Some((net, mut a, mut b)) = routed(test) else { return };
    // 1400 bytes on the outer path leave 1340 for packets.
    for (host, interface) in [("internet", "gw-a"), ("gw-a", "eth0"), ("internet", "gw-b"), ("gw-b", "eth0")]
    {
        assert!(run(&net, host, "ip", &["link", "set", interface, "mtu", "1400"]).status.success());
    }
    let hosts = start(&net, &mut a, &mut b);
    wait_ping(&net, "client-a", "10.2.0.2");
    wait_for("the measured size", || {
        ping(&net, "client-a", "10.2.0.2", &["-s", "1300"]);
        (hosts[0].state().peers.get("gw-b")?.mtu == 1340).then_some(())
    })
    .unwrap();
    // The host may have learnt a smaller size while the path was measured.
    assert!(run(&net, "client-a", "ip", &["route", "flush", "cache"]).status.success());
    // With DF: the sender is told. Without: fragments.
    let said =
        run(&net, "client-a", "ping", &["-c", "1", "-W", "1", "-n", "-M", "do", "-s", "1372", "10.2.0.2"]);
    assert!(!said.status.success());
    let said = format!("{}{}", String::from_utf8_lossy(&said.stdout), String::from_utf8_lossy(&said.stderr));
    assert!(said.contains("mtu") && said.contains("1340"), "{said}");
    for size in ["1312", "1372", "8000", "60000"] {
        assert!(ping(&net, "client-a", "10.2.0.2", &["-M", "dont", "-s", size]), "{size} bytes");
    }
}

#[test]
fn forged_replayed_and_foreign_packets_are_dropped_and_counted() {
    let test = "forged_replayed_and_foreign_packets_are_dropped_and_counted";
    let Some((net, mut a, mut b)) = routed(test) else { return };
    let hosts = start(&net, &mut a, &mut b);
    wait_ping(&net, "client-a", "10.2.0.2");
    // A host of the site with an address of another network.
    let foreign = ["addr", "add", "10.77.0.1/32", "dev", "lo"];
    assert!(run(&net, "client-a", "ip", &foreign).status.success());
    ping(&net, "client-a", "10.2.0.2", &["-I", "10.77.0.1"]);
    // Its gateway lets it pass: the other end drops it.
    let mut lying = a.clone();
    lying.networks.push("10.77.0.0/24");
    hosts[0].netmaps.send_replace(view(&lying, &b).into());
    wait_for("both are counted", || {
        ping(&net, "client-a", "10.2.0.2", &["-I", "10.77.0.1"]);
        (dropped(&hosts[0], "foreign-source") > 0 && dropped(&hosts[1], "spoofed") > 0).then_some(())
    })
    .unwrap();
    // Garbage from the internet, of every message type.
    let target = format!("{}", net.ipv4("gw-b").unwrap());
    wait_for("garbage is counted", || {
        run(&net, "internet", "python3", &["-c", GARBAGE, &target, &PORT.to_string()]);
        (dropped(&hosts[1], "not-authentic") >= 6).then_some(())
    })
    .unwrap();
    assert!(ping(&net, "client-a", "10.2.0.2", &[]));
    // A packet of the tunnel, seen on its way and sent again from another address.
    let mut command = net.host("internet").unwrap().command("python3");
    let mut replay = command.args(["-c", REPLAY, &target, &PORT.to_string()]).spawn().unwrap();
    wait_for("a packet is seen and replayed", || {
        ping(&net, "client-a", "10.2.0.2", &[]);
        replay.try_wait().unwrap()
    })
    .unwrap();
    // The packet itself may come after the first of its eight copies.
    wait_for("replays are counted", || (dropped(&hosts[1], "replayed") >= 7).then_some(())).unwrap();
    let endpoint = hosts[1].state().peers["gw-a"].endpoint;
    assert_eq!(endpoint.map(|endpoint| endpoint.ip()), Some(net.ipv4("gw-a").unwrap().into()));
    assert!(ping(&net, "client-a", "10.2.0.2", &[]));
}

const REPLAY: &str = "
import socket, sys
address, port = sys.argv[1], int(sys.argv[2])
seen = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(0x0800))
seen.settimeout(30)
out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
while True:
    packet = seen.recv(65535)
    udp = (packet[0] & 15) * 4
    to = (socket.inet_ntoa(packet[16:20]), int.from_bytes(packet[udp + 2:udp + 4], 'big'))
    # Sealed packets of hosts are longer than keepalives.
    if packet[9] == 17 and to == (address, port) and packet[udp + 8] == 4 and len(packet) > udp + 8 + 32:
        for _ in range(8):
            out.sendto(packet[udp + 8:], to)
        break
";

#[test]
fn dscp_and_congestion_marks_cross_with_the_datagrams() {
    let test = "dscp_and_congestion_marks_cross_with_the_datagrams";
    let Some((net, mut a, mut b)) = routed(test) else { return };
    let hosts = start(&net, &mut a, &mut b);
    for target in ["10.2.0.2", "fd00:2::2"] {
        wait_ping(&net, "client-a", target);
    }
    let nft = |host: &str, script: &str| {
        let said = run(&net, host, "nft", &[script]);
        assert!(said.status.success(), "{script}: {said:?}");
    };
    let counted = |host: &str, name: &str| {
        let said = run(&net, host, "nft", &["list", "counter", "inet", "lab_class", name]);
        let text = String::from_utf8_lossy(&said.stdout).into_owned();
        let packets = text.split_whitespace().skip_while(|word| *word != "packets").nth(1);
        packets.and_then(|packets| packets.parse::<u64>().ok()).unwrap_or_else(|| panic!("{said:?}"))
    };
    // A router of the internet sees the class of the packet inside, and marks congestion.
    nft(
        "internet",
        "table inet lab_class { counter ef { }; counter plain { }; chain marks { type filter hook forward priority 0; \
         udp dport 7446 ip dscp ef counter name ef; udp dport 7446 ip dscp cs0 counter name plain; \
         udp dport 7446 ip ecn ect0 ip ecn set ce; }; }",
    );
    nft(
        "client-b",
        "table inet lab_class { counter v4 { }; counter v6 { }; chain marks { type filter hook input priority 0; \
         icmp type echo-request ip dscp ef ip ecn ce counter name v4; \
         icmpv6 type echo-request ip6 dscp ef ip6 ecn ce counter name v6; }; }",
    );
    for (target, counter) in [("10.2.0.2", "v4"), ("fd00:2::2", "v6")] {
        let before = counted("internet", "ef");
        // EF, and ECT(0).
        assert!(ping(&net, "client-a", target, &["-Q", "0xba"]), "{target}");
        assert!(counted("internet", "ef") > before, "{target}: the datagram has the DSCP of its packet");
        assert!(counted("client-b", counter) > 0, "{target}: the packet has the mark of its datagram");
    }
    let before = counted("internet", "plain");
    assert!(ping(&net, "client-a", "10.2.0.2", &[]), "a packet without a class");
    assert!(counted("internet", "plain") > before);
    assert_eq!((dropped(&hosts[0], "congestion"), dropped(&hosts[1], "congestion")), (0, 0));
    // A mark on a datagram whose packet cannot carry it: the packet is lost, as by a queue that is full.
    nft("internet", "add rule inet lab_class marks udp dport 7446 ip dscp cs0 ip ecn set ce");
    wait_for("the drop is counted", || {
        ping(&net, "client-a", "10.2.0.2", &[]);
        (dropped(&hosts[1], "congestion") > 0).then_some(())
    })
    .unwrap();
}

const GARBAGE: &str = "
import socket, sys, os
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for kind, size in ((1, 148), (2, 92), (4, 32), (4, 1400), (9, 20), (1, 3)):
    s.sendto(bytes([kind, 0, 0, 0])[:size] + os.urandom(max(size - 4, 0)), (sys.argv[1], int(sys.argv[2])))
";
