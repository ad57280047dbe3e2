//! Services of one site at addresses of another: two sites with equal plans behind NATs, a cloud between them, real processes.

use std::io::{ErrorKind, Read};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testlab::causeway::wait_for;
use testlab::fleet::{CHANNEL_PORT, CloudHost, EdgeHost};
use testlab::net::{Echo, Host, Net, Plan, reach_tcp, reach_udp};

use crate::build;
use crate::presence_namespace::leftovers;

/// For what has no bound of its own. Nothing waits this long when all is well.
const PATIENCE: Duration = Duration::from_secs(30);
const GROUP: &str = "/apis/causeway.io/v1";
/// The site that has a service, and the site that uses it.
const WAYS: [(&str, &str); 2] = [("a", "b"), ("b", "a")];

/// A site is a gateway that forwards for a client and a server. Both sites have the same addresses.
fn plan() -> Plan {
    let mut plan =
        Plan::new().router("internet").host("cloud").link("cloud", "internet", &["203.0.113.0/24"]);
    for (site, outside) in [("a", "198.51.100.0/24"), ("b", "192.0.2.0/24")] {
        let [nat, edge, client, server] =
            ["nat", "edge", "client", "server"].map(|what| format!("{what}-{site}"));
        plan = plan
            .nat(&nat)
            .link(&nat, "internet", &[outside])
            .router(&edge)
            .link(&edge, &nat, &["192.168.1.0/24"])
            .host(&client)
            .link(&client, &edge, &["10.0.0.0/24", "fd00:10::/64"])
            .host(&server)
            .link(&server, &edge, &["10.0.1.0/24"]);
    }
    plan
}

// In the order in which they end: processes before the network they run in.
pub struct Fleet {
    pub edges: Vec<EdgeHost>,
    pub cloud: CloudHost,
    _servers: Vec<Echo>,
    pub folder: tempfile::TempDir,
    pub net: Net,
    pub before: std::collections::BTreeSet<String>,
}

impl Fleet {
    pub fn start(test: &str) -> Option<Fleet> {
        Fleet::start_with(test, "auto", |_, cloud| cloud)
    }

    /// The same over one transport, where edges find the cloud at what `endpoint` makes of its address.
    pub fn start_with(
        test: &str,
        transport: &str,
        endpoint: impl FnOnce(&Net, SocketAddr) -> SocketAddr,
    ) -> Option<Fleet> {
        let net = build(test, &plan())?;
        let folder = tempfile::tempdir().unwrap();
        let channel = SocketAddr::new(net.ipv4("cloud").unwrap().into(), CHANNEL_PORT);
        let advertise = [endpoint(&net, channel)];
        let cloud = CloudHost::start(&net.host("cloud").unwrap(), folder.path(), &advertise, &[]).unwrap();
        let before = leftovers(&net.host("edge-a").unwrap());
        let (mut edges, mut servers) = (Vec::new(), Vec::new());
        for site in ["a", "b"] {
            let name = format!("edge-{site}");
            let host = net.host(&name).unwrap();
            let token = cloud.token(&name).unwrap();
            let environment = [("CAUSEWAY_TRANSPORT", transport)];
            edges.push(EdgeHost::join_with(&host, folder.path(), &name, &token, &environment).unwrap());
            let server = net.host(&format!("server-{site}")).unwrap();
            servers.push(Echo::start(&server, "0.0.0.0:7000".parse().unwrap()).unwrap());
        }
        for edge in ["edge-a", "edge-b"] {
            let connected = |gateway: &Value| gateway["connected"] == true;
            cloud.wait_gateway(edge, "is connected", PATIENCE, connected).unwrap();
        }
        Some(Fleet { edges, cloud, _servers: servers, folder, net, before })
    }

    pub fn host(&self, name: &str) -> Host {
        self.net.host(name).unwrap()
    }

    pub fn post(&self, plural: &str, kind: &str, name: &str, fields: Value) {
        let mut object = json!({"apiVersion": "causeway.io/v1", "kind": kind, "metadata": {"name": name}});
        object.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        self.cloud.call(|api| api.post(&format!("{GROUP}/{plural}"), &object)?.success()).unwrap();
    }

    /// Every site has a service for TCP and one for UDP, which one client of the other site may use.
    fn expose(&self) {
        for (home, user) in WAYS {
            let client = format!("client-{user}");
            let known = json!({"ip": "10.0.0.2", "eSiteName": format!("edge-{user}")});
            self.post("eservers", "EServer", &client, known);
            self.post("epolicies", "EPolicy", &client, json!({"allowedServers": [client]}));
            for protocol in ["TCP", "UDP"] {
                let name = format!("{}-{home}", protocol.to_lowercase());
                let service = json!({"ip": "10.0.1.2", "port": 7000, "protocol": protocol,
                    "eSiteName": format!("edge-{home}")});
                self.post("eservices", "EService", &name, service);
                let expose = json!({"eServiceName": name, "dnsName": format!("{name}.test"),
                    "eSites": [format!("edge-{user}")], "ePolicys": [client]});
                self.post("serviceexposes", "ServiceExpose", &name, expose);
            }
        }
    }

    /// The address of a service at a site.
    pub fn presence(&self, service: &str, site: &str) -> SocketAddr {
        SocketAddr::new(self.presence_ip(service, site), 7000)
    }

    pub fn presence_ip(&self, service: &str, site: &str) -> IpAddr {
        let found = wait_for("the service has an address", || {
            let list =
                self.cloud.call(|api| api.get(&format!("{GROUP}/virtualpresences"))?.success()).ok()?;
            let wanted = |item: &&Value| item["eServiceName"] == service && item["eSiteName"] == site;
            let item = list["items"].as_array()?.iter().find(wanted)?.clone();
            item["virtualIp"].as_str()?.parse::<IpAddr>().ok()
        });
        found.unwrap()
    }

    /// Both services of `home` can be used by the client of `user`. Returns how long it took.
    fn await_crossing(&self, home: &str, user: &str) -> Duration {
        let begin = Instant::now();
        let client = self.host(&format!("client-{user}"));
        let site = format!("edge-{user}");
        let [tcp, udp] = ["tcp", "udp"].map(|kind| self.presence(&format!("{kind}-{home}"), &site));
        let short = Duration::from_secs(2);
        let seen = wait_for("TCP crosses", || reach_tcp(&client, tcp, short).ok()).unwrap();
        // The server sees its own gateway: no address of the other site crosses.
        assert_eq!(seen.ip(), "10.0.1.1".parse::<IpAddr>().unwrap());
        let seen = wait_for("UDP crosses", || reach_udp(&client, udp, short).ok()).unwrap();
        assert_eq!(seen.ip(), "10.0.1.1".parse::<IpAddr>().unwrap());
        begin.elapsed()
    }
}

/// The end of a connection that was accepted by the kernel, when nothing is said on it.
fn refusal(host: &Host, to: SocketAddr) -> Option<ErrorKind> {
    let asked = host.inside(|| {
        let asked = TcpStream::connect_timeout(&to, PATIENCE).and_then(|mut stream| {
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.read(&mut [0; 1])
        });
        Ok(asked.err().map(|error| error.kind()))
    });
    asked.unwrap()
}

#[test]
fn services_cross_between_equal_sites_and_a_killed_gateway_leaves_nothing() {
    let test = "services_cross_between_equal_sites_and_a_killed_gateway_leaves_nothing";
    let Some(mut fleet) = Fleet::start(test) else { return };
    fleet.expose();
    for (home, user) in WAYS {
        println!("from {home} to {user}: {:?} after it was exposed", fleet.await_crossing(home, user));
    }
    let tcp = fleet.presence("tcp-b", "edge-a");
    // The gateway's own host is at the site too, but no policy names it; nor the server beside the client.
    for stranger in ["edge-a", "server-a"] {
        let refused = refusal(&fleet.host(stranger), tcp);
        assert_eq!(refused, Some(ErrorKind::ConnectionReset), "{stranger}");
    }
    let unused = SocketAddr::new("198.18.77.77".parse().unwrap(), 7000);
    assert_eq!(refusal(&fleet.host("client-a"), unused), Some(ErrorKind::ConnectionRefused));

    let (host, before) = (fleet.host("edge-a"), fleet.before.clone());
    assert!(leftovers(&host) != before, "there is something to be left");
    fleet.edges[0].unit.kill().unwrap();
    let begin = Instant::now();
    wait_for("nothing is left of the gateway", || (leftovers(&host) == before).then_some(())).unwrap();
    println!("nothing was left {:?} after kill -9", begin.elapsed());

    fleet.edges[0].restart().unwrap();
    println!("{:?} after the restart both services cross again", fleet.await_crossing("b", "a"));
    assert!(fleet.edges[0].unit.process().unwrap().terminate().unwrap().success());
    assert_eq!(leftovers(&host), before, "nothing is left after the stop");
}
