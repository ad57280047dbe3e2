//! The netmap: all facts that a gateway needs to forward, as one immutable value, and its transfer from the
//! cloud to an edge.
//!
//! Values in, values out: no clock, socket, file or async runtime. Reading order: `generation` identifies a
//! state, `netmap` is the value, `update` the difference between two of them on the wire, `sync` the two
//! halves that keep an edge up to date, `entries` the content, and `view` the form that a gateway reads.

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
    CarriagePreference, CommunityEntry, ExposureEntry, GatewayEntry, HostEntry, IpProtocol, NetmapEntry,
    NetmapEntryError, NodeEntry, OnDemandEntry, PolicyEntry, PolicyHttpRule, PolicyLimits, PortRule,
    PrefixMapping, PresenceEntry, RelayGroupEntry, ServiceEntry, ServiceProtocol, SiteEntry, SubjectEntry,
    TranslatedExposure, TranslatedPresenceEntry, TranslatedScope, TranslatedServiceEntry, TunnelCipher,
    TunnelKey, TunnelPeerEntry,
};
pub use generation::{Digest, Generation, NetmapStamp};
pub use names::{
    CommunityName, DnsName, GatewayName, PolicyName, PresenceIp, ServerName, ServiceName, SiteName,
};
pub use netmap::{ApplyError, BuildError, ENTRIES_MAX, EntryKey, KEY_BYTES_MAX, NETMAP_BYTES_MAX, Netmap};
pub use update::{DecodeError, ENCODED_BYTES_MAX, NetmapUpdateData};
pub use view::{DnsNameTarget, NetmapView};
