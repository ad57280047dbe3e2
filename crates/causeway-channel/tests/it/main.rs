//! The channel as its users see it: real sockets on loopback, real certificates, both transports.

#![allow(clippy::unwrap_used, clippy::panic)]

mod dial;
mod house;
mod links;
mod speed;
