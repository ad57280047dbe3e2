//! A CA, a port of a cloud, and edges that dial it.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use arc_swap::ArcSwap;
use causeway_channel::link::{CHANNEL_ALPN, Link, LinkLimits, LinkSide, REPLICA_ALPN, Transport};
use causeway_channel::port::{ChannelPort, IncomingLink, PortLimits, PortMetrics};
use causeway_channel::quic::{ConnectError, EndpointKeys, QuicClient, QuicOptions};
use causeway_channel::tls::{self, CLOUD_NAME, TlsCredentials, TrustAnchors};
use causeway_channel::{PeerId, tcp, wire};
use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, SanType};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;

/// Longer than anything here may take, on a machine that is busy with builds.
pub const DEADLINE: Duration = Duration::from_secs(60);

pub struct Authority {
    key: KeyPair,
    certificate: CertificateDer<'static>,
}

impl Authority {
    pub fn new() -> Authority {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        let certificate = params.self_signed(&key).unwrap().der().clone();
        Authority { key, certificate }
    }

    pub fn bundle(&self) -> Vec<CertificateDer<'static>> {
        vec![self.certificate.clone()]
    }

    pub fn cloud(&self) -> TlsCredentials {
        let name = SanType::DnsName(CLOUD_NAME.try_into().unwrap());
        self.sign(name, ExtendedKeyUsagePurpose::ServerAuth)
    }

    pub fn gateway(&self, name: &str) -> TlsCredentials {
        let peer = PeerId::new("tokyo", name).unwrap();
        self.sign(SanType::URI(peer.uri().try_into().unwrap()), ExtendedKeyUsagePurpose::ClientAuth)
    }

    fn sign(&self, name: SanType, usage: ExtendedKeyUsagePurpose) -> TlsCredentials {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.subject_alt_names = vec![name];
        params.extended_key_usages = vec![usage];
        let issuer = Issuer::from_ca_cert_der(&self.certificate, &self.key).unwrap();
        let certificate = params.signed_by(&key, &issuer).unwrap().der().clone();
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        TlsCredentials { chain: vec![certificate], key }
    }

    /// Client configuration of an edge of this CA; without credentials it presents no certificate.
    pub fn client(&self, credentials: Option<TlsCredentials>, alpn: &[u8]) -> rustls::ClientConfig {
        let trust = TrustAnchors::Bundle(self.bundle());
        let (mut config, _) = tls::client(trust, credentials, SystemTime::now()).unwrap();
        config.alpn_protocols = vec![alpn.to_vec()];
        config
    }

    pub fn server(&self) -> Arc<ArcSwap<rustls::ServerConfig>> {
        let alpn: [&[u8]; 3] = [CHANNEL_ALPN, REPLICA_ALPN, wire::ALPN];
        Arc::new(ArcSwap::from_pointee(tls::server(self.cloud(), &self.bundle(), &alpn).unwrap()))
    }

    pub fn save(&self, folder: &Path) {
        std::fs::write(folder.join("key"), self.key.serialize_der()).unwrap();
        std::fs::write(folder.join("certificate"), &self.certificate).unwrap();
    }

    pub fn load(folder: &Path) -> Authority {
        let key = std::fs::read(folder.join("key")).unwrap();
        let certificate = std::fs::read(folder.join("certificate")).unwrap().into();
        Authority { key: KeyPair::try_from(key).unwrap(), certificate }
    }
}

/// A cloud as far as its port goes. The port is closed when this is dropped.
pub struct Stage {
    pub authority: Authority,
    pub address: SocketAddr,
    pub metrics: PortMetrics,
    /// Links of edges, as they come.
    pub links: mpsc::Receiver<Link>,
    serving: JoinHandle<()>,
}

impl Stage {
    pub async fn new() -> Stage {
        Stage::with(PortLimits::default()).await
    }

    pub async fn with(limits: PortLimits) -> Stage {
        let authority = Authority::new();
        let address = "127.0.0.1:0".parse().unwrap();
        let port =
            ChannelPort::bind(address, authority.server(), EndpointKeys::generate(), limits).await.unwrap();
        let (address, metrics) = (port.local_addr(), port.metrics().clone());
        let (sender, links) = mpsc::channel(2000);
        let serving = tokio::spawn(serve(port, sender));
        Stage { authority, address, metrics, links, serving }
    }

    /// An edge's link and the cloud's end of it.
    pub async fn pair(&mut self, transport: Transport) -> Pair {
        self.pair_with(transport, QuicOptions::default()).await
    }

    pub async fn pair_with(&mut self, transport: Transport, options: QuicOptions) -> Pair {
        let edge = within(self.dial(transport, options)).await.unwrap();
        let cloud = within(self.links.recv()).await.unwrap();
        Pair { edge, cloud }
    }

    pub async fn dial(&self, transport: Transport, options: QuicOptions) -> Result<Link, ConnectError> {
        let tls = self.authority.client(Some(self.authority.gateway("g1")), CHANNEL_ALPN);
        match transport {
            Transport::Quic => QuicClient::bind(options).unwrap().connect(self.address, tls).await,
            Transport::Tcp => Ok(self.dial_tcp(tls, &options.limits).await.unwrap()),
        }
    }

    pub async fn dial_tcp(&self, tls: rustls::ClientConfig, limits: &LinkLimits) -> std::io::Result<Link> {
        let socket = tcp::prepare(TcpStream::connect(self.address).await?, LinkSide::Dialled)?;
        let name = CLOUD_NAME.try_into().unwrap();
        let connection = TlsConnector::from(Arc::new(tls)).connect(name, socket).await?;
        Ok(tcp::over_tls(connection.into(), LinkSide::Dialled, limits)?.into())
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

pub async fn serve(mut port: ChannelPort, links: mpsc::Sender<Link>) {
    loop {
        if let IncomingLink::Channel(link, _) = port.accept().await {
            link.admit();
            let _ = links.send(link).await;
        }
    }
}

pub struct Pair {
    pub edge: Link,
    pub cloud: Link,
}

/// Waits with a deadline.
pub async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(DEADLINE, future).await.expect("it takes too long")
}

pub async fn eventually(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !condition() {
        assert!(Instant::now() < deadline, "never: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Returns the resident memory of this process.
pub fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 1024
}

/// A port for many edges of one address.
pub fn generous() -> PortLimits {
    let many = std::num::NonZeroU32::new(100_000).unwrap();
    PortLimits {
        per_second: many,
        burst: many,
        per_address_per_second: many,
        per_address_burst: many,
        ..PortLimits::default()
    }
}
