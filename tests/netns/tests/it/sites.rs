//! The fleet of services: a cloud and two sites with the same addresses behind NATs, each with a client that policies name, a
//! stranger that none names, and a server on which real programs run.
//!
//! Objects are applied with kubectl where there is one. Hosts ask their own gateway for names, by their resolv.conf.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testlab::causeway::{Process, finish, wait_for};
use testlab::fleet::{CHANNEL_PORT, CloudHost, EdgeHost};
use testlab::net::{Host, Net, Plan};

use crate::build;
use crate::programs;

/// For what has no bound of its own. Nothing waits this long when all is well.
pub const PATIENCE: Duration = Duration::from_secs(30);
pub const CLOUD: &str = "cloud";
pub const EDGES: [&str; 2] = ["berlin", "oslo"];
pub const SITES: [&str; 3] = [CLOUD, "berlin", "oslo"];
/// The hosts of a site, beside its gateway, and the place of each in the site's network of 24 bits. A link needs a network of
/// its own, so every host has sixteen addresses of it; the gateway is the first of the first.
const HOSTS: [(&str, u8); 3] = [("client", 0), ("stranger", 16), ("server", 32)];

/// The network of a site. Those of the edges are equal, on purpose.
fn network(site: &str) -> &'static str {
    if site == CLOUD { "172.20.0" } else { "10.0.0" }
}

/// The address of a host at any site that is an edge, or at the cloud.
pub fn address(host: &str, site: &str) -> String {
    let place = HOSTS.iter().find(|(name, _)| *name == host).map_or(0, |(_, place)| *place);
    format!("{}.{}", network(site), place + 2)
}

pub fn gateway_address(site: &str) -> String {
    format!("{}.1", network(site))
}

fn plan() -> Plan {
    let mut plan = Plan::new().router("internet").router(CLOUD).link(CLOUD, "internet", &["203.0.113.0/24"]);
    for (site, outside) in [("berlin", "198.51.100.0/24"), ("oslo", "192.0.2.0/24")] {
        let nat = format!("nat-{site}");
        plan = plan.nat(&nat).link(&nat, "internet", &[outside]);
        plan = plan.router(site).link(site, &nat, &["192.168.1.0/24"]);
    }
    for site in SITES {
        for (host, place) in HOSTS {
            let name = format!("{host}-{site}");
            let own = format!("{}.{place}/28", network(site));
            plan = plan.host(&name).link(&name, site, &[&own]);
        }
    }
    // A gateway of a site of its own, for the tests in which a gateway lies.
    plan.host("mallory").link("mallory", "internet", &["203.0.112.0/24"])
}

// In the order in which they end: processes before the network they run in.
pub struct Sites {
    pub edges: Vec<EdgeHost>,
    _servers: Vec<Process>,
    pub cloud: CloudHost,
    pub folder: tempfile::TempDir,
    pub net: Net,
    _elsewhere: Elsewhere,
}

impl Sites {
    /// The network, a cloud, two edges that are connected, servers, and the objects that say who is where. Nothing is exposed.
    pub fn start(test: &str) -> Option<Sites> {
        if let Some(what) = programs::missing() {
            println!("skipped: {test} needs {what} (.ci/needs test installs them)");
            return None;
        }
        let net = build(test, &plan())?;
        for site in SITES {
            let server: IpAddr = gateway_address(site).parse().unwrap();
            for (host, _) in HOSTS {
                net.host(&format!("{host}-{site}")).unwrap().ask_for_names(server).unwrap();
            }
        }
        let elsewhere = Elsewhere::start(&net.host("internet").unwrap());
        for (gateway, uplink) in [(CLOUD, CLOUD), ("berlin", "nat-berlin"), ("oslo", "nat-oslo")] {
            let server = net.gateway_ipv4(uplink).unwrap();
            net.host(gateway).unwrap().ask_for_names(server.into()).unwrap();
        }
        let folder = tempfile::tempdir().unwrap();
        let servers = SITES.iter().flat_map(|site| {
            let host = net.host(&format!("server-{site}")).unwrap();
            programs::serve(&host, folder.path())
        });
        let servers = servers.collect();
        let advertise = [SocketAddr::new(net.ipv4(CLOUD).unwrap().into(), CHANNEL_PORT)];
        let settings = |site: &str| {
            let path = folder.path().join(format!("{site}.toml"));
            std::fs::write(&path, programs::entries(site)).unwrap();
            path.display().to_string()
        };
        let settings = SITES.map(settings);
        let more = ["--config", &settings[0]];
        let cloud = CloudHost::start(&net.host(CLOUD).unwrap(), folder.path(), &advertise, &more).unwrap();
        let mut sites =
            Sites { edges: Vec::new(), _servers: servers, cloud, folder, net, _elsewhere: elsewhere };
        sites
            .cloud
            .apply(&documents(&SITES.iter().flat_map(|site| residents(site)).collect::<Vec<_>>()))
            .unwrap();
        for (site, settings) in SITES.iter().zip(&settings).skip(1) {
            let token = sites.cloud.token(site).unwrap();
            let more = [("CAUSEWAY_CONFIG", settings.as_str())];
            let folder = sites.folder.path();
            let edge = EdgeHost::join_with(&sites.host(site), folder, site, &token, &more).unwrap();
            sites.edges.push(edge);
        }
        EDGES.iter().for_each(|site| sites.await_connected(site));
        Some(sites)
    }

    pub fn host(&self, name: &str) -> Host {
        self.net.host(name).unwrap()
    }

    pub fn edge(&mut self, site: &str) -> &mut EdgeHost {
        let place = EDGES.iter().position(|edge| *edge == site).unwrap();
        &mut self.edges[place]
    }

    pub fn await_connected(&self, site: &str) {
        let connected = |gateway: &Value| gateway["connected"] == true;
        self.cloud.wait_gateway(site, "is connected", PATIENCE, connected).unwrap();
    }

    /// As an administrator does it on the cloud's host. Returns when the command had ended.
    pub fn apply(&self, objects: &[Value]) -> Instant {
        let path = self.folder.path().join("applied.yaml");
        std::fs::write(&path, documents(objects)).unwrap();
        self.administer(&["apply", "-f", path.to_str().unwrap()])
    }

    pub fn delete(&self, kind: &str, names: &[String]) -> Instant {
        let names = names.iter().map(String::as_str);
        self.administer(&["delete", kind].into_iter().chain(names).collect::<Vec<_>>())
    }

    /// Only waits for the command itself: kubectl would also wait until the object is seen to be gone.
    fn administer(&self, arguments: &[&str]) -> Instant {
        match kubectl() {
            None => self.cloud.run(arguments).and_then(|ran| ran.success()).map(drop).unwrap(),
            Some(program) => {
                let mut command = Command::new(program);
                command.arg("--kubeconfig").arg(self.folder.path().join("cloud/admin.kubeconfig"));
                command.arg("--cache-dir").arg(self.folder.path().join("kubectl")).args(arguments);
                if arguments[0] == "delete" {
                    command.arg("--wait=false");
                }
                let ran = finish(self.cloud.unit.host.wrap(&command), None).unwrap();
                ran.success().unwrap();
            }
        }
        Instant::now()
    }

    /// The address of a service at a site, once it has one.
    pub fn presence(&self, service: &str, site: &str) -> IpAddr {
        let found = wait_for("the service has an address", || {
            let list =
                self.cloud.call(|api| api.get("/apis/causeway.io/v1/virtualpresences")?.success()).ok()?;
            let wanted = |item: &&Value| item["eServiceName"] == service && item["eSiteName"] == site;
            let item = list["items"].as_array()?.iter().find(wanted)?.clone();
            item["virtualIp"].as_str()?.parse::<IpAddr>().ok()
        });
        found.unwrap()
    }

    /// The records that `causeway audit` prints.
    pub fn audit(&self, filters: &[&str]) -> Vec<Value> {
        let told = self.cloud.run(&[&["audit", "--json"], filters].concat()).unwrap().success().unwrap();
        told.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Waits until a record tells what is wanted; records of an edge take a moment.
    pub fn await_record(&self, what: &str, filters: &[&str], wanted: impl Fn(&Value) -> bool) -> Value {
        let found = wait_for(what, || self.audit(filters).into_iter().find(&wanted));
        found.unwrap_or_else(|error| {
            let told: Vec<String> = self.audit(filters).iter().map(Value::to_string).collect();
            panic!("{error}; told with {filters:?}:\n{}", told.join("\n"))
        })
    }
}

/// The names of the rest of the fleet: there are none. A server that does not answer would delay a client that asks too early.
struct Elsewhere(Arc<AtomicBool>);

impl Elsewhere {
    fn start(host: &Host) -> Elsewhere {
        let stop = Arc::new(AtomicBool::new(false));
        let socket = host.inside(|| Ok(UdpSocket::bind("0.0.0.0:53")?)).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        let stopped = stop.clone();
        std::thread::spawn(move || {
            let mut message = [0; 512];
            while !stopped.load(Ordering::Relaxed) {
                let Ok((bytes, client)) = socket.recv_from(&mut message) else { continue };
                // RFC 1035, 4.1.1: a response, and no such name.
                (message[2], message[3]) = (message[2] | 0x80, 0x83);
                let _ = socket.send_to(&message[..bytes], client);
            }
        });
        Elsewhere(stop)
    }
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A site, its gateway, its client, and the policy that names it. No policy names the stranger.
fn residents(site: &str) -> [Value; 4] {
    let client = format!("client-{site}");
    [
        object("ESite", site, json!({"subnets": [format!("{}.0/24", network(site))]})),
        object(
            "EGateway",
            site,
            json!({"eSiteName": site, "ip": gateway_address(site), "relay": site == CLOUD}),
        ),
        object("EServer", &client, json!({"eSiteName": site, "ip": address("client", site)})),
        object("EPolicy", &policy(site), json!({"allowedServers": [client]})),
    ]
}

/// The policy that names the client of a site, and no other client.
pub fn policy(site: &str) -> String {
    format!("clients-of-{site}")
}

/// A service on the server of a site.
pub fn service(kind: &str, home: &str, protocol: &str, port: u16) -> Value {
    let fields =
        json!({"eSiteName": home, "ip": address("server", home), "port": port, "protocol": protocol});
    object("EService", &format!("{kind}-{home}"), fields)
}

/// The exposure of a service to the client of another site.
pub fn expose(service: &str, user: &str) -> Value {
    let fields = json!({"eServiceName": service, "dnsName": format!("{service}.lab.test"), "eSites": [user],
        "ePolicys": [policy(user)]});
    object("ServiceExpose", &format!("{service}-to-{user}"), fields)
}

pub fn object(kind: &str, name: &str, fields: Value) -> Value {
    let mut object = json!({"apiVersion": "causeway.io/v1", "kind": kind, "metadata": {"name": name}});
    object.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    object
}

/// As YAML, of which JSON is a part; kubectl takes what begins with a brace for JSON alone.
fn documents(objects: &[Value]) -> String {
    objects.iter().map(|object| format!("---\n{object}\n")).collect()
}

/// The kubectl of this machine; without one, `causeway` does the same.
fn kubectl() -> Option<&'static str> {
    let version = Command::new("kubectl").args(["version", "--client"]).output();
    version.is_ok_and(|output| output.status.success()).then_some("kubectl")
}
