//! HTTP in front of the store, as Kubernetes clients expect it.
//!
//! `registry` admits and stores objects; `request` decides what is asked; the rest moves bytes.
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod actions;
pub mod clock;
pub mod figures;
pub mod identity;
pub mod registry;
pub mod server;

pub use actions::{ActionBody, ActionRefusal, ActionRequest, ActionResponse, Actions};
pub use clock::{Clock, SystemClock};
pub use figures::{GatewayFigures, LiveFigures, NoFigures};
pub use identity::{AuthFailure, Authenticator, Identity, Role};
pub use registry::Registry;
pub use server::{ApiServer, BindError, Limits, Parts};
