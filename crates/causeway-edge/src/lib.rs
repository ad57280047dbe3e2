//! The edge role: enrols once, keeps its certificate fresh.
//!
//! Everything it must remember is in its data dir: `state` reads and writes it, `renewal` decides what is due,
//! `edge` does it. `upstream` keeps what the cloud must still be told.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::panic))]

mod edge;
pub mod renewal;
mod state;
pub mod upstream;

pub use edge::{Edge, EdgeError, Enrolled};
pub use state::{EdgeIdentity, StateError};
