//! Figures that move too fast to be stored: joined into tables when they are read.

use causeway_api::GatewayStats;

pub trait GatewayStatsSource: Send + Sync + 'static {
    /// By the name of the EGateway; none when nothing is known of it.
    fn gateway(&self, name: &str) -> Option<GatewayStats>;
}

/// Knows nothing of any gateway.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoGatewayStats;

impl GatewayStatsSource for NoGatewayStats {
    fn gateway(&self, _name: &str) -> Option<GatewayStats> {
        None
    }
}
