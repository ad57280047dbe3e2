//! The fast-moving figures of gateways, joined when somebody reads.
//!
//! Those of edges come from their sessions; the cloud's own gateway is the cloud itself.

use causeway_api::{GatewayFigures, Time};
use causeway_apiserver::LiveFigures;

use crate::first::CLOUD;
use crate::sessions::Sessions;

/// The figures of the whole fleet, as this replica knows them.
pub struct FleetFigures {
    since: Time,
    sessions: Sessions,
}

impl FleetFigures {
    pub fn new(since: Time, sessions: Sessions) -> FleetFigures {
        FleetFigures { since, sessions }
    }
}

impl LiveFigures for FleetFigures {
    fn gateway(&self, name: &str) -> Option<GatewayFigures> {
        if name != CLOUD {
            return self.sessions.gateway_figures(name);
        }
        // Whoever can ask has reached it.
        Some(GatewayFigures { connected: true, since: Some(self.since), ..GatewayFigures::default() })
    }
}
