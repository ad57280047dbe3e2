//! Every default, with its reason.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use super::{Store, Transport};
use crate::duration::Span;

/// Where the file system standard puts what a service must keep.
pub const DATA_DIR: &str = "/var/lib/causeway";

/// People look at logs first; collectors can ask for json.
pub const LOG_FORMAT: &str = "text";
/// What an operator needs, nothing for developers.
pub const LOG_FILTER: &str = "info";

/// Clients come from everywhere; every one of them needs a certificate or a token.
pub const API: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 7443);
/// Edges come from everywhere.
pub const CHANNEL: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 7444);
/// No credentials are asked for here, so only this host may come.
pub const ADMIN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 7445);

/// Needs no other program.
pub const STORE: Store = Store::Sqlite;

/// A site that was switched off for a season comes back by itself.
pub const EXPIRED_GRACE: Span = Span::days(90);

/// 5 files of 32 MiB: weeks of administration, small against any disk.
pub const AUDIT_FILE_BYTES_MAX: u64 = 32 << 20;
pub const AUDIT_FILES_MAX: u64 = 5;

/// Shorter than the 30 seconds that Kubernetes and the 90 that systemd give before they kill.
pub const DRAIN: Span = Span::seconds(20);

/// QUIC where it works, TCP where UDP is blocked.
pub const TRANSPORT: Transport = Transport::Auto;
