//! Connection pools: HTTP/2 connections carry many requests at once, HTTP/1.1 connections one after the
//! other.
//!
//! They are used for other gateways and for backends; the caller opens the connections. A request is sent a
//! second time only if it was never sent, or if sending it twice is harmless.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use causeway_channel::link::ResetCode;
use causeway_daemon::sync::MutexExt;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::task::AbortOnDropHandle;

use super::body::RequestBody;
use super::channel::StreamEndNote;
use super::error_response::ProxyError;
use crate::peers::BoxedFuture;

/// Any byte stream.
pub trait Io: AsyncRead + AsyncWrite + Send + Unpin + 'static {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin + 'static> Io for T {}

/// A new connection on which nothing was sent.
pub struct OpenedConnection {
    pub io: Box<dyn Io>,
    /// For a stream of the channel: the reset codes of both ends.
    pub note: Option<Arc<StreamEndNote>>,
    /// Dropped with the connection.
    pub place: Box<dyn Send + Sync>,
}

/// Requests over one connection at the same time. Multiplied by the window of each, it bounds what the other
/// end must buffer; and since one task serves a connection, more connections are better than more requests on
/// one.
pub const STREAMS_MAX: usize = 100;
/// Bytes in flight for one request. Equal to the window of one stream of the channel.
pub const STREAM_WINDOW_BYTES: u32 = 256 << 10;
/// One window for each request, so that an unread response does not block other responses.
pub const CONNECTION_WINDOW_BYTES: u32 = STREAMS_MAX as u32 * STREAM_WINDOW_BYTES;
/// Large bodies need fewer frames; a small response does not wait longer for a frame of 64 KiB than the link
/// takes to send it.
pub const FRAME_BYTES_MAX: u32 = 64 << 10;
/// Encoded bytes that the other end has not accepted, per request.
pub const SEND_BUFFER_BYTES: usize = 128 << 10;
/// Header bytes of one request or response.
pub const HEADERS_BYTES_MAX: u32 = 64 << 10;
/// With `STREAMS_MAX`: three thousand requests of one subject to one service at a time.
const LINES_MAX: usize = 32;
/// Idle connections per service.
const IDLE_MAX: usize = 256;

/// Holds a connection while a request is on it. Dropped early, it cancels the request.
pub enum PoolLease {
    Line {
        line: Http2Request,
    },
    Single {
        single: Http1Connection,
        yard: Arc<Http1Pool>,
        sent: Arc<AtomicBool>,
    },
    /// Returns a lease for a connection that carries one request only.
    Alone {
        single: Http1Connection,
    },
}

impl PoolLease {
    /// Returns the reset code of the other gateway, if it reset the stream.
    pub fn received_code(&self) -> Option<ResetCode> {
        let note = match self {
            PoolLease::Line { line } => &line.0.note,
            PoolLease::Single { single, .. } | PoolLease::Alone { single } => &single.note,
        };
        note.as_ref()?.received_code()
    }

    /// Returns the connection to the pool: the response has ended.
    pub fn give_back(self) {
        if let PoolLease::Single { single, yard, sent } = self
            && sent.load(Ordering::Relaxed)
        {
            yard.put(single);
        }
    }
}

/// HTTP/2 connections to one destination.
#[derive(Default)]
pub struct Http2Pool {
    lines: Mutex<Vec<Arc<Http2Connection>>>,
    opening: tokio::sync::Mutex<()>,
}

struct Http2Connection {
    sender: http2::SendRequest<RequestBody>,
    busy: AtomicUsize,
    used: Mutex<Instant>,
    note: Option<Arc<StreamEndNote>>,
    _driver: AbortOnDropHandle<()>,
    _place: Box<dyn Send + Sync>,
}

/// One request on an HTTP/2 connection.
pub struct Http2Request(Arc<Http2Connection>);

impl Http2Request {
    fn new(line: &Arc<Http2Connection>) -> Http2Request {
        line.busy.fetch_add(1, Ordering::Relaxed);
        Http2Request(line.clone())
    }
}

impl Drop for Http2Request {
    fn drop(&mut self) {
        self.0.busy.fetch_sub(1, Ordering::Relaxed);
        *self.0.used.lock_ignoring_poison() = Instant::now();
    }
}

impl Http2Pool {
    /// Sends a request on a connection that has a free stream, or on a new one.
    pub async fn send<'a>(
        &self,
        mut request: Request<RequestBody>,
        open: impl Fn() -> BoxedFuture<'a, Result<OpenedConnection, ProxyError>>,
    ) -> Result<(Response<Incoming>, PoolLease), ProxyError> {
        loop {
            let (busy, fresh) = match self.free() {
                Some(busy) => (busy, false),
                None => self.open(&open).await?,
            };
            let mut error = match busy.0.sender.clone().try_send_request(request).await {
                Ok(response) => return Ok((response, PoolLease::Line { line: busy })),
                Err(error) => error,
            };
            match error.take_message() {
                // The connection ended before the request was sent.
                Some(again) if !fresh => request = again,
                _ => return Err(failure(&error.into_error(), busy.0.note.as_deref())),
            }
        }
    }

    /// Closes idle connections. Returns true if none is left.
    pub fn tidy(&self, idle: Duration) -> bool {
        let mut lines = self.lock();
        lines.retain(|line| {
            let used = line.used.lock_ignoring_poison().elapsed();
            !line.sender.is_closed() && (used < idle || line.busy.load(Ordering::Relaxed) > 0)
        });
        lines.is_empty()
    }

    /// Retires every connection; each ends with its last request.
    pub fn retire(&self) {
        let retired = std::mem::take(&mut *self.lock());
        // Outside the lock: dropping an idle connection ends its task.
        drop(retired);
    }

    /// Returns the first connection that has a free stream, so that those not needed become idle.
    fn free(&self) -> Option<Http2Request> {
        let mut lines = self.lock();
        lines.retain(|line| !line.sender.is_closed());
        let free = lines.iter().find(|line| line.busy.load(Ordering::Relaxed) < STREAMS_MAX);
        free.map(Http2Request::new)
    }

    async fn open<'a>(
        &self,
        open: &impl Fn() -> BoxedFuture<'a, Result<OpenedConnection, ProxyError>>,
    ) -> Result<(Http2Request, bool), ProxyError> {
        // One task opens a connection and the other tasks wait for it: many requests need one connection, not
        // one each.
        let _opening = self.opening.lock().await;
        if let Some(busy) = self.free() {
            return Ok((busy, false));
        }
        if self.lock().len() >= LINES_MAX {
            return Err(ProxyError::full("requests of one subject to one service"));
        }
        let line = Arc::new(connect_line(open().await?).await?);
        let busy = Http2Request::new(&line);
        self.lock().push(line);
        Ok((busy, true))
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Http2Connection>>> {
        self.lines.lock_ignoring_poison()
    }
}

async fn connect_line(opened: OpenedConnection) -> Result<Http2Connection, ProxyError> {
    let OpenedConnection { io, note, place } = opened;
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .initial_max_send_streams(STREAMS_MAX)
        .max_frame_size(FRAME_BYTES_MAX)
        .max_header_list_size(HEADERS_BYTES_MAX)
        .max_send_buf_size(SEND_BUFFER_BYTES);
    let handshake = builder.handshake(TokioIo::new(io)).await;
    let (sender, connection) = handshake.map_err(|error| failure(&error, note.as_deref()))?;
    let driver = AbortOnDropHandle::new(tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(
                error = &error as &dyn std::error::Error,
                "an HTTP connection to a backend or gateway failed"
            );
        }
    }));
    let used = Mutex::new(Instant::now());
    Ok(Http2Connection { sender, busy: AtomicUsize::new(0), used, note, _driver: driver, _place: place })
}

/// Idle HTTP/1.1 connections to one destination.
#[derive(Default)]
pub struct Http1Pool {
    idle: Mutex<Vec<Http1Connection>>,
}

pub struct Http1Connection {
    sender: http1::SendRequest<RequestBody>,
    note: Option<Arc<StreamEndNote>>,
    used: Instant,
    _driver: AbortOnDropHandle<()>,
    _place: Box<dyn Send + Sync>,
}

impl Http1Pool {
    /// Sends a request on an idle connection, or on a new one.
    pub async fn send<'a>(
        self: &Arc<Self>,
        mut request: Request<RequestBody>,
        open: impl Fn() -> BoxedFuture<'a, Result<OpenedConnection, ProxyError>>,
    ) -> Result<(Response<Incoming>, PoolLease), ProxyError> {
        let mut repeated = false;
        loop {
            let (mut single, again) = match self.take().filter(|_| !repeated) {
                Some(single) => (single, Some(repeatable(&request))),
                None => (Http1Connection::connect(open().await?).await?, None),
            };
            let sent = request.body().done();
            let mut error = match single.sender.try_send_request(request).await {
                Ok(response) => {
                    return Ok((response, PoolLease::Single { single, yard: self.clone(), sent }));
                }
                Err(error) => error,
            };
            // The backend closed the idle connection. A request that was never sent is sent unchanged; one
            // that may be sent twice is sent once more.
            match (error.take_message(), again) {
                (Some(unsent), Some(_)) => request = unsent,
                (None, Some(Some(again))) => (request, repeated) = (again, true),
                _ => return Err(failure(&error.into_error(), single.note.as_deref())),
            }
        }
    }

    /// Closes idle connections. Returns true if none is left.
    pub fn tidy(&self, idle: Duration) -> bool {
        let mut waiting = self.lock();
        waiting.retain(|single| !single.sender.is_closed() && single.used.elapsed() < idle);
        waiting.is_empty()
    }

    /// Returns the connection that was used last, so that the older ones become idle. One that is not ready
    /// stays in the pool.
    fn take(&self) -> Option<Http1Connection> {
        let mut waiting = self.lock();
        waiting.retain(|single| !single.sender.is_closed());
        let ready = waiting.iter().rposition(|single| single.sender.is_ready())?;
        Some(waiting.remove(ready))
    }

    fn put(&self, mut single: Http1Connection) {
        let mut waiting = self.lock();
        if waiting.len() < IDLE_MAX && !single.sender.is_closed() {
            single.used = Instant::now();
            waiting.push(single);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Http1Connection>> {
        self.idle.lock_ignoring_poison()
    }
}

impl Http1Connection {
    pub async fn connect(opened: OpenedConnection) -> Result<Http1Connection, ProxyError> {
        let OpenedConnection { io, note, place } = opened;
        let mut builder = http1::Builder::new();
        builder.max_header_size(HEADERS_BYTES_MAX as usize);
        let handshake = builder.handshake(TokioIo::new(io)).await;
        let (sender, connection) = handshake.map_err(|error| failure(&error, note.as_deref()))?;
        let driver = AbortOnDropHandle::new(tokio::spawn(async move {
            if let Err(error) = connection.with_upgrades().await {
                tracing::debug!(
                    error = &error as &dyn std::error::Error,
                    "an HTTP connection to a backend or gateway failed"
                );
            }
        }));
        Ok(Http1Connection { sender, note, used: Instant::now(), _driver: driver, _place: place })
    }

    /// Sends one request; the connection may be upgraded afterwards.
    pub async fn send(
        mut self,
        request: Request<RequestBody>,
    ) -> Result<(Response<Incoming>, PoolLease), ProxyError> {
        match self.sender.send_request(request).await {
            Ok(response) => Ok((response, PoolLease::Alone { single: self })),
            Err(error) => Err(failure(&error, self.note.as_deref())),
        }
    }
}

/// Returns whether a request may be sent again on a new connection when the old one is dead: RFC 9110, 9.2.2,
/// and only without a body.
fn repeatable(request: &Request<RequestBody>) -> Option<Request<RequestBody>> {
    let harmless = request.method().is_idempotent() && http_body::Body::is_end_stream(request.body());
    harmless.then(|| {
        let mut again = Request::new(RequestBody::empty());
        *again.method_mut() = request.method().clone();
        *again.uri_mut() = request.uri().clone();
        *again.version_mut() = request.version();
        *again.headers_mut() = request.headers().clone();
        again
    })
}

fn failure(error: &hyper::Error, note: Option<&StreamEndNote>) -> ProxyError {
    match note {
        Some(note) => match note.received_code() {
            Some(code) => ProxyError::from(code),
            None if error.is_closed() || error.is_canceled() || error.is_incomplete_message() => {
                ProxyError::away("the stream to the site of the service ended")
            }
            None => ProxyError::broken(describe(error)),
        },
        None => ProxyError::broken(describe(error)),
    }
}

fn describe(error: &hyper::Error) -> String {
    let cause = std::error::Error::source(error);
    match cause {
        Some(cause) => format!("the response of the backend is not valid: {error}: {cause}"),
        None => format!("the response of the backend is not valid: {error}"),
    }
}
