//! A link over QUIC: quinn behind the face of `link`, and nothing of quinn outside this room.
//!
//! `client` dials, `server` makes what the port accepts with, `transport` holds the numbers, `stream` the two
//! halves of a stream. Retransmission, pacing, migration and path MTU are quinn's business.

mod busy;
mod client;
mod frugal;
mod intake;
mod refusing;
pub(crate) mod server;
pub(crate) mod socket;
mod stream;
mod transport;

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use quinn::{Connection, ConnectionError, SendDatagramError, VarInt};
use rustls_pki_types::CertificateDer;
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::link::{
    CloseCode, CloseReason, ClosedBy, DatagramError, HEADER_DEADLINE, LinkClosed, LinkFigures, LinkLimits,
    PREFIX_BYTES, Purpose, ResetCode, Stream, StreamError, StreamHeader,
};

pub use busy::{Busy, NUMBER_BYTES, Number};
pub use client::{ConnectError, QuicClient};
pub use server::PortKeys;
pub use stream::{QuicRecv, QuicSend};
pub use transport::{Congestion, QuicOptions};

/// Headers that are read at the same time; beyond it streams wait in quinn.
const ARRIVING_MAX: usize = 64;
/// Control goes before everything else that waits to be sent.
const CONTROL_PRIORITY: i32 = 10;

#[derive(Clone)]
pub struct QuicLink(Arc<Inner>);

struct Inner {
    connection: Connection,
    limits: LinkLimits,
    vitals: Arc<Vitals>,
    closed_by_us: OnceLock<CloseReason>,
    arriving: Mutex<FuturesUnordered<Arriving>>,
}

type Arriving = Pin<Box<dyn Future<Output = Option<(StreamHeader, Stream)>> + Send>>;

impl QuicLink {
    /// Around a connection whose handshake is complete.
    fn new(connection: Connection, limits: LinkLimits) -> QuicLink {
        let vitals = Arc::new(Vitals::new(transport::STREAMS_AT_FIRST.min(limits.streams_max)));
        let arriving = Mutex::new(FuturesUnordered::new());
        let closed_by_us = OnceLock::new();
        QuicLink(Arc::new(Inner { connection, limits, vitals, closed_by_us, arriving }))
    }

    pub async fn open_stream(&self, header: StreamHeader) -> Result<Stream, StreamError> {
        let bytes = header.encode_prefixed()?;
        let opened = self.0.connection.open_bi().await;
        let (send, recv) = opened.map_err(|error| self.0.link_closed(&error))?;
        let open = Open::new(self.0.vitals.clone(), false);
        let stream = self.0.stream(&header, send, recv, open);
        let Stream { mut send, recv } = stream;
        send.write_chunk(bytes).await.map_err(|error| match ResetCode::of(&error) {
            Some(code) => StreamError::Refused(crate::link::Reset(code)),
            None => StreamError::Closed(self.0.closed_now()),
        })?;
        Ok(Stream { send, recv })
    }

    pub async fn accept_stream(&self) -> Result<(StreamHeader, Stream), LinkClosed> {
        let inner = &self.0;
        let mut arriving = inner.arriving.lock().await;
        loop {
            tokio::select! {
                biased;
                Some(arrived) = arriving.next(), if !arriving.is_empty() => {
                    if let Some(arrived) = arrived {
                        return Ok(arrived);
                    }
                }
                accepted = inner.connection.accept_bi(), if arriving.len() < ARRIVING_MAX => {
                    let (send, recv) = accepted.map_err(|error| inner.link_closed(&error))?;
                    inner.leave_room_for_streams();
                    arriving.push(Box::pin(arrive(self.0.vitals.clone(), send, recv)));
                }
            }
        }
    }

    pub fn send_datagram(&self, data: Bytes) -> Result<(), DatagramError> {
        let connection = &self.0.connection;
        // Left to itself quinn would drop the oldest, and nobody would count it.
        if connection.datagram_send_buffer_space() < data.len() {
            let bytes_max = self.datagram_bytes_max();
            if data.len() > bytes_max {
                return Err(DatagramError::TooLarge { bytes: data.len(), bytes_max });
            }
            self.0.vitals.datagrams_dropped.fetch_add(1, Ordering::Relaxed);
            return Err(DatagramError::Full);
        }
        let bytes = data.len();
        connection.send_datagram(data).map_err(|error| match error {
            SendDatagramError::ConnectionLost(_) => DatagramError::Closed,
            _ => DatagramError::TooLarge { bytes, bytes_max: self.datagram_bytes_max() },
        })
    }

    pub async fn read_datagram(&self) -> Result<Bytes, LinkClosed> {
        let datagram = self.0.connection.read_datagram().await;
        self.0.vitals.heard();
        datagram.map_err(|error| self.0.link_closed(&error))
    }

    pub fn datagram_bytes_max(&self) -> usize {
        self.0.connection.max_datagram_size().unwrap_or(0)
    }

    pub fn close(&self, reason: CloseReason) {
        self.0.close(reason);
    }

    pub async fn closed(&self) -> LinkClosed {
        let error = self.0.connection.closed().await;
        self.0.link_closed(&error)
    }

    /// From what was read here, and from the acknowledgements that quinn saw.
    pub fn last_heard(&self) -> Instant {
        let acknowledged = transport::last_acknowledged(&self.0.connection);
        acknowledged.map_or(self.0.vitals.last_heard(), |time| time.max(self.0.vitals.last_heard()))
    }

    pub fn rtt(&self) -> Option<Duration> {
        Some(self.0.connection.rtt())
    }

    pub fn figures(&self) -> LinkFigures {
        let stats = self.0.connection.stats();
        let vitals = &self.0.vitals;
        LinkFigures {
            sent_bytes: stats.udp_tx.bytes,
            received_bytes: stats.udp_rx.bytes,
            streams_open: vitals.streams_open.load(Ordering::Relaxed),
            streams_malformed: vitals.streams_malformed.load(Ordering::Relaxed),
            datagrams_dropped: vitals.datagrams_dropped.load(Ordering::Relaxed),
        }
    }

    pub fn remote_address(&self) -> SocketAddr {
        canonical(self.0.connection.remote_address())
    }

    /// TLS keeps it; a second one here would be half a kilobyte for every link.
    pub fn certificate(&self) -> Option<CertificateDer<'static>> {
        let chain = self.0.connection.peer_identity()?.downcast::<Vec<CertificateDer<'static>>>().ok()?;
        chain.into_iter().next()
    }
}

impl Inner {
    fn stream(
        &self,
        header: &StreamHeader,
        send: quinn::SendStream,
        recv: quinn::RecvStream,
        open: Open,
    ) -> Stream {
        join_halves(header, send, recv, open)
    }

    // Every stream a peer may open costs a place in two tables, open or not. So an idle link allows few, and a
    // busy one gets more before it has to wait.
    fn leave_room_for_streams(&self) {
        let allowed = self.vitals.streams_allowed.load(Ordering::Relaxed);
        let open = self.vitals.peer_streams_open.load(Ordering::Relaxed) as u32;
        if open + 1 < allowed / 2 || allowed >= self.limits.streams_max {
            return;
        }
        // quinn does not announce a step of an eighth or less, so the last one must be a large one.
        let more = match allowed.saturating_mul(4) {
            more if more > self.limits.streams_max / 2 => self.limits.streams_max,
            more => more,
        };
        self.vitals.streams_allowed.store(more, Ordering::Relaxed);
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

fn join_halves(
    header: &StreamHeader,
    send: quinn::SendStream,
    recv: quinn::RecvStream,
    open: Open,
) -> Stream {
    if header.purpose() == Some(Purpose::Control) {
        // Fails only for a stream that is closed already, which the next write will tell.
        let _ = send.set_priority(CONTROL_PRIORITY);
    }
    let open = Arc::new(open);
    Stream { send: QuicSend::new(send, open.clone()).into(), recv: QuicRecv::new(recv, open).into() }
}

/// Waits for the header of a stream of the peer. `None`: there was none worth waiting for.
async fn arrive(
    vitals: Arc<Vitals>,
    mut send: quinn::SendStream,
    mut recv: quinn::RecvStream,
) -> Option<(StreamHeader, Stream)> {
    let open = Open::new(vitals.clone(), true);
    let code = match timeout(HEADER_DEADLINE, read_header(&mut recv)).await {
        Ok(Ok(header)) => {
            vitals.heard();
            let stream = join_halves(&header, send, recv, open);
            return Some((header, stream));
        }
        Ok(Err(code)) => code,
        Err(_) => ResetCode::Timeout,
    };
    vitals.streams_malformed.fetch_add(1, Ordering::Relaxed);
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

/// What the halves of streams report back, without holding the link open.
struct Vitals {
    born: Instant,
    /// Nanoseconds after `born`.
    heard: AtomicU64,
    streams_open: AtomicU64,
    peer_streams_open: AtomicU64,
    streams_allowed: AtomicU32,
    streams_malformed: AtomicU64,
    datagrams_dropped: AtomicU64,
}

impl Vitals {
    fn new(streams_allowed: u32) -> Vitals {
        Vitals {
            born: Instant::now(),
            heard: AtomicU64::default(),
            streams_open: AtomicU64::default(),
            peer_streams_open: AtomicU64::default(),
            streams_allowed: AtomicU32::new(streams_allowed),
            streams_malformed: AtomicU64::default(),
            datagrams_dropped: AtomicU64::default(),
        }
    }

    fn heard(&self) {
        self.heard.fetch_max(self.born.elapsed().as_nanos() as u64, Ordering::Relaxed);
    }

    fn last_heard(&self) -> Instant {
        self.born + Duration::from_nanos(self.heard.load(Ordering::Relaxed))
    }
}

/// Counts a stream for as long as one of its halves lives.
struct Open {
    vitals: Arc<Vitals>,
    is_of_peer: bool,
}

impl Open {
    fn new(vitals: Arc<Vitals>, is_of_peer: bool) -> Open {
        vitals.streams_open.fetch_add(1, Ordering::Relaxed);
        vitals.peer_streams_open.fetch_add(u64::from(is_of_peer), Ordering::Relaxed);
        Open { vitals, is_of_peer }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.vitals.streams_open.fetch_sub(1, Ordering::Relaxed);
        self.vitals.peer_streams_open.fetch_sub(u64::from(self.is_of_peer), Ordering::Relaxed);
    }
}

/// TLS alerts travel as these codes (RFC 9001, section 4.8).
const CRYPTO_CODES: std::ops::Range<u64> = 0x100..0x200;
/// RFC 9000, section 20.1.
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

// A socket for both families shows IPv4 peers as IPv6.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}
