//! Bodies of requests and responses: counts and throttles them, delays them until the next hop reads, and
//! ties them to the audit record of their request.
//!
//! Nothing is buffered: a chunk is forwarded when the next hop asks for it, so a slow reader applies
//! backpressure to the writer.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use causeway_channel::link::ResetCode;
use futures_util::task::AtomicWaker;
use http::Response;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

use super::connection::RequestGuard;
use super::pool::PoolLease;
use crate::audit::ConnectionEnd;
use crate::connection_record::{ByteMeter, ConnectionRecord};
use crate::limits::ByteDirection;
use crate::live::{CutReason, LiveConnection};
use crate::peers::BoxedFuture;

/// The body of a request, from the client to the backend.
pub struct RequestBody {
    inner: Option<Incoming>,
    meter: Option<Arc<ByteMeter>>,
    gate: Option<Arc<BodyGate>>,
    done: Arc<AtomicBool>,
    held: Option<Held>,
}

/// A chunk that waits for its turns under a limit of bytes per second. The granted part moves at once.
struct Held {
    rest: Bytes,
    turn: BoxedFuture<'static, usize>,
}

impl Held {
    fn new(rest: Bytes, meter: Arc<ByteMeter>, way: ByteDirection) -> Held {
        let bytes = rest.len();
        Held { rest, turn: Box::pin(async move { meter.take(way, bytes).await.min(bytes) }) }
    }
}

/// Splits a chunk into the part that may move now and the part that must wait.
fn admit(frame: Frame<Bytes>, meter: &Arc<ByteMeter>, way: ByteDirection) -> Result<Frame<Bytes>, Held> {
    let data = match frame.into_data() {
        Ok(data) => data,
        Err(trailers) => return Ok(trailers),
    };
    if meter.is_free() || data.is_empty() {
        meter.add(way, data.len());
        return Ok(Frame::data(data));
    }
    Err(Held::new(data, meter.clone(), way))
}

/// Returns the next part of the waiting chunk; None if no chunk waits.
fn poll_held(
    held: &mut Option<Held>,
    meter: Option<&Arc<ByteMeter>>,
    way: ByteDirection,
    context: &mut Context<'_>,
) -> Poll<Option<Frame<Bytes>>> {
    let Some(waiting) = held else { return Poll::Ready(None) };
    let granted = std::task::ready!(waiting.turn.as_mut().poll(context));
    let part = waiting.rest.split_to(granted);
    let rest = std::mem::take(&mut waiting.rest);
    *held = None;
    if let Some(meter) = meter {
        meter.add(way, part.len());
        *held = (!rest.is_empty()).then(|| Held::new(rest, meter.clone(), way));
    }
    Poll::Ready(Some(Frame::data(part)))
}

impl RequestBody {
    pub fn new(inner: Incoming, meter: Arc<ByteMeter>) -> RequestBody {
        let done = Arc::new(AtomicBool::new(inner.is_end_stream()));
        RequestBody { inner: Some(inner), meter: Some(meter), gate: None, done, held: None }
    }

    /// An empty body, for a request that is sent again.
    pub fn empty() -> RequestBody {
        RequestBody {
            inner: None,
            meter: None,
            gate: None,
            done: Arc::new(AtomicBool::new(true)),
            held: None,
        }
    }

    /// Delays the body until the gate opens: the client waits for `100 Continue` before it sends it.
    pub fn behind(mut self, gate: Arc<BodyGate>) -> RequestBody {
        self.gate = Some(gate);
        self
    }

    /// Becomes true when the whole body was forwarded.
    pub fn done(&self) -> Arc<AtomicBool> {
        self.done.clone()
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let this = &mut *self;
        if let Some(gate) = &this.gate {
            std::task::ready!(gate.poll_open(context));
            this.gate = None;
        }
        let Some(inner) = &mut this.inner else { return Poll::Ready(None) };
        let mut next = None;
        if this.held.is_none() {
            match (std::task::ready!(Pin::new(&mut *inner).poll_frame(context)), &this.meter) {
                (Some(Ok(frame)), Some(meter)) => match admit(frame, meter, ByteDirection::Sent) {
                    Ok(frame) => next = Some(frame),
                    Err(held) => this.held = Some(held),
                },
                (Some(polled), _) => return Poll::Ready(Some(polled)),
                (None, _) => {
                    this.done.store(true, Ordering::Relaxed);
                    return Poll::Ready(None);
                }
            }
        }
        let frame = match next {
            Some(frame) => Some(frame),
            None => {
                std::task::ready!(poll_held(
                    &mut this.held,
                    this.meter.as_ref(),
                    ByteDirection::Sent,
                    context
                ))
            }
        };
        let is_last = this.held.is_none() && inner.is_end_stream();
        if is_last || frame.as_ref().is_some_and(Frame::is_trailers) {
            this.done.store(true, Ordering::Relaxed);
        }
        Poll::Ready(frame.map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        self.held.is_none() && self.inner.as_ref().is_none_or(Incoming::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.as_ref().map_or(SizeHint::with_exact(0), Incoming::size_hint)
    }
}

/// Delays a body. It opens once.
#[derive(Default)]
pub struct BodyGate {
    open: AtomicBool,
    waker: AtomicWaker,
}

impl BodyGate {
    pub fn open(&self) {
        self.open.store(true, Ordering::Release);
        self.waker.wake();
    }

    fn poll_open(&self, context: &mut Context<'_>) -> Poll<()> {
        self.waker.register(context.waker());
        match self.open.load(Ordering::Acquire) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }
}

/// The audit record of a request, from its admission to the end of its response.
pub struct RequestAccount {
    record: Option<ConnectionRecord>,
    entry: Arc<LiveConnection>,
    guard: RequestGuard,
}

impl RequestAccount {
    pub fn new(record: ConnectionRecord, entry: Arc<LiveConnection>, guard: RequestGuard) -> RequestAccount {
        RequestAccount { record: Some(record), entry, guard }
    }

    pub fn entry(&self) -> &Arc<LiveConnection> {
        &self.entry
    }

    pub fn meter(&self) -> Option<Arc<ByteMeter>> {
        self.record.as_ref().map(|record| record.meter().clone())
    }

    pub fn set_status(&mut self, status: u16) {
        if let Some(record) = &mut self.record {
            record.set_status(status);
        }
    }

    /// Waits until the request is cut, and sets the reset code for the other gateway, whose stream is dropped
    /// next.
    pub async fn cut(&self) {
        self.set_reset_code(&self.entry.cut().await);
    }

    fn set_reset_code(&self, cut: &CutReason) {
        if let CutReason::Revoked(_) = cut {
            self.guard.set_code(ResetCode::Revoked);
        }
    }

    /// Closes the record. The first call counts.
    pub fn end(&mut self, end: ConnectionEnd, reason: Option<String>) {
        let Some(record) = self.record.take() else { return };
        match self.entry.why() {
            Some(cut) => record.cut(&cut),
            None => record.end(end, reason),
        }
    }
}

impl Drop for RequestAccount {
    /// The body was dropped before its end: the client is gone, or its connection was cut.
    fn drop(&mut self) {
        let end = match self.guard.received_code() {
            Some(ResetCode::Revoked) => ConnectionEnd::Revoked,
            _ => ConnectionEnd::ClientReset,
        };
        self.end(end, None);
    }
}

/// The body of a response, from the backend to the client.
pub struct ResponseBody {
    inner: Inner,
    account: Option<RequestAccount>,
    cut: Option<BoxedFuture<'static, CutReason>>,
    lease: Option<PoolLease>,
    left: Option<u64>,
    held: Option<Held>,
    /// The end of the request when the whole body was forwarded.
    end: (ConnectionEnd, Option<String>),
}

enum Inner {
    Streamed(Incoming),
    Own(Option<Bytes>),
}

impl ResponseBody {
    /// Returns a response of the gateway itself. Its record is already written.
    pub fn own(response: Response<Bytes>) -> Response<ResponseBody> {
        response.map(|text| ResponseBody {
            inner: Inner::Own(Some(text).filter(|text| !text.is_empty())),
            account: None,
            cut: None,
            lease: None,
            left: None,
            held: None,
            end: (ConnectionEnd::Done, None),
        })
    }

    /// Returns a response of a backend, or of the gateway in front of it.
    pub fn streamed(
        inner: Incoming,
        account: RequestAccount,
        lease: PoolLease,
        end: (ConnectionEnd, Option<String>),
    ) -> ResponseBody {
        let left = inner.size_hint().exact();
        let entry = account.entry().clone();
        let cut: BoxedFuture<'static, CutReason> = Box::pin(async move { entry.cut().await });
        let (account, cut, lease) = (Some(account), Some(cut), Some(lease));
        ResponseBody { inner: Inner::Streamed(inner), account, cut, lease, left, held: None, end }
    }

    fn finish(&mut self) {
        if let Some(mut account) = self.account.take() {
            let (end, reason) = std::mem::replace(&mut self.end, (ConnectionEnd::Done, None));
            account.end(end, reason);
        }
        if let Some(lease) = self.lease.take() {
            lease.give_back();
        }
        self.cut = None;
    }

    /// Forwards a chunk.
    fn pass(&mut self, frame: Frame<Bytes>) -> Frame<Bytes> {
        match frame.data_ref() {
            Some(data) => self.left = self.left.map(|left| left.saturating_sub(data.len() as u64)),
            // Trailers are last: the reader polls no further.
            None => self.finish(),
        }
        frame
    }

    fn is_finished(&self) -> bool {
        self.left == Some(0) || self.is_end_stream()
    }
}

/// A body that did not end properly.
#[derive(Debug, thiserror::Error)]
pub enum BrokenBody {
    #[error("the gateway cut the request: it is no longer allowed, or the gateway stops")]
    Cut,
    #[error(transparent)]
    Backend(#[from] hyper::Error),
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = BrokenBody;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BrokenBody>>> {
        let this = &mut *self;
        if let Some(cut) = &mut this.cut
            && let Poll::Ready(cut) = cut.as_mut().poll(context)
        {
            if let Some(account) = this.account.take() {
                account.set_reset_code(&cut);
            }
            this.lease = None;
            return Poll::Ready(Some(Err(BrokenBody::Cut)));
        }
        let inner = match &mut this.inner {
            Inner::Own(text) => return Poll::Ready(text.take().map(|text| Ok(Frame::data(text)))),
            Inner::Streamed(inner) => inner,
        };
        if this.held.is_some() {
            let meter = this.account.as_ref().and_then(RequestAccount::meter);
            let frame = poll_held(&mut this.held, meter.as_ref(), ByteDirection::Received, context);
            return Poll::Ready(std::task::ready!(frame).map(|frame| Ok(this.pass(frame))));
        }
        let polled = std::task::ready!(Pin::new(inner).poll_frame(context));
        match polled {
            Some(Ok(frame)) => {
                let Some(meter) = this.account.as_ref().and_then(RequestAccount::meter) else {
                    return Poll::Ready(Some(Ok(this.pass(frame))));
                };
                match admit(frame, &meter, ByteDirection::Received) {
                    Ok(frame) => return Poll::Ready(Some(Ok(this.pass(frame)))),
                    Err(held) => this.held = Some(held),
                }
                let frame = poll_held(&mut this.held, Some(&meter), ByteDirection::Received, context);
                Poll::Ready(std::task::ready!(frame).map(|frame| Ok(this.pass(frame))))
            }
            Some(Err(error)) => {
                if let Some(mut account) = this.account.take() {
                    let end = match this.lease.as_ref().and_then(PoolLease::received_code) {
                        Some(ResetCode::Revoked) => ConnectionEnd::Revoked,
                        _ => ConnectionEnd::BackendReset,
                    };
                    account.end(end, Some(error.to_string()));
                }
                this.lease = None;
                Poll::Ready(Some(Err(error.into())))
            }
            None => {
                this.finish();
                Poll::Ready(None)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.inner {
            Inner::Own(text) => text.is_none(),
            Inner::Streamed(inner) => self.held.is_none() && inner.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.inner {
            Inner::Own(text) => SizeHint::with_exact(text.as_ref().map_or(0, |text| text.len() as u64)),
            Inner::Streamed(inner) => inner.size_hint(),
        }
    }
}

impl Drop for ResponseBody {
    /// A reader that knows the length does not poll for the end.
    fn drop(&mut self) {
        if self.is_finished() {
            self.finish();
        }
    }
}
