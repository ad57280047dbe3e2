//! The edge role: enrols once, keeps its certificate fresh and its link to the cloud.
//!
//! Everything it must remember is in its data dir: `state` reads and writes it, `renewal` decides what is due,
//! `edge` does it. `netmap` keeps what it forwards by, `gateway` joins
//! the forwarding to the link, `upstream` keeps what the cloud must still be told,
//! `figures` shows how all that stands.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::panic))]

mod edge;
pub mod gateway;
pub mod link;
pub mod metrics;
pub mod netmap;
pub mod renewal;
pub mod spool;
mod state;

pub use edge::{CertificateSignals, Edge, EdgeError, EnrolmentOutcome};
pub use state::{EdgeIdentity, StateError};
