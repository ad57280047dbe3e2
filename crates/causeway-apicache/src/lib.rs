//! The Kubernetes API at the edge: a local copy of a cluster's objects, and the cloud's fan-out that feeds it.
//!
//! `resource`, `kube_object` and `facets` are the words. `sync` is the protocol of one subscription, both ends. `upstream`
//! runs in the cloud: one list and watch per resource for all sites. At the edge, `copy` keeps the objects, `subscriptions`
//! keeps them current, `identity` knows the callers, and `server` answers them. `pending` keeps and sends writes of the time without the
//! cloud, `endpoints` lets EndpointSlices follow them; `protobuf` and `strategic_patch` are the forms in which kubelets write. `traffic` holds the
//! bytes on the link against a budget. The crate knows nothing of the channel:
//! streams are handed to it (`connector`).

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::panic))]
// A refusal ends its request, so the cost of moving a large error value does not matter.
#![allow(clippy::result_large_err)]

pub mod connector;
pub mod copy;
pub mod endpoints;
pub mod facets;
pub mod identity;
pub mod kube_object;
pub mod metrics;
pub mod pending;
pub mod protobuf;
pub mod readiness;
pub mod request_counts;
pub mod resource;
pub mod server;
pub mod strategic_patch;
pub mod subscriptions;
pub mod sync;
pub mod traffic;
pub mod upstream;
