//! Sessions as pure state machines: decisions from events and the time.
//!
//! `supervisor` is the edge's: it keeps one session with the cloud, whatever happens to the link. `table` is
//! the cloud's: at most one live session per gateway. Neither opens, reads or sleeps; drivers at both ends
//! execute the actions, and so does the simulation.

mod supervisor;

mod backoff;
mod keepalive;
mod secondary;
mod silence;
mod table;
mod transport_choice;

pub use backoff::HINT_MAX;
pub use keepalive::{EVERY as KEEPALIVE_EVERY, EVERY_QUICK as KEEPALIVE_QUICK};
pub use secondary::{PathSample, SecondaryAction, SecondaryPolicy, TransportPreference};
pub use silence::{SilenceVerdict, SilenceWatch};
pub use supervisor::{
    AttemptFailure, LINGER, LinkId, Supervisor, SupervisorAction, SupervisorState, WelcomedSession,
};
pub use table::{Instance, RemovedSession, SessionAdmission, SessionEntry, SessionTable, is_other_process};
pub use transport_choice::{AllowedTransports, AttemptedTransports};

use std::time::Duration;

/// Silence after which the cloud declares a session dead: twice the keepalive, so that one late ping is
/// tolerated, and later than the edge does, which can act on it.
pub const SILENCE_MAX: Duration = Duration::from_secs(10);
