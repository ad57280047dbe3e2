//! The fast-moving figures of gateways, joined when somebody reads.
//!
//! Channels bring their own with their sessions; until then the cloud knows only its own gateway, which is itself.

use causeway_api::{GatewayFigures, Time};
use causeway_apiserver::LiveFigures;

use crate::first::CLOUD;

/// The figures of the whole fleet, as this replica knows them.
pub struct FleetFigures {
    since: Time,
}

impl FleetFigures {
    pub fn new(since: Time) -> FleetFigures {
        FleetFigures { since }
    }
}

impl LiveFigures for FleetFigures {
    fn gateway(&self, name: &str) -> Option<GatewayFigures> {
        // Whoever can ask has reached it.
        (name == CLOUD).then(|| GatewayFigures {
            connected: true,
            since: Some(self.since),
            ..GatewayFigures::default()
        })
    }
}
