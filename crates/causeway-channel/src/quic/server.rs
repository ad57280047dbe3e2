//! QUIC server of the port: endpoint keys that survive a restart, and the current certificate.
//!
//! A cloud that was restarted answers packets of unknown links with a stateless reset, so that edges
//! reconnect at once instead of waiting for a timeout. That requires the keys from before the restart.

use std::io;
use std::net::UdpSocket;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arc_swap::ArcSwap;
use aws_lc_rs::{hkdf, hmac};
use quinn::crypto::rustls::{HandshakeData, QuicServerConfig};
use quinn::{Connection, ConnectionError, Endpoint, EndpointConfig, Incoming, ServerConfig, VarInt};
use rustls_pki_types::CertificateDer;

use super::busy_refusal::BusyRefusal;
use super::driver_thread::DriverThread;
use super::path;
use super::transport::{self, TransportConfigs};
use super::workarounds::adaptive_gso::AdaptiveGsoSocket;
use super::workarounds::bounded_socket::BoundedSocket;
use super::workarounds::connection_ids::ConnectionIds;
use super::workarounds::receive_thread::ReceiveThread;
use super::workarounds::refusing_handshake::RefusingHandshake;
use super::{QuicLink, QuicOptions, certificate};
use crate::link::{CHANNEL_ALPN, CloseReason, Link, LinkLimits, REPLICA_ALPN};
use causeway_api::sync::MutexExt;

/// After a restart of the cloud, resets go to all of its edges within seconds. A reset is smaller than the
/// packet it answers, so it cannot be used for amplification.
const RESET_INTERVAL_MIN: Duration = Duration::from_micros(50);
/// Bound of connection attempts that wait for `accept`; the port handles each at once.
const INCOMING_MAX: usize = 4096;
/// A client sends no more than a few packets before the first response.
const INCOMING_BUFFER_BYTES: u64 = 64 * 1024;

/// Kept in the data directory of a cloud, readable only by its user.
#[derive(Clone, PartialEq, Eq)]
pub struct EndpointKeys {
    pub reset_key: [u8; 32],
    pub token_key: [u8; 32],
}

impl EndpointKeys {
    pub fn generate() -> EndpointKeys {
        let random = || {
            let mut bytes = [0; 32];
            aws_lc_rs::rand::fill(&mut bytes).expect("the system gives random bytes");
            bytes
        };
        EndpointKeys { reset_key: random(), token_key: random() }
    }

    /// The form in the file.
    pub fn to_bytes(&self) -> Vec<u8> {
        [self.reset_key, self.token_key].concat()
    }

    pub fn from_bytes(bytes: &[u8]) -> Option<EndpointKeys> {
        let (reset_key, token_key) = bytes.split_at_checked(32)?;
        Some(EndpointKeys { reset_key: reset_key.try_into().ok()?, token_key: token_key.try_into().ok()? })
    }
}

impl std::fmt::Debug for EndpointKeys {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("EndpointKeys(…)")
    }
}

/// The UDP half of the port.
pub(crate) struct QuicServer {
    endpoint: Endpoint,
    tls: Arc<ArcSwap<rustls::ServerConfig>>,
    template: ServerConfig,
    transports: TransportConfigs,
    options: QuicOptions,
    current: Mutex<Current>,
}

/// quinn's settings for each kind of path, and the TLS settings they were made from. Every link keeps a
/// reference to its own.
struct Current {
    tls: Arc<rustls::ServerConfig>,
    ordinary: Arc<ServerConfig>,
    inside: Arc<ServerConfig>,
}

impl QuicServer {
    pub(crate) fn new(
        socket: UdpSocket,
        tls: Arc<ArcSwap<rustls::ServerConfig>>,
        keys: &EndpointKeys,
        options: QuicOptions,
    ) -> io::Result<QuicServer> {
        let live = tls.load_full();
        let transports = TransportConfigs::new(&options, transport::STREAMS_BEFORE_ADMISSION);
        let token_key = hkdf::Salt::new(hkdf::HKDF_SHA256, b"causeway channel").extract(&keys.token_key);
        let mut template = ServerConfig::new(Arc::new(quic_tls(&live)?), Arc::new(token_key));
        template
            .transport_config(transports.of(false))
            .migration(true)
            .max_incoming(INCOMING_MAX)
            .incoming_buffer_size(INCOMING_BUFFER_BYTES);
        let (receive_thread, socket) = ReceiveThread::new(socket)?;
        let mut config = endpoint_config(keys);
        transport::limit_packets(&mut config, &options).map_err(io::Error::other)?;
        let endpoint = Endpoint::new_with_abstract_socket(
            config,
            Some(template.clone()),
            Arc::new(AdaptiveGsoSocket::new(Arc::new(BoundedSocket::new(socket)))),
            receive_thread,
        )?;
        let current = Mutex::new(current(live, template.clone(), &transports));
        Ok(QuicServer { endpoint, tls, template, transports, options, current })
    }

    /// Returns `None` after `stop`.
    pub(crate) async fn accept(&self) -> Option<Incoming> {
        self.endpoint.accept().await
    }

    /// Completes the handshake.
    pub(crate) async fn complete_handshake(
        &self,
        incoming: Incoming,
    ) -> Result<HandshakenConnection, ConnectionError> {
        let is_inside = path::is_inside(incoming.remote_address());
        let config = self.config(is_inside).map_err(|_| ConnectionError::VersionMismatch)?;
        let (driver, connecting) = DriverThread::of_new(|| incoming.accept_with(config));
        let connection = connecting?.await?;
        Ok(HandshakenConnection { connection, limits: self.options.limits.clone(), driver })
    }

    /// Refuses an attempt with the time and the ticket of the next one.
    pub(crate) fn refuse_busy(&self, incoming: Incoming, busy: BusyRefusal) {
        let Ok(config) = self.config(false) else { return incoming.refuse() };
        let mut refusing = (*config).clone();
        refusing.crypto = Arc::new(RefusingHandshake { inner: config.crypto.clone(), text: busy.to_text() });
        // The handshake fails on purpose; quinn sends the text with the failure.
        let _ = incoming.accept_with(Arc::new(refusing));
    }

    /// Accepts no new links. Open links continue.
    pub(crate) fn stop(&self) {
        self.endpoint.set_server_config(None);
    }

    /// Resolves when every link is closed and its peer was notified.
    pub(crate) async fn idle(&self) {
        self.endpoint.wait_idle().await;
    }

    // Rebuilt when the certificate has changed.
    fn config(&self, is_inside: bool) -> io::Result<Arc<ServerConfig>> {
        let live = self.tls.load_full();
        let mut ready = self.current.lock_ignoring_poison();
        if !Arc::ptr_eq(&ready.tls, &live) {
            let mut config = self.template.clone();
            config.crypto = Arc::new(quic_tls(&live)?);
            *ready = current(live, config, &self.transports);
        }
        Ok(if is_inside { ready.inside.clone() } else { ready.ordinary.clone() })
    }
}

fn current(tls: Arc<rustls::ServerConfig>, ordinary: ServerConfig, transports: &TransportConfigs) -> Current {
    let mut inside = ordinary.clone();
    inside.transport_config(transports.of(true));
    Current { tls, ordinary: Arc::new(ordinary), inside: Arc::new(inside) }
}

/// A connection after the handshake and before admission.
pub(crate) struct HandshakenConnection {
    connection: Connection,
    limits: LinkLimits,
    driver: Arc<DriverThread>,
}

impl HandshakenConnection {
    pub(crate) fn protocol(&self) -> AlpnProtocol {
        protocol(&self.connection)
    }

    pub(crate) fn certificate(&self) -> Option<CertificateDer<'static>> {
        certificate(&self.connection)
    }

    /// The peer may open one stream until it is admitted.
    pub(crate) fn link(self) -> Link {
        QuicLink::pending(self.connection, self.limits, self.driver).into()
    }

    pub(crate) fn refuse(self, reason: &CloseReason) {
        self.connection.close(VarInt::from_u32(reason.code.into()), reason.text_for_wire().as_bytes());
    }
}

/// Protocol that a peer selected by ALPN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AlpnProtocol {
    Channel,
    Replica,
    /// No protocol of ours; TLS has already refused it.
    Other,
}

impl AlpnProtocol {
    pub(crate) fn of(alpn: Option<&[u8]>) -> AlpnProtocol {
        match alpn {
            Some(CHANNEL_ALPN) => AlpnProtocol::Channel,
            Some(REPLICA_ALPN) => AlpnProtocol::Replica,
            _ => AlpnProtocol::Other,
        }
    }
}

fn protocol(connection: &Connection) -> AlpnProtocol {
    let data = connection.handshake_data().and_then(|any| any.downcast::<HandshakeData>().ok());
    AlpnProtocol::of(data.and_then(|data| data.protocol).as_deref())
}

// Enrolment is offered over TCP only.
fn quic_tls(tls: &rustls::ServerConfig) -> io::Result<QuicServerConfig> {
    let mut tls = tls.clone();
    tls.alpn_protocols = vec![CHANNEL_ALPN.to_vec(), REPLICA_ALPN.to_vec()];
    QuicServerConfig::try_from(tls).map_err(io::Error::other)
}

fn endpoint_config(keys: &EndpointKeys) -> EndpointConfig {
    let reset_key = hmac::Key::new(hmac::HMAC_SHA256, &keys.reset_key);
    let id_key = hmac::Key::new(hmac::HMAC_SHA256, hmac::sign(&reset_key, b"connection ids").as_ref());
    let mut config = EndpointConfig::new(Arc::new(reset_key));
    config.min_reset_interval(RESET_INTERVAL_MIN);
    config.cid_generator(move || Box::new(ConnectionIds::new(id_key.clone())));
    config
}
