//! Forwards traffic by the netmap, at both ends of the channel: services by name and address, names by DNS.
//!
//! Input: netmaps as they change, streams from the channel. Output: connections to backends, streams to other
//! sites. The gateway knows nothing of objects, revisions, or which role it is in. The modules are in reading
//! order: access decisions, other sites, records, live connections, then the planes `proxy`, `dns` and `tun`,
//! the network namespace of presences, and the answers to ARP and NDP.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::panic))]

pub mod policy;

mod fair_share;

pub mod peer_requests;
pub mod peers;

pub mod packet_carrier;

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

pub mod trace;

pub mod diagnose;

pub mod socket_binder;

pub mod proxy;

pub mod dns;

pub mod tun;

pub mod presence_namespace;

pub mod neighbour_proxy;

pub use diagnose::RoleFacts;
pub use gateway::{Gateway, GatewayContext, GatewayOptions, GatewayParts, PresenceMode, SwitchedOff};
