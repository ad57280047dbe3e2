//! PodIP and hostNetwork between cloud nodes and edge nodes: the tables of the design document of SuperEdge and FabEdge, and the
//! combinations that they leave out. TCP, UDP and ping, IPv4 and IPv6. ClusterIP is in the tests of Kubernetes.

use std::collections::BTreeSet;

use testlab::cluster_net::{self, ClusterNet, PORT};
use testlab::net::Net;

use crate::presence_namespace::leftovers;

const GATEWAYS: [&str; 3] = ["cloud-1", "edge-1", "edge-2"];

#[test]
fn layer3_pod_and_node_addresses_of_kubernetes_cross_between_cloud_and_edges() {
    let test = "layer3_pod_and_node_addresses_of_kubernetes_cross_between_cloud_and_edges";
    if let Some(reason) = testlab::net::missing() {
        println!("skipped: {test} {reason}");
        return;
    }
    let net = cluster_net::build().unwrap();
    let before = snapshot(&net);
    let mut cluster = ClusterNet::start(net).unwrap();
    for (from, to) in cluster_net::rows() {
        cluster.check(from, to).unwrap();
    }
    cluster.stop().unwrap();
    assert_eq!(snapshot(&cluster.net), before, "nothing is left");
}

/// The leftovers of each gateway, without the servers of the lab and the state of its bridge, which follows the pods.
fn snapshot(net: &Net) -> [BTreeSet<String>; 3] {
    GATEWAYS.map(|gateway| {
        let is_of_lab = |line: &String| {
            line.contains(&format!("*:{PORT} ")) || (line.starts_with("-o link") && line.contains(": cni0:"))
        };
        let all = leftovers(&net.host(gateway).unwrap());
        all.into_iter().filter(|line| !is_of_lab(line)).collect()
    })
}
