//! Every default, with its reason.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroU32;

use super::{PresenceModeSetting, StoreSetting, TransportSetting};
use crate::duration::HumanDuration;

/// The directory that the Filesystem Hierarchy Standard defines for the state of a service.
pub const DATA_DIR: &str = "/var/lib/causeway";

/// People look at logs first; collectors can ask for json.
pub const LOG_FORMAT: &str = "text";
/// Messages for operators, none for developers.
pub const LOG_FILTER: &str = "info";

/// All interfaces: every client needs a certificate or a token.
pub const API: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 7443);
/// All interfaces, for edges at any site.
pub const CHANNEL: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 7444);
/// Loopback, because the admin port requires no credentials.
pub const ADMIN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 7445);

/// Needs no other program.
pub const STORE: StoreSetting = StoreSetting::Sqlite;

/// A client holds one or a few; an office of a hundred behind one address stays far below, and one address cannot take
/// more than a twentieth of all.
pub const API_CONNECTIONS_PER_ADDRESS: NonZeroU32 = some(1000);

/// A site that was switched off for a season reconnects without a new token.
pub const EXPIRED_GRACE: HumanDuration = HumanDuration::days(90);

/// 5 files of 32 MiB: weeks of administration, small against any disk.
pub const AUDIT_FILE_BYTES_MAX: u64 = 32 << 20;
pub const AUDIT_FILES_MAX: u64 = 5;

/// A handshake costs about half a millisecond of one core: a fleet of twenty thousand is back in ten seconds, and
/// one address cannot take more than a quarter of it.
pub const HANDSHAKES_PER_SECOND: NonZeroU32 = some(2000);
pub const HANDSHAKES_PER_ADDRESS: NonZeroU32 = some(500);
/// Some 20 KB each; for one more the oldest is closed.
pub const HALF_OPEN_MAX: NonZeroU32 = some(2048);
/// 40 KB each when idle.
pub const LINKS_MAX: NonZeroU32 = some(50_000);
/// Ten thousand connections through one gateway, and some more; a peer cannot make us hold more than 512 MiB on all of them together.
/// 1 MiB are 80 Mbit/s for one stream at 100 ms.
pub const STREAMS_MAX: NonZeroU32 = some(16_384);
pub const STREAM_WINDOW_BYTES: NonZeroU32 = some(1024 * 1024);

/// Shorter than the 30 seconds that Kubernetes and the 90 that systemd give before they kill.
pub const DRAIN: HumanDuration = HumanDuration::seconds(20);

/// QUIC where it works, TCP where UDP is blocked.
pub const TRANSPORT: TransportSetting = TransportSetting::Auto;

/// A network namespace of their own where one can be made: ports and firewall rules of the host do not collide with
/// presences there.
pub const PRESENCE: PresenceModeSetting = PresenceModeSetting::Auto;

const fn some(number: u32) -> NonZeroU32 {
    match NonZeroU32::new(number) {
        Some(number) => number,
        None => NonZeroU32::MIN,
    }
}
