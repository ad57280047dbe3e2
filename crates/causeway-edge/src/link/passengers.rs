//! What others bring to the link: netmaps, the upstream queue, and whoever serves streams of the cloud.
//!
//! Only the faces are here. A session hands over what arrives and sends what it is given; it looks into none of it.

use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use causeway_channel::link::{ResetCode, Stream, StreamHeader};
use causeway_channel::wire::control::{EdgeMessage, Held, NetmapAck, Upstream, UpstreamAck};
use tokio::sync::watch;

pub type Later<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Keeps the netmap.
pub trait Netmaps: Send + Sync {
    /// What is in force, for hello.
    fn held(&self) -> Option<Held>;

    /// Acknowledgements that are no answers: what is in force could not be written, or has been written since.
    fn later_acks(&self) -> watch::Receiver<Option<NetmapAck>>;

    /// Takes an update: in force first, then on disk. The answer, an acknowledgement or a refusal, goes back to the
    /// cloud. One at a time; the future is driven to its end even when the session ends before.
    fn take(&self, update: Bytes) -> Later<'static, EdgeMessage>;
}

/// Keeps records until the cloud has them.
pub trait UpstreamQueue: Send + Sync {
    /// A reader for one session. It begins with the oldest batch that is not acknowledged.
    fn feed(&self) -> Box<dyn UpstreamFeed>;

    fn handle_ack(&self, ack: UpstreamAck);
}

/// The batches of one session.
pub trait UpstreamFeed: Send {
    /// The next batch, when there is one to send. May be dropped and called again.
    fn next(&mut self) -> Later<'_, Upstream>;
}

/// Serves the streams that the cloud opens. Control and probes are answered before it comes to this.
pub trait Streams: Send + Sync {
    fn serve(&self, header: StreamHeader, stream: Stream) -> Later<'static, ()>;
}

/// Everything that rides on the link.
#[derive(Clone)]
pub struct Passengers {
    pub netmaps: Arc<dyn Netmaps>,
    pub upstream: Arc<dyn UpstreamQueue>,
    pub streams: Arc<dyn Streams>,
}

impl Passengers {
    /// An edge that takes nothing and has nothing to say.
    pub fn none() -> Passengers {
        Passengers { netmaps: Arc::new(Nothing), upstream: Arc::new(Nothing), streams: Arc::new(Nothing) }
    }
}

struct Nothing;

impl Netmaps for Nothing {
    fn held(&self) -> Option<Held> {
        None
    }

    fn later_acks(&self) -> watch::Receiver<Option<NetmapAck>> {
        watch::channel(None).1
    }

    fn take(&self, _: Bytes) -> Later<'static, EdgeMessage> {
        // A message of no kind: the cloud reads it as one from a newer edge, and ignores it.
        Box::pin(async { EdgeMessage::default() })
    }
}

impl UpstreamQueue for Nothing {
    fn feed(&self) -> Box<dyn UpstreamFeed> {
        Box::new(Nothing)
    }

    fn handle_ack(&self, _: UpstreamAck) {}
}

impl UpstreamFeed for Nothing {
    fn next(&mut self) -> Later<'_, Upstream> {
        Box::pin(std::future::pending())
    }
}

impl Streams for Nothing {
    fn serve(&self, _: StreamHeader, stream: Stream) -> Later<'static, ()> {
        Box::pin(async move { stream.refuse(ResetCode::NotAllowed) })
    }
}
