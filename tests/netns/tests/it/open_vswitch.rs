//! Translated services through Open vSwitch bridges: two sites with equal networks, a real switch with user-space data path
//! in the namespace of each gateway, real processes.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use testlab::causeway::wait_for;
use testlab::fleet::{CHANNEL_PORT, CloudHost, EdgeHost};
use testlab::net::{Echo, Host, Net, Plan, reach_ping, reach_tcp, reach_udp};

use crate::build;
use crate::presence_namespace::leftovers;

const PATIENCE: Duration = Duration::from_secs(30);
const SHORT: Duration = Duration::from_secs(2);
const PORT: u16 = 7000;
const BRIDGE: &str = "br-causeway";
/// Equal at both sites.
const LAN: [&str; 2] = ["10.0.0.0/24", "fd00:10::/64"];
/// The host of a site and its gateway's host have these addresses.
const SERVERS: [&str; 2] = ["10.0.0.2", "fd00:10::2"];
const RANGES: [&str; 2] = ["198.18.0.0/16", "fd00:18::/64"];
const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";
/// Another program's flow, which this test does not want changed.
const FOREIGN: &str = "cookie=0x77,priority=100,ip,nw_dst=192.0.2.99,actions=drop";

fn plan() -> Plan {
    let mut plan =
        Plan::new().router("internet").host("cloud").link("cloud", "internet", &["203.0.113.0/24"]);
    for (site, outside) in [("a", "198.51.100.0/24"), ("b", "192.0.2.0/24")] {
        let [nat, edge, host] = ["nat", "edge", "host"].map(|what| format!("{what}-{site}"));
        plan = plan.nat(&nat).link(&nat, "internet", &[outside]);
        plan = plan.router(&edge).link(&edge, &nat, &["192.168.1.0/24"]);
        plan = plan.host(&host).link(&host, &edge, &LAN);
    }
    plan
}

/// The reason for which no switch can run here.
fn missing() -> Option<String> {
    let is_absent = |program: &&&str| {
        let mut command = Command::new(program);
        command.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_err()
    };
    let programs = ["ovsdb-tool", "ovsdb-server", "ovs-vswitchd", "ovs-vsctl", "ovs-ofctl", "ethtool"];
    let absent = programs.iter().find(is_absent);
    absent.map(|program| format!("needs {program} (.ci/needs test installs openvswitch-switch)"))
}

/// An Open vSwitch in the namespace of a host, with its files in a folder of the test. Ended when dropped.
struct Switch {
    host: Host,
    folder: PathBuf,
    children: Vec<Child>,
}

impl Switch {
    /// The folder of a switch that does not run yet.
    fn new(host: &Host, folder: &Path) -> Switch {
        let folder = folder.join(format!("ovs-{}", host.name()));
        std::fs::create_dir_all(&folder).unwrap();
        Switch { host: host.clone(), folder, children: Vec::new() }
    }

    fn folder(&self) -> &str {
        self.folder.to_str().unwrap()
    }

    fn command(&self, program: &str) -> Command {
        let mut command = self.host.command(program);
        for name in ["OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR"] {
            command.env(name, &self.folder);
        }
        command
    }

    fn run(&self, program: &str, arguments: &str) -> String {
        let output = self.command(program).args(arguments.split(' ')).output().unwrap();
        assert!(output.status.success(), "{program} {arguments}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn spawn(&mut self, program: &str, arguments: &[&str]) {
        let folder = self.folder().to_owned();
        let mut command = self.command(program);
        command.args(arguments).args(["--no-chdir", "-vconsole:off"]);
        command.arg(format!("--pidfile={folder}/{program}.pid"));
        command.arg(format!("--unixctl={folder}/{program}.ctl"));
        command.arg(format!("--log-file={folder}/{program}.log"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        self.children.push(command.spawn().unwrap());
    }

    /// Starts the switch, makes the bridge, and plugs the host of the site into it.
    fn start(&mut self, lan: &str) {
        let folder = self.folder().to_owned();
        self.run("ovsdb-tool", &format!("create {folder}/conf.db {SCHEMA}"));
        self.spawn(
            "ovsdb-server",
            &[&format!("{folder}/conf.db"), &format!("--remote=punix:{folder}/db.sock")],
        );
        let socket = self.folder.join("db.sock");
        wait_for("ovsdb-server listens", || socket.exists().then_some(())).unwrap();
        self.run("ovs-vsctl", "--no-wait init");
        self.spawn("ovs-vswitchd", &[&format!("unix:{folder}/db.sock"), "--disable-system"]);
        let bridge = format!("--timeout=20 add-br {BRIDGE} -- set bridge {BRIDGE} datapath_type=netdev");
        self.run("ovs-vsctl", &bridge);
        self.run("ip", &format!("addr flush dev {lan}"));
        self.run("ovs-vsctl", &format!("--timeout=20 add-port {BRIDGE} {lan}"));
        self.run("ip", &format!("addr add 10.0.0.1/24 dev {BRIDGE}"));
        self.run("ip", &format!("addr add fd00:10::1/64 dev {BRIDGE} nodad"));
        self.run("ip", &format!("link set {BRIDGE} up"));
        self.run("ovs-ofctl", &format!("add-flow {BRIDGE} {FOREIGN}"));
    }

    /// All flows, with those of other programs, without counters.
    fn flows(&self) -> BTreeSet<String> {
        let text = self.run("ovs-ofctl", &format!("--no-stats --no-names dump-flows {BRIDGE}"));
        text.lines().map(|line| line.trim().to_owned()).collect()
    }

    fn ports(&self) -> String {
        self.run("ovs-vsctl", &format!("list-ports {BRIDGE}"))
    }

    /// Flows, ports, interfaces, addresses, routes and neighbours. Sockets end with their process; the link-local address of the
    /// bridge is checked by the kernel in its first second; named namespaces belong to the whole machine.
    fn state(&self) -> (BTreeSet<String>, String, BTreeSet<String>) {
        let is_kept = |line: &String| {
            let is_other = ["tcp", "udp", "netns list"].iter().any(|start| line.starts_with(start));
            !is_other && !line.contains("fe80:")
        };
        (self.flows(), self.ports(), leftovers(&self.host).into_iter().filter(is_kept).collect())
    }

    fn stop(&mut self) {
        // The switch before its database.
        while let Some(mut child) = self.children.pop() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        self.stop();
    }
}

fn ours(flows: &BTreeSet<String>) -> Vec<&String> {
    flows.iter().filter(|flow| flow.starts_with("cookie=0xca05")).collect()
}

// In the order in which they end.
struct Lab {
    edges: Vec<EdgeHost>,
    cloud: CloudHost,
    switches: [Switch; 2],
    _servers: Vec<Echo>,
    _folder: tempfile::TempDir,
    net: Net,
}

impl Lab {
    /// The switch of site `a` runs, that of site `b` does not yet.
    fn start(test: &str) -> Option<Lab> {
        if let Some(reason) = missing() {
            println!("skipped: {test} {reason}");
            return None;
        }
        let net = build(test, &plan())?;
        let folder = tempfile::tempdir().unwrap();
        let channel = SocketAddr::new(net.ipv4("cloud").unwrap().into(), CHANNEL_PORT);
        let cloud = CloudHost::start(&net.host("cloud").unwrap(), folder.path(), &[channel], &[]).unwrap();
        let mut switches =
            ["edge-a", "edge-b"].map(|edge| Switch::new(&net.host(edge).unwrap(), folder.path()));
        let mut servers = Vec::new();
        for (edge, host) in [("edge-a", "host-a"), ("edge-b", "host-b")] {
            // The user-space switch passes on frames as they are: their checksums must be complete.
            for (node, interface) in [(host, "eth0"), (edge, host)] {
                let off = format!("-K {interface} tx off tso off gso off gro off");
                run(&net.host(node).unwrap(), "ethtool", &off);
            }
            let address = format!("[::]:{PORT}").parse().unwrap();
            servers.push(Echo::start(&net.host(host).unwrap(), address).unwrap());
        }
        switches[0].start("host-a");
        let mut edges = Vec::new();
        for (name, switch) in ["edge-a", "edge-b"].into_iter().zip(&switches) {
            let (host, token) = (net.host(name).unwrap(), cloud.token(name).unwrap());
            let environment = [("CAUSEWAY_DATAPATH", "ovs"), ("OVS_RUNDIR", switch.folder())];
            edges.push(EdgeHost::join_with(&host, folder.path(), name, &token, &environment).unwrap());
        }
        for edge in ["edge-a", "edge-b"] {
            let connected = |gateway: &Value| gateway["connected"] == true;
            cloud.wait_gateway(edge, "is connected", PATIENCE, connected).unwrap();
            let gateway = json!({"kind": "EGateway", "metadata": {"name": edge}, "eSiteName": edge,
                "virtualPresenceIPcidr": RANGES.join(",")});
            apply(&cloud, gateway);
        }
        Some(Lab { edges, cloud, switches, _servers: servers, _folder: folder, net })
    }

    fn host(&self, name: &str) -> Host {
        self.net.host(name).unwrap()
    }

    fn expose(&self, name: &str, server: &str) -> IpAddr {
        apply(
            &self.cloud,
            json!({"kind": "EPolicy", "metadata": {"name": "all"}, "allowedSites": ["edge-a"]}),
        );
        apply(
            &self.cloud,
            json!({"kind": "EService", "metadata": {"name": name}, "eSiteName": "edge-b", "ip": server, "protocol": "IP"}),
        );
        apply(
            &self.cloud,
            json!({"kind": "ServiceExpose", "metadata": {"name": name}, "eServiceName": name, "eSites": ["edge-a"],
                "ePolicys": ["all"], "mode": "translate"}),
        );
        let found = wait_for("the service has an address", || {
            let path = "/apis/causeway.io/v1/virtualpresences";
            let list = self.cloud.call(|api| api.get(path)?.success()).ok()?;
            let item = list["items"].as_array()?.iter().find(|item| item["eServiceName"] == name)?.clone();
            item["virtualIp"].as_str()?.parse::<IpAddr>().ok()
        });
        found.unwrap()
    }

    fn pings(&self, address: IpAddr) -> bool {
        reach_ping(&self.host("host-a"), address, Duration::from_secs(1)).unwrap()
    }

    /// Ping, TCP and UDP cross, and the server sees an address of its own gateway's range.
    fn await_crossing(&self, address: IpAddr) {
        let crossed = wait_for(&format!("{address} answers"), || self.pings(address).then_some(()));
        crossed.unwrap_or_else(|error| panic!("{error}: {:?}", self.switches.each_ref().map(Switch::flows)));
        let (client, server) = (self.host("host-a"), SocketAddr::new(address, PORT));
        // Both ranges, as their addresses begin.
        let range = if address.is_ipv4() { "198.18." } else { "fd00:18:" };
        for reach in [reach_tcp as fn(&Host, SocketAddr, Duration) -> _, reach_udp] {
            let seen =
                wait_for("it crosses", || reach(&client, server, SHORT).ok()).unwrap().ip().to_canonical();
            assert!(seen.to_string().starts_with(range) && seen != address, "the server sees {seen}");
        }
    }

    fn wait_flows(&self, what: &str, is_it: impl Fn(&str) -> bool) {
        wait_for(what, || {
            is_it(&ours(&self.switches[0].flows()).into_iter().cloned().collect::<String>()).then_some(())
        })
        .unwrap_or_else(|error| panic!("{error}: {:?}", self.switches[0].flows()));
    }
}

fn apply(cloud: &CloudHost, mut object: Value) {
    object["apiVersion"] = json!("causeway.io/v1");
    cloud.apply(&object.to_string()).unwrap();
}

fn run(host: &Host, program: &str, arguments: &str) {
    let output = host.command(program).args(arguments.split(' ')).output().unwrap();
    assert!(output.status.success(), "{program} {arguments}: {output:?}");
}

#[test]
fn translated_services_cross_open_vswitch_bridges_and_nothing_is_left_of_them() {
    let test = "translated_services_cross_open_vswitch_bridges_and_nothing_is_left_of_them";
    let Some(mut lab) = Lab::start(test) else { return };
    let before_a = lab.switches[0].state();
    let [v4, v6] = [("plc", SERVERS[0]), ("plc6", SERVERS[1])].map(|(name, server)| lab.expose(name, server));

    // Without a switch the gateway says so and tries again.
    let trouble = wait_for("the gateway of the other site misses its switch", || {
        let troubles = lab.edges[1].debug().ok()?["tunnel"]["troubles"].to_string();
        troubles.contains("Open vSwitch").then_some(troubles)
    });
    println!("{}", trouble.unwrap());
    lab.switches[1].start("host-b");
    let before_b = lab.switches[1].state();

    // With routes through its gateway, and with routes on the link: then flows answer ARP, and the gateway answers NDP.
    lab.await_crossing(v4);
    lab.await_crossing(v6);
    let client = lab.host("host-a");
    run(&client, "ip", &format!("route add {} dev eth0", RANGES[0]));
    run(&client, "ip", &format!("-6 route add {} dev eth0", RANGES[1]));
    lab.await_crossing(v4);
    lab.await_crossing(v6);
    let fragments = ["-c", "1", "-W", "2", "-n", "-s", "8000", &v4.to_string()];
    let is_whole = || client.command("ping").args(fragments).output().unwrap().status.success();
    wait_for("fragments cross", || is_whole().then_some(())).unwrap();
    assert_eq!(lab.edges[0].debug().unwrap()["tunnel"]["bridge"], BRIDGE);

    // A flow that another program removes comes back.
    lab.switches[0].run("ovs-ofctl", &format!("del-flows {BRIDGE} ip,nw_dst={v4}"));
    lab.wait_flows("the flow is back", |flows| flows.contains(&format!("nw_dst={v4}")));
    lab.await_crossing(v4);

    // A service that is no longer exposed has no flow.
    lab.cloud.run(&["delete", "serviceexpose", "plc"]).unwrap().success().unwrap();
    let is_gone = |flows: &str| !flows.contains(&v4.to_string()) && flows.contains(&v6.to_string());
    lab.wait_flows("the flows of the service are gone", is_gone);
    assert!(!lab.pings(v4));
    lab.await_crossing(v6);
    let v4 = lab.expose("plc", SERVERS[0]);
    lab.await_crossing(v4);

    // A killed gateway leaves flows and a port behind; the next start removes them, although nothing is exposed any more.
    lab.edges[0].unit.kill().unwrap();
    assert!(!ours(&lab.switches[0].flows()).is_empty() && lab.switches[0].ports() != before_a.1);
    for name in ["plc", "plc6"] {
        lab.cloud.run(&["delete", "serviceexpose", name]).unwrap().success().unwrap();
    }
    lab.edges[0].restart().unwrap();
    wait_for("the start removes what was left", || {
        (lab.switches[0].flows() == before_a.0 && lab.switches[0].ports() == before_a.1).then_some(())
    })
    .unwrap();
    let v4 = lab.expose("plc", SERVERS[0]);
    lab.await_crossing(v4);

    // A gateway that was killed with a bridge, and is started without one.
    lab.edges[0].unit.kill().unwrap();
    assert!(!ours(&lab.switches[0].flows()).is_empty() && lab.switches[0].ports() != before_a.1);
    lab.edges[0].set_environment("CAUSEWAY_DATAPATH", "tun");
    lab.edges[0].restart().unwrap();
    wait_for("a start without a bridge removes what was left at it", || {
        (lab.switches[0].flows() == before_a.0 && lab.switches[0].ports() == before_a.1).then_some(())
    })
    .unwrap();

    // The flow of the other program is there as before, and nothing else after the stop.
    for edge in &mut lab.edges {
        assert!(edge.unit.process().unwrap().terminate().unwrap().success());
    }
    assert_eq!(lab.switches[0].state(), before_a);
    assert_eq!(lab.switches[1].state(), before_b);
    let foreign =
        |flow: &String| flow.starts_with("cookie=0x77, priority=100,ip,nw_dst=192.0.2.99 actions=drop");
    assert!(before_a.0.iter().any(foreign), "{:?}", before_a.0);
}
