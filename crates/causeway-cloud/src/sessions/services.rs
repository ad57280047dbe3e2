//! Traits of the services that use sessions: netmaps to edges, records from edges, and streams that edges
//! open.
//!
//! Only the traits are here. A session hands over received messages and sends given ones; it does not look
//! into them.

use std::pin::Pin;
use std::sync::Arc;

use causeway_channel::PeerId;
use causeway_channel::link::{ResetCode, Stream, StreamHeader};
use causeway_channel::wire::control::{
    Hello, NeighbourQuery, NetmapAck, NetmapRefused, NetmapUpdate, SpoolAck, SpoolBatch,
};

use crate::tunnels::TunnelReports;

pub type SessionFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Makes the netmap of every gateway.
pub trait NetmapSource: Send + Sync {
    /// The sender for one session. `hello` names the netmap that the edge holds.
    fn open(&self, peer: &PeerId, hello: &Hello) -> Box<dyn NetmapSender>;
}

/// Keeps one edge in step for the time of one session.
pub trait NetmapSender: Send {
    /// The next update, when there is one to send; at most one is under way. May be dropped and called again.
    fn next(&mut self) -> SessionFuture<'_, NetmapUpdate>;

    fn handle_ack(&mut self, ack: NetmapAck);

    fn handle_refused(&mut self, refused: NetmapRefused);

    /// Questions for members of large communities. The response is an update.
    fn handle_neighbours(&mut self, query: NeighbourQuery);
}

/// Takes the records of edges.
pub trait SpoolSink: Send + Sync {
    /// Keeps a batch; the acknowledgement goes back. `None`: not kept, the edge will send it again in its
    /// next session.
    fn take(&self, peer: &PeerId, batch: SpoolBatch) -> SessionFuture<'static, Option<SpoolAck>>;
}

/// Serves the streams that edges open. Control and probes are answered before it comes to this.
pub trait EdgeStreamHandler: Send + Sync {
    fn serve(&self, peer: &PeerId, header: StreamHeader, stream: Stream) -> SessionFuture<'static, ()>;
}

/// Tells whether a gateway is attached to another replica.
pub type IsElsewhere = Arc<dyn Fn(&str) -> bool + Send + Sync>;

/// The parts of the cloud that sessions use.
#[derive(Clone)]
pub struct SessionServices {
    pub netmaps: Arc<dyn NetmapSource>,
    pub spool: Arc<dyn SpoolSink>,
    /// `None`: the condition Connected is not written.
    pub is_elsewhere: Option<IsElsewhere>,
    /// Takes the tunnels that gateways report.
    pub tunnels: Option<TunnelReports>,
}

impl SessionServices {
    /// A cloud that sends nothing and keeps nothing.
    pub fn none() -> SessionServices {
        SessionServices {
            netmaps: Arc::new(Nothing),
            spool: Arc::new(Nothing),
            is_elsewhere: None,
            tunnels: None,
        }
    }
}

/// Refuses every stream that an edge opens.
pub fn no_streams() -> Arc<dyn EdgeStreamHandler> {
    Arc::new(Nothing)
}

struct Nothing;

impl NetmapSource for Nothing {
    fn open(&self, _: &PeerId, _: &Hello) -> Box<dyn NetmapSender> {
        Box::new(Nothing)
    }
}

impl NetmapSender for Nothing {
    fn next(&mut self) -> SessionFuture<'_, NetmapUpdate> {
        Box::pin(std::future::pending())
    }

    fn handle_ack(&mut self, _: NetmapAck) {}

    fn handle_refused(&mut self, _: NetmapRefused) {}

    fn handle_neighbours(&mut self, _: NeighbourQuery) {}
}

impl SpoolSink for Nothing {
    fn take(&self, _: &PeerId, _: SpoolBatch) -> SessionFuture<'static, Option<SpoolAck>> {
        Box::pin(async { None })
    }
}

impl EdgeStreamHandler for Nothing {
    fn serve(&self, _: &PeerId, _: StreamHeader, stream: Stream) -> SessionFuture<'static, ()> {
        Box::pin(async move { stream.refuse(ResetCode::NotAllowed) })
    }
}
