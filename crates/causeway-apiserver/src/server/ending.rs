//! Counts the requests of one connection that are not answered to their last byte, so that an idle one can be closed.
//!
//! A request counts from its head until the body of its response was taken by HTTP, or dropped.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http_body::{Body, Frame, SizeHint};
use tokio::sync::watch;

/// The requests of one connection.
#[derive(Clone)]
pub struct Requests(Arc<watch::Sender<usize>>);

impl Default for Requests {
    fn default() -> Requests {
        Requests(Arc::new(watch::Sender::new(0)))
    }
}

/// What HTTP has taken has this long to leave, and the peer to say that it has seen the end.
const LAST_BYTES: Duration = Duration::from_millis(250);

impl Requests {
    /// A request has come; it counts until the value is dropped.
    pub fn begin(&self) -> Counter {
        self.0.send_modify(|count| *count += 1);
        Counter(self.clone())
    }

    /// Resolves when there has been no request for a moment.
    pub async fn finished(&self) {
        let mut count = self.0.subscribe();
        loop {
            let _ = count.wait_for(|count| *count == 0).await;
            let more = count.wait_for(|count| *count > 0);
            if tokio::time::timeout(LAST_BYTES, more).await.is_err() {
                return;
            }
        }
    }
}

/// One request.
pub struct Counter(Requests);

impl Drop for Counter {
    fn drop(&mut self) {
        self.0.0.send_modify(|count| *count -= 1);
    }
}

/// The body of a response; its request counts as long as there is more of it.
pub struct CountedBody<B> {
    body: B,
    _counter: Counter,
}

impl<B> CountedBody<B> {
    pub fn new(body: B, counter: Counter) -> CountedBody<B> {
        CountedBody { body, _counter: counter }
    }
}

impl<B: Body + Unpin> Body for CountedBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
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
}
