//! The crate from outside: manifests as people write them, and laws that hold for every object.

#![allow(clippy::unwrap_used, clippy::panic)]

mod manifests;
mod properties;
