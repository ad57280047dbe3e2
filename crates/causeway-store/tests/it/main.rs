//! The public interface of the store, through one battery that every engine must pass, and tests of each
//! engine.
//!
//! `battery` holds the guarantees, `lab` creates stores for them.
#![allow(clippy::unwrap_used, clippy::panic)]

mod battery;
mod crash;
mod etcd;
mod follow;
mod full_disk;
mod lab;
mod model;
mod sqlite;
