<<<<<<< HEAD
//! The channel as its users see it: real sockets on loopback, real certificates, both transports.

#![allow(clippy::unwrap_used, clippy::panic)]

mod dial;
mod house;
mod links;
mod speed;
=======
//! Links over loopback: one battery of rows for every transport, and the port against strangers.

#![allow(clippy::unwrap_used, clippy::panic)]

mod battery;
mod idle;
mod moving;
mod stage;
mod strangers;
>>>>>>> 3fc5f50 (channel, cloud: one port for enrolment and links; a battery over links)
