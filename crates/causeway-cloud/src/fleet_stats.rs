//! Figures of gateways that change often, added when an EGateway is read, and whether a gateway has a session.
//!
//! Figures of edges come from their sessions, at this replica or at another one; the cloud's own gateway is the cloud itself.

use std::sync::Arc;

use causeway_api::{GatewayStats, Time};
use causeway_apiserver::GatewayStatsSource;
use causeway_apiserver::registry::SessionLookup;

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
        // A client that can ask has reached it.
        Some(GatewayStats { connected: true, since: Some(self.since), ..GatewayStats::default() })
    }
}

impl SessionLookup for FleetStats {
    fn has_session(&self, gateway: &str) -> bool {
        self.fleet.is_attached(gateway)
    }
}
