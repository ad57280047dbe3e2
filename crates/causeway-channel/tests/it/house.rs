//! A CA, a cloud and a gateway, as real as they need to be for a handshake.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use causeway_channel::dial::{DialConfig, Dialer};
use causeway_channel::link::{CHANNEL_ALPN, Link, LinkLimits, REPLICA_ALPN, Side};
use causeway_channel::port::{ChannelPort, Incoming, PortLimits};
use causeway_channel::quic::PortKeys;
use causeway_channel::tls::{CLOUD_NAME, Credentials, Trust};
use causeway_channel::{Key, PeerId, tcp, tls, wire};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyUsagePurpose,
    SanType,
};
use rustls_pki_types::CertificateDer;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;

const SOON: Duration = Duration::from_secs(30);

pub async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(SOON, future).await.expect("it must not take that long")
}

/// One fleet: whoever trusts its CA believes its cloud.
pub struct House {
    authority: CertificateDer<'static>,
    issuer: (CertificateParams, Key),
}

impl House {
    pub fn new() -> House {
        let key = Key::generate().unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, format!("CA {}", key.hash()));
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let authority = params.self_signed(key.pair()).unwrap().der().clone();
        House { authority, issuer: (params, key) }
    }

    fn sign(&self, name: SanType, usage: ExtendedKeyUsagePurpose) -> Credentials {
        let key = Key::generate().unwrap();
        let mut params = CertificateParams::default();
        params.subject_alt_names = vec![name];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![usage];
        let issuer = Issuer::from_params(&self.issuer.0, self.issuer.1.pair());
        let certificate = params.signed_by(key.pair(), &issuer).unwrap().der().clone();
        Credentials { chain: vec![certificate], key: key.to_der() }
    }

    pub fn trust(&self) -> Trust {
        Trust::Bundle(vec![self.authority.clone()])
    }

    pub fn gateway(&self) -> Credentials {
        let uri = PeerId::new("berlin", "gw-1").unwrap().uri();
        self.sign(SanType::URI(uri.try_into().unwrap()), ExtendedKeyUsagePurpose::ClientAuth)
    }

    pub fn server_tls(&self) -> Arc<rustls::ServerConfig> {
        let cloud =
            self.sign(SanType::DnsName(CLOUD_NAME.try_into().unwrap()), ExtendedKeyUsagePurpose::ServerAuth);
        let alpn = [wire::ALPN, CHANNEL_ALPN, REPLICA_ALPN];
        Arc::new(tls::server(cloud, std::slice::from_ref(&self.authority), &alpn).unwrap())
    }

    /// A cloud's channel port with both transports.
    pub async fn cloud(&self) -> Cloud {
        let tls = Arc::new(ArcSwap::new(self.server_tls()));
        let address = ([127, 0, 0, 1], 0).into();
        let mut port =
            ChannelPort::bind(address, tls, PortKeys::generate(), PortLimits::default()).await.unwrap();
        let address = port.local_addr();
        let (sender, links) = mpsc::channel(16);
        let task = tokio::spawn(async move {
            loop {
                if let Incoming::Channel(link) = port.accept().await {
                    let _ = sender.send(link).await;
                }
            }
        });
        Cloud { address, links, task }
    }

    /// A cloud whose UDP is swallowed by somebody on the way: it is bound, and nobody answers.
    pub async fn cloud_without_udp(&self) -> (Cloud, std::net::UdpSocket) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let silent = std::net::UdpSocket::bind(address).unwrap();
        let acceptor = TlsAcceptor::from(self.server_tls());
        let (sender, links) = mpsc::channel(16);
        let task = tokio::spawn(async move {
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                let Ok(connection) = acceptor.accept(tcp::prepare(socket)).await else { continue };
                let link = tcp::over_tls(connection.into(), Side::Accepted, &LinkLimits::default()).unwrap();
                let _ = sender.send(link.into()).await;
            }
        });
        (Cloud { address, links, task }, silent)
    }

    pub fn dial_config(&self, endpoints: &[&str]) -> DialConfig {
        let endpoints = endpoints.iter().map(|text| text.parse().unwrap()).collect();
        DialConfig::new(endpoints, self.trust(), self.gateway())
    }

    pub fn dialer(&self, cloud: &Cloud) -> Dialer {
        Dialer::new(self.dial_config(&[&cloud.address.to_string()]))
    }
}

/// Accepts links until it is dropped.
pub struct Cloud {
    pub address: SocketAddr,
    links: mpsc::Receiver<Link>,
    task: tokio::task::JoinHandle<()>,
}

impl Cloud {
    pub async fn accept(&mut self) -> Link {
        soon(self.links.recv()).await.unwrap()
    }
}

impl Drop for Cloud {
    fn drop(&mut self) {
        self.task.abort();
    }
}
