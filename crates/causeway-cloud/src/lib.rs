//! The cloud role: keeps the identity of the fleet, admits sites, reconciles objects.
//!
//! Puts the API server in front of the store, and enrolment and sessions behind the channel port.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::panic))]

mod actions;
mod admin_journal;
mod audit;
pub mod channel;
pub mod cloud;
mod compile;
mod departures;
mod doors;
mod events;
mod figures;
mod first;
mod fleet_metrics;
mod garbage;
pub mod gateway;
mod gateway_sites;
mod health;
pub mod identity;
pub mod netmaps;
mod reconcile;
pub mod replicas;
mod reports;
pub mod sessions;
pub mod upstream;

pub use cloud::{Addresses, Cloud, CloudConfig, CloudError};
