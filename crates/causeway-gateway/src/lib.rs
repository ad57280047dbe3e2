//! Forwards by the netmap, at both ends of the channel: services by name and address, names by DNS.
//!
//! Netmaps come in as they change, streams come in from the channel; connections to backends and streams to other sites go
//! out. The gateway knows nothing of objects, revisions, or which role it is in. A newcomer reads in the order below: who may
//! do what, how another site is reached, what is recorded, what crosses now, then the three doors: `proxy`, `dns`, and the
//! `room` they stand in.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::panic))]

pub mod policy;

pub mod peers;

pub mod dial;

pub mod audit;

pub mod gateway;

pub mod connection_record;

pub mod live;

mod in_flight;

pub mod limits;

mod slots;

pub mod metrics;

pub mod problems;

pub mod diagnose;

pub mod socket_binder;

pub mod proxy;

pub mod dns;

pub mod presence_namespace;

pub use diagnose::RoleFacts;
pub use gateway::{Gateway, GatewayContext, GatewayOptions, GatewayParts, PresenceMode};
