//! One link to a peer, over either transport: streams that begin with a header, their datagrams, and close reasons.
//!
//! Created by `quic` or `tcp`, returned by the port and the dialer. This module is only the common API:
//! authorization, sessions and pings are left to the callers.

mod flow;
mod header;
mod reason;
mod receive_budget;
mod secondary;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use rustls_pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::runtime::Handle;
use tokio::sync::OwnedSemaphorePermit;

use crate::quic::{DatagramMailbox, QuicLink, QuicRecv, QuicSend};
use crate::tcp::{TcpLink, TcpRecv, TcpSend};
use secondary::SecondarySlot;
pub use secondary::{SlotLink, SlotState};

pub use flow::{DatagramFlow, DatagramFlowRecv, DatagramFlowSend, DatagramPath};
pub use header::{HEADER_BYTES_MAX, HeaderError, PREFIX_BYTES, StreamHeader, StreamOrigin, StreamPurpose};
pub use reason::{CloseCode, CloseReason, ClosedBy, LinkClosed, Reset, ResetCode, StreamError};
pub use receive_budget::ReceiveBudget;
pub(crate) use receive_budget::{BudgetShare, QUIC_WINDOW_BYTES_MIN};

/// ALPN of the channel between an edge and the cloud.
pub const CHANNEL_ALPN: &[u8] = b"causeway/1";
/// ALPN between replicas of the cloud.
pub const REPLICA_ALPN: &[u8] = b"causeway-replica/1";

/// Deadline for the header of a stream that a peer has opened.
pub const HEADER_DEADLINE: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Transport {
    Quic,
    Tcp,
}

impl Transport {
    pub fn as_str(self) -> &'static str {
        match self {
            Transport::Quic => "quic",
            Transport::Tcp => "tcp",
        }
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

/// The end of a link: the one that dialled, or the one that accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LinkSide {
    Dialled,
    Accepted,
}

/// Bounds on the memory that a peer can occupy for one link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkLimits {
    /// Streams that the peer may have open at the same time; it waits with the next.
    pub streams_max: u32,
    /// Bytes that the peer may send on one stream before they are read.
    pub stream_window_bytes: u32,
    /// Bytes that were written here and are not yet acknowledged, over all streams.
    pub send_window_bytes: u32,
    /// Queued QUIC datagrams of streams per direction. Older received ones are dropped; those to be sent are sent on
    /// their stream instead.
    pub datagram_buffer_bytes: usize,
}

impl LinkLimits {
    /// Bound of unread bytes over all streams of a link. Five hundred full windows of the default size do not
    /// block other streams, and however many streams a peer opens, it cannot make us hold more. Links that
    /// share a `ReceiveBudget` have a lower one together.
    pub fn receive_bytes_max(&self) -> u64 {
        // One more, for the header of the next stream.
        let windows = u64::from(self.streams_max) * 2 + 1;
        (windows * u64::from(self.stream_window_bytes)).min(UNREAD_BYTES_MAX)
    }
}

const UNREAD_BYTES_MAX: u64 = 512 * 1024 * 1024;

impl Default for LinkLimits {
    /// A window of 1 MiB gives one stream 80 Mbit/s at a round trip of 100 ms, and a third of it where every
    /// lost packet costs another round trip. Ten thousand connections, and some more, use one link. Their
    /// memory is allocated when they come: an idle link holds none of it.
    fn default() -> LinkLimits {
        LinkLimits {
            streams_max: 16_384,
            stream_window_bytes: 1024 * 1024,
            send_window_bytes: 8 * 1024 * 1024,
            datagram_buffer_bytes: 1024 * 1024,
        }
    }
}

/// Counters of a link, and its open streams.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LinkStats {
    pub sent_bytes: u64,
    pub received_bytes: u64,
    pub streams_open: u64,
    /// Streams of the peer that were reset because of their header.
    pub streams_malformed: u64,
    /// Streams of the peer that were reset because too many of its streams were in memory.
    pub streams_refused: u64,
    /// QUIC datagrams of streams, sent and received.
    pub datagrams_sent: u64,
    pub datagrams_received: u64,
    /// Datagrams that arrived and were dropped because a queue was full, or because no stream accepts them. Those
    /// of the link itself, which older peers could send, belong to no stream.
    pub datagrams_dropped: u64,
}

impl LinkStats {
    /// The sums of two links that carry one session.
    fn plus(self, other: &LinkStats) -> LinkStats {
        LinkStats {
            sent_bytes: self.sent_bytes + other.sent_bytes,
            received_bytes: self.received_bytes + other.received_bytes,
            streams_open: self.streams_open + other.streams_open,
            streams_malformed: self.streams_malformed + other.streams_malformed,
            streams_refused: self.streams_refused + other.streams_refused,
            datagrams_sent: self.datagrams_sent + other.datagrams_sent,
            datagrams_received: self.datagrams_received + other.datagrams_received,
            datagrams_dropped: self.datagrams_dropped + other.datagrams_dropped,
        }
    }
}

/// The bytes that a QUIC link has sent and the peer has acknowledged, and those that were lost on the way.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PathStats {
    pub acknowledged_bytes: u64,
    pub lost_bytes: u64,
}

/// A cheap handle. Dropping the last one closes the link, whatever streams are open.
#[derive(Clone)]
pub struct Link {
    inner: LinkInner,
    /// The secondary link of a session over QUIC. A TCP link has none.
    secondary: Option<Arc<SecondarySlot>>,
    /// Permit for this link at the port that accepted it.
    place: Option<Arc<PortPlace>>,
}

/// The place of a link at its port.
pub(crate) struct PortPlace {
    pub permit: OwnedSemaphorePermit,
    /// Places that are kept for sessions.
    pub reserved: usize,
}

#[derive(Clone)]
enum LinkInner {
    Quic(QuicLink),
    Tcp(TcpLink),
}

impl From<QuicLink> for Link {
    fn from(link: QuicLink) -> Link {
        Link { secondary: Some(Arc::default()), ..Link::new(LinkInner::Quic(link)) }
    }
}

impl From<TcpLink> for Link {
    fn from(link: TcpLink) -> Link {
        Link::new(LinkInner::Tcp(link))
    }
}

impl Link {
    fn new(inner: LinkInner) -> Link {
        Link { inner, secondary: None, place: None }
    }

    /// Returns the same link, counted at its port until the last handle is dropped.
    pub(crate) fn holding(self, place: PortPlace) -> Link {
        Link { place: Some(Arc::new(place)), ..self }
    }

    /// Returns whether the remaining places of the port that accepted this link are kept for sessions, so that it may not
    /// become a secondary link.
    pub fn is_port_crowded(&self) -> bool {
        let is_crowded =
            |place: &Arc<PortPlace>| place.permit.semaphore().available_permits() < place.reserved;
        self.place.as_ref().is_some_and(is_crowded)
    }

    /// Gives the peer of an accepted link its full limits. Before this call it may open one stream, the
    /// control stream, and its datagrams are dropped: a peer that is not authorized yet costs little.
    pub fn admit(&self) {
        match &self.inner {
            LinkInner::Quic(link) => link.admit(None),
            LinkInner::Tcp(link) => link.admit(None),
        }
    }

    /// As `admit`, for a link that shares the bound of its unread bytes with the other links of the same peer.
    pub fn admit_within(&self, budget: &ReceiveBudget) {
        match &self.inner {
            LinkInner::Quic(link) => link.admit(Some(budget)),
            LinkInner::Tcp(link) => link.admit(Some(budget)),
        }
    }

    /// Takes what other links of the peer have returned to the budget since. Cheap; called now and then.
    pub fn raise_receive_window(&self) {
        if let LinkInner::Quic(link) = &self.inner {
            link.raise_receive_window();
        }
    }

    /// Opens a stream as soon as the peer's limit allows it. The header is sent with the first bytes; there
    /// is no round trip.
    ///
    /// A stream of a service or a node takes the secondary link where one is attached and has room for a stream, and the
    /// primary one otherwise: it never waits for a link that is being opened or is full. Datagrams need QUIC, so a stream
    /// with datagrams stays on it.
    pub async fn open_stream(&self, header: StreamHeader) -> Result<Stream, StreamError> {
        let link = match &self.inner {
            LinkInner::Quic(link) => link,
            LinkInner::Tcp(link) => return link.open_stream(header).await,
        };
        let Some(secondary) = self.secondary.as_ref().filter(|_| is_for_secondary(&header)) else {
            return link.open_stream(header).await;
        };
        if let Some(Link { inner: LinkInner::Tcp(attached), .. }) = secondary.attached() {
            match attached.try_open_stream(&header) {
                Ok(Some(stream)) => return Ok(stream),
                // It has no room, or died a moment ago. The primary link is alive, or will say why not.
                Ok(None) | Err(StreamError::Closed(_)) => {}
                Err(error) => return Err(error),
            }
        }
        secondary.note_stream();
        link.open_stream(header).await
    }

    /// Attaches a TCP link of the same peer: new streams take it from now on. It ends with this link.
    pub fn attach_secondary(&self, link: Link) {
        match &self.secondary {
            Some(secondary) => secondary.attach(link),
            None => link.close(CloseReason::new(CloseCode::NotAdmitted, "the session is on TCP already")),
        }
    }

    /// New streams take the primary link again; those on the secondary link go on.
    pub fn retire_secondary(&self) {
        if let Some(secondary) = &self.secondary {
            secondary.retire();
        }
    }

    /// Forgets a secondary link that has ended.
    pub fn remove_secondary(&self, ended: &Link) {
        if let Some(secondary) = &self.secondary {
            secondary.remove(ended);
        }
    }

    pub fn has_secondary(&self) -> bool {
        self.secondary.as_ref().is_some_and(|secondary| secondary.attached().is_some())
    }

    /// Resolves when a stream has begun on the primary link that a secondary link could have carried.
    pub async fn stream_activity(&self) {
        match &self.secondary {
            Some(secondary) => secondary.activity().await,
            None => std::future::pending().await,
        }
    }

    /// The totals of the secondary links, and those of the primary one alone.
    pub fn stats_by_transport(&self) -> (LinkStats, LinkStats) {
        let secondary = self.secondary.as_ref().map(|secondary| secondary.stats()).unwrap_or_default();
        (self.primary_stats(), secondary)
    }

    /// The loss that was measured on the way to the peer. `None` over TCP.
    pub fn path_stats(&self) -> Option<PathStats> {
        match &self.inner {
            LinkInner::Quic(link) => link.path_stats(),
            LinkInner::Tcp(_) => None,
        }
    }

    /// Measures the round trip of a TCP link now, behind all that waits to be sent. Over QUIC: as it was last measured.
    pub async fn ping(&self) -> Result<Duration, LinkClosed> {
        match &self.inner {
            LinkInner::Quic(link) => Ok(link.rtt().unwrap_or_default()),
            LinkInner::Tcp(link) => link.ping().await,
        }
    }

    fn is_same(&self, other: &Link) -> bool {
        match (&self.inner, &other.inner) {
            (LinkInner::Tcp(one), LinkInner::Tcp(two)) => one.is_same(two),
            _ => false,
        }
    }

    /// Returns the next stream of the peer whose header has arrived. A stream that waits for its header does
    /// not block other streams. A stream whose header is malformed, or later than `HEADER_DEADLINE`, is reset and
    /// counted. Cancel-safe.
    pub async fn accept_stream(&self) -> Result<(StreamHeader, Stream), LinkClosed> {
        let accepted = match &self.inner {
            LinkInner::Quic(link) => link.accept_stream().await?,
            LinkInner::Tcp(link) => link.accept_stream().await?,
        };
        if let Some(secondary) = self.secondary.as_ref().filter(|_| is_for_secondary(&accepted.0)) {
            secondary.note_stream();
        }
        Ok(accepted)
    }

    /// Closes at once; the peer receives code and text. Written bytes that have not arrived are lost.
    pub fn close(&self, reason: CloseReason) {
        if let Some(secondary) = &self.secondary {
            secondary.close(&reason);
        }
        match &self.inner {
            LinkInner::Quic(link) => link.close(reason),
            LinkInner::Tcp(link) => link.close(reason),
        }
    }

    /// Resolves when the link is closed, with the closing side and the reason.
    pub async fn closed(&self) -> LinkClosed {
        match &self.inner {
            LinkInner::Quic(link) => link.closed().await,
            LinkInner::Tcp(link) => link.closed().await,
        }
    }

    /// Returns when authenticated bytes of the peer last arrived.
    pub fn last_heard(&self) -> Instant {
        match &self.inner {
            LinkInner::Quic(link) => link.last_heard(),
            LinkInner::Tcp(link) => link.last_heard(),
        }
    }

    /// Counts the frames of the peer that arrived over QUIC, also those that cannot be read yet because earlier ones are
    /// missing. Over TCP `last_heard` says as much, and this is zero.
    pub fn frames_received(&self) -> u64 {
        match &self.inner {
            LinkInner::Quic(link) => link.frames_received(),
            LinkInner::Tcp(_) => 0,
        }
    }

    /// Returns `None` before the first measurement.
    pub fn rtt(&self) -> Option<Duration> {
        match &self.inner {
            LinkInner::Quic(link) => link.rtt(),
            LinkInner::Tcp(link) => link.rtt(),
        }
    }

    /// The totals of the session: the primary link and its secondary links.
    pub fn stats(&self) -> LinkStats {
        let (primary, secondary) = self.stats_by_transport();
        primary.plus(&secondary)
    }

    fn primary_stats(&self) -> LinkStats {
        match &self.inner {
            LinkInner::Quic(link) => link.stats(),
            LinkInner::Tcp(link) => link.stats(),
        }
    }

    pub fn transport(&self) -> Transport {
        match &self.inner {
            LinkInner::Quic(_) => Transport::Quic,
            LinkInner::Tcp(_) => Transport::Tcp,
        }
    }

    /// Runtime of the I/O thread that drives the link; tasks with much traffic on it should run there.
    /// `None`: any thread.
    pub fn runtime(&self) -> Option<Handle> {
        match &self.inner {
            LinkInner::Quic(link) => {
                let secondary = self.secondary.as_ref().and_then(|secondary| secondary.runtime());
                secondary.or_else(|| link.runtime().cloned())
            }
            LinkInner::Tcp(link) => Some(link.runtime().clone()),
        }
    }

    /// As `runtime`, for a caller that is about to open a stream: a QUIC link gets its I/O thread now.
    pub fn traffic_runtime(&self) -> Option<Handle> {
        if let LinkInner::Quic(link) = &self.inner {
            link.begin_traffic();
        }
        self.runtime()
    }

    /// Returns the current address of the peer; it may change.
    pub fn remote_address(&self) -> SocketAddr {
        match &self.inner {
            LinkInner::Quic(link) => link.remote_address(),
            LinkInner::Tcp(link) => link.remote_address(),
        }
    }

    /// The peer's own certificate, verified except for its validity period: a gateway's at the cloud, the
    /// cloud's at an edge.
    pub fn certificate(&self) -> Option<CertificateDer<'static>> {
        match &self.inner {
            LinkInner::Quic(link) => link.certificate(),
            LinkInner::Tcp(link) => link.certificate(),
        }
    }
}

/// Streams of services and nodes are many or large. Everything else is small and stays with the control stream.
fn is_for_secondary(header: &StreamHeader) -> bool {
    let purpose = header.purpose();
    !header.datagrams && matches!(purpose, Some(StreamPurpose::Service | StreamPurpose::Node))
}

impl fmt::Debug for Link {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Link({} {})", self.transport(), self.remote_address())
    }
}

/// Both directions of a stream. Each ends independently.
#[derive(Debug)]
pub struct Stream {
    pub send: SendStream,
    pub recv: RecvStream,
}

impl Stream {
    pub fn split(self) -> (SendStream, RecvStream) {
        (self.send, self.recv)
    }

    /// Runtime of its link, see `Link::runtime`.
    pub fn runtime(&self) -> Option<&Handle> {
        match &self.send.0 {
            SendInner::Quic(send) => send.runtime(),
            SendInner::Tcp(send) => Some(send.runtime()),
        }
    }

    /// Returns whether QUIC datagrams may arrive for it. Such a stream must be used as a `DatagramFlow`.
    pub fn has_datagrams(&self) -> bool {
        self.send.mailbox().is_some()
    }

    /// Resets both directions.
    pub fn refuse(mut self, code: ResetCode) {
        self.send.reset(code);
        self.recv.stop(code);
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.recv).poll_read(context, buffer)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.send).poll_write(context, data)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.send).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.send).poll_shutdown(context)
    }
}

/// The direction to the peer. `shutdown` ends it properly; dropping it before that resets it as `Abandoned`.
pub struct SendStream(SendInner);

enum SendInner {
    Quic(QuicSend),
    Tcp(TcpSend),
}

impl From<QuicSend> for SendStream {
    fn from(send: QuicSend) -> SendStream {
        SendStream(SendInner::Quic(send))
    }
}

impl From<TcpSend> for SendStream {
    fn from(send: TcpSend) -> SendStream {
        SendStream(SendInner::Tcp(send))
    }
}

impl SendStream {
    /// Resets the direction: the peer's reader fails with this code, also for bytes already written.
    pub fn reset(&mut self, code: ResetCode) {
        match &mut self.0 {
            SendInner::Quic(send) => send.reset(code),
            SendInner::Tcp(send) => send.reset(code),
        }
    }

    /// Resolves when the peer stops the direction, and with `Abandoned` when the link ends. Never resolves
    /// once all bytes were delivered.
    pub async fn stopped(&mut self) -> ResetCode {
        match &mut self.0 {
            SendInner::Quic(send) => send.stopped().await,
            SendInner::Tcp(send) => send.stopped().await,
        }
    }

    fn mailbox(&self) -> Option<&Arc<DatagramMailbox>> {
        match &self.0 {
            SendInner::Quic(send) => send.mailbox(),
            SendInner::Tcp(_) => None,
        }
    }

    /// Writes all of `data`, without a copy where the transport supports it.
    pub async fn write_chunk(&mut self, data: Bytes) -> io::Result<()> {
        match &mut self.0 {
            SendInner::Quic(send) => send.write_chunk(data).await,
            SendInner::Tcp(send) => send.write_chunk(data).await,
        }
    }

    /// Writes all of `chunks` and leaves the list empty: as `write_chunk` for each, at the cost of one. Cancel-safe: what was not taken stays
    /// in the list, behind chunks that are empty.
    pub async fn write_chunks(&mut self, chunks: &mut Vec<Bytes>) -> io::Result<()> {
        match &mut self.0 {
            SendInner::Quic(send) => send.write_chunks(chunks).await,
            SendInner::Tcp(send) => send.write_chunks(chunks).await,
        }
    }
}

impl AsyncWrite for SendStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.0 {
            SendInner::Quic(send) => Pin::new(send).poll_write(context, data),
            SendInner::Tcp(send) => Pin::new(send).poll_write(context, data),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.0 {
            SendInner::Quic(send) => Pin::new(send).poll_flush(context),
            SendInner::Tcp(send) => Pin::new(send).poll_flush(context),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.0 {
            SendInner::Quic(send) => Pin::new(send).poll_shutdown(context),
            SendInner::Tcp(send) => Pin::new(send).poll_shutdown(context),
        }
    }
}

impl fmt::Debug for SendStream {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("SendStream")
    }
}

/// The direction from the peer. Dropping it before its end tells the peer `Abandoned`.
pub struct RecvStream(RecvInner);

enum RecvInner {
    Quic(QuicRecv),
    Tcp(TcpRecv),
}

impl From<QuicRecv> for RecvStream {
    fn from(recv: QuicRecv) -> RecvStream {
        RecvStream(RecvInner::Quic(recv))
    }
}

impl From<TcpRecv> for RecvStream {
    fn from(recv: TcpRecv) -> RecvStream {
        RecvStream(RecvInner::Tcp(recv))
    }
}

impl RecvStream {
    /// Stops the direction: the peer's writer fails with this code, and received bytes are discarded.
    pub fn stop(&mut self, code: ResetCode) {
        match &mut self.0 {
            RecvInner::Quic(recv) => recv.stop(code),
            RecvInner::Tcp(recv) => recv.stop(code),
        }
    }

    fn mailbox(&self) -> Option<&Arc<DatagramMailbox>> {
        match &self.0 {
            RecvInner::Quic(recv) => recv.mailbox(),
            RecvInner::Tcp(_) => None,
        }
    }

    /// Returns the next bytes, without a copy where the transport supports it. `None` at the end.
    /// Cancel-safe.
    pub async fn read_chunk(&mut self, bytes_max: usize) -> io::Result<Option<Bytes>> {
        match &mut self.0 {
            RecvInner::Quic(recv) => recv.read_chunk(bytes_max).await,
            RecvInner::Tcp(recv) => recv.read_chunk(bytes_max).await,
        }
    }

    /// Waits for bytes and adds those that have arrived to `chunks`, about `bytes_max` at most, without a copy where the
    /// transport supports it. Returns false at the end. Cancel-safe.
    pub async fn read_chunks(&mut self, chunks: &mut Vec<Bytes>, bytes_max: usize) -> io::Result<bool> {
        match &mut self.0 {
            RecvInner::Quic(recv) => recv.read_chunks(chunks, bytes_max).await,
            RecvInner::Tcp(recv) => recv.read_chunks(chunks, bytes_max).await,
        }
    }
}

impl AsyncRead for RecvStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut self.0 {
            RecvInner::Quic(recv) => Pin::new(recv).poll_read(context, buffer),
            RecvInner::Tcp(recv) => Pin::new(recv).poll_read(context, buffer),
        }
    }
}

impl fmt::Debug for RecvStream {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("RecvStream")
    }
}
