//! Three sites with a host each, dual stack: the cloud, and two edges behind NATs. Real processes, packets between hosts.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::process::Stdio;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use socket2::{Domain, Protocol, Socket, Type};
use testlab::causeway::wait_for;
use testlab::fleet::{CHANNEL_PORT, CloudHost, EdgeHost};
use testlab::net::{Echo, Host, Net, Plan, reach_tcp, reach_udp};

use crate::build;
use crate::presence_namespace::leftovers;

/// For what has no bound of its own. Nothing waits this long when all is well.
pub const PATIENCE: Duration = Duration::from_secs(30);
const SHORT: Duration = Duration::from_secs(2);
pub const PORT: u16 = 7000;
const ECHO_PATIENCE: Duration = Duration::from_secs(1);

/// The hosts of the lab: name, site, gateway's host, IPv4 and IPv6 network.
const SITES: [(&str, &str, &str, &str, &str); 3] = [
    ("host-c", "cloud", "cloud", "10.10.0.0/24", "fd00:c::/64"),
    ("host-a", "edge-a", "edge-a", "10.1.0.0/24", "fd00:a::/64"),
    ("host-b", "edge-b", "edge-b", "10.2.0.0/24", "fd00:b::/64"),
];

// The network of the cloud is hidden too: without the tunnel no packet reaches a host.
fn plan() -> Plan {
    let mut plan = Plan::new().router("internet").nat("cloud").link(
        "cloud",
        "internet",
        &["203.0.113.0/24", "2001:db8:1::/64"],
    );
    for (site, outside) in [("a", "198.51.100.0/24"), ("b", "192.0.2.0/24")] {
        let [nat, edge] = ["nat", "edge"].map(|what| format!("{what}-{site}"));
        plan = plan.nat(&nat).link(&nat, "internet", &[outside]).router(&edge).link(
            &edge,
            &nat,
            &["192.168.1.0/24"],
        );
    }
    for (host, _, gateway, v4, v6) in SITES {
        plan = plan.host(host).link(host, gateway, &[v4, v6]);
    }
    plan
}

// In the order in which they end: processes before the network they run in.
pub struct Layer3 {
    pub edges: Vec<EdgeHost>,
    pub cloud: CloudHost,
    _servers: Vec<Echo>,
    _folder: tempfile::TempDir,
    pub net: Net,
    before: Vec<(&'static str, BTreeSet<String>)>,
}

impl Layer3 {
    pub fn start(test: &str) -> Option<Layer3> {
        let net = build(test, &plan())?;
        let folder = tempfile::tempdir().unwrap();
        let before = SITES.map(|(_, _, gateway, ..)| (gateway, leftovers(&net.host(gateway).unwrap())));
        let channel = SocketAddr::new(net.ipv4("cloud").unwrap().into(), CHANNEL_PORT);
        let cloud = CloudHost::start(&net.host("cloud").unwrap(), folder.path(), &[channel], &[]).unwrap();
        let (mut edges, mut servers) = (Vec::new(), Vec::new());
        for name in ["edge-a", "edge-b"] {
            let (host, token) = (net.host(name).unwrap(), cloud.token(name).unwrap());
            edges.push(EdgeHost::join(&host, folder.path(), name, &token).unwrap());
        }
        for (host, site, _, v4, v6) in SITES {
            let address = format!("[::]:{PORT}").parse().unwrap();
            servers.push(Echo::start(&net.host(host).unwrap(), address).unwrap());
            cloud.apply(&format!("apiVersion: causeway.io/v1\nkind: ESite\nmetadata: {{name: {site}}}\nsubnets: [{v4}, \"{v6}\"]\n")).unwrap();
        }
        for edge in ["edge-a", "edge-b"] {
            let connected = |gateway: &Value| gateway["connected"] == true;
            cloud.wait_gateway(edge, "is connected", PATIENCE, connected).unwrap();
        }
        Some(Layer3 { edges, cloud, _servers: servers, _folder: folder, net, before: before.into() })
    }

    pub fn host(&self, name: &str) -> Host {
        self.net.host(name).unwrap()
    }

    /// Changes the firewall of a node.
    pub fn nft(&self, node: &str, script: &str) {
        let mut nft = self.host(node).command("nft").args(["-f", "-"]).stdin(Stdio::piped()).spawn().unwrap();
        nft.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
        assert!(nft.wait().unwrap().success(), "{script}");
    }

    /// Applies an ECommunity of these members; `policies` narrows it.
    pub fn community(&self, members: &[&str], policies: Option<&[&str]>) {
        let mut object = json!({"apiVersion": "causeway.io/v1", "kind": "ECommunity", "metadata": {"name": "all"},
            "members": members});
        if let Some(policies) = policies {
            object["ePolicys"] = json!(policies);
        }
        self.cloud.apply(&object.to_string()).unwrap();
    }

    pub fn policy(&self, fields: Value) {
        let mut object =
            json!({"apiVersion": "causeway.io/v1", "kind": "EPolicy", "metadata": {"name": "narrow"}});
        object.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        self.cloud.apply(&object.to_string()).unwrap();
    }

    pub fn address(&self, host: &str, is_v6: bool) -> IpAddr {
        match is_v6 {
            true => self.net.ipv6(host).unwrap().into(),
            false => self.net.ipv4(host).unwrap().into(),
        }
    }

    /// Tells whether an echo request of ICMP is answered within a second.
    pub fn pings(&self, from: &str, to: IpAddr) -> bool {
        self.host(from).inside(|| Ok(ping(to, ECHO_PATIENCE)?)).unwrap()
    }

    /// Waits until ping, TCP and UDP cross with real addresses.
    pub fn await_crossing(&self, from: &str, to: &str, is_v6: bool) {
        let (source, target) = (self.address(from, is_v6), self.address(to, is_v6));
        wait_for(&format!("{from} pings {to} at {target}"), || self.pings(from, target).then_some(()))
            .unwrap();
        let (host, server) = (self.host(from), SocketAddr::new(target, PORT));
        for (what, reach) in [("TCP", reach_tcp as fn(&Host, SocketAddr, Duration) -> _), ("UDP", reach_udp)]
        {
            let seen =
                wait_for(&format!("{what} crosses from {from} to {to}"), || reach(&host, server, SHORT).ok());
            assert_eq!(seen.unwrap().ip().to_canonical(), source, "{what} from {from} to {to}");
        }
    }

    /// Stops everything, and checks that interfaces, routes and sockets are as before.
    pub fn end(mut self) {
        for edge in &mut self.edges {
            assert!(edge.unit.process().unwrap().terminate().unwrap().success());
        }
        assert!(self.cloud.unit.process().unwrap().terminate().unwrap().success());
        for (gateway, before) in &self.before {
            assert_eq!(leftovers(&self.net.host(gateway).unwrap()), *before, "{gateway}");
        }
    }
}

/// An echo request from a raw socket, so that no program is needed.
fn ping(to: IpAddr, patience: Duration) -> std::io::Result<bool> {
    // Each request is a flow of its own: an identifier that was used before belongs to another one.
    static NEXT: AtomicU16 = AtomicU16::new(1);
    let identifier = NEXT.fetch_add(1, Ordering::Relaxed).to_be_bytes();
    let (domain, protocol, request, reply) = match to {
        IpAddr::V4(_) => (Domain::IPV4, Protocol::ICMPV4, 8_u8, 0_u8),
        IpAddr::V6(_) => (Domain::IPV6, Protocol::ICMPV6, 128, 129),
    };
    let socket = Socket::new(domain, Type::RAW, Some(protocol))?;
    socket.set_read_timeout(Some(Duration::from_millis(50)))?;
    let mut packet = [request, 0, 0, 0, identifier[0], identifier[1], 0, 1];
    if to.is_ipv4() {
        // The kernel computes the checksum of ICMPv6 only.
        let sum: u32 = packet.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
        let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
        packet[2..4].copy_from_slice(&sum.to_be_bytes());
    }
    // A network that is not there yet is no answer.
    if socket.send_to(&packet, &SocketAddr::new(to, 0).into()).is_err() {
        return Ok(false);
    }
    let (begin, mut socket, mut buffer) = (Instant::now(), socket, [0; 2048]);
    while begin.elapsed() < patience {
        let Ok(bytes) = socket.read(&mut buffer) else { continue };
        let icmp = if to.is_ipv4() { buffer.get(20..bytes) } else { buffer.get(..bytes) };
        if icmp.is_some_and(|icmp| icmp.first() == Some(&reply) && icmp.get(4..6) == Some(&identifier[..])) {
            return Ok(true);
        }
    }
    Ok(false)
}
