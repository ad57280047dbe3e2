//! Messages of the control stream. `stream` reads and writes them.
//!
//! The control stream is the first stream of a link, opened by the edge. The edge sends `Hello`, the cloud
//! responds with `Welcome` or `SessionRefused`; then both send messages at any time. Each message is protobuf
//! behind a length of four bytes (`frame`). An unknown field is ignored, and so is a message of an unknown
//! kind: it reads as `None`. A newer peer must not rely on a new message before `features` announce it. The
//! bytes are pinned by `tests/it/wire_fixtures.rs`.

mod stream;

use bytes::Bytes;
use prost::Message;

use super::frame;

pub use self::stream::{ControlError, ControlReader, ControlWriter, encode_cloud, encode_edge};

/// Version of the protocol inside the ALPN of the channel; raised when a message changes its meaning.
pub const VERSION: u32 = 1;
/// Feature of an edge, in `Hello::features`: over QUIC the transport's acknowledgement of a ping counts as
/// the answer, so that a keepalive is two packets instead of four. Pings of other edges, and over TCP, are
/// answered.
pub const FEATURE_PINGS_ACKNOWLEDGED: &str = "pings-acknowledged";
/// Feature of a cloud, in `Welcome::features`: a session over QUIC may have a secondary link over TCP.
pub const FEATURE_SECONDARY_LINK: &str = "secondary-link";
/// Feature of an edge, in `Hello::features`: it asks for the members of large communities with which it exchanges packets
/// (`NeighbourQuery`). The netmap of another edge has all members as peers.
pub const FEATURE_NEIGHBOURS: &str = "neighbours";
/// Messages of an edge are small; a batch of spool records is cut to fit.
pub const EDGE_MESSAGE_BYTES_MAX: usize = 64 * 1024;
/// A message of the cloud may hold a whole netmap. A site of 2,000 exposures stays below 1 MiB.
pub const CLOUD_MESSAGE_BYTES_MAX: usize = 16 * 1024 * 1024;

/// A message from an edge to the cloud.
#[derive(Clone, PartialEq, Message)]
pub struct EdgeMessage {
    #[prost(oneof = "EdgeMessageBody", tags = "1, 2, 3, 4, 5, 6, 7, 8, 9")]
    pub body: Option<EdgeMessageBody>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub enum EdgeMessageBody {
    #[prost(message, tag = "1")]
    Hello(Hello),
    #[prost(message, tag = "2")]
    Ping(Ping),
    #[prost(message, tag = "3")]
    NetmapAck(NetmapAck),
    #[prost(message, tag = "4")]
    NetmapRefused(NetmapRefused),
    #[prost(message, tag = "5")]
    Spool(SpoolBatch),
    #[prost(message, tag = "6")]
    Goodbye(Goodbye),
    /// First message of a secondary link, instead of `Hello`.
    #[prost(message, tag = "7")]
    Join(JoinSession),
    #[prost(message, tag = "8")]
    Path(PathQuery),
    #[prost(message, tag = "9")]
    Neighbours(NeighbourQuery),
}

/// First message of an edge.
#[derive(Clone, PartialEq, Message)]
pub struct Hello {
    #[prost(uint32, tag = "1")]
    pub version: u32,
    /// Increases with every attempt of this gateway; the cloud keeps the session with the highest.
    #[prost(uint64, tag = "2")]
    pub epoch: u64,
    /// The netmap in force at the edge. Absent: none yet.
    #[prost(message, optional, tag = "3")]
    pub held: Option<HeldNetmap>,
    /// Name and version of the program, for people.
    #[prost(string, tag = "4")]
    pub software: String,
    /// `tls::bundle_hash` of the CAs the edge trusts.
    #[prost(bytes = "bytes", tag = "5")]
    pub bundle_hash: Bytes,
    /// Seconds since 1970, by the edge's clock.
    #[prost(int64, tag = "6")]
    pub time: i64,
    /// Features beyond version 1.
    #[prost(string, repeated, tag = "7")]
    pub features: Vec<String>,
    /// Identifies the process: 16 random bytes, the same for all sessions of one process. A session of
    /// another process shows that the previous process is gone, so the streams of its sessions are reset at
    /// once. Empty from an edge that does not know the field: its old sessions remain until they are declared
    /// dead.
    #[prost(bytes = "bytes", tag = "8")]
    pub instance: Bytes,
    /// The tunnel of this gateway. Absent from an older edge, and where it is switched off: other gateways then exchange no
    /// packets with it. An older cloud ignores it.
    #[prost(message, optional, tag = "9")]
    pub tunnel: Option<TunnelReport>,
    /// Planes that the configuration of this edge switches off: `services`, `layer3`. An older cloud ignores it.
    #[prost(string, repeated, tag = "10")]
    pub switched_off: Vec<String>,
    /// With `FEATURE_NEIGHBOURS`: the sites of the peers in the held netmap, `NEIGHBOURS_MAX` at most. Members of large
    /// communities among them stay peers. An older cloud ignores it.
    #[prost(string, repeated, tag = "11")]
    pub neighbours: Vec<String>,
}

/// The neighbours in large communities that the cloud keeps for a gateway; one more replaces the oldest.
pub const NEIGHBOURS_MAX: usize = 1024;
/// Bytes of the names in `Hello::neighbours`, so that a hello stays below `EDGE_MESSAGE_BYTES_MAX`.
pub const NEIGHBOUR_NAMES_BYTES_MAX: usize = 48 * 1024;
/// Questions in one `NeighbourQuery`; further ones are ignored.
pub const NEIGHBOUR_QUESTIONS_MAX: usize = 64;

/// The tunnel of a gateway, for the netmaps of its peers.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct TunnelReport {
    /// An X25519 public key: 32 bytes.
    #[prost(bytes = "bytes", tag = "1")]
    pub public_key: Bytes,
    /// The UDP port it listens on.
    #[prost(uint32, tag = "2")]
    pub port: u32,
    /// The gateway has AES instructions.
    #[prost(bool, tag = "3")]
    pub aes: bool,
    /// Addresses of the gateway, 4 or 16 bytes each, at which peers may try to reach it.
    #[prost(bytes = "bytes", repeated, tag = "4")]
    pub addresses: Vec<Bytes>,
}

/// Bytes of `Hello::instance`. A value of another length is read as absent.
pub const INSTANCE_BYTES: usize = 16;

impl Hello {
    /// Returns the process that sent this hello, if the edge identifies it.
    pub fn instance(&self) -> Option<u128> {
        let bytes: [u8; INSTANCE_BYTES] = self.instance.as_ref().try_into().ok()?;
        Some(u128::from_be_bytes(bytes))
    }
}

/// Identifies a netmap by generation and digest.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct HeldNetmap {
    #[prost(uint64, tag = "1")]
    pub epoch: u64,
    #[prost(uint64, tag = "2")]
    pub revision: u64,
    #[prost(bytes = "bytes", tag = "3")]
    pub digest: Bytes,
    /// Orders netmaps of one revision, for an edge with `FEATURE_NEIGHBOURS`. 0 for any other edge.
    #[prost(uint64, tag = "4")]
    pub turn: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Ping {
    /// Returned by an answer. Edges send 0: any later byte of the cloud is as good, and each byte costs 17 KB a day.
    #[prost(uint64, tag = "1")]
    pub nonce: u64,
}

/// The netmap is in force at the edge.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct NetmapAck {
    #[prost(message, optional, tag = "1")]
    pub held: Option<HeldNetmap>,
    /// Reason for which the netmap is not on the edge's disk. Empty: it is. Sent again, empty, when it has
    /// been written. An older edge refuses a netmap that it cannot write, so an acknowledged netmap is on
    /// disk; an older cloud ignores this field and reads correctly that the netmap is in force.
    #[prost(string, tag = "2")]
    pub not_persisted: String,
}

/// The netmap could not be applied; the edge keeps the one it held.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct NetmapRefused {
    /// The refused netmap.
    #[prost(message, optional, tag = "1")]
    pub target: Option<HeldNetmap>,
    #[prost(string, tag = "2")]
    pub reason: String,
    /// A delta did not fit: send the whole netmap.
    #[prost(bool, tag = "3")]
    pub want_whole: bool,
    /// The netmap that stays in force.
    #[prost(message, optional, tag = "4")]
    pub held: Option<HeldNetmap>,
}

/// Records from the edge's durable queue, in order.
#[derive(Clone, PartialEq, Message)]
pub struct SpoolBatch {
    /// Identifies the queue; after a loss the queue begins again under another ID.
    #[prost(bytes = "bytes", tag = "1")]
    pub queue_id: Bytes,
    #[prost(uint64, tag = "2")]
    pub first_seq: u64,
    #[prost(bytes = "bytes", repeated, tag = "3")]
    pub records: Vec<Bytes>,
    /// Number of records that were dropped because the queue was full.
    #[prost(uint64, tag = "4")]
    pub dropped: u64,
}

/// The edge ends the session on purpose.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Goodbye {
    #[prost(string, tag = "1")]
    pub reason: String,
}

/// Asks the cloud to take a TCP link as the secondary link of a session over QUIC. Sent only to a cloud whose welcome has
/// `FEATURE_SECONDARY_LINK`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct JoinSession {
    /// `Welcome::session_id` of the session.
    #[prost(string, tag = "1")]
    pub session_id: String,
    /// `Hello::instance` of the session. It is random and known to this process and the cloud alone, so another process
    /// with a copy of the certificate cannot join.
    #[prost(bytes = "bytes", tag = "2")]
    pub instance: Bytes,
}

/// Asks the cloud what it measured on the path, and tells it how new streams are carried. Sent only to a cloud whose
/// welcome has `FEATURE_SECONDARY_LINK`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct PathQuery {
    /// Why new streams go where they go, for status.
    #[prost(string, tag = "1")]
    pub reason: String,
    /// New streams take QUIC again; the cloud retires the secondary link too.
    #[prost(bool, tag = "2")]
    pub retire: bool,
}

/// Asks for members of large communities as peers. There is no response of its own: a netmap follows if one of them
/// becomes a peer. Sent only while the netmap has on-demand networks, which an older cloud does not compile. The cloud
/// limits the rate; a question above it is dropped, and repeated by the edge while packets come.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct NeighbourQuery {
    /// Addresses on the wire, 4 or 16 bytes each: the sites behind which they are.
    #[prost(bytes = "bytes", repeated, tag = "1")]
    pub addresses: Vec<Bytes>,
    /// Sites by name. Capital letters make no difference: a name may come from DNS.
    #[prost(string, repeated, tag = "2")]
    pub sites: Vec<String>,
    /// Sites that were silent for long and need not be peers any more.
    #[prost(string, repeated, tag = "3")]
    pub silent: Vec<String>,
}

/// A message from the cloud to an edge.
#[derive(Clone, PartialEq, Message)]
pub struct CloudMessage {
    #[prost(oneof = "CloudMessageBody", tags = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10")]
    pub body: Option<CloudMessageBody>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub enum CloudMessageBody {
    #[prost(message, tag = "1")]
    Welcome(Welcome),
    #[prost(message, tag = "2")]
    Refused(SessionRefused),
    #[prost(message, tag = "3")]
    Pong(Pong),
    #[prost(message, tag = "4")]
    Netmap(NetmapUpdate),
    #[prost(message, tag = "5")]
    SpoolAck(SpoolAck),
    #[prost(message, tag = "6")]
    Drain(DrainNotice),
    #[prost(message, tag = "7")]
    Endpoints(EndpointUpdate),
    #[prost(message, tag = "8")]
    Hint(ReconnectHint),
    /// The answer to `JoinSession`.
    #[prost(message, tag = "9")]
    Joined(SessionJoined),
    /// The answer to `PathQuery`.
    #[prost(message, tag = "10")]
    Path(PathReport),
}

/// The link is the secondary link of its session from now on.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct SessionJoined {}

/// The bytes that the cloud sent over QUIC in this session.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct PathReport {
    #[prost(uint64, tag = "1")]
    pub acknowledged_bytes: u64,
    #[prost(uint64, tag = "2")]
    pub lost_bytes: u64,
}

/// The session is admitted.
#[derive(Clone, PartialEq, Message)]
pub struct Welcome {
    /// For logs at both ends.
    #[prost(string, tag = "1")]
    pub session_id: String,
    #[prost(string, tag = "2")]
    pub replica: String,
    /// Seconds since 1970, by the cloud's clock.
    #[prost(int64, tag = "3")]
    pub time: i64,
    /// Endpoints to dial from now on. Empty: unchanged.
    #[prost(string, repeated, tag = "4")]
    pub endpoints: Vec<String>,
    /// Silence after which the edge sends a ping. Zero: the edge's default.
    #[prost(uint32, tag = "5")]
    pub keepalive_ms: u32,
    /// Time over which to spread the reconnect when this session is lost; it grows with the fleet.
    #[prost(uint32, tag = "6")]
    pub retry_hint_ms: u32,
    /// Renew the certificate now, regardless of its age.
    #[prost(bool, tag = "7")]
    pub renew: bool,
    #[prost(string, repeated, tag = "8")]
    pub features: Vec<String>,
}

/// Reason for which a session is refused, for the program (`code`) and for people (`message`, `hint`).
#[derive(Clone, PartialEq, Eq, Message)]
pub struct SessionRefused {
    #[prost(enumeration = "SessionRefusedCode", tag = "1")]
    pub code: i32,
    #[prost(string, tag = "2")]
    pub message: String,
    /// The action that resolves it.
    #[prost(string, tag = "3")]
    pub hint: String,
    /// Retry only after this time.
    #[prost(uint32, tag = "4")]
    pub retry_after_ms: u32,
    /// With `OlderEpoch`: the epoch to exceed.
    #[prost(uint64, tag = "5")]
    pub current_epoch: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum SessionRefusedCode {
    Other = 0,
    Malformed = 1,
    Version = 2,
    /// A newer session of this gateway exists.
    OlderEpoch = 3,
    Revoked = 4,
    CertificateExpired = 5,
    /// The key is no longer the gateway's.
    NotCurrent = 6,
    /// There is no such EGateway.
    UnknownGateway = 7,
    /// This replica holds its maximum number of sessions.
    Full = 8,
    Draining = 9,
    /// The cloud cannot decide at the moment, for example because the store is unavailable.
    Unavailable = 10,
    /// The certificate names another site than the EGateway. An older edge reads this as `Other` and shows
    /// the message.
    WrongSite = 11,
}

impl SessionRefusedCode {
    /// The word used in logs, metrics and audit lines.
    pub fn word(self) -> &'static str {
        match self {
            SessionRefusedCode::Other => "other",
            SessionRefusedCode::Malformed => "malformed",
            SessionRefusedCode::Version => "version",
            SessionRefusedCode::OlderEpoch => "older-epoch",
            SessionRefusedCode::Revoked => "revoked",
            SessionRefusedCode::CertificateExpired => "certificate-expired",
            SessionRefusedCode::NotCurrent => "not-current",
            SessionRefusedCode::UnknownGateway => "unknown-gateway",
            SessionRefusedCode::Full => "full",
            SessionRefusedCode::Draining => "draining",
            SessionRefusedCode::Unavailable => "unavailable",
            SessionRefusedCode::WrongSite => "wrong-site",
        }
    }
}

impl SessionRefused {
    pub fn new(
        code: SessionRefusedCode,
        message: impl Into<String>,
        hint: impl Into<String>,
    ) -> SessionRefused {
        SessionRefused {
            code: code.into(),
            message: message.into(),
            hint: hint.into(),
            ..SessionRefused::default()
        }
    }

    pub fn reason(&self) -> SessionRefusedCode {
        SessionRefusedCode::try_from(self.code).unwrap_or(SessionRefusedCode::Other)
    }
}

impl std::fmt::Display for SessionRefused {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        frame::write_refusal(formatter, &self.message, &self.hint)
    }
}

impl std::error::Error for SessionRefused {}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Pong {
    #[prost(uint64, tag = "1")]
    pub nonce: u64,
}

/// An encoded `causeway_netmap::NetmapUpdateData`, opaque to this crate.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct NetmapUpdate {
    #[prost(bytes = "bytes", tag = "1")]
    pub update: Bytes,
}

/// All records up to and including `seq` are stored by the cloud.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct SpoolAck {
    #[prost(bytes = "bytes", tag = "1")]
    pub queue_id: Bytes,
    #[prost(uint64, tag = "2")]
    pub seq: u64,
}

/// This replica stops: attach to another one.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct DrainNotice {
    /// Open streams may continue for this time.
    #[prost(uint32, tag = "1")]
    pub deadline_ms: u32,
    /// Reconnect at a random time within this period.
    #[prost(uint32, tag = "2")]
    pub retry_hint_ms: u32,
}

/// The fleet has grown since the welcome. An edge that does not know this message keeps the hint of the
/// welcome.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct ReconnectHint {
    /// As in `Welcome`.
    #[prost(uint32, tag = "1")]
    pub retry_hint_ms: u32,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct EndpointUpdate {
    /// Renew the certificate now, regardless of its age.
    #[prost(bool, tag = "1")]
    pub renew: bool,
    /// Endpoints to dial from now on. Empty: unchanged.
    #[prost(string, repeated, tag = "2")]
    pub endpoints: Vec<String>,
    /// As in `Welcome`, for a session over QUIC. Absent: unchanged. An edge that does not know this field keeps the interval
    /// of the welcome.
    #[prost(uint32, optional, tag = "3")]
    pub keepalive_ms: Option<u32>,
}

macro_rules! wrapped {
    ($whole:ident, $body:ident, $($kind:ident => $message:ty),+) => {
        impl From<$body> for $whole {
            fn from(body: $body) -> $whole {
                $whole { body: Some(body) }
            }
        }

        $(impl From<$message> for $whole {
            fn from(message: $message) -> $whole {
                $body::$kind(message).into()
            }
        })+
    };
}

wrapped!(EdgeMessage, EdgeMessageBody, Hello => Hello, Ping => Ping, NetmapAck => NetmapAck,
    NetmapRefused => NetmapRefused, Spool => SpoolBatch, Goodbye => Goodbye,
    Join => JoinSession, Path => PathQuery, Neighbours => NeighbourQuery);
wrapped!(CloudMessage, CloudMessageBody, Welcome => Welcome, Refused => SessionRefused, Pong => Pong, Netmap => NetmapUpdate,
    SpoolAck => SpoolAck, Drain => DrainNotice, Endpoints => EndpointUpdate, Hint => ReconnectHint,
    Joined => SessionJoined, Path => PathReport);
