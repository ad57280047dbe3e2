//! The channel port of this replica: its links go to enrolment, to sessions or to the fleet of replicas.
//!
//! One loop and one port; nothing is decided here. Strangers are kept in bounds by the port, enrolment by its
//! own limits, links by their handler.

use std::pin::Pin;
use std::sync::Arc;

use causeway_channel::port::{ChannelPort, HandshakeSlot, IncomingLink};
use causeway_channel::{CloseCode, CloseReason, Link};
use tokio_util::sync::CancellationToken;

use crate::identity::EnrolmentServer;

/// Takes the links that the port has accepted. Their certificate is verified but for time and revocation.
pub trait LinkHandler: Send + Sync {
    /// From an edge. Must not block: start a task, which keeps the turn until the edge has its answer.
    fn handle_channel(&self, link: Link, turn: HandshakeSlot);
    /// From another replica.
    fn handle_replica(&self, link: Link);
    /// No more links will come: ends the sessions.
    fn drain(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>>;
}

/// Sends every link away.
pub struct NoLinks;

impl LinkHandler for NoLinks {
    fn handle_channel(&self, link: Link, _: HandshakeSlot) {
        link.close(CloseReason::new(CloseCode::NotAdmitted, "this server accepts no sessions"));
    }

    fn handle_replica(&self, link: Link) {
        link.close(CloseReason::new(CloseCode::NotAdmitted, "this server accepts no sessions"));
    }

    fn drain(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(std::future::ready(()))
    }
}

pub struct ChannelServer {
    pub port: ChannelPort,
    pub enrolment: EnrolmentServer,
    pub links: Arc<dyn LinkHandler>,
}

impl ChannelServer {
    /// Accepts peers until `stop`, then lets open links end.
    pub async fn run(self, stop: CancellationToken) {
        let ChannelServer { mut port, enrolment, links } = self;
        loop {
            let incoming = tokio::select! {
                biased;
                () = stop.cancelled() => break,
                incoming = port.accept() => incoming,
            };
            match incoming {
                IncomingLink::Enrolment(link, client) => enrolment.admit(link, client),
                IncomingLink::Channel(link, turn) => links.handle_channel(link, turn),
                IncomingLink::Replica(link) => links.handle_replica(link),
            }
        }
        let stopped = port.stop();
        tokio::join!(enrolment.drain(), links.drain());
        stopped.farewell().await;
    }
}
