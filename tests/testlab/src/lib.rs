//! Real things for tests: directories, processes that die with the test, etcd clusters, running clouds, networks.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::panic))]

pub mod causeway;
pub mod cluster_net;
pub mod etcd;
pub mod fleet;
pub mod free_port;
pub mod https;
pub mod net;
pub mod random;
pub mod relay;
pub mod typed_page;
