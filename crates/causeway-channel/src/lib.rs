//! The channel between an edge and the cloud: identities, join tokens, enrolment, and links.
//!
//! `link` is the API: streams with a header, datagrams, close reasons. `quic` and `tcp` carry it, `port`
//! accepts peers, `dial` connects. Identity comes only from certificates and tokens, never from bytes that a
//! peer sends about itself. `enrol` is the edge's side of enrolment; the cloud's side is in `causeway-cloud`
//! and shares `wire`.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::panic))]

pub mod link;

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
pub use dial::{DialConfig, DialError, LinkDialer};
pub use enrol::{EnrolError, EnrolmentContact, IssuedCertificate};
pub use key::PrivateKey;
pub use link::{
    CloseCode, CloseReason, Link, LinkClosed, ResetCode, Stream, StreamHeader, StreamPurpose, Transport,
};
pub use peer::{CertificateFacts, KeyHash, PeerId};
pub use token::{ChannelEndpoint, JoinToken, TokenSecret};
