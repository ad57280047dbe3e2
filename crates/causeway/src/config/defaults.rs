//! Every default, with its reason.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroU32;

use super::{DatapathSetting, PresenceModeSetting, StoreSetting, TransportSetting};
use crate::duration::HumanDuration;

/// The directory that the Filesystem Hierarchy Standard defines for the state of a service.
pub const DATA_DIR: &str = "/var/lib/causeway";

/// People read logs first; a collector can ask for `json`.
pub const LOG_FORMAT: &str = "text";
/// An operator needs these lines; `debug` is for developers.
pub const LOG_FILTER: &str = "info";

/// Clients come from any network; each of them needs a certificate or a token.
pub const API: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 7443);
/// Edges dial from any network.
pub const CHANNEL: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 7444);
/// No credentials are asked for, so only programs of this host may connect.
pub const ADMIN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 7445);

/// SQLite needs no other program.
pub const STORE: StoreSetting = StoreSetting::Sqlite;

/// A client holds one or a few connections; an office of a hundred clients behind one address stays far below, and one
/// address cannot take more than a twentieth of all connections.
pub const API_CONNECTIONS_PER_ADDRESS: NonZeroU32 = some(1000);

/// A site that was switched off for a season reconnects without a new token.
pub const EXPIRED_GRACE: HumanDuration = HumanDuration::days(90);

/// 5 files of 32 MiB hold weeks of administration and are small against any disk.
pub const AUDIT_FILE_BYTES_MAX: u64 = 32 << 20;
/// 5 files of 32 MiB hold weeks of administration and are small against any disk.
pub const AUDIT_FILES_MAX: u64 = 5;

/// 256 MiB hold half a million records: an hour at a hundred and forty a second.
pub const AUDIT_EXPORT_BYTES_MAX: u64 = 256 << 20;

/// A handshake costs about half a millisecond of one core: a fleet of twenty thousand edges is back in ten seconds.
pub const HANDSHAKES_PER_SECOND: NonZeroU32 = some(2000);
/// One address cannot take more than a quarter of `handshakes-per-second`.
pub const HANDSHAKES_PER_ADDRESS: NonZeroU32 = some(500);
/// A handshake under way holds some 20 KB: 40 MB together.
pub const HALF_OPEN_MAX: NonZeroU32 = some(2048);
/// An idle link holds 40 KB: 2 GB together.
pub const LINKS_MAX: NonZeroU32 = some(50_000);
/// Ten thousand connections through one gateway, and some more. All links of a gateway hold at most 896 MiB unread together.
pub const STREAMS_MAX: NonZeroU32 = some(16_384);
/// 1 MiB carries 80 Mbit/s on one stream at a round trip of 100 ms.
pub const STREAM_WINDOW_BYTES: NonZeroU32 = some(1024 * 1024);

/// A token for another audience is no token for enrolment, and this one no token for the API server.
pub const JOIN_AUDIENCE: &str = "causeway.io/join";

/// Shorter than the 30 seconds of Kubernetes and the 90 seconds of systemd before they kill a process.
pub const DRAIN: HumanDuration = HumanDuration::seconds(20);

/// QUIC is used where it works, TCP where UDP is blocked.
pub const TRANSPORT: TransportSetting = TransportSetting::Auto;

/// In a network namespace no listener, address or firewall rule of the host is in the way.
pub const PRESENCE: PresenceModeSetting = PresenceModeSetting::Auto;

/// Both layers serve a site; a gateway for packets alone is the exception.
pub const SERVICES_OFF: bool = false;

/// Peers of 64 members are 7 KB in each netmap; with more members the netmaps of all together grow with the square.
pub const COMMUNITY_PEERS_MAX: NonZeroU32 = some(64);
/// Both layers serve a site; the tunnel opens nothing until an ECommunity names the site.
pub const TUNNEL_OFF: bool = false;
/// Other gateways come from any network; strangers get no answer.
pub const TUNNEL_LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 7446);
/// Four senders at their full rate; a relay behind a small uplink lowers it.
pub const RELAY_MBIT_PER_SECOND: NonZeroU32 = some(4000);
/// The name says whose device it is, and several gateways may share a host.
pub const TUNNEL_DEVICE: &str = "causeway-l3-%d";
/// Routes need nothing but the kernel; Open vSwitch is used on request only.
pub const DATAPATH: DatapathSetting = DatapathSetting::Tun;
/// The name says whose traffic it carries; an existing bridge is named instead.
pub const BRIDGE: &str = "br-causeway";
/// A collector that is named gets everything; a busy fleet lowers it.
pub const TRACES_RATIO: f64 = 1.0;
/// Beside the 6443 of kube-apiserver, on loopback: local components only.
pub const KUBERNETES_LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 6444);
/// The file in which kubelet keeps and renews the certificate of its node, with the key.
pub const KUBERNETES_CLIENT_CERTIFICATE: &str = "/var/lib/kubelet/pki/kubelet-client-current.pem";
/// The same file, as kubelet writes it.
pub const KUBERNETES_CLIENT_KEY: &str = KUBERNETES_CLIENT_CERTIFICATE;
/// A day: programs that run once a day find their resources ready.
pub const KUBERNETES_UNUSED: HumanDuration = HumanDuration::seconds(24 * 3600);
/// 1 GiB: forty times the 5,000 pods of a large cluster, and a part of the disk of a small device.
pub const KUBERNETES_BYTES_MAX: u64 = 1 << 30;

const fn some(number: u32) -> NonZeroU32 {
    match NonZeroU32::new(number) {
        Some(number) => number,
        None => NonZeroU32::MIN,
    }
}
