//! The channel port of a cloud: UDP and TCP on one port number, open to unauthenticated clients.
//!
//! A client gets a handshake and nothing more. The number, rate, source and duration of handshakes are
//! bounded and counted here. The output is a link whose peer has proved its certificate, or a connection for
//! enrolment, which needs none. A certificate that the check of `with_check` refuses gets no link. Validity in
//! time and the existence of the gateway are checked later, when the session is admitted; until then the peer
//! may open one stream.

mod admission_backlog;
mod half_open;
mod handshake_slots;
mod metrics;
mod retry_tickets;
mod sockets;
mod spread;

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use governor::{DefaultDirectRateLimiter, DefaultKeyedRateLimiter, Quota, RateLimiter};
use rustls::ServerConfig;
use rustls_pki_types::CertificateDer;
use tokio::io::Interest;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;

use crate::link::{CloseCode, CloseReason, Link, LinkSide, PortPlace};
use crate::quic::server::{AlpnProtocol, QuicServer};
use crate::quic::{BusyRefusal, EndpointKeys, QuicOptions, RetryTicket};
use crate::{tcp, tls, wire};
use causeway_api::accept::ACCEPT_PAUSE;
use causeway_api::sync::MutexExt;

use half_open::HalfOpenHandshakes;
use handshake_slots::HandshakeSlots;
use retry_tickets::RetryTickets;

pub use admission_backlog::AdmissionBacklog;
pub use handshake_slots::{CALLED_WAIT_MAX, HandshakeConcurrency, HandshakeSlot, WAIT_MAX as PACE_WAIT_MAX};
pub use metrics::{PortMetrics, RejectReason};
pub use sockets::PortSockets;
pub use spread::spread;

/// Bounds on the work that unauthenticated clients can cause.
#[derive(Debug, Clone)]
pub struct PortLimits {
    /// Handshakes in progress at the same time. One more replaces the oldest.
    pub half_open_max: usize,
    pub half_open_per_address_max: usize,
    pub handshake: Duration,
    /// Handshakes started per second, in total and per address (an IPv6 network of 64 bits counts as one
    /// address).
    pub per_second: NonZeroU32,
    pub burst: NonZeroU32,
    pub per_address_per_second: NonZeroU32,
    pub per_address_burst: NonZeroU32,
    /// Links that are open at the same time.
    pub links_max: usize,
    pub quic: QuicOptions,
}

impl Default for PortLimits {
    /// A handshake costs about half a millisecond of one core. After a restart, a fleet of twenty thousand
    /// edges reconnects in ten seconds, and so does a site of a thousand edges behind one address.
    fn default() -> PortLimits {
        let some = |number| NonZeroU32::new(number).expect("the constant is not zero");
        PortLimits {
            half_open_max: 2048,
            half_open_per_address_max: 256,
            handshake: Duration::from_secs(10),
            per_second: some(2000),
            burst: some(4000),
            per_address_per_second: some(500),
            per_address_burst: some(1000),
            links_max: 50_000,
            quic: QuicOptions::default(),
        }
    }
}

/// Bound of addresses in the rate limiter; above it the map is swept at once.
const ADDRESSES_MAX: usize = 50_000;
/// Bound of completed handshakes that wait for `accept`. When it is full, further handshakes wait with their
/// last step.
const COMPLETED_MAX: usize = 64;
/// With less than half (1/2) of `links_max` free, no secondary link is accepted: sessions need the places, and each may have
/// two secondary links, an attached and a retired one.
const SESSIONS_PART: usize = 2;
/// When a quarter (1/4) of the handshake slots is taken, QUIC clients must prove their address with a Retry.
const RETRY_ABOVE_PART: usize = 4;
/// Bound of remembered refusals: two seconds of them. A search takes microseconds.
const BUSY_RECORDS_MAX: usize = 1024;
/// No dial lasts longer, so a later first packet with the same ID is a new dial.
const DIAL_MAX: Duration = Duration::from_secs(60);
/// Time that close frames have to reach their peers when the port stops.
const CLOSE_WAIT_MAX: Duration = Duration::from_secs(1);

/// A connection that has completed the handshake.
// Moved once, from the handshake to its server; boxing would not pay.
#[allow(clippy::large_enum_variant)]
pub enum IncomingLink {
    Enrolment(TlsStream<tcp::LinkSocket>, SocketAddr),
    /// The slot is dropped when the peer has its response: welcome or refusal.
    Channel(Link, HandshakeSlot),
    Replica(Link),
}

/// Checks the certificate of a peer at this address, before a link is created for it.
pub type CertificateCheck = Box<dyn Fn(&CertificateDer<'_>, IpAddr) -> Result<(), CloseReason> + Send + Sync>;

pub struct ChannelPort {
    listener: TcpListener,
    address: SocketAddr,
    shared: Arc<Shared>,
    completed: mpsc::Receiver<IncomingLink>,
    handshakes: JoinSet<()>,
}

struct Shared {
    tls: Arc<ArcSwap<ServerConfig>>,
    quic: QuicServer,
    limits: PortLimits,
    all: DefaultDirectRateLimiter,
    per_address: DefaultKeyedRateLimiter<IpAddr>,
    half_open: Mutex<HalfOpenHandshakes<CancellationToken>>,
    slots: Arc<HandshakeSlots>,
    tickets: RetryTickets,
    /// The latest refusals of busy clients.
    busy_records: Mutex<VecDeque<BusyRecord>>,
    links: Arc<Semaphore>,
    metrics: PortMetrics,
    completed: mpsc::Sender<IncomingLink>,
    certificate_check: Option<CertificateCheck>,
}

impl ChannelPort {
    pub async fn bind(
        address: SocketAddr,
        tls: Arc<ArcSwap<ServerConfig>>,
        keys: EndpointKeys,
        limits: PortLimits,
    ) -> io::Result<ChannelPort> {
        ChannelPort::on(PortSockets::bind(address).await?, tls, keys, limits)
    }

    /// Uses sockets that were bound earlier.
    pub fn on(
        sockets: PortSockets,
        tls: Arc<ArcSwap<ServerConfig>>,
        keys: EndpointKeys,
        limits: PortLimits,
    ) -> io::Result<ChannelPort> {
        ChannelPort::open(sockets, tls, keys, limits, None)
    }

    /// As `on`, with a check of the certificate that every link must pass, for all protocols.
    pub fn with_check(
        sockets: PortSockets,
        tls: Arc<ArcSwap<ServerConfig>>,
        keys: EndpointKeys,
        limits: PortLimits,
        check: CertificateCheck,
    ) -> io::Result<ChannelPort> {
        ChannelPort::open(sockets, tls, keys, limits, Some(check))
    }

    fn open(
        sockets: PortSockets,
        tls: Arc<ArcSwap<ServerConfig>>,
        keys: EndpointKeys,
        limits: PortLimits,
        certificate_check: Option<CertificateCheck>,
    ) -> io::Result<ChannelPort> {
        let address = sockets.local_addr();
        let quic = QuicServer::new(sockets.udp, tls.clone(), &keys, limits.quic.clone())?;
        let all = Quota::per_second(limits.per_second).allow_burst(limits.burst);
        let per_address =
            Quota::per_second(limits.per_address_per_second).allow_burst(limits.per_address_burst);
        let (sender, completed) = mpsc::channel(COMPLETED_MAX);
        let shared = Shared {
            tls,
            quic,
            all: RateLimiter::direct(all),
            per_address: RateLimiter::keyed(per_address),
            half_open: Mutex::new(HalfOpenHandshakes::new(
                limits.half_open_max,
                limits.half_open_per_address_max,
            )),
            slots: HandshakeSlots::new(limits.half_open_max),
            tickets: RetryTickets::new(Instant::now()),
            busy_records: Mutex::default(),
            links: Arc::new(Semaphore::new(limits.links_max)),
            metrics: PortMetrics::default(),
            completed: sender,
            certificate_check,
            limits,
        };
        let handshakes = JoinSet::new();
        Ok(ChannelPort { listener: sockets.tcp, address, shared: Arc::new(shared), completed, handshakes })
    }

    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    pub fn metrics(&self) -> &PortMetrics {
        &self.shared.metrics
    }

    /// Returns the next connection whose handshake is complete. Handshakes make progress only while this is
    /// called, or called again soon.
    pub async fn accept(&mut self) -> IncomingLink {
        loop {
            // Connections in the kernel's accept queue cost nothing yet.
            let is_crowded = self.shared.slots.is_crowded();
            tokio::select! {
                Some(incoming) = self.completed.recv() => return incoming,
                Some(_) = self.handshakes.join_next() => {}
                accepted = self.listener.accept(), if !is_crowded => match accepted {
                    Ok((link, client)) => self.start_tcp_handshake(link, client),
                    Err(error) => {
                        // The usual cause is a lack of file descriptors; accepting again at once would spin.
                        tracing::warn!(%error, "channel port cannot accept a TCP connection; raise the limit of open files if it is reached");
                        self.shared.metrics.count_turned_away(RejectReason::Accept);
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
                Some(incoming) = self.shared.quic.accept() => self.start_quic_handshake(incoming),
            }
        }
    }

    /// Accepts no new connections. Open links continue.
    pub fn stop(self) -> StoppedPort {
        StoppedPort { shared: self.shared.clone() }
    }

    fn start_tcp_handshake(&mut self, link: TcpStream, client: SocketAddr) {
        let client = SocketAddr::new(client.ip().to_canonical(), client.port());
        if let Err(why) = self.shared.check_rates(client.ip()) {
            return self.shared.metrics.count_turned_away(why);
        }
        let (shared, place) = (self.shared.clone(), HalfOpenGuard::take(&self.shared, client.ip()));
        self.handshakes.spawn(async move {
            let handshake = shared.clone().tcp_handshake(link, client);
            shared.finish_handshake(place, handshake).await;
        });
    }

    fn start_quic_handshake(&mut self, incoming: quinn::Incoming) {
        let client = incoming.remote_address().ip().to_canonical();
        if let Some(busy) = self.shared.earlier_refusal(incoming.orig_dst_cid()) {
            // An observer of the packet can replay it, and each response is work, so the rate limits apply.
            return match self.shared.check_rates(client) {
                Ok(()) => self.shared.quic.refuse_busy(incoming, busy),
                Err(_) => incoming.ignore(),
            };
        }
        // A source address can be forged at no cost; a packet that returns from it cannot.
        if !incoming.remote_address_validated() && self.shared.is_crowded() {
            self.shared.metrics.count_retry();
            let _ = incoming.retry();
            return;
        }
        if let Err(why) = self.shared.check_rates(client) {
            self.shared.metrics.count_turned_away(why);
            return incoming.refuse();
        }
        let (shared, place) = (self.shared.clone(), HalfOpenGuard::take(&self.shared, client));
        self.handshakes.spawn(async move {
            let handshake = shared.clone().quic_handshake(incoming);
            shared.finish_handshake(place, handshake).await;
        });
    }
}

impl Drop for ChannelPort {
    fn drop(&mut self) {
        self.shared.quic.stop();
    }
}

/// A stopped port whose links may still be open.
pub struct StoppedPort {
    shared: Arc<Shared>,
}

impl StoppedPort {
    /// Waits, for a bounded time, until the close frames of links have reached their peers.
    pub async fn farewell(self) {
        let _ = timeout(CLOSE_WAIT_MAX, self.shared.quic.idle()).await;
    }
}

impl Shared {
    fn check_rates(&self, address: IpAddr) -> Result<(), RejectReason> {
        if self.per_address.len() > ADDRESSES_MAX {
            self.per_address.retain_recent();
        }
        self.per_address.check_key(&network(address)).map_err(|_| RejectReason::RateAddress)?;
        self.all.check().map_err(|_| RejectReason::RateAll)
    }

    /// Returns the earlier refusal of a repeated first packet. A repetition is no new dial and must not be
    /// given a second time slot; its response may have been lost, and is sent again.
    fn earlier_refusal(&self, first: quinn::ConnectionId) -> Option<BusyRefusal> {
        let busy_records = self.busy_records.lock_ignoring_poison();
        let now = Instant::now();
        let record =
            busy_records.iter().find(|record| record.first == first && now < record.due + DIAL_MAX)?;
        Some(BusyRefusal { wait: record.due.saturating_duration_since(now), number: record.number })
    }

    /// Records that the client was refused until `wait` has passed.
    fn record_busy(&self, first: quinn::ConnectionId, wait: Duration) -> BusyRefusal {
        let due = Instant::now() + wait;
        let number = self.tickets.issue(due);
        let mut busy_records = self.busy_records.lock_ignoring_poison();
        if busy_records.len() >= BUSY_RECORDS_MAX {
            busy_records.pop_front();
        }
        busy_records.push_back(BusyRecord { first, due, number });
        BusyRefusal { wait, number }
    }

    fn is_crowded(&self) -> bool {
        let half_open = self.half_open.lock_ignoring_poison().len();
        half_open >= self.limits.half_open_max / RETRY_ABOVE_PART
    }

    /// Waits for a handshake within its deadline, and counts the result.
    async fn finish_handshake(
        &self,
        place: HalfOpenGuard,
        handshake: impl Future<Output = Result<IncomingLink, RejectReason>>,
    ) {
        let handshake = tokio::select! {
            biased;
            // Counted by the handshake that took the slot.
            () = place.cancelled.cancelled() => return,
            handshake = timeout(self.limits.handshake, handshake) => handshake.unwrap_or(Err(RejectReason::HandshakeTimeout)),
        };
        match handshake {
            Ok(incoming) => {
                self.metrics.count_handshake();
                // Fails only when the port is gone.
                let _ = self.completed.send(incoming).await;
            }
            Err(why) => self.metrics.count_turned_away(why),
        }
    }

    async fn tcp_handshake(
        self: Arc<Shared>,
        link: TcpStream,
        client: SocketAddr,
    ) -> Result<IncomingLink, RejectReason> {
        // A silent client needs no slot. A client that hung up while it waited for a slot needs no work
        // either. A byte must be there: `TcpStream::ready` may report a silent connection as readable, and
        // does so for most of them where the process gets little time.
        let speaks = async || {
            let has_sent = matches!(link.peek(&mut [0]).await, Ok(1..));
            match link.ready(Interest::READABLE).await {
                Ok(ready) if has_sent && !ready.is_read_closed() => Ok(()),
                _ => Err(RejectReason::Handshake),
            }
        };
        speaks().await?;
        let slot = self.slots.take(self.limits.handshake).await.ok_or(RejectReason::Busy)?;
        if let Err(gone) = speaks().await {
            slot.release_unused();
            return Err(gone);
        }
        let acceptor = TlsAcceptor::from(self.tls.load_full());
        let link = acceptor
            .accept(tcp::prepare(link, LinkSide::Accepted).map_err(|_| RejectReason::Handshake)?)
            .await
            .map_err(|error| {
                tracing::debug!(%client, %error, "handshake with a client of the channel port failed");
                RejectReason::Handshake
            })?;
        if link.get_ref().1.alpn_protocol() == Some(wire::ALPN) {
            return Ok(IncomingLink::Enrolment(link, client));
        }
        // Without a known ALPN there is no protocol in which a reason could be sent.
        let protocol = match AlpnProtocol::of(link.get_ref().1.alpn_protocol()) {
            AlpnProtocol::Other => return Err(RejectReason::Protocol),
            protocol => protocol,
        };
        let certificate = link.get_ref().1.peer_certificates().and_then(<[_]>::first).cloned();
        let admitted = match self.admit(protocol, certificate.as_ref(), client.ip()) {
            Ok(admitted) => admitted,
            Err((why, reason)) => {
                drop(slot);
                tcp::refuse(link, &reason).await;
                return Err(why);
            }
        };
        let link = tcp::over_tls_pending(link.into(), &self.limits.quic.limits);
        Ok(admitted.incoming(link.map_err(|_| RejectReason::Handshake)?.into(), slot))
    }

    async fn quic_handshake(
        self: Arc<Shared>,
        incoming: quinn::Incoming,
    ) -> Result<IncomingLink, RejectReason> {
        let client = incoming.remote_address();
        let is_called = self.tickets.is_due(&incoming.orig_dst_cid(), Instant::now());
        let slot = match self.slots.ask(is_called).await {
            Ok(slot) => slot,
            Err(wait) => {
                let busy = self.record_busy(incoming.orig_dst_cid(), wait);
                self.quic.refuse_busy(incoming, busy);
                return Err(RejectReason::Busy);
            }
        };
        let handshake = self.quic.complete_handshake(incoming).await.map_err(|error| {
            tracing::debug!(%client, %error, "handshake with a client of the channel port failed");
            RejectReason::Handshake
        })?;
        match self.admit(handshake.protocol(), handshake.certificate().as_ref(), client.ip().to_canonical()) {
            Ok(admitted) => Ok(admitted.incoming(handshake.link(), slot)),
            Err((why, reason)) => {
                handshake.refuse(&reason);
                Err(why)
            }
        }
    }

    /// Decides whether this peer gets a link. Nothing is allocated for it before.
    fn admit(
        &self,
        protocol: AlpnProtocol,
        certificate: Option<&CertificateDer<'_>>,
        client: IpAddr,
    ) -> Result<Admitted, (RejectReason, CloseReason)> {
        if protocol == AlpnProtocol::Other {
            let text = "the channel port supports none of the offered ALPN protocols";
            return Err((RejectReason::Protocol, CloseReason::new(CloseCode::NotAdmitted, text)));
        }
        let Some(certificate) = certificate else {
            let text = "the channel requires a client certificate; enrol the gateway first";
            return Err((RejectReason::NoCertificate, CloseReason::new(CloseCode::NotAdmitted, text)));
        };
        if protocol == AlpnProtocol::Replica && !tls::is_cloud(certificate) {
            let text = "the replica protocol requires the certificate of a cloud replica";
            return Err((RejectReason::Certificate, CloseReason::new(CloseCode::NotAdmitted, text)));
        }
        if let Some(check) = &self.certificate_check {
            check(certificate, client).map_err(|reason| (RejectReason::Certificate, reason))?;
        }
        let place = self.links.clone().try_acquire_owned().map_err(|_| {
            let text = "this replica holds its maximum number of links; try another replica, or later";
            (RejectReason::Sessions, CloseReason::new(CloseCode::Limit, text))
        })?;
        let reserved = self.limits.links_max / SESSIONS_PART;
        Ok(Admitted { protocol, place: PortPlace { permit: place, reserved } })
    }
}

/// A peer that may have a link.
struct Admitted {
    protocol: AlpnProtocol,
    place: PortPlace,
}

impl Admitted {
    fn incoming(self, link: Link, slot: HandshakeSlot) -> IncomingLink {
        let link = link.holding(self.place);
        match self.protocol {
            AlpnProtocol::Replica => {
                // The certificate names the cloud, and no control stream precedes the streams of a replica.
                link.admit();
                IncomingLink::Replica(link)
            }
            AlpnProtocol::Channel | AlpnProtocol::Other => IncomingLink::Channel(link, slot),
        }
    }
}

/// A client that was refused with a retry time.
struct BusyRecord {
    /// Destination connection ID of its first packet.
    first: quinn::ConnectionId,
    due: Instant,
    number: RetryTicket,
}

/// A slot for a handshake in progress, released when dropped.
struct HalfOpenGuard {
    id: u64,
    cancelled: CancellationToken,
    shared: Arc<Shared>,
}

impl HalfOpenGuard {
    fn take(shared: &Arc<Shared>, address: IpAddr) -> HalfOpenGuard {
        let cancelled = CancellationToken::new();
        let mut half_open = shared.half_open.lock_ignoring_poison();
        let (id, gone) = half_open.enter(network(address), cancelled.clone());
        shared.metrics.half_open.set(half_open.len() as i64);
        drop(half_open);
        if let Some((handle, why)) = gone {
            handle.cancel();
            shared.metrics.count_turned_away(why);
        }
        HalfOpenGuard { id, cancelled, shared: shared.clone() }
    }
}

impl Drop for HalfOpenGuard {
    fn drop(&mut self) {
        let mut half_open = self.shared.half_open.lock_ignoring_poison();
        half_open.remove(self.id);
        self.shared.metrics.half_open.set(half_open.len() as i64);
    }
}

// An IPv6 customer has a network of 64 bits or more, so single addresses would not limit anything.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let bits = u128::from(address) >> 64 << 64;
            IpAddr::V6(bits.into())
        }
        address => address,
    }
}
