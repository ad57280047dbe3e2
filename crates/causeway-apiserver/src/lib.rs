//! HTTP in front of the store, as Kubernetes clients expect it.
//!
//! A request walks from `server` (connections) to `handle` (the story): `request` understands it, `authorize` allows it,
//! `registry` does it, `render` and `respond` answer. Watches leave that road at `watch`.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::panic))]
// A refusal ends its request; that it is a large value costs nothing that matters.
#![allow(clippy::result_large_err)]

pub mod actions;
pub mod admin_audit;
pub mod clock;
pub mod gateway_stats;
pub mod identity;

pub mod authorize;
pub mod body;
pub mod errors;
pub mod impersonate;
pub mod registry;
pub mod render;
pub mod request;
pub mod watch;

mod documents;
mod handle;
pub mod limits;
mod metrics;
mod respond;
pub mod review;
pub mod server;

pub use actions::{
    ActionBody, ActionRefusal, ActionRequest, ActionResponse, Actions, AdminDeed, CallerAudit,
};
pub use admin_audit::{AdminAudit, AdminRecord, NoAdminAudit};
pub use clock::{Clock, SystemClock};
pub use errors::RegistryError;
pub use gateway_stats::{GatewayStatsSource, NoGatewayStats};
pub use identity::{AuthFailure, Authenticator, Identity, Role};
pub use limits::ApiLimits;
pub use registry::Registry;
pub use server::{ApiServer, ApiServerParts, BindError};
