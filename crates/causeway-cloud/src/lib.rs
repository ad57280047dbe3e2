//! The cloud role: keeps the identity of the fleet, admits sites, reconciles objects.
//!
//! Puts the API server in front of the store, and enrolment and sessions behind the channel port.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::panic))]

mod actions;
mod admin_journal;
pub mod aggregated_api;
mod audit;
pub mod audit_export;
mod bootstrap;
pub mod channel;
pub mod cloud;
mod compile;
mod connect_listeners;
mod deleted_gateways;
mod events;
mod fleet_metrics;
mod fleet_stats;
mod garbage;
pub mod gateway;
mod gateway_sites;
mod health;
pub mod identity;
mod kubernetes;
pub mod netmaps;
mod reconcile;
pub mod replicas;
mod reports;
pub mod sessions;
mod site_metrics;
pub mod spool_intake;
mod tunnels;

pub use cloud::{Addresses, Cloud, CloudConfig, CloudError};
