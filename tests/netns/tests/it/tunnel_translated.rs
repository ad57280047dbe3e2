//! A translated service between two sites with equal networks: packets end to end, and no real address of the other site.

use std::fs::File;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use causeway_netmap::{
    NetmapView, PolicyEntry, PresenceIp, TranslatedExposure, TranslatedPresenceEntry, TranslatedScope,
    TranslatedServiceEntry,
};
use testlab::causeway::wait_for;
use testlab::net::{Echo, Net, reach_tcp, reach_udp};

use crate::build;
use crate::presence_namespace::leftovers;
use crate::tunnel_lab::{PATIENCE, PORT, Site, TunnelHost, ping, plan, run, view, wait_ping};

pub const LAN: [&str; 1] = ["10.0.0.0/24"];
/// Beside the addresses that both hosts have, so that it shows which one crosses.
pub const CLIENT: &str = "10.0.0.77";
pub const SERVER: &str = "10.0.0.88";
pub const PRESENCE: &str = "198.18.0.1";

/// The netmap of a gateway without a community: site `a` uses the service `plc` of site `b`.
fn translated(own: &Site, peer: &Site) -> NetmapView {
    let mut view = view(own, peer);
    view.communities.clear();
    view.tunnel_peers.values_mut().for_each(|peer| peer.networks.clear());
    if let Some(gateway) = &mut view.gateway {
        gateway.tunnel_networks.clear();
        gateway.presence_cidrs = vec!["198.18.0.0/16".parse().unwrap()];
    }
    let policy = PolicyEntry {
        name: "p".into(),
        servers: Vec::new(),
        sites: vec!["a".into()],
        limits: None,
        http: Vec::new(),
        ports: Vec::new(),
    };
    view.policies.insert("p".into(), policy);
    let addresses = vec![PresenceIp(PRESENCE.parse().unwrap())];
    if own.name == "a" {
        let presence = TranslatedPresenceEntry {
            service: "plc".into(),
            addresses,
            scope: TranslatedScope::Everything,
            names: Vec::new(),
            service_site: "b".into(),
            gateway: "gw-b".into(),
            policies: vec!["p".into()],
        };
        view.translated_presences.insert("plc".into(), presence);
    } else {
        let service = TranslatedServiceEntry {
            service: "plc".into(),
            ip: SERVER.parse().unwrap(),
            port: 0,
            scope: TranslatedScope::Everything,
            exposures: vec![TranslatedExposure { site: "a".into(), addresses, policies: vec!["p".into()] }],
        };
        view.translated_services.insert("plc".into(), service);
    }
    view
}

/// Both gateways, with the service.
pub fn start_translated(net: &Net) -> [TunnelHost; 2] {
    let mut hosts = [TunnelHost::load(), TunnelHost::load()];
    let mut sites = ["a", "b"].map(|name| Site::new(name, &LAN));
    for (site, host) in sites.iter_mut().zip(&hosts) {
        site.key = host.tunnel.public_key().unwrap();
        let address = net.ipv4(&format!("gw-{}", site.name)).unwrap();
        site.endpoint = Some(SocketAddr::new(address.into(), PORT));
    }
    let [a, b] = &sites;
    hosts[0].start(&net.host("gw-a").unwrap(), translated(a, b));
    hosts[1].start(&net.host("gw-b").unwrap(), translated(b, a));
    hosts
}

/// The packets at an interface of a gateway, written by tcpdump.
pub struct Sniffer {
    child: Child,
    text: PathBuf,
}

impl Sniffer {
    pub fn start(net: &Net, gateway: &str, interface: &str, folder: &Path) -> Sniffer {
        let [text, log] = ["txt", "log"].map(|kind| folder.join(format!("{gateway}.{kind}")));
        let mut tcpdump = net.host(gateway).unwrap().command("tcpdump");
        tcpdump.args(["-i", interface, "-n", "-l", "--immediate-mode", "ip"]);
        tcpdump.stdout(File::create(&text).unwrap()).stderr(File::create(&log).unwrap());
        let sniffer = Sniffer { child: tcpdump.spawn().unwrap(), text };
        let is_listening = || std::fs::read_to_string(&log).unwrap_or_default().contains("listening on");
        wait_for("tcpdump listens", || is_listening().then_some(())).unwrap();
        sniffer
    }

    pub fn text(&self) -> String {
        std::fs::read_to_string(&self.text).unwrap()
    }
}

impl Drop for Sniffer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn expect(net: &Net, host: &str, program: &str, arguments: &[&str]) {
    let output = run(net, host, program, arguments);
    assert!(output.status.success(), "{host}: {program} {arguments:?}: {output:?}");
}

#[test]
fn a_translated_service_is_reached_with_any_protocol_and_real_addresses_stay_at_their_sites() {
    let test = "a_translated_service_is_reached_with_any_protocol_and_real_addresses_stay_at_their_sites";
    let Some(net) = build(test, &plan(&LAN, &LAN)) else { return };
    if ["tcpdump", "ethtool"]
        .iter()
        .any(|program| !run(&net, "gw-a", program, &["--version"]).status.success())
    {
        println!("skipped: {test} tcpdump or ethtool is missing");
        return;
    }
    // Without offloads every hop sends full checksums, and a wrong one is dropped by the receiver.
    for (host, interface) in
        [("client-a", "eth0"), ("client-b", "eth0"), ("gw-a", "client-a"), ("gw-b", "client-b")]
    {
        let off = ["-K", interface, "tx", "off", "tso", "off", "gso", "off", "gro", "off"];
        expect(&net, host, "ethtool", &off);
    }
    for (host, address) in [("client-a", CLIENT), ("client-b", SERVER)] {
        expect(&net, host, "ip", &["addr", "add", &format!("{address}/24"), "dev", "eth0"]);
        expect(&net, host, "ip", &["route", "add", "198.18.0.0/16", "via", "10.0.0.1", "src", address]);
    }
    let folder = tempfile::tempdir().unwrap();
    let sniffers = [
        Sniffer::start(&net, "gw-a", "client-a", folder.path()),
        Sniffer::start(&net, "gw-b", "client-b", folder.path()),
    ];
    let before = ["gw-a", "gw-b"].map(|gateway| leftovers(&net.host(gateway).unwrap()));
    let mut hosts = start_translated(&net);

    wait_ping(&net, "client-a", PRESENCE);
    assert!(ping(&net, "client-a", PRESENCE, &["-s", "8000"]), "fragments");
    assert!(!ping(&net, "client-a", "198.18.0.2", &[]), "an address that no service has");
    let (client, server) = (net.host("client-a").unwrap(), net.host("client-b").unwrap());
    let _echo = Echo::start(&server, "[::]:7000".parse().unwrap()).unwrap();
    let to: SocketAddr = format!("{PRESENCE}:7000").parse().unwrap();
    let seen = reach_tcp(&client, to, PATIENCE).unwrap().ip().to_canonical();
    assert!(is_client_address(seen), "the server sees {seen}");
    assert_eq!(reach_udp(&client, to, PATIENCE).unwrap().ip().to_canonical(), seen, "one address per host");
    // An ICMP error is translated inside, or the sender would not know it.
    let closed = run(&net, "client-a", "python3", &["-c", UDP_TO_CLOSED_PORT, PRESENCE]);
    assert_eq!(String::from_utf8_lossy(&closed.stdout).trim(), "refused", "{closed:?}");
    assert_eq!(sctp(&net, PRESENCE), format!("{seen} raw sctp"));
    // The server begins nothing.
    assert!(!ping(&net, "client-b", &seen.to_string(), &[]));

    wait_for("tcpdump has seen SCTP at both sites", || {
        let is_there = |sniffer: &Sniffer| sniffer.text().to_lowercase().contains("sctp");
        sniffers.iter().all(is_there).then_some(())
    })
    .unwrap();
    let [at_a, at_b] = sniffers.each_ref().map(Sniffer::text);
    assert!(at_a.contains(CLIENT) && at_a.contains(PRESENCE) && !at_a.contains(SERVER), "{at_a}");
    assert!(at_b.contains(SERVER) && at_b.contains(&seen.to_string()) && !at_b.contains(CLIENT), "{at_b}");

    hosts.iter_mut().for_each(TunnelHost::stop);
    for host in &hosts {
        let records = host.records.0.lock().unwrap();
        let record =
            records.iter().find(|record| record.protocol == "tcp").expect("a record of the connection");
        assert_eq!((record.service.as_str(), record.rule.as_deref()), ("plc", Some("p")));
        assert_eq!(record.site, "a");
    }
    let after = ["gw-a", "gw-b"].map(|gateway| leftovers(&net.host(gateway).unwrap()));
    assert_eq!(after, before, "nothing is left");
}

/// Tells whether an address is in the half of the range from which clients of other sites get theirs.
pub fn is_client_address(address: IpAddr) -> bool {
    matches!(address, IpAddr::V4(address) if address.octets()[..2] == [198, 18] && address.octets()[2] >= 128)
}

/// Sends raw packets of SCTP until one arrives, and returns what the server saw.
pub fn sctp(net: &Net, target: &str) -> String {
    let mut command = net.host("client-b").unwrap().command("python3");
    let mut server = command.args(["-c", SCTP_SERVER]).stdout(Stdio::piped()).spawn().unwrap();
    wait_for("a packet of SCTP arrives", || {
        expect(net, "client-a", "python3", &["-c", SCTP_CLIENT, target]);
        server.try_wait().unwrap()
    })
    .unwrap();
    String::from_utf8(server.wait_with_output().unwrap().stdout).unwrap().trim().to_owned()
}

const SCTP_SERVER: &str = "
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_RAW, 132)
s.settimeout(30)
packet, (source, _) = s.recvfrom(2048)
print(source, packet[32:].decode())
";

const SCTP_CLIENT: &str = "
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_RAW, 132)
s.sendto(bytes([0, 7, 0, 8, 0, 0, 0, 1, 0, 0, 0, 0]) + b'raw sctp', (sys.argv[1], 0))
";

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
