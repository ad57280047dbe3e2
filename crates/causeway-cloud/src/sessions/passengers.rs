//! What others bring to the sessions of a cloud: netmaps down, records up, and whoever serves streams of edges.
//!
//! Only the faces are here. A session hands over what arrives and sends what it is given; it looks into none of it.

use std::pin::Pin;
use std::sync::Arc;

use causeway_channel::PeerId;
use causeway_channel::link::{ResetCode, Stream, StreamHeader};
use causeway_channel::wire::control::{Hello, NetmapAck, NetmapRefused, NetmapUpdate, Upstream, UpstreamAck};

pub type Later<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Makes the netmap of every gateway.
pub trait Netmaps: Send + Sync {
    /// The sender for one session. `hello` says what the edge holds.
    fn open(&self, peer: &PeerId, hello: &Hello) -> Box<dyn NetmapSender>;
}

/// Keeps one edge in step for the time of one session.
pub trait NetmapSender: Send {
    /// The next update, when there is one to send; at most one is under way. May be dropped and called again.
    fn next(&mut self) -> Later<'_, NetmapUpdate>;

    fn handle_ack(&mut self, ack: NetmapAck);

    fn handle_refused(&mut self, refused: NetmapRefused);
}

/// Takes the records of edges.
pub trait UpstreamSink: Send + Sync {
    /// Keeps a batch; the acknowledgement goes back. `None`: not kept, the edge will send it again in its next session.
    fn take(&self, peer: &PeerId, batch: Upstream) -> Later<'static, Option<UpstreamAck>>;
}

/// Serves the streams that edges open. Control and probes are answered before it comes to this.
pub trait Streams: Send + Sync {
    fn serve(&self, peer: &PeerId, header: StreamHeader, stream: Stream) -> Later<'static, ()>;
}

/// Everything that rides on sessions.
#[derive(Clone)]
pub struct Passengers {
    pub netmaps: Arc<dyn Netmaps>,
    pub upstream: Arc<dyn UpstreamSink>,
    pub streams: Arc<dyn Streams>,
}

impl Passengers {
    /// A cloud that sends nothing and keeps nothing.
    pub fn none() -> Passengers {
        Passengers { netmaps: Arc::new(Nothing), upstream: Arc::new(Nothing), streams: Arc::new(Nothing) }
    }
}

struct Nothing;

impl Netmaps for Nothing {
    fn open(&self, _: &PeerId, _: &Hello) -> Box<dyn NetmapSender> {
        Box::new(Nothing)
    }
}

impl NetmapSender for Nothing {
    fn next(&mut self) -> Later<'_, NetmapUpdate> {
        Box::pin(std::future::pending())
    }

    fn handle_ack(&mut self, _: NetmapAck) {}

    fn handle_refused(&mut self, _: NetmapRefused) {}
}

impl UpstreamSink for Nothing {
    fn take(&self, _: &PeerId, _: Upstream) -> Later<'static, Option<UpstreamAck>> {
        Box::pin(async { None })
    }
}

impl Streams for Nothing {
    fn serve(&self, _: &PeerId, _: StreamHeader, stream: Stream) -> Later<'static, ()> {
        Box::pin(async move { stream.refuse(ResetCode::NotAllowed) })
    }
}
