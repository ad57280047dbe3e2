//! The fast-moving figures of gateways, joined when somebody reads.
//!
//! Those of edges come from their sessions, here or at another replica; the cloud's own gateway is the cloud itself.

use std::sync::Arc;

use causeway_api::{GatewayStats, Time};
use causeway_apiserver::GatewayStatsSource;

use crate::bootstrap::CLOUD;
use crate::replicas::Fleet;
use crate::sessions::Sessions;

/// The figures of the whole fleet, as this replica knows them.
pub struct FleetStats {
    since: Time,
    sessions: Sessions,
    fleet: Arc<Fleet>,
}

impl FleetStats {
    pub fn new(since: Time, sessions: Sessions, fleet: Arc<Fleet>) -> FleetStats {
        FleetStats { since, sessions, fleet }
    }
}

impl GatewayStatsSource for FleetStats {
    fn gateway(&self, name: &str) -> Option<GatewayStats> {
        if name != CLOUD {
            return self.fleet.remote_figures(name).or_else(|| self.sessions.gateway_figures(name));
        }
        // Whoever can ask has reached it.
        Some(GatewayStats { connected: true, since: Some(self.since), ..GatewayStats::default() })
    }
}
