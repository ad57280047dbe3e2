//! Three sites with a host each, dual stack: the cloud, and two edges behind NATs; a third edge without a NAT where a test
//! wants one. Real processes, packets between hosts.

use std::collections::BTreeSet;
use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};
use testlab::causeway::wait_for;
use testlab::fleet::{CHANNEL_PORT, CloudHost, EdgeHost};
use testlab::net::{Echo, Host, Net, Plan, reach_ping, reach_tcp, reach_udp};

use crate::build;
use crate::presence_namespace::leftovers;

/// For what has no bound of its own. Nothing waits this long when all is well.
pub const PATIENCE: Duration = Duration::from_secs(30);
const SHORT: Duration = Duration::from_secs(2);
pub const PORT: u16 = 7000;
const ECHO_PATIENCE: Duration = Duration::from_secs(1);

/// A host of the lab: name, site, gateway's host, IPv4 and IPv6 network.
type HostRow = (&'static str, &'static str, &'static str, &'static str, &'static str);

const SITES: [HostRow; 3] = [
    ("host-c", "cloud", "cloud", "10.10.0.0/24", "fd00:c::/64"),
    ("host-a", "edge-a", "edge-a", "10.1.0.0/24", "fd00:a::/64"),
    ("host-b", "edge-b", "edge-b", "10.2.0.0/24", "fd00:b::/64"),
];

/// An edge with an address of the internet.
const OPEN_SITE: HostRow = ("host-r", "edge-r", "edge-r", "10.3.0.0/24", "fd00:d::/64");

/// Edges whose networks are equal, as everywhere.
const EQUAL_SITES: [HostRow; 3] = [
    SITES[0],
    ("host-a", "edge-a", "edge-a", EQUAL_NETWORKS[0], EQUAL_NETWORKS[1]),
    ("host-b", "edge-b", "edge-b", EQUAL_NETWORKS[0], EQUAL_NETWORKS[1]),
];
pub const EQUAL_NETWORKS: [&str; 2] = ["10.0.0.0/24", "fd00:10::/64"];

// The network of the cloud is hidden too: without the tunnel no packet reaches a host.
fn plan(sites: &[HostRow]) -> Plan {
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
    if sites.contains(&OPEN_SITE) {
        plan = plan.router("edge-r").link("edge-r", "internet", &["203.0.114.0/24"]);
    }
    for &(host, _, gateway, v4, v6) in sites {
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
        Layer3::start_with(test, false, &[])
    }

    /// `has_open_site`: with `edge-r`, an edge without a NAT. `environment` is added to that of `edge-a`.
    pub fn start_with(test: &str, has_open_site: bool, environment: &[(&str, &str)]) -> Option<Layer3> {
        Layer3::start_configured(test, has_open_site, environment, "")
    }

    /// `configuration` is the file of the cloud.
    pub fn start_configured(
        test: &str,
        has_open_site: bool,
        environment: &[(&str, &str)],
        configuration: &str,
    ) -> Option<Layer3> {
        let open = has_open_site.then_some(OPEN_SITE);
        let sites: Vec<HostRow> = SITES.into_iter().chain(open).collect();
        Layer3::start_sites(test, &sites, environment, configuration)
    }

    /// Both edges have the same networks.
    pub fn start_equal(test: &str) -> Option<Layer3> {
        Layer3::start_sites(test, &EQUAL_SITES, &[], "")
    }

    fn start_sites(
        test: &str,
        sites: &[HostRow],
        environment: &[(&str, &str)],
        configuration: &str,
    ) -> Option<Layer3> {
        let net = build(test, &plan(sites))?;
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("cloud.toml");
        std::fs::write(&file, configuration).unwrap();
        let before: Vec<(&str, BTreeSet<String>)> = sites
            .iter()
            .map(|&(_, _, gateway, ..)| (gateway, leftovers(&net.host(gateway).unwrap())))
            .collect();
        let channel = SocketAddr::new(net.ipv4("cloud").unwrap().into(), CHANNEL_PORT);
        let cloud = CloudHost::start(
            &net.host("cloud").unwrap(),
            folder.path(),
            &[channel],
            &["--config", file.to_str().unwrap()],
        )
        .unwrap();
        let (mut edges, mut servers) = (Vec::new(), Vec::new());
        let names: Vec<&str> =
            sites.iter().map(|&(_, site, ..)| site).filter(|site| *site != "cloud").collect();
        for name in names.iter().copied() {
            let (host, token) = (net.host(name).unwrap(), cloud.token(name).unwrap());
            let environment = if name == "edge-a" { environment } else { &[] };
            edges.push(EdgeHost::join_with(&host, folder.path(), name, &token, environment).unwrap());
        }
        for &(host, site, _, v4, v6) in sites {
            let address = format!("[::]:{PORT}").parse().unwrap();
            servers.push(Echo::start(&net.host(host).unwrap(), address).unwrap());
            cloud.apply(&format!("apiVersion: causeway.io/v1\nkind: ESite\nmetadata: {{name: {site}}}\nsubnets: [{v4}, \"{v6}\"]\n")).unwrap();
        }
        for edge in names {
            let connected = |gateway: &Value| gateway["connected"] == true;
            cloud.wait_gateway(edge, "is connected", PATIENCE, connected).unwrap();
        }
        Some(Layer3 { edges, cloud, _servers: servers, _folder: folder, net, before })
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

    /// Applies an object of our API version.
    pub fn apply(&self, mut object: Value) {
        object["apiVersion"] = json!("causeway.io/v1");
        self.cloud.apply(&object.to_string()).unwrap();
    }

    /// Waits for the address of a service at a site.
    pub fn presence(&self, service: &str, site: &str) -> IpAddr {
        let found = wait_for(&format!("{service} has an address at {site}"), || {
            let list =
                self.cloud.call(|api| api.get("/apis/causeway.io/v1/virtualpresences")?.success()).ok()?;
            let is_it = |item: &&Value| item["eServiceName"] == service && item["eSiteName"] == site;
            let made = list["items"].as_array()?.iter().find(is_it)?.clone();
            made["virtualIp"].as_str()?.parse::<IpAddr>().ok()
        });
        found.unwrap()
    }

    pub fn address(&self, host: &str, is_v6: bool) -> IpAddr {
        match is_v6 {
            true => self.net.ipv6(host).unwrap().into(),
            false => self.net.ipv4(host).unwrap().into(),
        }
    }

    /// Tells whether an echo request of ICMP is answered within a second.
    pub fn pings(&self, from: &str, to: IpAddr) -> bool {
        reach_ping(&self.host(from), to, ECHO_PATIENCE).unwrap()
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

    /// Returns the records that `causeway audit` prints.
    pub fn audit(&self, filters: &[&str]) -> Vec<Value> {
        let told = self.cloud.run(&[&["audit", "--json"], filters].concat()).unwrap().success().unwrap();
        told.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Waits until the audit has such a record; those of an edge take a moment.
    pub fn await_record(&self, what: &str, filters: &[&str], is_wanted: impl Fn(&Value) -> bool) -> Value {
        let found = wait_for(what, || self.audit(filters).into_iter().find(&is_wanted));
        found.unwrap_or_else(|error| panic!("{error}: {:?}", self.audit(filters)))
    }

    /// Tells whether interfaces, addresses, routes, rules, neighbours and sockets of a gateway's host are as before.
    pub fn is_as_before(&self, gateway: &str) -> bool {
        self.before
            .iter()
            .any(|(known, before)| *known == gateway && leftovers(&self.host(gateway)) == *before)
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
