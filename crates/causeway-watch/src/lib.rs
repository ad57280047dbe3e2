//! Watch history and fan-out for any resource.
//!
//! `ring` holds the last changes of one collection for all its watchers. Reading changes from a store and encoding them
//! is left to the servers that use this crate.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::panic))]

pub mod ring;
