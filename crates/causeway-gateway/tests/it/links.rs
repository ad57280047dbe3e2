//! The two ends of a link between gateways, over either transport, with certificates of their own.

use std::sync::Arc;
use std::time::SystemTime;

use arc_swap::ArcSwap;
use causeway_channel::PeerId;
use causeway_channel::link::{CHANNEL_ALPN, Link, LinkLimits, LinkSide, Transport};
use causeway_channel::port::{ChannelPort, IncomingLink, PortLimits};
use causeway_channel::quic::{EndpointKeys, QuicClient, QuicOptions};
use causeway_channel::tcp;
use causeway_channel::tls::{self, CLOUD_NAME, TlsCredentials, TrustAnchors};
use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, SanType};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio_util::task::AbortOnDropHandle;

/// Returns the dialling end, the accepting end, and a guard that keeps the port open.
pub async fn pair(transport: Transport) -> (Link, Link, Option<AbortOnDropHandle<()>>) {
    match transport {
        Transport::Quic => quic().await,
        Transport::Tcp => over_memory(),
    }
}

fn over_memory() -> (Link, Link, Option<AbortOnDropHandle<()>>) {
    let (edge, cloud) = tokio::io::duplex(256 * 1024);
    let limits = LinkLimits { streams_max: 4096, ..LinkLimits::default() };
    let meta = tcp::TcpPeer { remote_address: ([127, 0, 0, 1], 1).into(), certificate: None };
    let near: Link = tcp::over(edge, LinkSide::Dialled, &limits, meta.clone()).into();
    (near, tcp::over(cloud, LinkSide::Accepted, &limits, meta).into(), None)
}

async fn quic() -> (Link, Link, Option<AbortOnDropHandle<()>>) {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    let authority = params.self_signed(&key).unwrap().der().clone();
    let cloud = SanType::DnsName(CLOUD_NAME.try_into().unwrap());
    let cloud = sign(&authority, &key, cloud, ExtendedKeyUsagePurpose::ServerAuth);
    let edge = SanType::URI(PeerId::new("oslo", "oslo-1").unwrap().uri().try_into().unwrap());
    let edge = sign(&authority, &key, edge, ExtendedKeyUsagePurpose::ClientAuth);

    let bundle = vec![authority];
    let server = tls::server(cloud, &bundle, &[CHANNEL_ALPN]).unwrap();
    let (address, server) = ("127.0.0.1:0".parse().unwrap(), Arc::new(ArcSwap::from_pointee(server)));
    let mut port =
        ChannelPort::bind(address, server, EndpointKeys::generate(), PortLimits::default()).await.unwrap();
    let (mut client, _) = tls::client(TrustAnchors::Bundle(bundle), Some(edge), SystemTime::now()).unwrap();
    client.alpn_protocols = vec![CHANNEL_ALPN.to_vec()];
    let address = port.local_addr();
    let dialling = QuicClient::bind(QuicOptions::default()).unwrap();
    let (near, incoming) = tokio::join!(dialling.connect(address, client), port.accept());
    let IncomingLink::Channel(far, _) = incoming else { panic!("not a link of the channel") };
    far.admit();
    let open = tokio::spawn(async move {
        loop {
            drop(port.accept().await);
        }
    });
    (near.unwrap(), far, Some(AbortOnDropHandle::new(open)))
}

fn sign(
    authority: &CertificateDer<'static>,
    authority_key: &KeyPair,
    name: SanType,
    usage: ExtendedKeyUsagePurpose,
) -> TlsCredentials {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.subject_alt_names = vec![name];
    params.extended_key_usages = vec![usage];
    let issuer = Issuer::from_ca_cert_der(authority, authority_key).unwrap();
    let certificate = params.signed_by(&key, &issuer).unwrap().der().clone();
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    TlsCredentials { chain: vec![certificate], key }
}
