//! The one link between an edge and the cloud: identities, join tokens, enrolment.
//!
//! Identity comes from certificates and tokens only, never from what a peer says of itself.
//! `enrol` is the edge's side of enrolment; the cloud's side decides in its own room and shares `wire`.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::panic))]

pub mod clock;
pub mod enrol;
pub mod key;
pub mod peer;
pub mod pem;
pub mod tls;
pub mod token;
pub mod wire;

pub use clock::Clock;
pub use enrol::{Contact, EnrolError, Issued};
pub use key::Key;
pub use peer::{CertificateFacts, KeyHash, PeerId};
pub use token::{Endpoint, JoinToken, Secret};
