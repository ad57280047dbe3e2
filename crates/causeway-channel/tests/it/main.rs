//! The channel as its users see it: real sockets on loopback, real certificates, both transports.

#![allow(clippy::unwrap_used, clippy::panic)]

mod battery;
mod budget;
mod busy;
mod chunks;
mod dial;
mod flows;
mod idle;
mod moving;
mod secondary;
mod speed;
mod stage;
mod strangers;
mod wire_fixtures;
