//! The nodes of a Kubernetes cluster in network namespaces, as cloud and edge have them, and Causeway between them.
//!
//! In the cloud: the API server, `cloud-1` with the gateway, and `cloud-2`, in one LAN whose router knows nothing of edges. A
//! VXLAN joins the pods of both cloud nodes, as flannel lays it. `edge-1` and `edge-2` are gateways behind NATs. Every node has a
//! pod behind a bridge. The commands at the nodes are those of `docs/kubernetes-addresses.md`.

mod rows;

use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::causeway::wait_for;
use crate::fleet::{CHANNEL_PORT, CloudHost, EdgeHost};
use crate::net::{Echo, Host, Net, Plan, reach_ping, reach_tcp, reach_udp};

pub use rows::rows;

/// The port of every pod and of every process on a host network.
pub const PORT: u16 = 7000;
const PATIENCE: Duration = Duration::from_secs(30);
const SHORT: Duration = Duration::from_secs(2);

/// A node, its pod, and their networks: the node's own, and that of its pods.
struct ClusterNode {
    name: &'static str,
    pod: Option<&'static str>,
    /// Addresses of the node outside of the network of its pods.
    host: [&'static str; 2],
    pods: [&'static str; 2],
}

const NODES: [ClusterNode; 5] = [
    ClusterNode { name: "apiserver", pod: None, host: ["10.20.0.10", "fd00:20::a"], pods: ["", ""] },
    ClusterNode {
        name: "cloud-1",
        pod: Some("pod-c1"),
        host: ["10.20.0.1", "fd00:20::1"],
        pods: ["10.244.1.0/24", "fd00:244:1::/64"],
    },
    ClusterNode {
        name: "cloud-2",
        pod: Some("pod-c2"),
        host: ["10.20.0.18", "fd00:20::12"],
        pods: ["10.244.2.0/24", "fd00:244:2::/64"],
    },
    ClusterNode {
        name: "edge-1",
        pod: Some("pod-e1"),
        host: ["10.30.1.2", "fd00:30:1::2"],
        pods: ["10.244.11.0/24", "fd00:244:11::/64"],
    },
    ClusterNode {
        name: "edge-2",
        pod: Some("pod-e2"),
        host: ["10.30.2.2", "fd00:30:2::2"],
        pods: ["10.244.12.0/24", "fd00:244:12::/64"],
    },
];

/// The location of a workload: a pod of a node, or the host network of the node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WorkloadLocation {
    Pod(&'static str),
    HostNetwork(&'static str),
}

impl WorkloadLocation {
    fn node(self) -> Result<&'static ClusterNode> {
        let (WorkloadLocation::Pod(name) | WorkloadLocation::HostNetwork(name)) = self;
        NODES.iter().find(|node| node.name == name).with_context(|| format!("there is no node {name}"))
    }

    /// The namespace in which the process runs.
    pub fn host_name(self) -> Result<&'static str> {
        let node = self.node()?;
        match self {
            WorkloadLocation::Pod(name) => node.pod.with_context(|| format!("{name} has no pod")),
            WorkloadLocation::HostNetwork(_) => Ok(node.name),
        }
    }

    /// The address under which the process is reached.
    pub fn address(self, is_v6: bool) -> Result<IpAddr> {
        let node = self.node()?;
        match self {
            WorkloadLocation::Pod(_) => nth(node.pods[usize::from(is_v6)], 2),
            WorkloadLocation::HostNetwork(_) => Ok(node.host[usize::from(is_v6)].parse()?),
        }
    }

    /// The addresses under which other processes may see it. A node has its own, that of its bridge, and that of its VXLAN.
    fn sources(self, is_v6: bool) -> Result<Vec<IpAddr>> {
        let (node, own) = (self.node()?, self.address(is_v6)?);
        match (self, node.pod) {
            (WorkloadLocation::HostNetwork(_), Some(_)) => {
                let pods = node.pods[usize::from(is_v6)];
                Ok(vec![own, nth(pods, 0)?, nth(pods, 1)?])
            }
            _ => Ok(vec![own]),
        }
    }
}

/// The networks and nodes, without Causeway.
pub fn build() -> Result<Net> {
    let mut plan = Plan::new()
        .router("internet")
        .nat("cloud-1")
        .link("cloud-1", "internet", &["203.0.113.0/24", "2001:db8:1::/64"])
        .router("lan")
        .link("lan", "cloud-1", &["10.20.0.0/24", "fd00:20::/64"])
        .host("apiserver")
        .link("apiserver", "lan", &["10.20.0.8/29", "fd00:20::8/125"])
        .router("cloud-2")
        .link("cloud-2", "lan", &["10.20.0.16/29", "fd00:20::10/125"]);
    for (number, outside) in [("1", "198.51.100.0/24"), ("2", "192.0.2.0/24")] {
        let [nat, edge] = ["nat", "edge"].map(|what| format!("{what}-{number}"));
        let inside = [format!("10.30.{number}.0/24"), format!("fd00:30:{number}::/64")];
        plan = plan.nat(&nat).link(&nat, "internet", &[outside]).router(&edge);
        plan = plan.link(&edge, &nat, &[&inside[0], &inside[1]]);
    }
    for node in &NODES {
        if let Some(pod) = node.pod {
            plan = plan.host(pod).link(pod, node.name, &node.pods);
        }
    }
    let net = Net::build(&plan)?;
    lay_lan(&net)?;
    for node in &NODES {
        lay_bridge(&net, node)?;
    }
    lay_vxlan(&net)?;
    for (node, lines) in edge_routes() {
        ip(&net, node, &lines)?;
    }
    Ok(net)
}

/// Makes one LAN of the links of the cloud. Its router knows no other network.
fn lay_lan(net: &Net) -> Result<()> {
    // Routes of the plan, which go through the router.
    ip(
        net,
        "cloud-1",
        "route del 10.20.0.8/29\nroute del 10.20.0.16/29\nroute del 10.244.2.0/24\n\
         route del fd00:20::8/125\nroute del fd00:20::10/125\nroute del fd00:244:2::/64\n",
    )?;
    let mut lines = "link add br0 type bridge\nlink set br0 up\n".to_owned();
    for interface in ["eth0", "apiserver", "cloud-2"] {
        lines.push_str(&format!("addr flush dev {interface}\nlink set {interface} master br0\n"));
    }
    ip(net, "lan", &lines)?;
    for family in ["-4", "-6"] {
        run(net, "lan", "ip", &format!("{family} route flush table main"))?;
    }
    ip(net, "lan", "addr add 10.20.0.2/24 dev br0\naddr add fd00:20::2/64 dev br0 nodad\n")?;
    for (node, v4, v6) in
        [("apiserver", "10.20.0.10", "fd00:20::a"), ("cloud-2", "10.20.0.18", "fd00:20::12")]
    {
        ip(
            net,
            node,
            &format!(
                "addr flush dev eth0\naddr add {v4}/24 dev eth0\naddr add {v6}/64 dev eth0 nodad\n\
                 route add default via 10.20.0.2\nroute add default via fd00:20::2\n"
            ),
        )?;
    }
    Ok(())
}

/// Puts the pod of a node behind a bridge.
fn lay_bridge(net: &Net, node: &ClusterNode) -> Result<()> {
    let Some(pod) = node.pod else { return Ok(()) };
    let mut lines = format!("link add cni0 type bridge\naddr flush dev {pod}\nlink set {pod} master cni0\n");
    for (pods, length, flag) in [(node.pods[0], 24, ""), (node.pods[1], 64, " nodad")] {
        lines.push_str(&format!("addr add {}/{length} dev cni0{flag}\n", nth(pods, 1)?));
    }
    ip(net, node.name, &(lines + "link set cni0 up\n"))
}

/// The devices of flannel on a cloud node: name, own address, address in the LAN, hardware address.
struct Vtep {
    device: &'static str,
    address: &'static str,
    lan: &'static str,
    hardware: &'static str,
}

const VTEPS_1: [Vtep; 2] = [
    Vtep { device: "flannel.1", address: "10.244.1.0", lan: "10.20.0.1", hardware: "02:00:00:00:01:04" },
    Vtep {
        device: "flannel-v6.1",
        address: "fd00:244:1::",
        lan: "fd00:20::1",
        hardware: "02:00:00:00:01:06",
    },
];
const VTEPS_2: [Vtep; 2] = [
    Vtep { device: "flannel.1", address: "10.244.2.0", lan: "10.20.0.18", hardware: "02:00:00:00:02:04" },
    Vtep {
        device: "flannel-v6.1",
        address: "fd00:244:2::",
        lan: "fd00:20::12",
        hardware: "02:00:00:00:02:06",
    },
];

/// The VXLAN between the cloud nodes: a device per family, and per remote node a route, a neighbour and a forwarding entry.
fn lay_vxlan(net: &Net) -> Result<()> {
    for (node, interface, own, far) in
        [("cloud-1", "lan", &VTEPS_1, &VTEPS_2), ("cloud-2", "eth0", &VTEPS_2, &VTEPS_1)]
    {
        for (own, far) in own.iter().zip(far) {
            let Vtep { device, address, lan, hardware } = own;
            // As flannel has them: 50 bytes for VXLAN over IPv4, 70 over IPv6.
            let (length, pods, mtu) = if address.contains(':') { (128, 64, 1430) } else { (32, 24, 1450) };
            let flag = if length == 128 { " nodad" } else { "" };
            ip(
                net,
                node,
                &format!(
                    "link add {device} address {hardware} mtu {mtu} type vxlan id 1 local {lan} dev {interface} \
                     dstport 8472 nolearning\naddr add {address}/{length} dev {device}{flag}\nlink set {device} up\n\
                     neigh add {far} lladdr {far_hardware} dev {device} nud permanent\n\
                     route add {far}/{pods} via {far} dev {device} onlink\n",
                    far = far.address,
                    far_hardware = far.hardware,
                ),
            )?;
            run(net, node, "bridge", &format!("fdb append {} dev {device} dst {}", far.hardware, far.lan))?;
        }
    }
    Ok(())
}

/// The routes by which nodes of the cloud that are not the gateway reach the edges. The pods of `edge-1` have a forwarding entry
/// of their own, as flannel makes it for a node; everything else is a route. The source is the node's address: a UDP server that
/// is bound to no address would else answer from that of the VXLAN device.
fn edge_routes() -> [(&'static str, String); 2] {
    let [v4, v6] = &VTEPS_1;
    let over_vxlan = format!(
        "neigh add 10.244.11.0 lladdr {mac4} dev flannel.1 nud permanent\n\
         route add 10.244.11.0/24 via 10.244.11.0 dev flannel.1 onlink src {src4}\n\
         neigh add fd00:244:11:: lladdr {mac6} dev flannel-v6.1 nud permanent\n\
         route add fd00:244:11::/64 via fd00:244:11:: dev flannel-v6.1 onlink src {src6}\n\
         route add 10.244.12.0/24 via {via4} dev flannel.1 onlink src {src4}\n\
         route add fd00:244:12::/64 via {via6} dev flannel-v6.1 onlink src {src6}\n\
         route add 10.30.1.0/24 via {via4} dev flannel.1 onlink src {src4}\n\
         route add 10.30.2.0/24 via {via4} dev flannel.1 onlink src {src4}\n\
         route add fd00:30:1::/64 via {via6} dev flannel-v6.1 onlink src {src6}\n\
         route add fd00:30:2::/64 via {via6} dev flannel-v6.1 onlink src {src6}\n",
        mac4 = v4.hardware,
        mac6 = v6.hardware,
        via4 = v4.address,
        via6 = v6.address,
        src4 = VTEPS_2[0].lan,
        src6 = VTEPS_2[1].lan,
    );
    let mut over_lan = String::new();
    for network in ["10.244.11.0/24", "10.244.12.0/24", "10.30.1.0/24", "10.30.2.0/24"] {
        over_lan.push_str(&format!("route add {network} via 10.20.0.1\n"));
    }
    for network in ["fd00:244:11::/64", "fd00:244:12::/64", "fd00:30:1::/64", "fd00:30:2::/64"] {
        over_lan.push_str(&format!("route add {network} via fd00:20::1\n"));
    }
    [("cloud-2", over_vxlan), ("apiserver", over_lan)]
}

/// Causeway on the gateway of the cloud and on both edges, one community, and a server at every place.
// In the order in which they end: processes before the network they run in.
pub struct ClusterNet {
    pub edges: Vec<EdgeHost>,
    pub cloud: CloudHost,
    _servers: Vec<Echo>,
    _folder: tempfile::TempDir,
    pub net: Net,
}

impl ClusterNet {
    pub fn start(net: Net) -> Result<ClusterNet> {
        let folder = tempfile::tempdir()?;
        let channel = SocketAddr::new(net.ipv4("cloud-1")?.into(), CHANNEL_PORT);
        let cloud = CloudHost::start(&net.host("cloud-1")?, folder.path(), &[channel], &[])?;
        let mut edges = Vec::new();
        for name in ["edge-1", "edge-2"] {
            edges.push(EdgeHost::join(&net.host(name)?, folder.path(), name, &cloud.token(name)?)?);
        }
        let mut servers = Vec::new();
        for node in &NODES {
            for host in std::iter::once(node.name).chain(node.pod) {
                servers.push(Echo::start(&net.host(host)?, format!("[::]:{PORT}").parse()?)?);
            }
        }
        for object in objects() {
            cloud.apply(&object.to_string())?;
        }
        for edge in ["edge-1", "edge-2"] {
            cloud.wait_gateway(edge, "is connected", PATIENCE, |gateway| gateway["connected"] == true)?;
        }
        Ok(ClusterNet { edges, cloud, _servers: servers, _folder: folder, net })
    }

    pub fn host(&self, place: WorkloadLocation) -> Result<Host> {
        self.net.host(place.host_name()?)
    }

    /// Waits until ping, TCP and UDP cross in both families, and checks that the source is an address of the sender.
    pub fn check(&self, from: WorkloadLocation, to: WorkloadLocation) -> Result<()> {
        for is_v6 in [false, true] {
            let (host, target) = (self.host(from)?, to.address(is_v6)?);
            wait_for(&format!("{from:?} pings {to:?} at {target}"), || {
                reach_ping(&host, target, SHORT / 2).ok().filter(|answered| *answered)
            })?;
            self.check_ports(from, target).with_context(|| format!("{from:?} to {to:?}"))?;
        }
        Ok(())
    }

    /// Waits until TCP and UDP reach an address, and checks the source.
    pub fn check_ports(&self, from: WorkloadLocation, target: IpAddr) -> Result<()> {
        let (host, server) = (self.host(from)?, SocketAddr::new(target, PORT));
        let sources = from.sources(target.is_ipv6())?;
        for (what, reach) in [("TCP", reach_tcp as fn(&Host, SocketAddr, Duration) -> _), ("UDP", reach_udp)]
        {
            let seen = wait_for(&format!("{what} crosses from {from:?} to {target}"), || {
                reach(&host, server, SHORT).ok()
            })?;
            let seen = seen.ip().to_canonical();
            ensure!(sources.contains(&seen), "{what}: the server sees {seen}, not one of {sources:?}");
        }
        Ok(())
    }

    /// Stops the processes of Causeway.
    pub fn stop(&mut self) -> Result<()> {
        for edge in &mut self.edges {
            ensure!(edge.unit.process()?.terminate()?.success(), "an edge did not end well");
        }
        ensure!(self.cloud.unit.process()?.terminate()?.success(), "the cloud did not end well");
        Ok(())
    }
}

/// The networks of nodes and pods, as objects. The pods of a gateway are its own; those of `cloud-2` are behind its site.
fn objects() -> Vec<Value> {
    let site = |name: &str, subnets: &[&str]| json!({"apiVersion": "causeway.io/v1", "kind": "ESite", "metadata": {"name": name}, "subnets": subnets});
    let gateway = |name: &str, site: &str, subnets: &[&str]| {
        json!({"apiVersion": "causeway.io/v1", "kind": "EGateway", "metadata": {"name": name}, "eSiteName": site,
            "subnets": subnets})
    };
    let cloud = ["10.20.0.0/24", "fd00:20::/64", "10.244.2.0/24", "fd00:244:2::/64"];
    vec![
        site("cloud", &cloud),
        gateway("cloud", "cloud", &["10.244.1.0/24", "fd00:244:1::/64"]),
        site("edge-1", &["10.30.1.0/24", "fd00:30:1::/64"]),
        gateway("edge-1", "edge-1", &["10.244.11.0/24", "fd00:244:11::/64"]),
        site("edge-2", &["10.30.2.0/24", "fd00:30:2::/64"]),
        gateway("edge-2", "edge-2", &["10.244.12.0/24", "fd00:244:12::/64"]),
        json!({"apiVersion": "causeway.io/v1", "kind": "ECommunity", "metadata": {"name": "cluster"},
            "members": ["cloud", "edge-1", "edge-2"]}),
    ]
}

/// An address of a network by its number.
fn nth(network: &str, number: u32) -> Result<IpAddr> {
    let network: ipnet::IpNet = network.parse()?;
    Ok(match network.network() {
        IpAddr::V4(first) => IpAddr::from((u32::from(first) + number).to_be_bytes()),
        IpAddr::V6(first) => IpAddr::from((u128::from(first) + u128::from(number)).to_be_bytes()),
    })
}

/// Runs lines of `ip -batch` at a node.
fn ip(net: &Net, node: &str, lines: &str) -> Result<()> {
    let mut command = net.host(node)?.command("ip");
    let mut child = command.args(["-batch", "-"]).stdin(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    child.stdin.take().context("a pipe")?.write_all(lines.as_bytes())?;
    let output = child.wait_with_output()?;
    if !output.status.success() {
        bail!("ip at {node}: {}\n{lines}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}

fn run(net: &Net, node: &str, program: &str, arguments: &str) -> Result<()> {
    let output = net.host(node)?.command(program).args(arguments.split(' ')).output()?;
    ensure!(output.status.success(), "{program} {arguments} at {node}: {output:?}");
    Ok(())
}
