//! Pages of `docs/how-to` that need a cluster, typed word for word (`testlab::typed_page`): nodes for kubectl and Prometheus, and the
//! Kubernetes API at the edge. Both begin with getting started, up to the site that joins.
//!
//! The hosts are network namespaces: a cloud with the API server of the lab, and an edge behind NAT.

use std::path::Path;
use std::process::Command;

use anyhow::Context;
use serde_json::json;
use testlab::causeway::{Ran, finish};
use testlab::net::{Net, Plan};
use testlab::typed_page::{
    Block, Row, Terminal, blocks, check_blocks, missing_program, once, refused, type_pages, until,
};

use crate::kubectl;
use crate::nodes::{Lab, missing, start_cluster};
use crate::{edge_api, here};

const GETTING_STARTED: &str = include_str!("../../../../docs/getting-started.md");
const NODES: &str = include_str!("../../../../docs/how-to/reach-nodes.md");
const EDGE_API: &str = include_str!("../../../../docs/how-to/kubernetes-at-the-edge.md");

const HOSTS: [&str; 2] = ["cloud", "edge"];
const PROGRAMS: [&str; 5] = ["kubectl", "dig", "curl", "sed", "mount"];

const JOIN: [Row; 6] = [
    once("causeway cloud", &[]),
    once("export KUBECONFIG", &["no exposures"]),
    once("(umask 077; causeway token create", &[]),
    once("sysctl", &["net.ipv4.ip_forward = 1"]),
    once("causeway edge", &[]),
    until("causeway status", &["hamburg hamburg yes"]),
];

const NODES_TYPED: [Row; 9] = [
    once("causeway cloud", &[]),
    once("kubectl apply", &["eserver.causeway.io/node-1 created"]),
    once("cat > egress.yaml", &[]),
    until("causeway doctor node/node-1", &["node-1 Ready", "ok"]),
    until("kubectl --kubeconfig cluster.kubeconfig logs box", &["begun", "inside the pod"]),
    once(
        "kubectl --kubeconfig cluster.kubeconfig create serviceaccount prometheus",
        &["clusterrolebinding.rbac.authorization.k8s.io/prometheus created"],
    ),
    once("cat /var/lib/causeway/connect/ca.pem", &["SUCCESS"]),
    until("curl --silent --proxy", &["kubelet_running_pods"]),
    until("causeway audit", &["\"decision\":\"allow\""]),
];
const NODES_NOT_TYPED: [(&str, &str); 1] =
    [("kube-apiserver", "the lab starts it, with these flags and those that it needs itself")];

const EDGE_API_TYPED: [Row; 11] = [
    once("sed 's/NODE-1", &["clusterrole.rbac.authorization.k8s.io/causeway-cloud created"]),
    once(
        "(umask 077; kubectl --kubeconfig cluster.kubeconfig create token causeway",
        &["Property \"users.causeway.tokenFile\" set"],
    ),
    once("cat > renew-cluster-token", &[]),
    once("causeway cloud", &[]),
    once("kubectl apply", &["eserver.causeway.io/node-1 created"]),
    once(
        "kubectl --kubeconfig cluster.kubeconfig create serviceaccount reader",
        &["configmap/recipe created"],
    ),
    until("kubectl --kubeconfig /var/lib/causeway", &["recipe 1"]),
    until("causeway cache", &["v1/configmaps default metadata.name=recipe 1"]),
    once("kubectl --kubeconfig /var/lib/causeway", &["configmap/note created"]),
    until("kubectl --kubeconfig /var/lib/causeway", &["recipe 1"]),
    // The same write, but for the name. kubectl prints the message of the 503 without its code.
    refused(
        "kubectl --kubeconfig /var/lib/causeway",
        &["failed to create configmap: the API server cannot be reached from this site"],
    ),
];
const EDGE_API_NOT_TYPED: [(&str, &str); 3] = [
    ("echo '0 */6", "no cron in the namespaces; the script that it starts is typed"),
    ("scp reader-token", "no SSH server in the namespaces; the test copies the file"),
    ("kubelet", "edge_kubelet.rs runs one, which needs a container runtime"),
];

#[test]
fn every_block_of_the_pages_with_a_cluster_is_typed_or_named_with_a_reason() {
    check_blocks(&joined(), &HOSTS, &JOIN, &[("scp token", "the test copies the file")]).unwrap();
    check_blocks(&blocks(NODES).unwrap(), &HOSTS, &NODES_TYPED, &NODES_NOT_TYPED).unwrap();
    check_blocks(&blocks(EDGE_API).unwrap(), &HOSTS, &EDGE_API_TYPED, &EDGE_API_NOT_TYPED).unwrap();
}

/// The part of getting started at whose end a site has joined.
fn joined() -> Vec<Block> {
    let begin = GETTING_STARTED.find("## The two hosts").unwrap();
    let end = GETTING_STARTED.find("## Use a service of the site").unwrap();
    blocks(&GETTING_STARTED[begin..end]).unwrap()
}

/// The hosts of a page, after getting started. In the order in which they end.
struct PageLab {
    hosts: [Terminal; 2],
    folder: tempfile::TempDir,
    net: Net,
}

impl PageLab {
    fn start() -> PageLab {
        let plan = Plan::new()
            .router("internet")
            .host("cloud")
            .link("cloud", "internet", &["203.0.113.0/24"])
            .nat("nat")
            .link("nat", "internet", &["198.51.100.0/24"])
            .host("edge")
            .link("edge", "nat", &["192.168.1.0/24"])
            // Gives the edge its address inside the site.
            .host("host")
            .link("host", "edge", &["10.0.0.0/24"]);
        let net = Net::build(&plan).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let names = format!("{} cloud.example.com\n", net.ipv4("cloud").unwrap());
        let resolver = net.gateway_ipv4("cloud").unwrap();
        let hosts = HOSTS.map(|name| Terminal::open(&net, name, folder.path(), &names, resolver).unwrap());
        hosts[0].give(here("../../deploy"), "deploy").unwrap();
        let mut lab = PageLab { hosts, folder, net };
        type_pages(&mut lab.hosts, &joined(), &JOIN, |hosts, _, row| match row.begins {
            "(umask 077; causeway token create" => hosts[0].copy_to("token", &hosts[1]),
            _ => Ok(()),
        })
        .unwrap();
        lab
    }
}

/// The pages need `kubectl create token`, which Debian 12's kubectl does not have.
fn old_kubectl() -> Option<String> {
    let mut help = Command::new("kubectl");
    help.args(["create", "token", "--help"]);
    let knows = finish(help, None).is_ok_and(|ran| ran.stdout.contains("Request a service account token"));
    (!knows).then(|| "the machine's kubectl is older than 1.24".to_owned())
}

/// The files of the cluster that the pages name, in the home of the cloud's user.
fn give_cluster(cloud: &Terminal, cluster: &Path) -> anyhow::Result<()> {
    cloud.give(cluster.join("kubeconfig"), "cluster.kubeconfig")?;
    cloud.give(cluster.join("pki/ca.crt"), "cluster-ca.pem")
}

#[test]
fn nodes_are_reached_as_the_page_says_through_the_egress_selector() {
    let reason = missing().or_else(|| missing_program(&PROGRAMS).map(str::to_owned));
    if let Some(reason) = reason.or_else(old_kubectl) {
        println!("SKIPPED: the page on nodes: {reason}");
        return;
    }
    let Ok(Ok(prometheus)) = finish(Command::new(here("lab/install-prometheus")), None).map(Ran::success)
    else {
        return println!("SKIPPED: the page on nodes: Debian's Prometheus cannot be fetched");
    };
    let mut lab = PageLab::start();
    let promtool = Path::new(prometheus.trim()).with_file_name("promtool");
    std::os::unix::fs::symlink(promtool, lab.hosts[0].root.join("bin/promtool")).unwrap();
    let (folder, net) = (lab.folder.path().to_owned(), &lab.net);
    let mut cluster = None;
    type_pages(&mut lab.hosts, &blocks(NODES).unwrap(), &NODES_TYPED, |hosts, _, row| {
        if row.begins == "cat > egress.yaml" {
            cluster = Some(start_node(net, hosts, &folder)?);
        }
        Ok(())
    })
    .unwrap();
}

/// The API server with the egress configuration that was typed, a kubelet at the site, and the pod `box`. They end with the value.
fn start_node(net: &Net, hosts: &[Terminal], folder: &Path) -> anyhow::Result<[Lab; 2]> {
    let cluster = Lab { folder: folder.join("cluster"), down: "kube-apiserver-down" };
    // The home of the page's user has no programs of the lab.
    let up = format!(
        "CAUSEWAY_CACHE={} {} {} --egress-selector-config-file=$PWD/egress.yaml --bind-address=0.0.0.0 \
         --kubelet-certificate-authority=pki/ca.crt --kubelet-preferred-address-types=Hostname",
        kubectl::cache().context("no folder for the programs of the lab")?.display(),
        here("lab/kube-apiserver-up"),
        cluster.folder.display()
    );
    hosts[0].type_text("cluster-up", &up)?.success()?;
    let port = std::fs::read_to_string(cluster.folder.join("port"))?;
    let node = Lab { folder: folder.join("node"), down: "kubelet-down" };
    let mut up = Command::new(here("lab/kubelet-up"));
    up.arg(&node.folder).args([hosts[1].host.namespace(), "node-1", "10.0.0.1"]).arg(&cluster.folder);
    up.arg(format!("{}:{}", net.ipv4("cloud")?, port.trim()));
    finish(up, None)?.success()?;
    give_cluster(&hosts[0], &cluster.folder)?;
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "box"}, "spec": {
        "nodeName": "node-1", "automountServiceAccountToken": false, "terminationGracePeriodSeconds": 0,
        "dnsPolicy": "Default", "restartPolicy": "Never", "tolerations": [{"operator": "Exists"}],
        "containers": [{"name": "box", "image": "causeway.test/busybox:1", "imagePullPolicy": "Never", "stdin": true,
            "command": ["sh", "-c", "echo begun; exec cat"]}]}});
    let create = format!("kubectl --kubeconfig cluster.kubeconfig create -f - <<END\n{pod}\nEND\n");
    hosts[0].type_text("pod", &create)?.success()?;
    Ok([node, cluster])
}

#[test]
fn the_edge_answers_for_the_cluster_as_the_page_says() {
    let reason = testlab::net::missing().or_else(edge_api::missing);
    let reason = reason.or_else(|| missing_program(&PROGRAMS).map(str::to_owned));
    if let Some(reason) = reason.or_else(old_kubectl) {
        println!("SKIPPED: the page on Kubernetes at the edge: {reason}");
        return;
    }
    let mut lab = PageLab::start();
    let cluster = start_cluster(&lab.net.host("cloud").unwrap(), lab.folder.path());
    give_cluster(&lab.hosts[0], &cluster.folder).unwrap();
    let mut typed = 0;
    type_pages(&mut lab.hosts, &blocks(EDGE_API).unwrap(), &EDGE_API_TYPED, |hosts, _, _| {
        typed += 1;
        match typed {
            6 => hosts[0].copy_to("reader-token", &hosts[1]),
            // "Stop the cloud (Ctrl-C)".
            9 => hosts[0].interrupt(),
            _ => Ok(()),
        }
    })
    .unwrap();
}
