//! What a gateway must know to forward, as one immutable value, and how it gets from the cloud to the edge.
//!
//! Values in, values out: no clock, socket, file or async runtime. A newcomer reads in the order below: how a state is
//! named, the value itself, the difference between two of them on the link, the two halves that keep an edge up to
//! date, and last what stands in the entries and how a gateway reads them.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::panic))]

mod generation;
mod netmap;
mod update;

pub mod sync;

mod entries;
mod names;
mod view;
mod wire;

pub use entries::{
    BackendEndpoint, BackendHealthCheck, BackendHealthCheckType, BackendTlsSettings, BackendTlsVerification,
    CarriagePreference, ExposureEntry, GatewayEntry, NetmapEntry, NetmapEntryError, NodeEntry, PolicyEntry,
    PolicyHttpRule, PolicyLimits, PresenceEntry, ServiceEntry, ServiceProtocol, SiteEntry, SubjectEntry,
};
pub use generation::{Digest, Generation, NetmapStamp};
pub use names::{DnsName, GatewayName, PolicyName, PresenceIp, ServerName, ServiceName, SiteName};
pub use netmap::{ApplyError, BuildError, ENTRIES_MAX, EntryKey, KEY_BYTES_MAX, NETMAP_BYTES_MAX, Netmap};
pub use update::{DecodeError, ENCODED_BYTES_MAX, NetmapUpdateData};
pub use view::{DnsNameTarget, NetmapView};
