//! The channel port of a cloud: UDP and TCP on one number, open to strangers.
//!
//! Everybody is given a handshake and nothing more: how many, how often, from where and for how long is bounded
//! here and counted. What comes out has proved its certificate, or asks for enrolment, which needs none. A certificate
//! that `check_certificates` refuses gets no link. Time and whether the gateway exists are judged by whoever admits
//! sessions; until then the peer may open one stream.

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
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use governor::{DefaultDirectRateLimiter, DefaultKeyedRateLimiter, Quota, RateLimiter};
use rustls::ServerConfig;
use rustls_pki_types::CertificateDer;
use tokio::io::Interest;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;

use crate::link::{CloseCode, CloseReason, Link, LinkSide};
use crate::lock::lock;
use crate::quic::server::{AlpnProtocol, QuicServer};
use crate::quic::{BusyRefusal, EndpointKeys, QuicOptions, RetryTicket};
use crate::{tcp, tls, wire};

use half_open::HalfOpenHandshakes;
use handshake_slots::HandshakeSlots;
use retry_tickets::RetryTickets;

pub use admission_backlog::AdmissionBacklog;
pub use handshake_slots::{CALLED_WAIT_MAX, HandshakeConcurrency, HandshakeSlot, WAIT_MAX as PACE_WAIT_MAX};
pub use metrics::{PortMetrics, RejectReason};
pub use sockets::PortSockets;
pub use spread::spread;

/// Bounds on what strangers can make the port do.
#[derive(Debug, Clone)]
pub struct PortLimits {
    /// Handshakes under way at the same time; for one more the oldest is given up.
    pub half_open_max: usize,
    pub half_open_per_address_max: usize,
    pub handshake: Duration,
    /// Handshakes begun, for everybody together and per address (an IPv6 network of 64 bits counts as one).
    pub per_second: NonZeroU32,
    pub burst: NonZeroU32,
    pub per_address_per_second: NonZeroU32,
    pub per_address_burst: NonZeroU32,
    /// Links that are open at the same time.
    pub links_max: usize,
    pub quic: QuicOptions,
}

impl Default for PortLimits {
    /// A handshake costs about half a millisecond of one core. After a restart a fleet of twenty thousand is back
    /// in ten seconds, and so is a site of a thousand behind one address.
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

/// Addresses whose tries are remembered; beyond it the map is swept at once.
const ADDRESSES_MAX: usize = 50_000;
/// Connections that are through and wait for `accept`. Full: handshakes wait with their last step.
const WAITING_MAX: usize = 64;
/// With so large a part of the places taken, QUIC clients must prove their address before they get one.
const RETRY_ABOVE_PART: usize = 4;
/// Two seconds of them; looking through takes microseconds.
const SENT_AWAY_MAX: usize = 1024;
/// No dial lasts longer, so what comes later is no repetition by who was told.
const DIAL_MAX: Duration = Duration::from_secs(60);
/// Pause after a failed `accept`, which would fail again at once while file descriptors are short.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// How long the ends of links may take to reach their peers at the stop.
const FAREWELL: Duration = Duration::from_secs(1);

/// Somebody who is through the handshake.
// Moved once, from the handshake to whoever serves it; a box would not pay.
#[allow(clippy::large_enum_variant)]
pub enum IncomingLink {
    Enrolment(TlsStream<tcp::LinkSocket>, SocketAddr),
    /// The turn is dropped when the peer has its answer: welcome or refusal.
    Channel(Link, HandshakeSlot),
    Replica(Link),
}

/// Judges the certificate of a peer, which comes from this address, before a link is made for it.
pub type CertificateCheck = Box<dyn Fn(&CertificateDer<'_>, IpAddr) -> Result<(), CloseReason> + Send + Sync>;

pub struct ChannelPort {
    listener: TcpListener,
    address: SocketAddr,
    shared: Arc<Shared>,
    through: mpsc::Receiver<IncomingLink>,
    handshakes: JoinSet<()>,
}

struct Shared {
    tls: Arc<ArcSwap<ServerConfig>>,
    quic: QuicServer,
    limits: PortLimits,
    all: DefaultDirectRateLimiter,
    per_address: DefaultKeyedRateLimiter<IpAddr>,
    half_open: Mutex<HalfOpenHandshakes<CancellationToken>>,
    turns: Arc<HandshakeSlots>,
    numbers: RetryTickets,
    /// Those who were sent away last.
    sent_away: Mutex<VecDeque<SentAway>>,
    links: Arc<Semaphore>,
    figures: PortMetrics,
    through: mpsc::Sender<IncomingLink>,
    certificate_check: OnceLock<CertificateCheck>,
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

    /// On sockets that were bound earlier.
    pub fn on(
        sockets: PortSockets,
        tls: Arc<ArcSwap<ServerConfig>>,
        keys: EndpointKeys,
        limits: PortLimits,
    ) -> io::Result<ChannelPort> {
        let address = sockets.local_addr();
        let quic = QuicServer::new(sockets.udp, tls.clone(), &keys, limits.quic.clone())?;
        let all = Quota::per_second(limits.per_second).allow_burst(limits.burst);
        let per_address =
            Quota::per_second(limits.per_address_per_second).allow_burst(limits.per_address_burst);
        let (sender, through) = mpsc::channel(WAITING_MAX);
        let shared = Shared {
            tls,
            quic,
            all: RateLimiter::direct(all),
            per_address: RateLimiter::keyed(per_address),
            half_open: Mutex::new(HalfOpenHandshakes::new(
                limits.half_open_max,
                limits.half_open_per_address_max,
            )),
            turns: HandshakeSlots::new(limits.half_open_max),
            numbers: RetryTickets::new(Instant::now()),
            sent_away: Mutex::default(),
            links: Arc::new(Semaphore::new(limits.links_max)),
            figures: PortMetrics::default(),
            through: sender,
            certificate_check: OnceLock::new(),
            limits,
        };
        let handshakes = JoinSet::new();
        Ok(ChannelPort { listener: sockets.tcp, address, shared: Arc::new(shared), through, handshakes })
    }

    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Every link must pass `check`, whatever its protocol. Set once, before the first `accept`.
    pub fn check_certificates(&self, check: CertificateCheck) {
        let _ = self.shared.certificate_check.set(check);
    }

    pub fn figures(&self) -> &PortMetrics {
        &self.shared.figures
    }

    /// The next one who is through. Handshakes go on only while somebody waits here, or does so again soon.
    pub async fn accept(&mut self) -> IncomingLink {
        loop {
            // Those who wait in the kernel's queue cost nothing yet.
            let is_crowded = self.shared.turns.is_crowded();
            tokio::select! {
                Some(incoming) = self.through.recv() => return incoming,
                Some(_) = self.handshakes.join_next() => {}
                accepted = self.listener.accept(), if !is_crowded => match accepted {
                    Ok((link, client)) => self.welcome_tcp(link, client),
                    Err(error) => {
                        // Out of file descriptors, most likely: accepting again at once would spin.
                        tracing::warn!(%error, "a connection could not be accepted");
                        self.shared.figures.count_turned_away(RejectReason::Accept);
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
                Some(incoming) = self.shared.quic.accept() => self.welcome_quic(incoming),
            }
        }
    }

    /// Takes nobody in any more. Links that are open go on.
    pub fn stop(self) -> StoppedPort {
        StoppedPort { shared: self.shared.clone() }
    }

    fn welcome_tcp(&mut self, link: TcpStream, client: SocketAddr) {
        let client = SocketAddr::new(client.ip().to_canonical(), client.port());
        if let Err(why) = self.shared.check_rates(client.ip()) {
            return self.shared.figures.count_turned_away(why);
        }
        let (shared, place) = (self.shared.clone(), Place::take(&self.shared, client.ip()));
        self.handshakes.spawn(async move {
            let shaken = shared.clone().shake_tcp(link, client);
            shared.let_through(place, shaken).await;
        });
    }

    fn welcome_quic(&mut self, incoming: quinn::Incoming) {
        let client = incoming.remote_address().ip().to_canonical();
        if let Some(busy) = self.shared.was_told(incoming.orig_dst_cid()) {
            // Whoever saw the packet can repeat it, and each answer is work.
            return match self.shared.check_rates(client) {
                Ok(()) => self.shared.quic.refuse_busy(incoming, busy),
                Err(_) => incoming.ignore(),
            };
        }
        // An address costs nothing to invent; a packet that comes back from it does.
        if !incoming.remote_address_validated() && self.shared.is_crowded() {
            self.shared.figures.count_retry();
            let _ = incoming.retry();
            return;
        }
        if let Err(why) = self.shared.check_rates(client) {
            self.shared.figures.count_turned_away(why);
            return incoming.refuse();
        }
        let (shared, place) = (self.shared.clone(), Place::take(&self.shared, client));
        self.handshakes.spawn(async move {
            let shaken = shared.clone().shake_quic(incoming);
            shared.let_through(place, shaken).await;
        });
    }
}

impl Drop for ChannelPort {
    fn drop(&mut self) {
        self.shared.quic.stop();
    }
}

/// A port behind which links may still be open.
pub struct StoppedPort {
    shared: Arc<Shared>,
}

impl StoppedPort {
    /// Waits a moment until the ends of links that were closed have reached their peers.
    pub async fn farewell(self) {
        let _ = timeout(FAREWELL, self.shared.quic.idle()).await;
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

    /// A first packet that is repeated is no new dial: it would stand in line twice. Its answer may have been lost, and is given again.
    fn was_told(&self, first: quinn::ConnectionId) -> Option<BusyRefusal> {
        let sent_away = lock(&self.sent_away);
        let now = Instant::now();
        let told = sent_away.iter().find(|told| told.first == first && now < told.due + DIAL_MAX)?;
        Some(BusyRefusal { wait: told.due.saturating_duration_since(now), number: told.number })
    }

    /// Told to come again after `wait`.
    fn note_sent_away(&self, first: quinn::ConnectionId, wait: Duration) -> BusyRefusal {
        let due = Instant::now() + wait;
        let number = self.numbers.issue(due);
        let mut sent_away = lock(&self.sent_away);
        if sent_away.len() >= SENT_AWAY_MAX {
            sent_away.pop_front();
        }
        sent_away.push_back(SentAway { first, due, number });
        BusyRefusal { wait, number }
    }

    fn is_crowded(&self) -> bool {
        let half_open = lock(&self.half_open).len();
        half_open >= self.limits.half_open_max / RETRY_ABOVE_PART
    }

    /// Waits for a handshake as long as it may take, and counts how it ended.
    async fn let_through(
        &self,
        place: Place,
        shaken: impl Future<Output = Result<IncomingLink, RejectReason>>,
    ) {
        let shaken = tokio::select! {
            biased;
            // Counted by whoever needed the place.
            () = place.must_go.cancelled() => return,
            shaken = timeout(self.limits.handshake, shaken) => shaken.unwrap_or(Err(RejectReason::HandshakeTimeout)),
        };
        match shaken {
            Ok(incoming) => {
                self.figures.count_handshake();
                // Fails only when the port is no more.
                let _ = self.through.send(incoming).await;
            }
            Err(why) => self.figures.count_turned_away(why),
        }
    }

    async fn shake_tcp(
        self: Arc<Shared>,
        link: TcpStream,
        client: SocketAddr,
    ) -> Result<IncomingLink, RejectReason> {
        // Who says nothing needs no turn. Who has hung up while it waited for one needs no work either.
        let hears = async || link.ready(Interest::READABLE).await.map_err(|_| RejectReason::Handshake);
        hears().await?;
        let turn = self.turns.take(self.limits.handshake).await.ok_or(RejectReason::Busy)?;
        if hears().await?.is_read_closed() {
            return Err(RejectReason::Handshake);
        }
        let acceptor = TlsAcceptor::from(self.tls.load_full());
        let link = acceptor
            .accept(tcp::prepare(link, LinkSide::Accepted).map_err(|_| RejectReason::Handshake)?)
            .await
            .map_err(|error| {
                tracing::debug!(%client, %error, "no handshake");
                RejectReason::Handshake
            })?;
        if link.get_ref().1.alpn_protocol() == Some(wire::ALPN) {
            return Ok(IncomingLink::Enrolment(link, client));
        }
        // Without the name of a protocol nobody here knows in which words to say anything.
        let protocol = match AlpnProtocol::of(link.get_ref().1.alpn_protocol()) {
            AlpnProtocol::Other => return Err(RejectReason::Protocol),
            protocol => protocol,
        };
        let certificate = link.get_ref().1.peer_certificates().and_then(<[_]>::first).cloned();
        let admitted = match self.admit(protocol, certificate.as_ref(), client.ip()) {
            Ok(admitted) => admitted,
            Err((why, reason)) => {
                drop(turn);
                tcp::refuse(link, &reason).await;
                return Err(why);
            }
        };
        let link = tcp::over_tls_pending(link.into(), &self.limits.quic.limits);
        Ok(admitted.incoming(link.map_err(|_| RejectReason::Handshake)?.into(), turn))
    }

    async fn shake_quic(self: Arc<Shared>, incoming: quinn::Incoming) -> Result<IncomingLink, RejectReason> {
        let client = incoming.remote_address();
        let is_called = self.numbers.is_due(&incoming.orig_dst_cid(), Instant::now());
        let turn = match self.turns.ask(is_called).await {
            Ok(turn) => turn,
            Err(wait) => {
                let busy = self.note_sent_away(incoming.orig_dst_cid(), wait);
                self.quic.refuse_busy(incoming, busy);
                return Err(RejectReason::Busy);
            }
        };
        let shaken = self.quic.complete_handshake(incoming).await.map_err(|error| {
            tracing::debug!(%client, %error, "no handshake");
            RejectReason::Handshake
        })?;
        match self.admit(shaken.protocol(), shaken.certificate().as_ref(), client.ip().to_canonical()) {
            Ok(admitted) => Ok(admitted.incoming(shaken.link(), turn)),
            Err((why, reason)) => {
                shaken.refuse(&reason);
                Err(why)
            }
        }
    }

    /// May this peer have a link? Nothing is made for it before.
    fn admit(
        &self,
        protocol: AlpnProtocol,
        certificate: Option<&CertificateDer<'_>>,
        client: IpAddr,
    ) -> Result<Admitted, (RejectReason, CloseReason)> {
        if protocol == AlpnProtocol::Other {
            let text = "without the name of a protocol nobody here knows what would follow";
            return Err((RejectReason::Protocol, CloseReason::new(CloseCode::NotAdmitted, text)));
        }
        let Some(certificate) = certificate else {
            let text = "the channel is open only to those who show a certificate";
            return Err((RejectReason::NoCertificate, CloseReason::new(CloseCode::NotAdmitted, text)));
        };
        if protocol == AlpnProtocol::Replica && !tls::is_cloud(certificate) {
            let text = "only a replica of the cloud may use the protocol of replicas";
            return Err((RejectReason::Certificate, CloseReason::new(CloseCode::NotAdmitted, text)));
        }
        if let Some(check) = self.certificate_check.get() {
            check(certificate, client).map_err(|reason| (RejectReason::Certificate, reason))?;
        }
        let place = self.links.clone().try_acquire_owned().map_err(|_| {
            let text = "this replica holds as many links as it may: try another, or later";
            (RejectReason::Sessions, CloseReason::new(CloseCode::Limit, text))
        })?;
        Ok(Admitted { protocol, place })
    }
}

/// A peer that may have a link.
struct Admitted {
    protocol: AlpnProtocol,
    place: OwnedSemaphorePermit,
}

impl Admitted {
    fn incoming(self, link: Link, turn: HandshakeSlot) -> IncomingLink {
        let link = link.holding(self.place);
        match self.protocol {
            AlpnProtocol::Replica => {
                // Its certificate names the cloud, and nothing precedes its streams.
                link.admit();
                IncomingLink::Replica(link)
            }
            AlpnProtocol::Channel | AlpnProtocol::Other => IncomingLink::Channel(link, turn),
        }
    }
}

/// Somebody who was told when to come again.
struct SentAway {
    /// The connection ID of its first packet.
    first: quinn::ConnectionId,
    due: Instant,
    number: RetryTicket,
}

/// One of the places for handshakes, left when dropped.
struct Place {
    id: u64,
    must_go: CancellationToken,
    shared: Arc<Shared>,
}

impl Place {
    fn take(shared: &Arc<Shared>, address: IpAddr) -> Place {
        let must_go = CancellationToken::new();
        let mut half_open = lock(&shared.half_open);
        let (id, gone) = half_open.enter(network(address), must_go.clone());
        shared.figures.half_open.set(half_open.len() as i64);
        drop(half_open);
        if let Some((handle, why)) = gone {
            handle.cancel();
            shared.figures.count_turned_away(why);
        }
        Place { id, must_go, shared: shared.clone() }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut half_open = lock(&self.shared.half_open);
        half_open.leave(self.id);
        self.shared.figures.half_open.set(half_open.len() as i64);
    }
}

// One customer's IPv6 network is 64 bits or more: counting single addresses would count nothing.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let bits = u128::from(address) >> 64 << 64;
            IpAddr::V6(bits.into())
        }
        address => address,
    }
}
