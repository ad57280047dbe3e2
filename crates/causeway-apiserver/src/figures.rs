//! Figures that move too fast to be stored: joined into tables when they are read.

use std::time::Duration;

use jiff::Timestamp;

#[derive(Debug, Clone, PartialEq)]
pub struct GatewayFigures {
    pub connected: bool,
    /// "quic" or "tcp"; none while disconnected.
    pub transport: Option<String>,
    pub rtt: Option<Duration>,
    pub sent_bytes: u64,
    pub received_bytes: u64,
    /// When the present state (connected or not) began.
    pub since: Option<Timestamp>,
    /// The netmap generation that the gateway has acknowledged.
    pub generation: Option<String>,
}

pub trait LiveFigures: Send + Sync + 'static {
    /// By the name of the EGateway; none when nothing is known of it.
    fn gateway(&self, name: &str) -> Option<GatewayFigures>;
}

/// Knows nothing of any gateway.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoFigures;

impl LiveFigures for NoFigures {
    fn gateway(&self, _name: &str) -> Option<GatewayFigures> {
        None
    }
}
