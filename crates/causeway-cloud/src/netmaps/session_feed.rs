//! Implements the netmap traits of sessions for `NetmapPublisher` and `NetmapFeed`.
//!
//! The name of the gateway comes from its certificate. The held netmap comes from its hello; a wrong claim
//! costs it a whole netmap.

use causeway_channel::PeerId;
use causeway_channel::wire::control::{
    FEATURE_NEIGHBOURS, Hello, NeighbourQuery, NetmapAck, NetmapRefused, NetmapUpdate,
};

use super::{NetmapFeed, NetmapPublisher, stamp};
use crate::sessions::{NetmapSender, NetmapSource, SessionFuture};

impl NetmapSource for NetmapPublisher {
    fn open(&self, peer: &PeerId, hello: &Hello) -> Box<dyn NetmapSender> {
        let held = hello.held.as_ref().and_then(stamp);
        let asks = hello.features.iter().any(|feature| feature == FEATURE_NEIGHBOURS);
        self.restore_neighbours(peer.gateway(), held, asks.then_some(hello.neighbours.as_slice()));
        Box::new(self.attach_from(peer.gateway(), Some(peer.site()), held))
    }
}

impl NetmapSender for NetmapFeed {
    fn next(&mut self) -> SessionFuture<'_, NetmapUpdate> {
        Box::pin(async move { NetmapUpdate { update: self.next_update().await } })
    }

    fn handle_ack(&mut self, ack: NetmapAck) {
        self.acknowledged(&ack);
    }

    fn handle_refused(&mut self, refused: NetmapRefused) {
        self.refused(&refused);
    }

    fn handle_neighbours(&mut self, query: NeighbourQuery) {
        self.asked(&query);
    }
}
