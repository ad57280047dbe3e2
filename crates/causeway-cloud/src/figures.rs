//! The fast-moving figures of gateways, joined when somebody reads.
//!
//! Those of edges come from their sessions, here or at another replica; the cloud's own gateway is the cloud itself.

use std::sync::Arc;

use causeway_api::{GatewayFigures, Time};
use causeway_apiserver::LiveFigures;

use crate::first::CLOUD;
use crate::replicas::Fleet;
use crate::sessions::Sessions;

/// The figures of the whole fleet, as this replica knows them.
pub struct FleetFigures {
    since: Time,
    sessions: Sessions,
    fleet: Arc<Fleet>,
}

impl FleetFigures {
    pub fn new(since: Time, sessions: Sessions, fleet: Arc<Fleet>) -> FleetFigures {
        FleetFigures { since, sessions, fleet }
    }
}

impl LiveFigures for FleetFigures {
    fn gateway(&self, name: &str) -> Option<GatewayFigures> {
        if name != CLOUD {
            return self.fleet.remote_figures(name).or_else(|| self.sessions.gateway_figures(name));
        }
        // Whoever can ask has reached it.
        Some(GatewayFigures { connected: true, since: Some(self.since), ..GatewayFigures::default() })
    }
}
