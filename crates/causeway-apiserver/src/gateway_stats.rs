//! Live stats of gateways. They change too often to be stored, so they are added to tables on reading.

use causeway_api::GatewayStats;

pub trait GatewayStatsSource: Send + Sync + 'static {
    /// Returns the stats by the name of the EGateway; none when there are none.
    fn gateway(&self, name: &str) -> Option<GatewayStats>;
}

/// Has stats for no gateway.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoGatewayStats;

impl GatewayStatsSource for NoGatewayStats {
    fn gateway(&self, _name: &str) -> Option<GatewayStats> {
        None
    }
}
