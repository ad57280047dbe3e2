//! Finds out when a connection of a stopping server is idle: no request is unanswered and no byte of an answer is unsent.
//!
//! A request counts from its head until HTTP has taken the last part of the response's body, or the body was dropped.
//! Bodies are handed over in parts, so that HTTP holds little of an answer that a slow client has not received yet.
//! Bytes that HTTP holds, or that TLS holds, count as unsent until the transport was flushed.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::watch;

/// The requests and unsent bytes of one connection.
#[derive(Clone)]
pub struct Requests(Arc<watch::Sender<Activity>>);

#[derive(Clone, Copy, Default)]
struct Activity {
    requests: usize,
    has_unsent_bytes: bool,
}

impl Activity {
    fn is_idle(&self) -> bool {
        self.requests == 0 && !self.has_unsent_bytes
    }
}

impl Default for Requests {
    fn default() -> Requests {
        Requests(Arc::new(watch::Sender::new(Activity::default())))
    }
}

/// The time that the peer has to read the last bytes and to close an idle connection by itself.
const LAST_BYTES: Duration = Duration::from_millis(250);
/// The largest part of a body that is handed to HTTP at once.
const PART_BYTES_MAX: usize = 64 << 10;

impl Requests {
    /// Counts a request until the returned value is dropped.
    pub fn begin(&self) -> Counter {
        self.0.send_modify(|activity| activity.requests += 1);
        Counter(self.clone())
    }

    /// Tracks the unsent bytes of the connection's transport.
    pub fn track<S>(&self, stream: S) -> TrackedStream<S> {
        TrackedStream { inner: stream, has_unsent_bytes: false, requests: self.clone() }
    }

    /// Resolves when the connection has been idle for a moment.
    pub async fn finished(&self) {
        let mut activity = self.0.subscribe();
        loop {
            let _ = activity.wait_for(Activity::is_idle).await;
            let busy = activity.wait_for(|activity| !activity.is_idle());
            if tokio::time::timeout(LAST_BYTES, busy).await.is_err() {
                return;
            }
        }
    }
}

/// One request.
pub struct Counter(Requests);

impl Drop for Counter {
    fn drop(&mut self) {
        self.0.0.send_modify(|activity| activity.requests -= 1);
    }
}

/// The body of a response, in parts. Its request counts until HTTP has asked for more than the last part.
pub struct CountedBody<B> {
    body: B,
    /// Bytes of the body's last frame that were not handed over yet.
    rest: Bytes,
    /// The end is reported by a frame of its own: HTTP/2 asks for it only when the client's window has room for all bytes
    /// before it.
    is_ended: bool,
    _counter: Counter,
}

impl<B: Body> CountedBody<B> {
    pub fn new(body: B, counter: Counter) -> CountedBody<B> {
        let is_ended = body.is_end_stream();
        CountedBody { body, rest: Bytes::new(), is_ended, _counter: counter }
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for CountedBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        if self.rest.is_empty() {
            match ready!(Pin::new(&mut self.body).poll_frame(context)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.rest = data,
                    Err(other) => return Poll::Ready(Some(Ok(other))),
                },
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => {
                    self.is_ended = true;
                    return Poll::Ready(None);
                }
            }
        }
        let size = self.rest.len().min(PART_BYTES_MAX);
        Poll::Ready(Some(Ok(Frame::data(self.rest.split_to(size)))))
    }

    fn is_end_stream(&self) -> bool {
        self.is_ended
    }

    fn size_hint(&self) -> SizeHint {
        let unsent = self.rest.len() as u64;
        let body = self.body.size_hint();
        let mut hint = SizeHint::new();
        hint.set_lower(body.lower() + unsent);
        if let Some(upper) = body.upper() {
            hint.set_upper(upper + unsent);
        }
        hint
    }
}

/// The transport of a connection. Reports whether bytes wait in it or before it.
pub struct TrackedStream<S> {
    inner: S,
    has_unsent_bytes: bool,
    requests: Requests,
}

impl<S> TrackedStream<S> {
    fn set_unsent(&mut self, has_unsent_bytes: bool) {
        if self.has_unsent_bytes != has_unsent_bytes {
            self.has_unsent_bytes = has_unsent_bytes;
            self.requests.0.send_modify(|activity| activity.has_unsent_bytes = has_unsent_bytes);
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for TrackedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TrackedStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.inner).poll_write(context, bytes);
        if polled.is_pending() {
            self.set_unsent(true);
        }
        polled
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.inner).poll_write_vectored(context, bytes);
        if polled.is_pending() {
            self.set_unsent(true);
        }
        polled
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    /// HTTP flushes when it has written everything it holds.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.inner).poll_flush(context);
        self.set_unsent(polled.is_pending());
        polled
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_idle_when_its_last_response_is_gone() {
        let requests = Requests::default();
        requests.finished().await;
        let (one, two) = (requests.begin(), requests.begin());
        let mut finished = Box::pin(requests.finished());
        let is_waiting = tokio::time::timeout(Duration::from_secs(9), &mut finished).await.is_err();
        assert!(is_waiting, "two requests are under way");
        drop(one);
        let is_waiting = tokio::time::timeout(Duration::from_secs(9), &mut finished).await.is_err();
        assert!(is_waiting, "one is left");
        drop(two);
        tokio::time::timeout(Duration::from_secs(9), finished).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_with_unsent_bytes_is_not_idle() {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let requests = Requests::default();
        let (near, mut far) = tokio::io::duplex(10);
        let mut near = requests.track(near);
        let writing = tokio::spawn(async move {
            near.write_all(&[0; 25]).await.unwrap();
            near.flush().await.unwrap();
            near
        });
        let mut finished = Box::pin(async { requests.finished().await });
        tokio::task::yield_now().await;
        let is_waiting = tokio::time::timeout(Duration::from_secs(9), &mut finished).await.is_err();
        assert!(is_waiting, "the peer has not read");
        far.read_exact(&mut [0; 25]).await.unwrap();
        let _near = writing.await.unwrap();
        tokio::time::timeout(Duration::from_secs(9), finished).await.unwrap();
    }
}
