//! The crate from outside: manifests as users write them, and properties that hold for every object.

#![allow(clippy::unwrap_used, clippy::panic)]

mod manifests;
mod properties;
