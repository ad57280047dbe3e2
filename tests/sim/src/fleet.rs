//! Several replicas on one store, edges with disks, and everything that goes wrong between them.
//!
//! Beside what `simulation` plays, replicas lag behind the store and behind each other, backups come back, disks are full, clocks are
//! set back. `simulation` tells the story, `cloud` and `edge` are the drivers, `rules` what must hold at every moment, and ways
//! to break it on purpose: a rule that was never seen to fail proves nothing.

mod cloud;
mod edge;
mod link;
mod rules;
mod simulation;
mod store;

pub use rules::{Broken, Violation};
pub use simulation::{RunStats, run};
