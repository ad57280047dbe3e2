//! The parts of every long-running process: logs, metrics, readiness, drain, signals, its data dir.
//!
//! Knows nothing of sites or objects. A role opens its `DataDir`, binds its `AdminServer`, and
//! stops when the token of `signals::watch` is cancelled.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod admin;
pub mod audit;
pub mod coalesce;
pub mod collector;
pub mod data_dir;
pub mod files;
pub mod log;
pub mod metrics;
pub mod notify;
pub mod readiness;
pub mod role;
pub mod rotated;
pub mod signals;

/// For the gateway, which does not use `causeway-api`.
pub use causeway_api::accept::ACCEPT_PAUSE;
pub use causeway_api::{error_chain, sync};

pub use admin::AdminServer;
pub use audit::AuditLog;
pub use data_dir::DataDir;
pub use metrics::Metrics;
pub use readiness::{Readiness, ReadinessCheck};
pub use role::ProcessRole;
