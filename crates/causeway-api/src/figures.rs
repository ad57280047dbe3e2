//! The fast-moving figures of a gateway. They are joined when someone reads, never written into objects.

use serde::{Deserialize, Serialize};

use crate::Time;

/// How a gateway's channel is doing, as `causeway status --json` shows it.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GatewayFigures {
    pub connected: bool,
    /// "quic" or "tcp"; null while disconnected.
    pub transport: Option<String>,
    /// Smoothed round trip in milliseconds.
    pub rtt_ms: Option<f64>,
    /// Bytes sent to the gateway since the channel was opened.
    pub sent_bytes: u64,
    /// Bytes received from the gateway since the channel was opened.
    pub received_bytes: u64,
    /// When the present state, connected or not, began.
    pub since: Option<Time>,
    /// The netmap the gateway last acknowledged.
    pub generation: Option<String>,
}
