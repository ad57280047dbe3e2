//! Pools of HTTP connections to backends and to other gateways.
//!
//! HTTP/2 connections carry many requests at once, HTTP/1.1 connections one after the other. The caller opens the connections. A request is sent a
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
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tokio_util::task::AbortOnDropHandle;

use super::body::RequestBody;
use super::channel::{ChannelIo, StreamEndNote};
use super::error_response::ProxyError;
use crate::proxy::backends::BackendLease;
use crate::slots::ClientSlot;

/// A new connection on which nothing was sent.
pub enum OpenedConnection {
    /// A stream to the gateway of another site, with the slot of its client.
    Stream {
        io: ChannelIo,
        note: Arc<StreamEndNote>,
        slot: ClientSlot,
    },
    /// A connection to a backend.
    Tcp {
        io: TcpStream,
        lease: BackendLease,
    },
    Tls {
        io: Box<TlsStream<TcpStream>>,
        lease: BackendLease,
    },
}

/// The count under which a connection was opened. Dropped with the connection.
enum ConnectionHold {
    Stream { _slot: ClientSlot },
    Backend { _lease: BackendLease },
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
const CONNECTIONS_MAX: usize = 32;
/// Idle connections per service.
const IDLE_MAX: usize = 256;

/// Holds a connection while a request is on it. Dropped early, it cancels the request.
pub enum PoolLease {
    Http2 {
        request: Http2Request,
    },
    Http1 {
        connection: Http1Connection,
        pool: Arc<Http1Pool>,
        sent: Arc<AtomicBool>,
    },
    /// A connection that carries one request only.
    Http1Exclusive {
        connection: Http1Connection,
    },
}

impl PoolLease {
    /// Returns the reset code of the other gateway, if it reset the stream.
    pub fn received_code(&self) -> Option<ResetCode> {
        let note = match self {
            PoolLease::Http2 { request } => &request.0.note,
            PoolLease::Http1 { connection, .. } | PoolLease::Http1Exclusive { connection } => {
                &connection.note
            }
        };
        note.as_ref()?.received_code()
    }

    /// Returns the connection to the pool: the response has ended.
    pub fn give_back(self) {
        if let PoolLease::Http1 { connection, pool, sent } = self
            && sent.load(Ordering::Relaxed)
        {
            pool.put(connection);
        }
    }
}

/// HTTP/2 connections to one destination.
#[derive(Default)]
pub struct Http2Pool {
    connections: Mutex<Vec<Arc<Http2Connection>>>,
    opening: tokio::sync::Mutex<()>,
}

struct Http2Connection {
    sender: http2::SendRequest<RequestBody>,
    busy: AtomicUsize,
    used: Mutex<Instant>,
    note: Option<Arc<StreamEndNote>>,
    _driver: AbortOnDropHandle<()>,
    _hold: ConnectionHold,
}

/// One request on an HTTP/2 connection.
pub struct Http2Request(Arc<Http2Connection>);

impl Http2Request {
    fn new(connection: &Arc<Http2Connection>) -> Http2Request {
        connection.busy.fetch_add(1, Ordering::Relaxed);
        Http2Request(connection.clone())
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
    pub async fn send<F: Future<Output = Result<OpenedConnection, ProxyError>>>(
        &self,
        mut request: Request<RequestBody>,
        open: impl Fn() -> F,
    ) -> Result<(Response<Incoming>, PoolLease), ProxyError> {
        let mut is_repeated = false;
        loop {
            let (busy, fresh) = match self.free() {
                Some(busy) => (busy, false),
                None => self.open(&open).await?,
            };
            // A new connection is not going away, a body is sent once, and a peer that refuses again means it.
            let copy = if fresh || is_repeated { None } else { copy_without_body(&request) };
            let mut error = match busy.0.sender.clone().try_send_request(request).await {
                Ok(response) => return Ok((response, PoolLease::Http2 { request: busy })),
                Err(error) => error,
            };
            let unsent = error.take_message();
            let error = error.into_error();
            request = match (unsent, copy) {
                // The connection ended before the request was sent.
                (Some(again), _) if !fresh => again,
                // The peer goes away and has not processed the request (RFC 9113, section 6.8). Its PING may be acknowledged
                // before requests that wait in the buffers of this end.
                (None, Some(again)) if is_unprocessed(&error) => {
                    is_repeated = true;
                    again
                }
                _ => return Err(failure(&error, busy.0.note.as_deref())),
            };
        }
    }

    /// Closes idle connections. Returns true if none is left.
    pub fn tidy(&self, idle: Duration) -> bool {
        let mut connections = self.lock();
        connections.retain(|connection| {
            let used = connection.used.lock_ignoring_poison().elapsed();
            !connection.sender.is_closed() && (used < idle || connection.busy.load(Ordering::Relaxed) > 0)
        });
        connections.is_empty()
    }

    /// Retires every connection; each ends with its last request.
    pub fn retire(&self) {
        let retired = std::mem::take(&mut *self.lock());
        // Outside the lock: dropping an idle connection ends its task.
        drop(retired);
    }

    /// Returns the first connection that has a free stream, so that those not needed become idle.
    fn free(&self) -> Option<Http2Request> {
        let mut connections = self.lock();
        connections.retain(|connection| !connection.sender.is_closed());
        let free =
            connections.iter().find(|connection| connection.busy.load(Ordering::Relaxed) < STREAMS_MAX);
        free.map(Http2Request::new)
    }

    async fn open<F: Future<Output = Result<OpenedConnection, ProxyError>>>(
        &self,
        open: &impl Fn() -> F,
    ) -> Result<(Http2Request, bool), ProxyError> {
        // One task opens a connection and the other tasks wait for it: many requests need one connection, not
        // one each.
        let _opening = self.opening.lock().await;
        if let Some(busy) = self.free() {
            return Ok((busy, false));
        }
        if self.lock().len() >= CONNECTIONS_MAX {
            return Err(ProxyError::full("requests of one subject to one service"));
        }
        let connection = Arc::new(Http2Connection::connect(Box::pin(open()).await?).await?);
        let busy = Http2Request::new(&connection);
        self.lock().push(connection);
        Ok((busy, true))
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Http2Connection>>> {
        self.connections.lock_ignoring_poison()
    }
}

impl Http2Connection {
    async fn connect(opened: OpenedConnection) -> Result<Http2Connection, ProxyError> {
        let (shaken, note, hold) = match opened {
            OpenedConnection::Stream { io, note, slot } => {
                (Self::handshake(io).await, Some(note), ConnectionHold::Stream { _slot: slot })
            }
            OpenedConnection::Tcp { io, lease } => {
                (Self::handshake(io).await, None, ConnectionHold::Backend { _lease: lease })
            }
            OpenedConnection::Tls { io, lease } => {
                (Self::handshake(io).await, None, ConnectionHold::Backend { _lease: lease })
            }
        };
        let (sender, driver) = shaken.map_err(|error| failure(&error, note.as_deref()))?;
        let (busy, used) = (AtomicUsize::new(0), Mutex::new(Instant::now()));
        Ok(Http2Connection { sender, busy, used, note, _driver: driver, _hold: hold })
    }

    async fn handshake(
        io: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    ) -> hyper::Result<(http2::SendRequest<RequestBody>, AbortOnDropHandle<()>)> {
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder
            .timer(TokioTimer::new())
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .initial_max_send_streams(STREAMS_MAX)
            .max_frame_size(FRAME_BYTES_MAX)
            .max_header_list_size(HEADERS_BYTES_MAX)
            .max_send_buf_size(SEND_BUFFER_BYTES);
        let (sender, connection) = builder.handshake(TokioIo::new(io)).await?;
        Ok((sender, drive(connection)))
    }
}

/// Runs a connection until it ends or the handle is dropped.
fn drive(connection: impl Future<Output = hyper::Result<()>> + Send + 'static) -> AbortOnDropHandle<()> {
    AbortOnDropHandle::new(tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(
                error = &error as &dyn std::error::Error,
                "an HTTP connection to a backend or gateway failed"
            );
        }
    }))
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
    _hold: ConnectionHold,
}

impl Http1Pool {
    /// Sends a request on an idle connection, or on a new one.
    pub async fn send<F: Future<Output = Result<OpenedConnection, ProxyError>>>(
        self: &Arc<Self>,
        mut request: Request<RequestBody>,
        open: impl Fn() -> F,
    ) -> Result<(Response<Incoming>, PoolLease), ProxyError> {
        let mut repeated = false;
        loop {
            let (mut connection, again) = match self.take().filter(|_| !repeated) {
                Some(connection) => (connection, Some(repeatable(&request))),
                // On the heap: most requests find an open connection.
                None => (Http1Connection::connect(Box::pin(open()).await?).await?, None),
            };
            let sent = request.body().done();
            let mut error = match connection.sender.try_send_request(request).await {
                Ok(response) => {
                    return Ok((response, PoolLease::Http1 { connection, pool: self.clone(), sent }));
                }
                Err(error) => error,
            };
            // The backend closed the idle connection. A request that was never sent is sent unchanged; one
            // that may be sent twice is sent once more.
            match (error.take_message(), again) {
                (Some(unsent), Some(_)) => request = unsent,
                (None, Some(Some(again))) => (request, repeated) = (again, true),
                _ => return Err(failure(&error.into_error(), connection.note.as_deref())),
            }
        }
    }

    /// Closes idle connections. Returns true if none is left.
    pub fn tidy(&self, idle: Duration) -> bool {
        let mut waiting = self.lock();
        waiting.retain(|connection| !connection.sender.is_closed() && connection.used.elapsed() < idle);
        waiting.is_empty()
    }

    /// Returns the connection that was used last, so that the older ones become idle. One that is not ready
    /// stays in the pool.
    fn take(&self) -> Option<Http1Connection> {
        let mut waiting = self.lock();
        waiting.retain(|connection| !connection.sender.is_closed());
        let ready = waiting.iter().rposition(|connection| connection.sender.is_ready())?;
        Some(waiting.remove(ready))
    }

    fn put(&self, mut connection: Http1Connection) {
        let mut waiting = self.lock();
        if waiting.len() < IDLE_MAX && !connection.sender.is_closed() {
            connection.used = Instant::now();
            waiting.push(connection);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Http1Connection>> {
        self.idle.lock_ignoring_poison()
    }
}

impl Http1Connection {
    pub async fn connect(opened: OpenedConnection) -> Result<Http1Connection, ProxyError> {
        let (shaken, note, hold) = match opened {
            OpenedConnection::Stream { io, note, slot } => {
                (Self::handshake(io).await, Some(note), ConnectionHold::Stream { _slot: slot })
            }
            OpenedConnection::Tcp { io, lease } => {
                (Self::handshake(io).await, None, ConnectionHold::Backend { _lease: lease })
            }
            OpenedConnection::Tls { io, lease } => {
                (Self::handshake(io).await, None, ConnectionHold::Backend { _lease: lease })
            }
        };
        let (sender, driver) = shaken.map_err(|error| failure(&error, note.as_deref()))?;
        Ok(Http1Connection { sender, note, used: Instant::now(), _driver: driver, _hold: hold })
    }

    async fn handshake(
        io: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    ) -> hyper::Result<(http1::SendRequest<RequestBody>, AbortOnDropHandle<()>)> {
        let mut builder = http1::Builder::new();
        builder.max_header_size(HEADERS_BYTES_MAX as usize);
        let (sender, connection) = builder.handshake(TokioIo::new(io)).await?;
        Ok((sender, drive(connection.with_upgrades())))
    }

    /// Sends one request; the connection may be upgraded afterwards.
    pub async fn send(
        mut self,
        request: Request<RequestBody>,
    ) -> Result<(Response<Incoming>, PoolLease), ProxyError> {
        match self.sender.send_request(request).await {
            Ok(response) => Ok((response, PoolLease::Http1Exclusive { connection: self })),
            Err(error) => Err(failure(&error, self.note.as_deref())),
        }
    }
}

/// Returns whether a request may be sent again on a new connection when the old one is dead: RFC 9110, 9.2.2,
/// and only without a body.
fn repeatable(request: &Request<RequestBody>) -> Option<Request<RequestBody>> {
    request.method().is_idempotent().then(|| copy_without_body(request)).flatten()
}

/// Copies a request; `None` if it has a body.
fn copy_without_body(request: &Request<RequestBody>) -> Option<Request<RequestBody>> {
    http_body::Body::is_end_stream(request.body()).then(|| {
        let mut again = Request::new(RequestBody::empty());
        *again.method_mut() = request.method().clone();
        *again.uri_mut() = request.uri().clone();
        *again.version_mut() = request.version();
        *again.headers_mut() = request.headers().clone();
        again
    })
}

/// Returns whether the peer said that it did not process the request.
fn is_unprocessed(error: &hyper::Error) -> bool {
    let cause = std::error::Error::source(error).and_then(|cause| cause.downcast_ref::<h2::Error>());
    cause.is_some_and(|cause| {
        let is_unprocessed = cause.is_go_away() && cause.reason() == Some(h2::Reason::NO_ERROR)
            || cause.is_reset() && cause.reason() == Some(h2::Reason::REFUSED_STREAM);
        cause.is_remote() && is_unprocessed
    })
}

fn failure(error: &hyper::Error, note: Option<&StreamEndNote>) -> ProxyError {
    match note {
        Some(note) => match note.received_code() {
            Some(code) => ProxyError::from(code),
            None if error.is_closed()
                || error.is_canceled()
                || error.is_incomplete_message()
                || is_unprocessed(error) =>
            {
                ProxyError::away("the stream to the site of the service ended")
            }
            None => ProxyError::bad_gateway(describe(error)),
        },
        None => ProxyError::bad_gateway(describe(error)),
    }
}

fn describe(error: &hyper::Error) -> String {
    let cause = std::error::Error::source(error);
    match cause {
        Some(cause) => format!("the response of the backend is not valid: {error}: {cause}"),
        None => format!("the response of the backend is not valid: {error}"),
    }
}
