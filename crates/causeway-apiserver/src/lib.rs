//! A Kubernetes-compatible HTTP API in front of the store.
//!
//! `server` accepts connections and `handle` handles each request: `request` parses it, `authorize` checks
//! the rights, `registry` executes it, `render` and `respond` make the response. `watch` serves watches, `console`
//! the files and the sign-in of the web console.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::panic))]
// A refusal ends its request, so the cost of moving a large error value does not matter.
#![allow(clippy::result_large_err)]

pub mod actions;
pub mod admin_audit;
pub mod clock;
pub mod delegate;
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

mod console;
mod documents;
mod handle;
pub mod limits;
mod metrics;
mod respond;
pub mod review;
pub mod server;

pub use actions::{
    ActionBody, ActionRefusal, ActionRequest, ActionResponse, Actions, AdminAction, CallerAudit,
};
pub use admin_audit::{AdminAudit, AdminRecord, NoAdminAudit};
pub use clock::{SystemClock, TimeSource};
pub use errors::RegistryError;
pub use gateway_stats::{GatewayStatsSource, NoGatewayStats};
pub use identity::{AuthFailure, Authenticator, Identity, Role};
pub use limits::ApiLimits;
pub use registry::Registry;
pub use server::{ApiServer, ApiServerParts, BindError};
