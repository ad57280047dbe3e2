//! A link over QUIC: implements the API of `link` with quinn. No type of quinn leaves this module.
//!
//! `client` dials, `server` accepts for the port, `transport` holds the settings, `stream` the two halves of
//! a stream, `datagrams` the datagrams of streams, `workarounds` what we change in quinn. Retransmission,
//! pacing, migration and path MTU discovery are left to quinn.

mod busy_refusal;
mod client;
mod datagrams;
mod driver_thread;
mod path;
pub(crate) mod server;
pub(crate) mod socket;
mod stream;
mod transport;
mod workarounds;

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use quinn::{Connection, ConnectionError, VarInt};
use rustls_pki_types::CertificateDer;
use tokio::runtime::Handle;
use tokio::sync::Mutex;
use tokio::time::timeout;

use self::datagrams::{DatagramCounts, DatagramRouter};
use self::driver_thread::DriverThread;
use self::workarounds::observed_controller;
use crate::link::{
    BudgetShare, CloseCode, CloseReason, ClosedBy, HEADER_DEADLINE, LinkClosed, LinkLimits, LinkSide,
    LinkStats, PREFIX_BYTES, PathStats, ReceiveBudget, ResetCode, Stream, StreamError, StreamHeader,
    StreamPurpose,
};
use crate::wire::datagrams::{OF_THE_LINK, WELCOME};
use causeway_api::sync::MutexExt;

pub use busy_refusal::{BusyRefusal, NUMBER_BYTES, RetryTicket};
pub use client::{ConnectError, QuicClient};
pub(crate) use datagrams::DatagramMailbox;
pub use path::{LARGE_PACKET_BYTES, ORDINARY_PACKET_BYTES};
pub use server::EndpointKeys;
pub use stream::{QuicRecv, QuicSend};
pub use transport::{CongestionControl, QuicOptions};

/// Bound of stream headers that are read at the same time. Further streams wait in quinn.
const INCOMING_STREAMS_MAX: usize = 64;
/// Priority of the control stream: it is sent before all other streams.
const CONTROL_PRIORITY: i32 = 10;

#[derive(Clone)]
pub struct QuicLink(Arc<Inner>);

struct Inner {
    connection: Connection,
    limits: LinkLimits,
    counters: Arc<LinkCounters>,
    closed_by_us: OnceLock<CloseReason>,
    router: Arc<DatagramRouter>,
    incoming: Mutex<FuturesUnordered<IncomingStream>>,
    /// The part of the peer's budget that the window of this link takes.
    share: std::sync::Mutex<Option<BudgetShare>>,
}

type IncomingStream = Pin<Box<dyn Future<Output = Option<(StreamHeader, Stream)>> + Send>>;

impl QuicLink {
    /// Wraps a connection whose handshake is complete.
    fn new(connection: Connection, limits: LinkLimits, driver: Arc<DriverThread>) -> QuicLink {
        QuicLink::with(connection, limits, transport::STREAMS_AT_FIRST, driver)
    }

    /// Wraps an accepted connection, see `Link::admit`.
    fn pending(connection: Connection, limits: LinkLimits, driver: Arc<DriverThread>) -> QuicLink {
        QuicLink::with(connection, limits, transport::STREAMS_BEFORE_ADMISSION, driver)
    }

    fn with(connection: Connection, limits: LinkLimits, streams: u32, driver: Arc<DriverThread>) -> QuicLink {
        let counters = Arc::new(LinkCounters::new(streams.min(limits.streams_max), driver));
        let incoming = Mutex::new(FuturesUnordered::new());
        let closed_by_us = OnceLock::new();
        let router =
            Arc::new(DatagramRouter::new(connection.clone(), counters.clone(), limits.datagram_buffer_bytes));
        let share = std::sync::Mutex::default();
        QuicLink(Arc::new(Inner { connection, limits, counters, closed_by_us, router, incoming, share }))
    }

    /// See `Link::admit` and `Link::admit_within`.
    pub fn admit(&self, budget: Option<&ReceiveBudget>) {
        match budget {
            Some(budget) => {
                *self.0.share.lock_ignoring_poison() = Some(budget.share());
                self.raise_receive_window();
            }
            None => self.0.set_receive_window(self.0.limits.receive_bytes_max()),
        }
        let allowed = transport::STREAMS_AT_FIRST.min(self.0.limits.streams_max);
        if self.0.counters.streams_allowed.fetch_max(allowed, Ordering::Relaxed) < allowed {
            self.0.connection.set_max_concurrent_bi_streams(VarInt::from_u32(allowed));
        }
        self.0.counters.is_admitted.store(true, Ordering::Relaxed);
    }

    /// Moves an admitted link to an I/O thread, where it stays. Idle links stay on the common runtime: a fleet that returns, and
    /// pings, cost less there.
    pub fn begin_traffic(&self) {
        if self.0.counters.is_admitted.load(Ordering::Relaxed) {
            self.0.counters.driver.move_to_io_thread(LinkSide::Accepted);
        }
    }

    fn note_stream(&self, header: &StreamHeader) {
        if is_traffic(header.purpose()) {
            self.begin_traffic();
        }
    }

    /// The I/O thread of the link, once it has carried a stream with traffic.
    pub fn runtime(&self) -> Option<&Handle> {
        self.0.counters.driver.runtime()
    }

    /// See `Link::raise_receive_window`.
    pub fn raise_receive_window(&self) {
        if let Some(share) = &mut *self.0.share.lock_ignoring_poison() {
            let (before, window) = (share.bytes(), share.reserve_window(self.0.limits.receive_bytes_max()));
            // An idle link is not woken for nothing.
            if window != before {
                self.0.set_receive_window(window);
            }
        }
    }

    pub async fn open_stream(&self, header: StreamHeader) -> Result<Stream, StreamError> {
        let bytes = header.encode_prefixed()?;
        self.note_stream(&header);
        let opened = self.0.connection.open_bi().await;
        let (send, recv) = opened.map_err(|error| self.0.link_closed(&error))?;
        let open = OpenStreamGuard::new(self.0.counters.clone(), false);
        // Created before the peer learns of the stream, so that datagrams sent at once find the mailbox. The
        // peer announces its own mailbox in turn.
        let mailbox = mailbox_for(&header, &self.0.router, send.id().into(), false);
        let Stream { mut send, recv } = join_halves(&header, send, recv, open, mailbox);
        send.write_chunk(bytes).await.map_err(|error| match ResetCode::of(&error) {
            Some(code) => StreamError::Refused(crate::link::Reset(code)),
            None => StreamError::Closed(self.0.closed_now()),
        })?;
        Ok(Stream { send, recv })
    }

    pub async fn accept_stream(&self) -> Result<(StreamHeader, Stream), LinkClosed> {
        let inner = &self.0;
        let mut incoming = inner.incoming.lock().await;
        loop {
            tokio::select! {
                biased;
                Some(stream) = incoming.next(), if !incoming.is_empty() => {
                    if let Some((header, stream)) = stream {
                        self.note_stream(&header);
                        return Ok((header, stream));
                    }
                }
                accepted = inner.connection.accept_bi(), if incoming.len() < INCOMING_STREAMS_MAX => {
                    let (send, recv) = accepted.map_err(|error| inner.link_closed(&error))?;
                    inner.raise_stream_limit();
                    incoming.push(Box::pin(read_incoming_stream(inner.counters.clone(), inner.router.clone(), send, recv)));
                }
            }
        }
    }

    pub fn close(&self, reason: CloseReason) {
        self.0.close(reason);
    }

    pub async fn closed(&self) -> LinkClosed {
        let error = self.0.connection.closed().await;
        self.0.link_closed(&error)
    }

    /// The later of the last read and the last acknowledgement that quinn saw.
    pub fn last_heard(&self) -> Instant {
        let acknowledged = observed_controller::last_acknowledged(&self.0.connection);
        acknowledged.map_or(self.0.counters.last_heard(), |time| time.max(self.0.counters.last_heard()))
    }

    /// Frames of packets that were decrypted.
    pub fn frames_received(&self) -> u64 {
        let frames = self.0.connection.stats().frame_rx;
        frames.stream + frames.acks + frames.datagram + frames.ping
    }

    pub fn rtt(&self) -> Option<Duration> {
        Some(self.0.connection.rtt())
    }

    pub fn path_stats(&self) -> Option<PathStats> {
        observed_controller::path_stats(&self.0.connection)
    }

    pub fn stats(&self) -> LinkStats {
        let stats = self.0.connection.stats();
        let counters = &self.0.counters;
        LinkStats {
            sent_bytes: stats.udp_tx.bytes,
            received_bytes: stats.udp_rx.bytes,
            streams_open: counters.streams_open.load(Ordering::Relaxed),
            streams_malformed: counters.streams_malformed.load(Ordering::Relaxed),
            // quinn gives no credit beyond the limit: a stream counts until it was accepted and dropped.
            streams_refused: 0,
            datagrams_sent: counters.datagrams.sent.load(Ordering::Relaxed),
            datagrams_received: counters.datagrams.received.load(Ordering::Relaxed),
            datagrams_dropped: counters.datagrams.dropped.load(Ordering::Relaxed),
        }
    }

    pub fn remote_address(&self) -> SocketAddr {
        canonical(self.0.connection.remote_address())
    }

    /// Taken from TLS. A copy kept here would cost half a kilobyte per link.
    pub fn certificate(&self) -> Option<CertificateDer<'static>> {
        certificate(&self.0.connection)
    }
}

impl Inner {
    fn set_receive_window(&self, bytes: u64) {
        self.connection.set_receive_window(VarInt::from_u64(bytes).unwrap_or(VarInt::MAX));
    }

    // Every stream that a peer may open costs an entry in two tables of quinn, open or not. An idle link
    // therefore allows few, and a busy link gets a higher limit before its streams have to wait.
    fn raise_stream_limit(&self) {
        let allowed = self.counters.streams_allowed.load(Ordering::Relaxed);
        let open = self.counters.peer_streams_open.load(Ordering::Relaxed) as u32;
        let is_pending = allowed <= transport::STREAMS_BEFORE_ADMISSION;
        if is_pending || open + 1 < allowed / 2 || allowed >= self.limits.streams_max {
            return;
        }
        // quinn does not announce an increase of an eighth or less, so the last increase must be larger.
        let more = match allowed.saturating_mul(4) {
            more if more > self.limits.streams_max / 2 => self.limits.streams_max,
            more => more,
        };
        self.counters.streams_allowed.store(more, Ordering::Relaxed);
        self.connection.set_max_concurrent_bi_streams(VarInt::from_u32(more));
    }

    fn close(&self, reason: CloseReason) {
        if self.connection.close_reason().is_some() {
            return;
        }
        let reason = self.closed_by_us.get_or_init(|| reason);
        let code = VarInt::from_u32(reason.code.into());
        self.connection.close(code, reason.text_for_wire().as_bytes());
    }

    fn closed_now(&self) -> LinkClosed {
        match self.connection.close_reason() {
            Some(error) => self.link_closed(&error),
            None => LinkClosed::new(ClosedBy::Transport, CloseCode::Internal, "the stream broke"),
        }
    }

    fn link_closed(&self, error: &ConnectionError) -> LinkClosed {
        match (error, self.closed_by_us.get()) {
            (ConnectionError::LocallyClosed, Some(reason)) => {
                LinkClosed { by: ClosedBy::Us, reason: reason.clone() }
            }
            _ => link_closed(error),
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.close(CloseReason::new(CloseCode::Done, ""));
    }
}

/// Returns whether streams of this purpose move the link to an I/O thread. Control streams do not, nor do the single questions
/// of the doctor and of replicas: every idle link has those.
fn is_traffic(purpose: Option<StreamPurpose>) -> bool {
    match purpose {
        Some(StreamPurpose::Control | StreamPurpose::Diagnose | StreamPurpose::Api) | None => false,
        Some(
            StreamPurpose::Probe
            | StreamPurpose::Service
            | StreamPurpose::Node
            | StreamPurpose::Packets
            | StreamPurpose::Kubernetes,
        ) => true,
    }
}

/// Creates the mailbox of a stream that carries datagrams. The first stream of a link has none: it is the
/// control stream, whose number stands for the link itself. Datagrams of that number are dropped and counted.
fn mailbox_for(
    header: &StreamHeader,
    router: &DatagramRouter,
    number: u64,
    is_welcome: bool,
) -> Option<Arc<DatagramMailbox>> {
    (header.datagrams && number != OF_THE_LINK).then(|| router.mailbox(number, is_welcome))
}

fn join_halves(
    header: &StreamHeader,
    send: quinn::SendStream,
    recv: quinn::RecvStream,
    open: OpenStreamGuard,
    mailbox: Option<Arc<DatagramMailbox>>,
) -> Stream {
    if header.purpose() == Some(StreamPurpose::Control) {
        // Fails only for a stream that is already closed; the next write reports that.
        let _ = send.set_priority(CONTROL_PRIORITY);
    }
    let open = Arc::new(open);
    let send = QuicSend::new(send, open.clone(), mailbox.clone());
    Stream { send: send.into(), recv: QuicRecv::new(recv, open, mailbox).into() }
}

/// Reads the header of a stream that the peer opened. Returns `None` when the header is malformed or late.
async fn read_incoming_stream(
    counters: Arc<LinkCounters>,
    router: Arc<DatagramRouter>,
    mut send: quinn::SendStream,
    mut recv: quinn::RecvStream,
) -> Option<(StreamHeader, Stream)> {
    let open = OpenStreamGuard::new(counters.clone(), true);
    let header_and_mailbox = async {
        let header = read_header(&mut recv).await?;
        let mailbox = mailbox_for(&header, &router, recv.id().into(), true);
        if mailbox.is_some() {
            // Datagrams are accepted from now on. The write fails only if the peer has stopped this
            // direction; later reads and writes report that.
            let _ = send.write_all(&WELCOME.to_be_bytes()).await;
        }
        Ok((header, mailbox))
    };
    let code = match timeout(HEADER_DEADLINE, header_and_mailbox).await {
        Ok(Ok((header, mailbox))) => {
            counters.heard();
            let stream = join_halves(&header, send, recv, open, mailbox);
            return Some((header, stream));
        }
        Ok(Err(code)) => code,
        Err(_) => ResetCode::Timeout,
    };
    counters.streams_malformed.fetch_add(1, Ordering::Relaxed);
    let code = VarInt::from_u32(code.into());
    let _ = (send.reset(code), recv.stop(code));
    None
}

async fn read_header(recv: &mut quinn::RecvStream) -> Result<StreamHeader, ResetCode> {
    let mut prefix = [0; PREFIX_BYTES];
    recv.read_exact(&mut prefix).await.map_err(|_| ResetCode::Malformed)?;
    let length = StreamHeader::length(prefix).map_err(|_| ResetCode::Malformed)?;
    let mut message = BytesMut::zeroed(length);
    recv.read_exact(&mut message).await.map_err(|_| ResetCode::Malformed)?;
    StreamHeader::decode_message(message.freeze()).map_err(|_| ResetCode::Malformed)
}

/// Counters that the halves of streams update, without keeping the link alive.
struct LinkCounters {
    driver: Arc<DriverThread>,
    is_admitted: AtomicBool,
    created: Instant,
    /// Nanoseconds after `created`.
    heard: AtomicU64,
    streams_open: AtomicU64,
    peer_streams_open: AtomicU64,
    streams_allowed: AtomicU32,
    streams_malformed: AtomicU64,
    datagrams: DatagramCounts,
}

impl LinkCounters {
    fn new(streams_allowed: u32, driver: Arc<DriverThread>) -> LinkCounters {
        LinkCounters {
            driver,
            is_admitted: AtomicBool::new(false),
            created: Instant::now(),
            heard: AtomicU64::default(),
            streams_open: AtomicU64::default(),
            peer_streams_open: AtomicU64::default(),
            streams_allowed: AtomicU32::new(streams_allowed),
            streams_malformed: AtomicU64::default(),
            datagrams: DatagramCounts::default(),
        }
    }

    fn heard(&self) {
        self.heard.fetch_max(self.created.elapsed().as_nanos() as u64, Ordering::Relaxed);
    }

    fn last_heard(&self) -> Instant {
        self.created + Duration::from_nanos(self.heard.load(Ordering::Relaxed))
    }
}

/// Counts a stream as open while one of its halves exists.
struct OpenStreamGuard {
    counters: Arc<LinkCounters>,
    is_of_peer: bool,
}

impl OpenStreamGuard {
    fn new(counters: Arc<LinkCounters>, is_of_peer: bool) -> OpenStreamGuard {
        counters.streams_open.fetch_add(1, Ordering::Relaxed);
        counters.peer_streams_open.fetch_add(u64::from(is_of_peer), Ordering::Relaxed);
        OpenStreamGuard { counters, is_of_peer }
    }
}

impl Drop for OpenStreamGuard {
    fn drop(&mut self) {
        self.counters.streams_open.fetch_sub(1, Ordering::Relaxed);
        self.counters.peer_streams_open.fetch_sub(u64::from(self.is_of_peer), Ordering::Relaxed);
    }
}

fn certificate(connection: &Connection) -> Option<CertificateDer<'static>> {
    let chain = connection.peer_identity()?.downcast::<Vec<CertificateDer<'static>>>().ok()?;
    chain.into_iter().next()
}

/// Range of QUIC error codes that carry TLS alerts (RFC 9001, section 4.8).
const CRYPTO_CODES: std::ops::Range<u64> = 0x100..0x200;
/// Transport error CONNECTION_REFUSED (RFC 9000, section 20.1).
const CONNECTION_REFUSED: u64 = 0x2;

fn link_closed(error: &ConnectionError) -> LinkClosed {
    use ClosedBy::{Peer, Transport, Us};
    match error {
        ConnectionError::ApplicationClosed(frame) => {
            let code = u32::try_from(frame.error_code.into_inner()).unwrap_or(u32::MAX);
            LinkClosed { by: Peer, reason: CloseReason::from_wire(code, &frame.reason) }
        }
        ConnectionError::ConnectionClosed(frame) => {
            let code = match u64::from(frame.error_code) {
                code if CRYPTO_CODES.contains(&code) => CloseCode::NotAdmitted,
                CONNECTION_REFUSED => CloseCode::Limit,
                _ => CloseCode::Malformed,
            };
            LinkClosed { by: Peer, reason: CloseReason::from_wire(code.into(), frame.to_string().as_bytes()) }
        }
        ConnectionError::TransportError(error) => match u64::from(error.code) {
            code if CRYPTO_CODES.contains(&code) => {
                LinkClosed::new(Us, CloseCode::NotAdmitted, error.to_string())
            }
            _ => LinkClosed::new(Transport, CloseCode::Malformed, error.to_string()),
        },
        ConnectionError::Reset => {
            LinkClosed::new(Transport, CloseCode::Dead, "the peer does not know this link any more")
        }
        ConnectionError::TimedOut => {
            LinkClosed::new(Transport, CloseCode::Dead, "nothing was heard for too long")
        }
        ConnectionError::LocallyClosed => LinkClosed::new(Us, CloseCode::Done, ""),
        ConnectionError::VersionMismatch => {
            LinkClosed::new(Transport, CloseCode::Malformed, "the peer speaks another version of QUIC")
        }
        ConnectionError::CidsExhausted => {
            LinkClosed::new(Transport, CloseCode::Internal, "no connection IDs are left")
        }
    }
}

// A dual-stack socket shows IPv4 peers as IPv6-mapped addresses.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}
