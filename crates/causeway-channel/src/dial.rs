//! Dials the cloud: every endpoint, every address, QUIC and TCP, directly or through a proxy; the first link
//! wins.
//!
//! The order and times of attempts are decided in `plan`; `proxy` implements HTTP CONNECT. This module
//! resolves names and runs attempts, each with its own deadline. The frequency of dials is decided by
//! `session`, and so is the validity of the cloud's certificate in time, because the clock here may be wrong
//! (see `doubt`).

mod error;
mod plan;
pub mod proxy;

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant, SystemTime};

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{sleep_until, timeout};
use tokio_rustls::TlsConnector;

pub use self::error::{AttemptError, DialError, FailedAttempt};
use self::plan::{DialAttempt, DialPlan};
pub use self::plan::{DialRoute, DialTransports, HEAD_START, STAGGER};
pub use self::proxy::{ConnectProxy, ProxyUrlError};
use crate::clock::Clock;
use crate::link::{CHANNEL_ALPN, Link, LinkSide, Transport};
use crate::peer::CertificateFacts;
use crate::quic::{ConnectError, QuicClient, QuicOptions, RetryTicket};
use crate::tcp;
use crate::tls::{self, TlsCredentials, TlsSigner, TrustAnchors};
use crate::token::ChannelEndpoint;
use causeway_api::sync::MutexExt;

/// Deadline of each attempt, for connecting and the handshake together.
pub const ATTEMPT_MAX: Duration = Duration::from_secs(2);

/// Endpoints to dial, and the identity to present.
#[derive(Debug, Clone)]
pub struct DialConfig {
    pub endpoints: Vec<ChannelEndpoint>,
    pub trust: TrustAnchors,
    pub credentials: TlsCredentials,
    /// Proxy for TCP; `ConnectProxy::from_environment` reads the settings of the machine.
    pub proxy: Option<ConnectProxy>,
    pub transports: DialTransports,
    pub clock: Clock,
    pub alpn: &'static [u8],
    /// The limits in it apply to both transports.
    pub quic: QuicOptions,
    pub attempt_max: Duration,
    /// Local address to dial from. `None`: chosen by the routes.
    pub from: Option<IpAddr>,
}

impl DialConfig {
    /// Both transports, no proxy, defaults otherwise.
    pub fn new(
        endpoints: Vec<ChannelEndpoint>,
        trust: TrustAnchors,
        credentials: TlsCredentials,
    ) -> DialConfig {
        DialConfig {
            endpoints,
            trust,
            credentials,
            proxy: None,
            transports: DialTransports::Both,
            clock: Clock::system(),
            alpn: CHANNEL_ALPN,
            quic: QuicOptions::default(),
            attempt_max: ATTEMPT_MAX,
            from: None,
        }
    }
}

/// Dials on request. All its QUIC links share one socket.
#[derive(Clone)]
pub struct LinkDialer {
    config: Arc<DialConfig>,
    /// The credentials, parsed on first use.
    signer: Arc<OnceLock<TlsSigner>>,
    quic: Arc<Mutex<Option<QuicClient>>>,
    /// Retry tickets of busy ports, presented with the next attempt. Bounded by the number of addresses to
    /// dial.
    retry_tickets: Arc<Mutex<HashMap<SocketAddr, RetryTicket>>>,
}

impl LinkDialer {
    pub fn new(config: DialConfig) -> LinkDialer {
        LinkDialer {
            config: Arc::new(config),
            signer: Arc::default(),
            quic: Arc::default(),
            retry_tickets: Arc::default(),
        }
    }

    /// Returns a dialer on the same socket with other endpoints, another certificate or a newer bundle.
    pub fn with_config(&self, config: DialConfig) -> LinkDialer {
        LinkDialer {
            config: Arc::new(config),
            signer: Arc::default(),
            quic: self.quic.clone(),
            retry_tickets: Arc::default(),
        }
    }

    pub fn config(&self) -> &DialConfig {
        &self.config
    }

    /// Dials with the configured transports.
    pub async fn dial(&self) -> Result<Link, DialError> {
        self.dial_over(self.config.transports, self.config.attempt_max).await
    }

    /// As `dial`, with this transport (`None`: the configured ones) and this deadline of each attempt.
    pub async fn dial_with(
        &self,
        transport: Option<Transport>,
        attempt_max: Duration,
    ) -> Result<Link, DialError> {
        let transports = match transport {
            None => self.config.transports,
            Some(Transport::Quic) => DialTransports::QuicOnly,
            Some(Transport::Tcp) => DialTransports::TcpOnly,
        };
        self.dial_over(transports, attempt_max).await
    }

    pub async fn dial_tcp(&self) -> Result<Link, DialError> {
        self.dial_over(DialTransports::TcpOnly, self.config.attempt_max).await
    }

    /// The address of the machine has changed: QUIC links continue from a new socket.
    pub fn rebind(&self) -> io::Result<()> {
        match &*self.quic.lock_ignoring_poison() {
            Some(client) => client.rebind(),
            None => Ok(()),
        }
    }

    async fn dial_over(&self, transports: DialTransports, max: Duration) -> Result<Link, DialError> {
        let config = &*self.config;
        let tls = self.tls()?;
        let is_proxied: Vec<bool> =
            config.endpoints.iter().map(|endpoint| self.proxy(endpoint).is_some()).collect();
        let mut plan = DialPlan::new(&is_proxied, transports, Instant::now());
        let mut names: FuturesUnordered<_> = (0..config.endpoints.len())
            .filter(|endpoint| transports != DialTransports::TcpOnly || !is_proxied[*endpoint])
            .map(|endpoint| self.resolve(endpoint, max))
            .collect();
        let mut attempts = FuturesUnordered::new();
        let mut failed = Vec::new();
        loop {
            while let Some(attempt) = plan.next_attempt(Instant::now()) {
                attempts.push(self.attempt(attempt, tls.clone(), max));
            }
            if plan.is_over() {
                return Err(DialError::new(failed));
            }
            let wake = plan.next_wake();
            tokio::select! {
                Some((attempt, result)) = attempts.next(), if !attempts.is_empty() => match result {
                    Ok(link) => return Ok(link),
                    Err(error) => {
                        let endpoint = config.endpoints[attempt.endpoint].clone();
                        match &error {
                            AttemptError::Quic(ConnectError::Busy(_)) => plan.handle_busy(attempt, Instant::now()),
                            _ => plan.handle_failed(attempt, Instant::now()),
                        }
                        failed.push(FailedAttempt { endpoint, route: Some(attempt.route), error });
                    }
                },
                Some((endpoint, result)) = names.next(), if !names.is_empty() => {
                    let addresses = result.unwrap_or_else(|error| {
                        failed.push(FailedAttempt { endpoint: config.endpoints[endpoint].clone(), route: None, error });
                        Vec::new()
                    });
                    plan.handle_resolved(endpoint, &addresses, is_proxied[endpoint], Instant::now());
                },
                () = sleep_until(wake.unwrap_or_else(Instant::now).into()), if wake.is_some() => {}
            }
        }
    }

    /// Built for every dial: the verifier uses the time of the dial.
    fn tls(&self) -> Result<ClientConfig, DialError> {
        let DialConfig { trust, credentials, clock, alpn, .. } = &*self.config;
        let signer = match self.signer.get() {
            Some(signer) => signer.clone(),
            None => self
                .signer
                .get_or_init({
                    let read = credentials.clone().signer()?;
                    move || read
                })
                .clone(),
        };
        let (mut tls, _) = tls::client_as(trust.clone(), Some(signer), clock.now())?;
        tls.alpn_protocols = vec![alpn.to_vec()];
        Ok(tls)
    }

    fn proxy(&self, endpoint: &ChannelEndpoint) -> Option<&ConnectProxy> {
        self.config.proxy.as_ref().filter(|proxy| proxy.applies_to(endpoint))
    }

    async fn resolve(
        &self,
        endpoint: usize,
        max: Duration,
    ) -> (usize, Result<Vec<SocketAddr>, AttemptError>) {
        let addresses = resolve(&self.config.endpoints[endpoint], max).await;
        (endpoint, addresses)
    }

    fn attempt(
        &self,
        attempt: DialAttempt,
        tls: ClientConfig,
        max: Duration,
    ) -> BoxFuture<'_, (DialAttempt, Result<Link, AttemptError>)> {
        let endpoint = &self.config.endpoints[attempt.endpoint];
        Box::pin(async move {
            let dialled = async {
                match attempt.route {
                    DialRoute::Quic(address) => self.over_quic(address, tls).await,
                    DialRoute::Tcp(address) => {
                        self.over_tcp(endpoint, self.connect(address).await?, tls).await
                    }
                    DialRoute::Proxy => {
                        self.over_tcp(endpoint, self.through_proxy(endpoint).await?, tls).await
                    }
                }
            };
            let result = timeout(max, dialled).await.unwrap_or(Err(AttemptError::Timeout(max)));
            (attempt, result)
        })
    }

    async fn over_quic(&self, address: SocketAddr, tls: ClientConfig) -> Result<Link, AttemptError> {
        let client = self.quic_client().map_err(AttemptError::Socket)?;
        let ticket = self.retry_tickets().remove(&address);
        let connected = client.connect_as(address, tls, ticket).await;
        if let Err(ConnectError::Busy(busy)) = &connected {
            self.retry_tickets().insert(address, busy.number);
        }
        connected.map_err(AttemptError::Quic)
    }

    fn retry_tickets(&self) -> MutexGuard<'_, HashMap<SocketAddr, RetryTicket>> {
        self.retry_tickets.lock_ignoring_poison()
    }

    /// The socket is bound on first use, and kept.
    fn quic_client(&self) -> io::Result<QuicClient> {
        let mut client = self.quic.lock_ignoring_poison();
        if let Some(client) = &*client {
            return Ok(client.clone());
        }
        let bound = QuicClient::bind_to(self.config.from, self.config.quic.clone())?;
        *client = Some(bound.clone());
        Ok(bound)
    }

    async fn connect(&self, address: SocketAddr) -> Result<TcpStream, AttemptError> {
        let Some(from) = self.config.from else {
            return TcpStream::connect(address).await.map_err(AttemptError::Connect);
        };
        let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() };
        let socket = socket.map_err(AttemptError::Socket)?;
        socket.bind((from, 0).into()).map_err(AttemptError::Socket)?;
        socket.connect(address).await.map_err(AttemptError::Connect)
    }

    async fn through_proxy(&self, endpoint: &ChannelEndpoint) -> Result<TcpStream, AttemptError> {
        let proxy = self.proxy(endpoint).ok_or(AttemptError::NoAddress)?;
        let failed = |source| AttemptError::Proxy { proxy: proxy.endpoint().clone(), source };
        let unreachable = |source| AttemptError::ProxyAway { proxy: proxy.endpoint().clone(), source };
        let place = (proxy.endpoint().host(), proxy.endpoint().port());
        let mut socket = TcpStream::connect(place).await.map_err(unreachable)?;
        proxy.ask(&mut socket, endpoint).await.map_err(failed)?;
        Ok(socket)
    }

    async fn over_tcp(
        &self,
        endpoint: &ChannelEndpoint,
        socket: TcpStream,
        tls: ClientConfig,
    ) -> Result<Link, AttemptError> {
        // The server name is only a hint for load balancers; the verifier requires the cloud's own name. A
        // host that is no DNS name must not stop the dial.
        let name = ServerName::try_from(endpoint.host().to_owned())
            .or_else(|_| ServerName::try_from(tls::CLOUD_NAME.to_owned()))
            .expect("the constant is a DNS name");
        let connector = TlsConnector::from(Arc::new(tls));
        let socket = tcp::prepare(socket, LinkSide::Dialled).map_err(AttemptError::Socket)?;
        let connection = connector.connect(name, socket).await.map_err(AttemptError::of_handshake)?;
        if connection.get_ref().1.alpn_protocol() != Some(self.config.alpn) {
            return Err(AttemptError::NotChannel);
        }
        let link = tcp::over_tls(connection.into(), LinkSide::Dialled, &self.config.quic.limits);
        Ok(link.map_err(AttemptError::Connect)?.into())
    }
}

async fn resolve(endpoint: &ChannelEndpoint, max: Duration) -> Result<Vec<SocketAddr>, AttemptError> {
    if let Ok(address) = endpoint.host().parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(address, endpoint.port())]);
    }
    let lookup = tokio::net::lookup_host((endpoint.host(), endpoint.port()));
    let addresses = timeout(max, lookup).await.map_err(|_| AttemptError::Timeout(max))?;
    let addresses: Vec<_> = addresses.map_err(AttemptError::Resolve)?.collect();
    if addresses.is_empty() { Err(AttemptError::NoAddress) } else { Ok(addresses) }
}

/// Returns the validity period of the cloud's certificate, if it is not valid now by the local clock. Either
/// clock may be wrong, or the certificate may have expired; the cloud's own time tells which.
pub fn doubt(link: &Link, now: SystemTime) -> Option<(SystemTime, SystemTime)> {
    let facts = CertificateFacts::read(&link.certificate()?).ok()?;
    (now < facts.not_before || now > facts.not_after).then_some((facts.not_before, facts.not_after))
}
