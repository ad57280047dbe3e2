//! The identity of the fleet: CAs, join tokens, certificates and revocations.
//!
//! `Registrar` is the interface: it opens the CA, issues tokens and certificates, and tells the API server who is
//! asking. `EnrolmentServer` puts it behind the channel port. Everything lasting is in the store, changed by
//! compare-and-swap, so that any number of replicas may do the same work. Objects are none of its business.

mod access;
mod admission;
mod enrolment;
mod node_enrolment;
mod registrar;
mod revoke;
mod rotation;
mod server;
mod token_admin;

mod audit;
mod authority;
mod ca_store;
mod certificates;
mod connect;
pub mod earlier_life;
pub(crate) mod follow;
mod gateways;
pub mod kubeconfig;
mod metrics;
mod node_review;
mod overview;
pub mod replay;
mod replica;
mod revocation;
pub mod revocation_log;
mod seal;
mod serving;
mod tokens;

#[cfg(test)]
mod tests;

use std::time::SystemTime;

pub use admission::AdmittedPeer;
pub use gateways::{PREFIX as ENROLLED_PREFIX, enrolled_site};
pub use metrics::IdentityMetrics;
pub use node_enrolment::{NodeAuthority, NodeEnrolment, NodeEnrolmentConfig};
pub use node_review::{ServiceAccountName, StoredGateway};
pub use registrar::{IdentityConfig, IdentityError, Registrar};
pub use replica::ReplicaIdentityError;
pub use revoke::OpenTokens;
pub use rotation::RotationError;
pub use server::{EnrolmentLimits, EnrolmentServer};
pub use serving::{host_name, outward_addresses};
pub use token_admin::{EnrolledGateway, IssuedApiToken, IssuedJoinToken, TokenProblem};
pub use tokens::{ApiRole, NEW_TOKEN, OnEnrolled};

/// Parsers of foreign bytes, for `fuzz/` alone.
#[doc(hidden)]
pub mod readers {
    pub use super::ca_store::decode as decode_cas;
    pub use super::seal::SealKey;
    pub use super::tokens::{api_text, parse_api_text};
}

/// Certificates are replaced when two thirds of their life are over; a clock that went back before their
/// beginning is no reason to keep them either.
fn is_past_two_thirds(not_before: SystemTime, not_after: SystemTime, now: SystemTime) -> bool {
    let life = not_after.duration_since(not_before).unwrap_or_default();
    now < not_before || now >= not_before + life * 2 / 3
}
