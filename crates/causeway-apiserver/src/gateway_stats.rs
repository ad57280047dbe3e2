//! Live figures of gateways. They change too often to be stored, so they are added to tables on reading.

use causeway_api::GatewayStats;

pub trait GatewayStatsSource: Send + Sync + 'static {
    /// Returns the figures by the name of the EGateway; none when there are none.
    fn gateway(&self, name: &str) -> Option<GatewayStats>;
}

/// Has figures for no gateway.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoGatewayStats;

impl GatewayStatsSource for NoGatewayStats {
    fn gateway(&self, _name: &str) -> Option<GatewayStats> {
        None
    }
}
