//! Sessions as pure state machines: what to do, decided from events and the time.
//!
//! `supervisor` is the edge's: it keeps one session with the cloud, whatever the link does. `roster` is the cloud's:
//! at most one live session per gateway. Neither opens, reads or sleeps; drivers at both ends do what is said here,
//! and so does the simulation.

mod supervisor;

mod backoff;
mod choice;
mod keepalive;
mod roster;

pub use backoff::HINT_MAX;
pub use choice::{Allowed, Attempted};
pub use keepalive::{EVERY as KEEPALIVE_EVERY, EVERY_QUICK as KEEPALIVE_QUICK};
pub use roster::{Admission, Instance, Removed, Roster, Seat, is_other_process};
pub use supervisor::{Action, Failure, LINGER, LinkId, State, Supervisor, Welcomed};

use std::time::Duration;

/// The cloud calls a session dead after this much silence: twice the keepalive, so that one that is late is forgiven,
/// and later than the edge does, which can act on it.
pub const SILENCE_MAX: Duration = Duration::from_secs(10);
