//! A simulated network for the session and netmap logic: the same pure machines that the drivers run, a clock that
//! jumps from event to event, and faults from a seed.
//!
//! `simulation` plays one cloud, some edges and their links, with both transports; `fleet` plays several replicas on one
//! store; `storm` plays a fleet that comes back to a cloud with little time. Nothing here sleeps, so an hour takes milliseconds, and the same seed gives the same run, event by event.

// A simulation is a test: what cannot be is a bug in it, and ends the run.
#![allow(clippy::unwrap_used, clippy::panic)]

mod cloud;
mod edge;
pub mod fleet;
mod link;
pub mod simulation;
pub mod storm;
pub mod streams;

pub use simulation::{Plan, Simulation};
