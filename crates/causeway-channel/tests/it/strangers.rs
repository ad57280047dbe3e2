//! Unauthenticated clients at the port: refused and counted, without effect on other clients.

use std::num::NonZeroU32;
use std::time::Duration;

use causeway_channel::link::{
    CHANNEL_ALPN, CloseCode, ClosedBy, LinkLimits, StreamHeader, StreamPurpose, Transport,
};
use causeway_channel::port::{PortLimits, RejectReason};
use causeway_channel::quic::{ConnectError, QuicClient, QuicOptions};
use causeway_channel::wire;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};

use crate::stage::{Authority, Stage, eventually, within};

async fn is_unharmed(stage: &mut Stage) {
    let pair = stage.pair(Transport::Quic).await;
    let _opened = pair.edge.open_stream(StreamHeader::new(StreamPurpose::Probe)).await.unwrap();
    within(pair.cloud.accept_stream()).await.unwrap();
}

/// Returns the end of a link that this edge dials over QUIC.
async fn refused(stage: &Stage, tls: rustls::ClientConfig) -> (ClosedBy, CloseCode) {
    let client = QuicClient::bind(QuicOptions::default()).unwrap();
    let closed = match within(client.connect(stage.address, tls)).await {
        // A client is through before the server has looked at its certificate.
        Ok(link) => within(link.closed()).await,
        Err(ConnectError::Failed(closed)) => closed,
        Err(error) => panic!("{error}"),
    };
    (closed.by, closed.reason.code)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_is_not_of_us_is_refused_over_quic() {
    let mut stage = Stage::new().await;
    let other = Authority::new();
    let ours = |credentials, alpn: &[u8]| stage.authority.client(credentials, alpn);
    let gateway = || Some(stage.authority.gateway("g1"));

    let foreign_gateway = ours(Some(other.gateway("g1")), CHANNEL_ALPN);
    assert_eq!(
        refused(&stage, foreign_gateway).await,
        (ClosedBy::Peer, CloseCode::NotAdmitted),
        "foreign CA"
    );
    let foreign_cloud = other.client(gateway(), CHANNEL_ALPN);
    assert_eq!(refused(&stage, foreign_cloud).await, (ClosedBy::Us, CloseCode::NotAdmitted), "foreign cloud");
    let alpn = ours(gateway(), b"causeway/9");
    assert_eq!(refused(&stage, alpn).await, (ClosedBy::Peer, CloseCode::NotAdmitted), "unknown ALPN");
    let enrolment = ours(gateway(), wire::ALPN);
    assert_eq!(
        refused(&stage, enrolment).await,
        (ClosedBy::Peer, CloseCode::NotAdmitted),
        "enrolment is on TCP"
    );
    eventually("four handshakes failed", || stage.metrics.turned_away(RejectReason::Handshake) == 4).await;
    let nobody = ours(None, CHANNEL_ALPN);
    assert_eq!(refused(&stage, nobody).await, (ClosedBy::Peer, CloseCode::NotAdmitted), "no certificate");
    eventually("it is counted", || stage.metrics.turned_away(RejectReason::NoCertificate) == 1).await;
    is_unharmed(&mut stage).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_is_not_of_us_is_refused_over_tcp() {
    let mut stage = Stage::new().await;
    let other = Authority::new();
    let limits = LinkLimits::default();
    let ours = |credentials, alpn: &[u8]| stage.authority.client(credentials, alpn);
    let gateway = || Some(stage.authority.gateway("g1"));

    // A client is through before the server has looked at its certificate; then the link breaks.
    let foreign_gateway = ours(Some(other.gateway("g1")), CHANNEL_ALPN);
    if let Ok(link) = stage.dial_tcp(foreign_gateway, &limits).await {
        within(link.closed()).await;
    }
    assert!(stage.dial_tcp(other.client(gateway(), CHANNEL_ALPN), &limits).await.is_err(), "foreign cloud");
    assert!(stage.dial_tcp(ours(gateway(), b"causeway/9"), &limits).await.is_err(), "unknown ALPN");
    eventually("three handshakes failed", || stage.metrics.turned_away(RejectReason::Handshake) == 3).await;
    let link = within(stage.dial_tcp(ours(None, CHANNEL_ALPN), &limits)).await.unwrap();
    let closed = within(link.closed()).await;
    assert_eq!((closed.by, closed.reason.code), (ClosedBy::Peer, CloseCode::NotAdmitted), "no certificate");
    eventually("it is counted", || stage.metrics.turned_away(RejectReason::NoCertificate) == 1).await;
    is_unharmed(&mut stage).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plain_text_and_scanners_are_refused_over_tcp() {
    let mut stage = Stage::new().await;
    let mut rest = Vec::new();
    for text in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"SSH-2.0-scan\r\n", &[0; 300], &[0x16, 3, 1, 0xff, 0xff, 1]]
    {
        let mut link = TcpStream::connect(stage.address).await.unwrap();
        link.write_all(text).await.unwrap();
        link.shutdown().await.unwrap();
        let _ = within(link.read_to_end(&mut rest)).await;
    }
    // A scanner only checks whether the port is open.
    drop(TcpStream::connect(stage.address).await.unwrap());
    eventually("all are counted", || stage.metrics.turned_away(RejectReason::Handshake) == 5).await;
    is_unharmed(&mut stage).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_over_udp_does_no_harm() {
    let mut stage = Stage::new().await;
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let mut state = 1_u64;
    for length in (0..1472).step_by(3) {
        let packet: Vec<u8> = (0..length)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 33) as u8
            })
            .collect();
        socket.send_to(&packet, stage.address).await.unwrap();
    }
    is_unharmed(&mut stage).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_handshake_is_given_up() {
    let limits = PortLimits { handshake: Duration::from_millis(100), ..PortLimits::default() };
    let mut stage = Stage::with(limits).await;
    let mut silent = TcpStream::connect(stage.address).await.unwrap();
    let mut rest = Vec::new();
    let _ = within(silent.read_to_end(&mut rest)).await;
    eventually("it is counted", || stage.metrics.turned_away(RejectReason::HandshakeTimeout) == 1).await;
    is_unharmed(&mut stage).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_thousand_half_open_connections_keep_nobody_out() {
    let limits = PortLimits { half_open_per_address_max: 100, ..PortLimits::default() };
    let mut stage =
        Stage::with(PortLimits { per_address_burst: NonZeroU32::new(5000).unwrap(), ..limits }).await;
    let mut connections = Vec::new();
    for _ in 0..2000 {
        connections.push(within(TcpStream::connect(stage.address)).await.unwrap());
    }
    is_unharmed(&mut stage).await;
    eventually("the oldest had to go", || stage.metrics.turned_away(RejectReason::HalfOpenAddress) >= 1900)
        .await;
    drop(connections);
    is_unharmed(&mut stage).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_connections_make_quic_clients_prove_their_address() {
    let limits = PortLimits { half_open_max: 8, half_open_per_address_max: 8, ..PortLimits::default() };
    let mut stage = Stage::with(limits).await;
    let mut connections = Vec::new();
    for _ in 0..2 {
        connections.push(TcpStream::connect(stage.address).await.unwrap());
    }
    is_unharmed(&mut stage).await;
    eventually("somebody was asked", || stage.metrics.retries() >= 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn too_many_handshakes_of_one_address_are_refused_with_a_reason() {
    let one = NonZeroU32::new(1).unwrap();
    let limits = PortLimits { per_address_per_second: one, per_address_burst: one, ..PortLimits::default() };
    let mut stage = Stage::with(limits).await;
    let _pair = stage.pair(Transport::Quic).await;
    let mut reason = None;
    // A second may pass between two tries on a busy machine.
    for _ in 0..20 {
        if let Err(ConnectError::Failed(closed)) =
            within(stage.dial(Transport::Quic, QuicOptions::default())).await
        {
            reason = Some((closed.by, closed.reason.code));
            break;
        }
    }
    assert_eq!(reason, Some((ClosedBy::Peer, CloseCode::Limit)));
    assert!(stage.metrics.turned_away(RejectReason::RateAddress) >= 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn links_are_bounded_and_a_place_comes_free() {
    let mut stage = Stage::with(PortLimits { links_max: 1, ..PortLimits::default() }).await;
    let first = stage.pair(Transport::Quic).await;
    let second = within(stage.dial(Transport::Quic, QuicOptions::default())).await.unwrap();
    let closed = within(second.closed()).await;
    assert_eq!((closed.by, closed.reason.code), (ClosedBy::Peer, CloseCode::Limit));
    assert_eq!(stage.metrics.turned_away(RejectReason::Sessions), 1);
    drop(first);
    stage.pair(Transport::Quic).await;
}
