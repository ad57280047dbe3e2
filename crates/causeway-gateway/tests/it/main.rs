//! The public interface of the gateway, with real sockets.

#![allow(clippy::unwrap_used, clippy::panic)]

mod dns;
mod foreign_bytes;
mod links;
mod packets;
mod relay;
#[cfg(feature = "traces")]
mod traces;
mod udp;
