//! The one link between an edge and the cloud: identities, join tokens, enrolment, and the link itself.
//!
//! `link` is what others see of it: streams with a header, datagrams, reasons. `quic` carries it, `port` lets
//! peers in.
//! Identity comes from certificates and tokens only, never from what a peer says of itself.
//! `enrol` is the edge's side of enrolment; the cloud's side decides in its own room and shares `wire`.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::panic))]

pub mod link;

mod lock;

pub mod clock;
pub mod dial;
pub mod enrol;
pub mod io_thread;
pub mod key;
pub mod peer;
pub mod pem;
pub mod port;
pub mod probe;
pub mod quic;
pub mod session;
pub mod tcp;
pub mod tls;
pub mod token;
pub mod wire;

pub use clock::Clock;
pub use dial::{DialConfig, DialError, Dialer};
pub use enrol::{EnrolError, EnrolmentContact, IssuedCertificate};
pub use key::PrivateKey;
pub use link::{
    CloseCode, CloseReason, Link, LinkClosed, ResetCode, Stream, StreamHeader, StreamPurpose, Transport,
};
pub use peer::{CertificateFacts, KeyHash, PeerId};
pub use token::{ChannelEndpoint, JoinToken, TokenSecret};
