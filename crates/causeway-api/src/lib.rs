//! The API types of Causeway: kinds, metadata, selectors, watch events and Status.
//!
//! Values in, values out. No clock, no socket, no file, no async runtime. Reading order: metadata, the kinds,
//! their encoding, validation, and last the documents that describe them to clients.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::panic))]

pub mod api_resource;
pub mod decode;
pub mod document;
pub mod kinds;
pub mod meta;
pub mod object;
pub mod schema;
pub mod time;
pub mod wire;

pub mod check;
pub mod field;
pub mod name;
pub mod selector;

pub mod allocate;
pub mod conditions;
pub mod crd;
pub mod discovery;
pub mod events;
pub mod garbage;
pub mod layer3;
pub mod object_set;
pub mod openapi;
pub mod presence;

pub mod accept;
pub mod error_chain;
pub mod gateway_stats;
pub mod management;
pub mod request;
pub mod revision;
pub mod status;
pub mod sync;
pub mod table;
pub mod views;
pub mod watch_event;

pub mod ownership;
pub mod patch;

pub use api_resource::{ApiResource, ResourceDefinition, ServedKind};
pub use error_chain::error_chain;
pub use field::{FieldError, FieldReason};
pub use gateway_stats::{GatewayStats, TransportStats};
pub use kinds::{
    ECommunity, EGateway, EPolicy, EServer, EService, ESite, Kind, ServiceExpose, VirtualPresence,
};
pub use meta::{
    Condition, ConditionStatus, ListMeta, ManagedFieldsEntry, ObjectMeta, ObjectStatus, OwnerReference,
};
pub use object::{Decoded, Object, Resource};
pub use object_set::ObjectSet;
pub use revision::Revision;
pub use status::Status;
pub use time::Time;
pub use wire::ApiVersion;

/// The API group all kinds belong to.
pub const GROUP: &str = "causeway.io";
/// The name of the central site and of its gateway.
pub const CLOUD: &str = "cloud";
/// The annotation that, with the value "true", allows the deletion of a protected object.
pub const ALLOW_DELETE: &str = "causeway.io/allow-delete";
/// The only version so far.
pub const VERSION: &str = "v1";
