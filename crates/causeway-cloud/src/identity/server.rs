//! Enrolment on the channel port, after the handshake: one request, one answer, close.
//!
//! Strangers come here, so everything is bounded: connections, sizes, times, and how often an address may try.
//! Requests that exceed a bound are counted. Decisions about certificates are the registrar's, the handshake is the
//! port's.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use causeway_api::sync::MutexExt;
use causeway_channel::clock::unix_seconds;
use causeway_channel::tcp::LinkSocket;
use causeway_channel::wire::{
    self, EnrolmentCode, EnrolmentHello, EnrolmentRefusal, EnrolmentRequest, EnrolmentRequestBody,
    EnrolmentResponse, EnrolmentResponseBody, WireError,
};
use governor::clock::{Clock as _, DefaultClock};
use governor::{DefaultDirectRateLimiter, DefaultKeyedRateLimiter, Quota, RateLimiter};
use tokio::io::AsyncWriteExt;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_rustls::server::TlsStream;
use tokio_util::task::TaskTracker;

use super::node_enrolment::NodeEnrolment;
use super::registrar::Registrar;

/// Bounds on the work that unauthenticated peers can cause.
#[derive(Debug, Clone)]
pub struct EnrolmentLimits {
    /// Open at the same time; one more is closed at once.
    pub connections_max: usize,
    /// The same, per address, so that one address cannot take all places.
    pub connections_per_address_max: usize,
    /// From the end of the handshake to the answer.
    pub exchange: Duration,
    /// Tries without a live certificate, per address (an IPv6 network of 64 bits counts as one).
    pub tries_per_second: NonZeroU32,
    pub tries_burst: NonZeroU32,
    /// The same, for all addresses together.
    pub all_tries_per_second: NonZeroU32,
    pub all_tries_burst: NonZeroU32,
}

impl Default for EnrolmentLimits {
    /// Secrets of 256 bits cannot be guessed at any rate; the limit protects the processor and the store.
    /// A site that rolls out sixty gateways behind one address does not notice; ten thousand edges enrol in a minute.
    fn default() -> EnrolmentLimits {
        let some = |number| NonZeroU32::new(number).expect("the constant is not zero");
        EnrolmentLimits {
            connections_max: 1024,
            connections_per_address_max: 128,
            exchange: Duration::from_secs(15),
            tries_per_second: some(5),
            tries_burst: some(60),
            all_tries_per_second: some(200),
            all_tries_burst: some(500),
        }
    }
}

/// Addresses whose tries are remembered; beyond it the map is swept at once.
const ADDRESSES_MAX: usize = 50_000;
/// The time that open exchanges have after the stop.
const DRAIN: Duration = Duration::from_secs(1);

/// Serves enrolment connections of the channel port.
pub struct EnrolmentServer {
    shared: Arc<Shared>,
    tasks: TaskTracker,
}

struct Shared {
    registrar: Arc<Registrar>,
    /// Enrolment of Kubernetes nodes. `None`: off.
    nodes: Option<NodeEnrolment>,
    limits: EnrolmentLimits,
    per_address: DefaultKeyedRateLimiter<IpAddr>,
    global: DefaultDirectRateLimiter,
    connections: Arc<Semaphore>,
    /// As many entries as there are open connections, at most.
    by_address: Mutex<HashMap<IpAddr, usize>>,
}

impl EnrolmentServer {
    pub fn new(
        registrar: Arc<Registrar>,
        nodes: Option<NodeEnrolment>,
        limits: EnrolmentLimits,
    ) -> EnrolmentServer {
        let per_address = Quota::per_second(limits.tries_per_second).allow_burst(limits.tries_burst);
        let global = Quota::per_second(limits.all_tries_per_second).allow_burst(limits.all_tries_burst);
        let shared = Shared {
            registrar,
            nodes,
            per_address: RateLimiter::keyed(per_address),
            global: RateLimiter::direct(global),
            connections: Arc::new(Semaphore::new(limits.connections_max)),
            by_address: Mutex::default(),
            limits,
        };
        EnrolmentServer { shared: Arc::new(shared), tasks: TaskTracker::new() }
    }

    /// Serves one connection, if there is room for it.
    pub fn admit(&self, link: TlsStream<LinkSocket>, client: SocketAddr) {
        self.shared.clone().admit(link, client, &self.tasks);
    }

    /// Lets open exchanges end.
    pub async fn drain(&self) {
        self.tasks.close();
        let _ = timeout(DRAIN, self.tasks.wait()).await;
    }
}

impl Shared {
    fn admit(self: Arc<Shared>, link: TlsStream<LinkSocket>, client: SocketAddr, tasks: &TaskTracker) {
        let metrics = &self.registrar.metrics;
        let Ok(place) = self.connections.clone().try_acquire_owned() else {
            metrics.count_turned_away("full");
            return;
        };
        let address = network(client.ip());
        if !self.enter(address) {
            metrics.count_turned_away("full-address");
            return;
        }
        let open = metrics.connection();
        tasks.spawn(async move {
            self.serve(link, client).await;
            self.release(address);
            drop((place, open));
        });
    }

    fn enter(&self, address: IpAddr) -> bool {
        let mut by_address = self.by_address.lock_ignoring_poison();
        let count = by_address.entry(address).or_default();
        let enters = *count < self.limits.connections_per_address_max;
        *count += usize::from(enters);
        enters
    }

    fn release(&self, address: IpAddr) {
        let mut by_address = self.by_address.lock_ignoring_poison();
        if let Some(count) = by_address.get_mut(&address) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                by_address.remove(&address);
            }
        }
    }

    async fn serve(&self, mut link: TlsStream<LinkSocket>, client: SocketAddr) {
        let metrics = &self.registrar.metrics;
        match timeout(self.limits.exchange, self.exchange(&mut link, client)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::debug!(%client, %error, "the exchange broke");
                metrics.count_turned_away("exchange");
            }
            Err(_) => metrics.count_turned_away("exchange-timeout"),
        }
    }

    async fn exchange(&self, link: &mut TlsStream<LinkSocket>, client: SocketAddr) -> Result<(), WireError> {
        let time = unix_seconds(self.registrar.now());
        wire::write(link, &EnrolmentHello { version: wire::VERSION, time }).await?;
        let answer = match wire::read::<EnrolmentRequest>(link).await {
            Ok(request) => self.answer(link, request, client).await,
            // The link itself is fine, so the peer is told.
            Err(error @ (WireError::TooLong { .. } | WireError::Malformed(_))) => {
                self.registrar.metrics.count_turned_away("malformed");
                Err(EnrolmentRefusal::new(
                    EnrolmentCode::Malformed,
                    error.to_string(),
                    "edge and cloud may be of different versions",
                ))
            }
            Err(error) => return Err(error),
        };
        let answer = answer.unwrap_or_else(EnrolmentResponseBody::Refused);
        wire::write(link, &EnrolmentResponse { answer: Some(answer) }).await?;
        link.shutdown().await?;
        Ok(())
    }

    async fn answer(
        &self,
        link: &TlsStream<LinkSocket>,
        request: EnrolmentRequest,
        client: SocketAddr,
    ) -> Result<EnrolmentResponseBody, EnrolmentRefusal> {
        let shown = link.get_ref().1.peer_certificates().and_then(|chain| chain.first());
        // Edges with a certificate of ours are known; after a restart of the cloud they may all come at once.
        let is_known = shown.is_some()
            && matches!(request.ask, Some(EnrolmentRequestBody::Renew(_) | EnrolmentRequestBody::Check(_)));
        if !is_known {
            self.limit(client.ip())?;
        }
        self.registrar.answer(request, self.nodes.as_ref(), shown, &client.ip().to_string()).await
    }

    fn limit(&self, address: IpAddr) -> Result<(), EnrolmentRefusal> {
        if self.per_address.len() > ADDRESSES_MAX {
            self.per_address.retain_recent();
        }
        let now = DefaultClock::default().now();
        let (what, wait) = match self.per_address.check_key(&network(address)) {
            Err(until) => ("address", until.wait_time_from(now)),
            Ok(()) => match self.global.check() {
                Err(until) => ("all", until.wait_time_from(now)),
                Ok(()) => return Ok(()),
            },
        };
        self.registrar.metrics.count_turned_away(if what == "all" { "rate-all" } else { "rate-address" });
        let seconds = wait.as_secs() as u32 + 1;
        let message = match what {
            "all" => "too many gateways are enrolling",
            _ => "too many tries from this address",
        };
        let hint = format!("try again in {seconds} seconds");
        Err(EnrolmentRefusal {
            retry_after_seconds: seconds,
            ..EnrolmentRefusal::new(EnrolmentCode::RateLimited, message, hint)
        })
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
