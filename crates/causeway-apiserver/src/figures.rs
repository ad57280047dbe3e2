//! Figures that move too fast to be stored: joined into tables when they are read.

use causeway_api::GatewayFigures;

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
