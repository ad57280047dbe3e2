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

#[cfg(test)]
type TestAnswer = Pin<Box<dyn Future<Output = (u16, String)> + Send>>;

#[cfg(test)]
type TestHandler = dyn Fn(&http::Method, &str) -> TestAnswer + Send + Sync;

/// A cloud that answers requests as a test says, with JSON. It opens streams for requests only, and is always connected.
#[cfg(test)]
pub(crate) struct TestCloud(std::sync::Arc<TestHandler>);

#[cfg(test)]
impl TestCloud {
    pub fn new(answer: impl Fn(&http::Method, &str) -> TestAnswer + Send + Sync + 'static) -> TestCloud {
        TestCloud(std::sync::Arc::new(answer))
    }
}

#[cfg(test)]
impl CloudConnector for TestCloud {
    fn open(&self, target: &'static str) -> ConnectorFuture<'_, Result<BoxedStream, CloudAway>> {
        if target != crate::upstream::REQUEST_TARGET {
            return Box::pin(std::future::ready(Err(CloudAway("the test has no such stream".to_owned()))));
        }
        let (near, far) = tokio::io::duplex(64 << 10);
        let answer = self.0.clone();
        let service = hyper::service::service_fn(move |request: http::Request<hyper::body::Incoming>| {
            let answering = answer(request.method(), request.uri().path());
            async move {
                let (code, body) = answering.await;
                let response = http::Response::builder().status(code);
                response.body(http_body_util::Full::new(bytes::Bytes::from(body)))
            }
        });
        tokio::spawn(async move {
            let far = hyper_util::rt::TokioIo::new(far);
            let _ = hyper::server::conn::http1::Builder::new().serve_connection(far, service).await;
        });
        Box::pin(std::future::ready(Ok(Box::new(near) as BoxedStream)))
    }

    fn is_connected(&self) -> bool {
        true
    }

    fn connected(&self) -> ConnectorFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    fn disconnected(&self) -> ConnectorFuture<'_, ()> {
        Box::pin(std::future::pending())
    }

    fn suspect(&self) {}
}
