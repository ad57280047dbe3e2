//! The way from the edge to its cloud, as the role gives it to this crate.

use std::pin::Pin;

use tokio::io::{AsyncRead, AsyncWrite};

/// A stream to the cloud.
pub trait CloudStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> CloudStream for T {}

pub type BoxedStream = Box<dyn CloudStream>;
pub type ConnectorFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The cloud cannot be reached now.
#[derive(Debug, Clone, thiserror::Error)]
#[error("the cloud cannot be reached: {0}")]
pub struct CloudAway(pub String);

/// Opens streams to the cloud.
pub trait CloudConnector: Send + Sync + 'static {
    /// Opens a stream for a target (`upstream::SYNC_TARGET`, `upstream::REQUEST_TARGET`). Fails within 3 s.
    fn open(&self, target: &'static str) -> ConnectorFuture<'_, Result<BoxedStream, CloudAway>>;

    fn is_connected(&self) -> bool;

    /// Resolves when a link is in use, at once if one is.
    fn connected(&self) -> ConnectorFuture<'_, ()>;

    /// Resolves when the link is lost or replaced.
    fn disconnected(&self) -> ConnectorFuture<'_, ()>;

    /// A stream makes no progress: the link is checked.
    fn suspect(&self);
}
