//! ClusterIPs between cloud nodes and edge nodes: real kube-apiserver, real kube-proxy in iptables mode on every node, Causeway
//! between the nodes. The rows are those of `testlab::cluster_net`, each with a Service in front of its second place. TCP and UDP,
//! IPv4 and IPv6; a ClusterIP does not answer ping. The kube-proxies of edges read their Services through the tunnel.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};
use testlab::causeway::{Ran, finish};
use testlab::cluster_net::WorkloadLocation::{HostNetwork, Pod};
use testlab::cluster_net::{self, ClusterNet, PORT, WorkloadLocation};
use testlab::net::Host;

use crate::here;
use crate::kubectl;
use crate::nodes::Lab;

const NODES: [&str; 5] = ["apiserver", "cloud-1", "cloud-2", "edge-1", "edge-2"];

fn places() -> impl Iterator<Item = WorkloadLocation> {
    let pods = NODES.into_iter().skip(1).map(Pod);
    NODES.into_iter().map(HostNetwork).chain(pods)
}

/// The name of the Services in front of a place, and their number in the range of Services.
fn service(place: WorkloadLocation, is_v6: bool) -> (String, IpAddr) {
    let number = places().position(|other| other == place).unwrap() + 16;
    let (kind, node) = match place {
        Pod(node) => ("pod", node),
        HostNetwork(node) => ("host", node),
    };
    match is_v6 {
        true => (format!("{kind}-{node}-v6"), format!("fd00:96::{number:x}").parse().unwrap()),
        false => (format!("{kind}-{node}"), format!("10.96.0.{number}").parse().unwrap()),
    }
}

/// A Service without a selector, and its only endpoint.
fn objects(place: WorkloadLocation, is_v6: bool) -> [Value; 2] {
    let (name, ip) = service(place, is_v6);
    let family = if is_v6 { "IPv6" } else { "IPv4" };
    let ports = ["TCP", "UDP"]
        .map(|protocol| json!({"name": protocol.to_lowercase(), "port": PORT, "protocol": protocol}));
    [
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
            "spec": {"clusterIP": ip, "ipFamilies": [family], "ipFamilyPolicy": "SingleStack", "ports": ports}}),
        json!({"apiVersion": "discovery.k8s.io/v1beta1", "kind": "EndpointSlice", "addressType": family,
            "metadata": {"name": name, "labels": {"kubernetes.io/service-name": name}},
            "endpoints": [{"addresses": [place.address(is_v6).unwrap()], "conditions": {"ready": true}}], "ports": ports}),
    ]
}

/// A kube-proxy; ended with the test.
struct KubeProxy(Child);

impl KubeProxy {
    fn start(node: &str, host: &Host, programs: &Path, kubeconfig: &Path, folder: &Path) -> KubeProxy {
        let installed = finish(Command::new(here("lab/install-iptables")), None).unwrap().success().unwrap();
        let tables = installed.trim().lines().last().unwrap().to_owned();
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = Command::new(programs.join("kube-proxy"));
        command.env("PATH", format!("{tables}:{path}"));
        command.arg(format!("--kubeconfig={}", kubeconfig.display()));
        command.arg(format!("--hostname-override={node}"));
        command.args(["--proxy-mode=iptables", "--cluster-cidr=10.244.0.0/16,fd00:244::/32"]);
        command.args(["--feature-gates=IPv6DualStack=true", "--iptables-min-sync-period=100ms"]);
        // The namespace has no limits of its own to set.
        command.args(["--conntrack-max-per-core=0", "--conntrack-tcp-timeout-established=0s"]);
        command.arg("--conntrack-tcp-timeout-close-wait=0s");
        let log = std::fs::File::create(folder.join(format!("kube-proxy-{node}.log"))).unwrap();
        let mut command = host.wrap(&command);
        KubeProxy(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap())
    }
}

impl Drop for KubeProxy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The folder with the programs of Kubernetes, or why this cannot run here.
fn programs() -> Result<PathBuf, String> {
    if let Some(reason) = testlab::net::missing() {
        return Err(reason);
    }
    let folders =
        kubectl::cache().and_then(|cache| std::fs::read_dir(cache).ok()).into_iter().flatten().flatten();
    let is_built = |bin: &PathBuf| {
        ["kube-apiserver", "kube-proxy", "kubectl"].iter().all(|program| bin.join(program).exists())
    };
    folders.map(|folder| folder.path().join("bin")).find(is_built).ok_or_else(|| {
        "needs kube-proxy: `tests/k8s/lab/build-kubernetes kube-apiserver kube-proxy kubectl` builds it once".to_owned()
    })
}

/// Starts the API server at its node; returns it with a kubeconfig that works on every node.
fn start_api_server(host: &Host, folder: &Path) -> (Lab, PathBuf) {
    let cluster = Lab { folder: folder.join("cluster"), down: "kube-apiserver-down" };
    let mut up = Command::new(here("lab/kube-apiserver-up"));
    up.arg(&cluster.folder).args([
        "--bind-address=::",
        "--feature-gates=IPv6DualStack=true",
        "--service-cluster-ip-range=10.96.0.0/16,fd00:96::/112",
    ]);
    finish(host.wrap(&up), None).unwrap().success().unwrap();
    let text = std::fs::read_to_string(cluster.folder.join("kubeconfig")).unwrap();
    let address = HostNetwork("apiserver").address(false).unwrap();
    let text = text.replace(
        "server: https://127.0.0.1:",
        &format!("tls-server-name: localhost\n    server: https://{address}:"),
    );
    let everywhere = folder.join("everywhere.kubeconfig");
    std::fs::write(&everywhere, text).unwrap();
    (cluster, everywhere)
}

#[test]
fn layer3_services_of_kubernetes_are_reached_between_cloud_and_edges() {
    let test = "layer3_services_of_kubernetes_are_reached_between_cloud_and_edges";
    let programs = match programs() {
        Ok(programs) => programs,
        Err(reason) => return println!("skipped: {test} {reason}"),
    };
    let folder = tempfile::tempdir().unwrap();
    let net = cluster_net::build().unwrap();
    let host = net.host("apiserver").unwrap();
    let (lab, kubeconfig) = start_api_server(&host, folder.path());
    let mut cluster = ClusterNet::start(net).unwrap();
    let nodes = NODES.map(|node| {
        let ip = HostNetwork(node).address(false).unwrap();
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node},
            "status": {"addresses": [{"type": "InternalIP", "address": ip}]}})
    });
    let services = places().flat_map(|place| [false, true].map(|is_v6| objects(place, is_v6))).flatten();
    let items: Vec<Value> = nodes.into_iter().chain(services).collect();
    let list = json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string();
    let mut kubectl = Command::new(programs.join("kubectl"));
    kubectl.arg("--kubeconfig").arg(lab.folder.join("kubeconfig")).env("HOME", folder.path());
    kubectl.args(["create", "--validate=false", "-f", "-"]);
    finish(host.wrap(&kubectl), Some(&list)).and_then(Ran::success).unwrap();
    let start = |node: &str| {
        KubeProxy::start(node, &cluster.net.host(node).unwrap(), &programs, &kubeconfig, folder.path())
    };
    let proxies = NODES.map(start);
    for (from, to) in cluster_net::rows() {
        for is_v6 in [false, true] {
            let (name, ip) = service(to, is_v6);
            if let Err(error) = cluster.check_ports(from, ip) {
                let (Pod(node) | HostNetwork(node)) = from;
                let log = std::fs::read_to_string(folder.path().join(format!("kube-proxy-{node}.log")));
                panic!("{from:?} to the Service {name} of {to:?}: {error:#}\n{}", log.unwrap_or_default());
            }
        }
    }
    drop(proxies);
    cluster.stop().unwrap();
}
