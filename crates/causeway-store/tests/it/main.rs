//! The store's public face, through one battery that every engine must pass, and what is special to each engine.
//!
//! `battery` holds the sentences that must be true, `lab` makes stores for them.
#![allow(clippy::unwrap_used, clippy::panic)]

mod battery;
mod crash;
mod etcd;
mod follow;
mod full_disk;
mod lab;
mod model;
mod sqlite;
