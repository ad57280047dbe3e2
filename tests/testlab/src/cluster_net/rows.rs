//! The rows of the three tables of the design document of SuperEdge and FabEdge (from, to), and the combinations that they leave out.
//! A row for a ClusterIP is the same pair with a Service in front of the second place.

use super::WorkloadLocation;
use super::WorkloadLocation::{HostNetwork, Pod};

/// Every row.
pub fn rows() -> impl Iterator<Item = (WorkloadLocation, WorkloadLocation)> {
    [&CLOUD_TO_EDGE[..], &EDGE_TO_CLOUD, &EDGE_TO_EDGE, &LEFT_OUT].into_iter().flatten().copied()
}

/// From the cloud to edges.
const CLOUD_TO_EDGE: [(WorkloadLocation, WorkloadLocation); 12] = [
    (Pod("cloud-1"), HostNetwork("edge-1")),
    (Pod("cloud-1"), HostNetwork("edge-2")),
    (HostNetwork("apiserver"), Pod("edge-1")),
    (HostNetwork("apiserver"), Pod("edge-2")),
    (Pod("cloud-1"), Pod("edge-1")),
    (Pod("cloud-1"), Pod("edge-2")),
    (Pod("cloud-2"), Pod("edge-1")),
    (Pod("cloud-2"), Pod("edge-2")),
    (HostNetwork("cloud-1"), Pod("edge-1")),
    (HostNetwork("cloud-1"), Pod("edge-2")),
    (HostNetwork("cloud-2"), Pod("edge-1")),
    (HostNetwork("cloud-2"), Pod("edge-2")),
];

/// From edges to the cloud.
const EDGE_TO_CLOUD: [(WorkloadLocation, WorkloadLocation); 12] = [
    (HostNetwork("edge-1"), Pod("cloud-1")),
    (HostNetwork("edge-1"), Pod("cloud-2")),
    (HostNetwork("edge-2"), Pod("cloud-1")),
    (HostNetwork("edge-2"), Pod("cloud-2")),
    (Pod("edge-1"), Pod("cloud-1")),
    (Pod("edge-1"), Pod("cloud-2")),
    (Pod("edge-2"), Pod("cloud-1")),
    (Pod("edge-2"), Pod("cloud-2")),
    (Pod("edge-1"), HostNetwork("cloud-1")),
    (Pod("edge-1"), HostNetwork("cloud-2")),
    (Pod("edge-2"), HostNetwork("cloud-1")),
    (Pod("edge-2"), HostNetwork("cloud-2")),
];

/// Between edges.
const EDGE_TO_EDGE: [(WorkloadLocation, WorkloadLocation); 6] = [
    (Pod("edge-2"), HostNetwork("edge-1")),
    (Pod("edge-1"), HostNetwork("edge-2")),
    (Pod("edge-2"), Pod("edge-1")),
    (Pod("edge-1"), Pod("edge-2")),
    (HostNetwork("edge-1"), Pod("edge-2")),
    (HostNetwork("edge-2"), Pod("edge-1")),
];

/// Combinations without a row: `cloud-2` to the host network of edges, and host network to host network.
const LEFT_OUT: [(WorkloadLocation, WorkloadLocation); 18] = [
    (Pod("cloud-2"), HostNetwork("edge-1")),
    (Pod("cloud-2"), HostNetwork("edge-2")),
    (Pod("edge-1"), HostNetwork("apiserver")),
    (Pod("edge-2"), HostNetwork("apiserver")),
    (HostNetwork("apiserver"), HostNetwork("edge-1")),
    (HostNetwork("apiserver"), HostNetwork("edge-2")),
    (HostNetwork("cloud-1"), HostNetwork("edge-1")),
    (HostNetwork("cloud-1"), HostNetwork("edge-2")),
    (HostNetwork("cloud-2"), HostNetwork("edge-1")),
    (HostNetwork("cloud-2"), HostNetwork("edge-2")),
    (HostNetwork("edge-1"), HostNetwork("apiserver")),
    (HostNetwork("edge-2"), HostNetwork("apiserver")),
    (HostNetwork("edge-1"), HostNetwork("cloud-1")),
    (HostNetwork("edge-2"), HostNetwork("cloud-1")),
    (HostNetwork("edge-1"), HostNetwork("cloud-2")),
    (HostNetwork("edge-2"), HostNetwork("cloud-2")),
    (HostNetwork("edge-1"), HostNetwork("edge-2")),
    (HostNetwork("edge-2"), HostNetwork("edge-1")),
];
