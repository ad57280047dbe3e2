//! The fast-changing stats of a gateway. They are added on read and never written into objects.

use serde::{Deserialize, Serialize};

use crate::Time;

/// The state of a gateway's channel, as `causeway status --json` shows it.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GatewayStats {
    pub connected: bool,
    /// "quic" or "tcp"; null while disconnected.
    pub transport: Option<String>,
    /// Smoothed round trip in milliseconds.
    pub rtt_ms: Option<f64>,
    /// Bytes sent to the gateway since the channel was opened.
    pub sent_bytes: u64,
    /// Bytes received from the gateway since the channel was opened.
    pub received_bytes: u64,
    /// The time at which the current state, connected or not, began.
    pub since: Option<Time>,
    /// The reason why its last session ended, as in `ObjectStatus::last_disconnect_reason`; null when it is
    /// not known.
    pub last_disconnect_reason: Option<String>,
    /// The netmap the gateway last acknowledged.
    pub generation: Option<String>,
    /// The seconds by which the gateway's clock was ahead of the cloud's when its session began; negative:
    /// behind.
    pub clock_ahead_seconds: Option<i64>,
    /// The expiry of the certificate of the session.
    pub certificate_expires: Option<Time>,
    /// The remote address of the session.
    pub address: Option<String>,
    /// Two processes take the session from each other, as an edge and a copy of its data dir do: the number
    /// of takeovers and the addresses.
    pub takeovers: Option<u64>,
    pub rival_addresses: Vec<String>,
    /// The streams and bytes of each transport of the session, the control link's first.
    pub carries: Vec<TransportStats>,
    /// Why new streams go where they go, as the edge decides.
    pub carries_reason: Option<String>,
    /// Name and version of the program at the other end, as it says; of a gateway that is away, those of its last session. An older
    /// cloud does not send it.
    #[serde(default)]
    pub software: Option<String>,
    /// Planes that the configuration of the gateway switches off: `services`, `layer3`. Absent: none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub switched_off: Vec<String>,
}

impl GatewayStats {
    /// The version of the program, as tables show it. A program that is not ours keeps its name.
    pub fn version(&self) -> Option<&str> {
        version_of(self.software.as_deref()?)
    }
}

/// The version in the name and version of a program. `None`: the gateway has never said it.
pub fn version_of(software: &str) -> Option<&str> {
    Some(software.strip_prefix("causeway ").unwrap_or(software)).filter(|version| !version.is_empty())
}

/// The part of a session that one transport carries.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TransportStats {
    /// "quic" or "tcp".
    pub transport: String,
    /// Streams that are open now.
    pub streams: u64,
    pub sent_bytes: u64,
    pub received_bytes: u64,
}
