//! The edge role: enrols once, keeps its certificate fresh and its link to the cloud.
//!
//! `daemon` assembles and runs the whole. All persistent state is in the data dir: `state` reads and writes it,
//! `renewal` decides which certificate step is due, `edge` does it. `link` keeps the session with the cloud,
//! `netmap` the netmap in force, `gateway` connects forwarding to the link, `spool` holds records until the cloud
//! has them, `metrics` exports link and spool, `kubernetes` serves the copy of a cluster's API.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::panic))]

mod daemon;
mod edge;
pub mod gateway;
mod kubernetes;
pub mod link;
pub mod metrics;
pub mod netmap;
pub mod renewal;
pub mod spool;
mod state;

pub use daemon::{EdgeConfig, EdgeDaemon};
pub use edge::{CertificateSignals, Edge, EdgeError, EnrolmentOutcome, JoinCredential, ServiceAccountJoin};
pub use state::{EdgeIdentity, StateError};
