//! The users of the link: the netmap, the spool, and the handler of streams that the cloud opens.
//!
//! Only traits are here. A session passes messages to them and sends their messages without interpreting
//! either.

use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use causeway_channel::link::{ResetCode, Stream, StreamHeader};
use causeway_channel::session::TransportPreference;
use causeway_channel::wire::control::{
    EdgeMessage, HeldNetmap, NeighbourQuery, NetmapAck, SpoolAck, SpoolBatch, TunnelReport,
};
use tokio::sync::watch;

pub type LinkFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Keeps the netmap.
pub trait NetmapHandler: Send + Sync {
    /// The netmap in force, for hello.
    fn held(&self) -> Option<HeldNetmap>;

    /// Acknowledgements that are no responses: the netmap in force could not be written, or has been written
    /// since.
    fn later_acks(&self) -> watch::Receiver<Option<NetmapAck>>;

    /// The transport that the netmap prefers for streams. None: there is no netmap yet.
    fn preference(&self) -> Option<TransportPreference> {
        Some(TransportPreference::Auto)
    }

    /// Applies an update: puts it in force first, then on disk. The response, an acknowledgement or a
    /// refusal, is sent to the cloud. One at a time; the future is driven to its end even when the session
    /// ends before.
    fn take(&self, update: Bytes) -> LinkFuture<'static, EdgeMessage>;
}

/// Keeps records until the cloud has them.
pub trait SpoolQueue: Send + Sync {
    /// A reader for one session. It begins with the oldest batch that is not acknowledged.
    fn feed(&self) -> Box<dyn SpoolFeed>;

    fn handle_ack(&self, ack: SpoolAck);
}

/// The batches of one session.
pub trait SpoolFeed: Send {
    /// The next batch, when there is one to send. May be dropped and called again.
    fn next(&mut self) -> LinkFuture<'_, SpoolBatch>;
}

/// Asks the cloud for members of large communities.
pub trait NeighbourAsker: Send + Sync {
    /// The sites of the peers in the netmap in force, for hello.
    fn neighbours(&self) -> Vec<String>;

    /// The next questions, when there are some. May be dropped and called again.
    fn next(&self) -> LinkFuture<'_, NeighbourQuery>;
}

/// Serves the streams that the cloud opens. The control stream and probes are handled before.
pub trait CloudStreamHandler: Send + Sync {
    /// Starts to serve a stream. Returns at once.
    fn serve(&self, header: StreamHeader, stream: Stream);
}

/// All users of the link.
#[derive(Clone)]
pub struct LinkServices {
    pub netmaps: Arc<dyn NetmapHandler>,
    pub spool: Arc<dyn SpoolQueue>,
    pub streams: Arc<dyn CloudStreamHandler>,
    pub neighbours: Arc<dyn NeighbourAsker>,
    /// The tunnel of this gateway, for hello. None: it has none.
    pub tunnel: Option<TunnelReport>,
    /// Planes that the configuration switches off, for hello.
    pub switched_off: Vec<String>,
}

impl LinkServices {
    /// An edge that accepts nothing and sends nothing.
    pub fn none() -> LinkServices {
        LinkServices {
            netmaps: Arc::new(Nothing),
            spool: Arc::new(Nothing),
            streams: Arc::new(Nothing),
            neighbours: Arc::new(Nothing),
            tunnel: None,
            switched_off: Vec::new(),
        }
    }
}

struct Nothing;

impl NetmapHandler for Nothing {
    fn held(&self) -> Option<HeldNetmap> {
        None
    }

    fn later_acks(&self) -> watch::Receiver<Option<NetmapAck>> {
        watch::channel(None).1
    }

    fn take(&self, _: Bytes) -> LinkFuture<'static, EdgeMessage> {
        // A message of no kind: the cloud reads it as one from a newer edge, and ignores it.
        Box::pin(async { EdgeMessage::default() })
    }
}

impl SpoolQueue for Nothing {
    fn feed(&self) -> Box<dyn SpoolFeed> {
        Box::new(Nothing)
    }

    fn handle_ack(&self, _: SpoolAck) {}
}

impl SpoolFeed for Nothing {
    fn next(&mut self) -> LinkFuture<'_, SpoolBatch> {
        Box::pin(std::future::pending())
    }
}

impl NeighbourAsker for Nothing {
    fn neighbours(&self) -> Vec<String> {
        Vec::new()
    }

    fn next(&self) -> LinkFuture<'_, NeighbourQuery> {
        Box::pin(std::future::pending())
    }
}

impl CloudStreamHandler for Nothing {
    fn serve(&self, _: StreamHeader, stream: Stream) {
        stream.refuse(ResetCode::NotAllowed);
    }
}
