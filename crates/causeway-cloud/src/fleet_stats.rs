//! Stats of gateways that change often, added when an EGateway is read, and whether a gateway has a
//! session.
//!
//! Stats of edges come from their sessions, at this replica or at another one; the cloud's own gateway is
//! the cloud itself.

use std::sync::Arc;

use causeway_api::{GatewayStats, Time};
use causeway_apiserver::GatewayStatsSource;
use causeway_apiserver::registry::SessionLookup;
use causeway_gateway::Gateway;

use crate::bootstrap::CLOUD;
use crate::replicas::{Fleet, GatewayLocation, SessionDirectory};
use crate::sessions::{LiveSessions, Sessions};

/// The stats of the whole fleet, as this replica knows them.
pub struct FleetStats {
    since: Time,
    sessions: Sessions,
    fleet: Arc<Fleet>,
    /// Planes that the configuration of this replica switches off.
    switched_off: Vec<String>,
}

impl FleetStats {
    pub fn new(since: Time, sessions: Sessions, fleet: Arc<Fleet>, gateway: &Gateway) -> FleetStats {
        let switched_off = gateway.switched_off().iter().map(|plane| plane.word().to_owned()).collect();
        FleetStats { since, sessions, fleet, switched_off }
    }
}

impl GatewayStatsSource for FleetStats {
    fn gateway(&self, name: &str) -> Option<GatewayStats> {
        if name != CLOUD {
            return self.fleet.remote_stats(name).or_else(|| self.sessions.gateway_stats(name));
        }
        // A client that can ask has reached it.
        let software = Some(concat!("causeway ", env!("CARGO_PKG_VERSION")).to_owned());
        let (since, switched_off) = (Some(self.since), self.switched_off.clone());
        Some(GatewayStats { connected: true, since, software, switched_off, ..GatewayStats::default() })
    }
}

/// The sessions of the whole fleet: at this replica, and at other replicas as the directory knows them.
pub struct FleetSessions {
    pub directory: Arc<SessionDirectory>,
    pub live: LiveSessions,
}

impl SessionLookup for FleetSessions {
    fn has_session(&self, gateway: &str) -> bool {
        self.directory.location_of(gateway) != GatewayLocation::Nowhere || self.live.has_session(gateway)
    }
}
