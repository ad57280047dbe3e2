//! A simulated network for the session and netmap logic: the same pure machines that the drivers run, a clock that
//! jumps from event to event, and faults from a seed.
//!
//! `world` is the whole: one cloud, some edges, their links. Nothing here sleeps, so an hour takes milliseconds, and the
//! same seed gives the same run, event by event.

mod cloud;
mod dice;
mod edge;
mod link;
pub mod world;

pub use world::{Plan, World};
