//! The gateway's public face, with real sockets.

#![allow(clippy::unwrap_used, clippy::panic)]

mod dns;
mod links;
mod udp;
