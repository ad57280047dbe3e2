//! The channel over TCP: TLS, and many streams on it with a small framing of our own.
//!
//! `over` takes an encrypted connection and returns a link. The decisions are in `mux`, which is pure;
//! `driver` moves bytes in one task per connection; `stream` has the two halves that users hold. HTTP/2 and
//! yamux are not used: resets with a reason, pings, stream scheduling and a few kilobytes per idle
//! edge are needed in one framing, and neither has all of them.

mod driver;
pub mod frame;
pub mod mux;
mod queue;
mod read_ahead;
mod stream;
#[cfg(test)]
mod tests;

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Waker;
use std::time::{Duration, Instant};

use rustls_pki_types::CertificateDer;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio_rustls::TlsStream;

use self::mux::{Mux, MuxSignals, StreamPriority};
pub use self::read_ahead::ReadAhead;
pub use self::stream::{TcpRecv, TcpSend};
use crate::io_thread;
use crate::link::{
    CloseCode, CloseReason, LinkClosed, LinkLimits, LinkSide, LinkStats, PREFIX_BYTES, ReceiveBudget,
    ResetCode, Stream, StreamError, StreamHeader, StreamPurpose,
};
use causeway_api::sync::MutexExt;

/// Facts about the peer at the start of the link.
#[derive(Debug, Clone)]
pub struct TcpPeer {
    pub remote_address: SocketAddr,
    /// The peer's own certificate, as TLS has verified it.
    pub certificate: Option<CertificateDer<'static>>,
}

/// Makes a link from an encrypted connection, and spawns its driver task on this runtime. The task ends with
/// the link.
pub fn over<T>(io: T, side: LinkSide, limits: &LinkLimits, meta: TcpPeer) -> TcpLink
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    over_at(io, Mux::new(side, limits, Instant::now()), meta, Handle::current())
}

fn over_at<T>(io: T, mux: Mux, meta: TcpPeer, runtime: Handle) -> TcpLink
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let shared = Arc::new(Shared {
        mux: Mutex::new(mux),
        accepted: Notify::new(),
        stream_credit: Notify::new(),
        pong: Notify::new(),
        ended: Notify::new(),
        meta,
        runtime,
    });
    shared.runtime.spawn(driver::LinkDriver::new(io, shared.clone()));
    TcpLink(Arc::new(Held { shared }))
}

/// The socket below TLS.
pub type LinkSocket = ReadAhead<TcpStream>;

/// Prepares a socket for a link before the TLS handshake, and chooses the I/O thread of the link.
pub fn prepare(socket: TcpStream, side: LinkSide) -> io::Result<LinkSocket> {
    let runtime = io_thread::choose(side)?;
    let socket = io_thread::bring(socket, &runtime)?;
    // The driver batches frames; the kernel must not delay them. Its unsent queue should be short, so that a
    // ping does not wait behind megabytes of bulk data. A failure of either option is harmless.
    let _ = socket.set_nodelay(true);
    let _ = SockRef::from(&socket).set_tcp_notsent_lowat(UNSENT_BYTES_MAX);
    // A secondary link has no keepalive of its own: the kernel ends a connection whose path died in silence.
    let _ = SockRef::from(&socket).set_tcp_keepalive(&kernel_keepalive());
    let _ = SockRef::from(&socket).set_tcp_user_timeout(Some(UNACKNOWLEDGED_MAX));
    let _ = unpace(&socket);
    Ok(ReadAhead::new(socket, runtime))
}

/// Disables pacing on a path inside this host, which is never congested. If the system's default is BBR,
/// its pacing costs a timer for every burst there, and on loopback half of the processor time of a byte. On
/// all other paths the system's default stays.
pub fn unpace(socket: &TcpStream) -> io::Result<()> {
    match socket.peer_addr()?.ip().to_canonical().is_loopback() {
        true => SockRef::from(socket).set_tcp_congestion(b"cubic"),
        false => Ok(()),
    }
}

/// The kernel probes a connection without traffic after 15 s and gives up 15 s later. A session that sends pings
/// is never probed.
fn kernel_keepalive() -> TcpKeepalive {
    TcpKeepalive::new()
        .with_time(Duration::from_secs(15))
        .with_interval(Duration::from_secs(5))
        .with_retries(3)
}

/// Bytes that the peer has not acknowledged for this long end the connection. Longer than the silence after which
/// a session is called dead, so a primary link is not ended by it first.
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(20);

/// Two batches of the driver: one is sent while the next is built.
const UNSENT_BYTES_MAX: u32 = 256 * 1024;

/// Bound of encrypted, unwritten bytes in TLS: one batch of the driver and its overhead, so that a batch is
/// one system call.
const TLS_BUFFER_BYTES: usize = 136 * 1024;

/// Makes a link from a connection whose handshake is complete.
pub fn over_tls(
    connection: TlsStream<LinkSocket>,
    side: LinkSide,
    limits: &LinkLimits,
) -> io::Result<TcpLink> {
    over_tls_with(connection, Mux::new(side, limits, Instant::now()))
}

/// As `over_tls`, for a peer that is not admitted yet, see `Link::admit`.
pub fn over_tls_pending(connection: TlsStream<LinkSocket>, limits: &LinkLimits) -> io::Result<TcpLink> {
    over_tls_with(connection, Mux::pending(LinkSide::Accepted, limits, Instant::now()))
}

fn over_tls_with(mut connection: TlsStream<LinkSocket>, mux: Mux) -> io::Result<TcpLink> {
    match &mut connection {
        TlsStream::Client(connection) => connection.get_mut().1.set_buffer_limit(Some(TLS_BUFFER_BYTES)),
        TlsStream::Server(connection) => connection.get_mut().1.set_buffer_limit(Some(TLS_BUFFER_BYTES)),
    }
    let (socket, session) = connection.get_ref();
    let address = socket.get_ref().peer_addr()?;
    let remote_address = SocketAddr::new(address.ip().to_canonical(), address.port());
    let certificate = session.peer_certificates().and_then(<[_]>::first).cloned();
    let runtime = socket.runtime().clone();
    Ok(over_at(connection, mux, TcpPeer { remote_address, certificate }, runtime))
}

/// Sends the reason of a refusal to the peer of a connection. Holds one small buffer, whatever the peer sends
/// meanwhile.
pub async fn refuse<T: AsyncRead + AsyncWrite + Unpin>(mut connection: T, reason: &CloseReason) {
    let mut bytes = Vec::new();
    frame::Frame::Close { code: reason.code.into(), text: reason.text_for_wire().as_bytes() }
        .write(&mut bytes);
    let told = async {
        connection.write_all(&bytes).await?;
        connection.shutdown().await?;
        // A socket that is closed with unread bytes sends a reset, and the reason would be lost.
        let mut unread = [0; 1024];
        for _ in 0..REFUSED_READS_MAX {
            if connection.read(&mut unread).await? == 0 {
                break;
            }
        }
        Ok::<(), io::Error>(())
    };
    // A peer that is gone, or reads nothing, need not be told.
    let _ = tokio::time::timeout(REFUSE_MAX, told).await;
}

/// Time for a refused peer to read the reason, and bound of its bytes that are read meanwhile: an edge sends
/// its hello.
const REFUSE_MAX: Duration = Duration::from_secs(2);
const REFUSED_READS_MAX: usize = 32;

/// A cheap handle. Dropping the last one closes the link, whatever streams are open.
#[derive(Clone)]
pub struct TcpLink(Arc<Held>);

struct Held {
    shared: Arc<Shared>,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.shared.with(|mux| mux.close(CloseReason::new(CloseCode::Done, "")));
    }
}

impl TcpLink {
    /// See `Link::admit` and `Link::admit_within`.
    pub fn admit(&self, budget: Option<&ReceiveBudget>) {
        self.shared().with(|mux| mux.admit(budget));
    }

    pub async fn open_stream(&self, header: StreamHeader) -> Result<Stream, StreamError> {
        let message = header.encode_prefixed()?.slice(PREFIX_BYTES..);
        let class = class(&header);
        let id = self.wait(|shared| &shared.stream_credit, |mux| mux.open(message.clone(), class)).await?;
        Ok(self.stream(id))
    }

    /// Opens a stream if the peer's limit allows one now.
    pub fn try_open_stream(&self, header: &StreamHeader) -> Result<Option<Stream>, StreamError> {
        let message = header.encode_prefixed()?.slice(PREFIX_BYTES..);
        let opened = self.shared().with(|mux| mux.open(message, class(header)))?;
        Ok(opened.map(|id| self.stream(id)))
    }

    pub async fn accept_stream(&self) -> Result<(StreamHeader, Stream), LinkClosed> {
        loop {
            let (id, message) = self.wait(|shared| &shared.accepted, Mux::accept).await?;
            let stream = self.stream(id);
            match StreamHeader::decode_message(message) {
                Ok(header) => {
                    self.shared().with(|mux| mux.set_class(id, class(&header)));
                    return Ok((header, stream));
                }
                Err(_) => {
                    self.shared().with(Mux::count_malformed);
                    stream.refuse(ResetCode::Malformed);
                }
            }
        }
    }

    fn stream(&self, id: u32) -> Stream {
        let send = TcpSend::new(id, self.shared().clone());
        let recv = TcpRecv::new(id, self.shared().clone());
        Stream { send: send.into(), recv: recv.into() }
    }

    /// Measures the round trip now.
    pub async fn ping(&self) -> Result<Duration, LinkClosed> {
        let number = self.shared().with(Mux::ping);
        self.wait(|shared| &shared.pong, |mux| mux.pong(number)).await
    }

    pub fn close(&self, reason: CloseReason) {
        self.shared().with(|mux| mux.close(reason));
    }

    pub async fn closed(&self) -> LinkClosed {
        let never = |mux: &mut Mux| match mux.ended() {
            Some(closed) => Err::<Option<()>, _>(closed.clone()),
            None => Ok(None),
        };
        match self.wait(|shared| &shared.ended, never).await {
            Err(closed) => closed,
            Ok(()) => unreachable!("only an error is ever ready"),
        }
    }

    pub fn last_heard(&self) -> Instant {
        self.shared().lock().last_heard()
    }

    pub fn rtt(&self) -> Option<Duration> {
        self.shared().lock().rtt()
    }

    pub fn stats(&self) -> LinkStats {
        self.shared().lock().stats()
    }

    pub fn remote_address(&self) -> SocketAddr {
        self.shared().meta.remote_address
    }

    pub fn certificate(&self) -> Option<CertificateDer<'static>> {
        self.shared().meta.certificate.clone()
    }

    pub fn is_same(&self, other: &TcpLink) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub fn runtime(&self) -> &Handle {
        &self.shared().runtime
    }

    fn shared(&self) -> &Arc<Shared> {
        &self.0.shared
    }

    /// Polls `ask` until it returns a value; in between, waits for the notification that there may be one.
    async fn wait<T>(
        &self,
        signal: impl Fn(&Shared) -> &Notify,
        mut ask: impl FnMut(&mut Mux) -> Result<Option<T>, LinkClosed>,
    ) -> Result<T, LinkClosed> {
        loop {
            let mut signalled = pin!(signal(self.shared()).notified());
            // Registered before asking, so that a notification in between is not missed.
            signalled.as_mut().enable();
            if let Some(answer) = self.shared().with(&mut ask)? {
                return Ok(answer);
            }
            signalled.await;
        }
    }
}

fn class(header: &StreamHeader) -> StreamPriority {
    match header.purpose() {
        Some(StreamPurpose::Control) => StreamPriority::Urgent,
        _ if header.bulk => StreamPriority::Bulk,
        _ => StreamPriority::Normal,
    }
}

/// State shared by the driver and all handles of one link.
struct Shared {
    mux: Mutex<Mux>,
    accepted: Notify,
    stream_credit: Notify,
    pong: Notify,
    ended: Notify,
    meta: TcpPeer,
    runtime: Handle,
}

impl Shared {
    /// Runs `act` on the mux, then wakes the affected tasks after the lock is released.
    fn with<R>(&self, act: impl FnOnce(&mut Mux) -> R) -> R {
        let mut wakes = Vec::new();
        let mut mux = self.lock();
        let result = act(&mut mux);
        let (driver, signals) = mux.take_due(&mut wakes);
        drop(mux);
        self.signal(signals);
        wakes.into_iter().chain(driver).for_each(Waker::wake);
        result
    }

    fn lock(&self) -> MutexGuard<'_, Mux> {
        // A panic in the mux is a bug of one link: other links continue, and its state belongs to this link
        // alone.
        self.mux.lock_ignoring_poison()
    }

    fn signal(&self, signals: MuxSignals) {
        if !signals.any() {
            return;
        }
        let all = [
            (signals.accepted, &self.accepted),
            (signals.stream_credit, &self.stream_credit),
            (signals.pong, &self.pong),
            (signals.ended, &self.ended),
        ];
        for (_, notify) in all.iter().filter(|(is_due, _)| *is_due) {
            notify.notify_waiters();
        }
    }
}
