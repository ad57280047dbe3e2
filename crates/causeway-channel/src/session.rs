//! Sessions as pure state machines: what to do, decided from events and the time.
//!
//! `roster` is the cloud's: at most one live session per gateway. It does not open, read or sleep; a driver does what
//! is said here, and so does the simulation.

mod roster;

pub use roster::{Admission, Removed, Roster, Seat};
