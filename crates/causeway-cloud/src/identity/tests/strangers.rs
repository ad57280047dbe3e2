//! Unauthenticated peers on the channel port: garbage, silence, floods. Nothing panics, and other peers are
//! served.

use std::num::NonZeroU32;

use causeway_channel::port::RejectReason;
use causeway_channel::tls;
use causeway_channel::wire::{self, EnrolmentHello, EnrolmentResponse, EnrolmentResponseBody};
use proptest::prelude::*;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::*;

async fn connect(fleet: &Fleet, cloud: &Replica, alpn: &[&[u8]]) -> std::io::Result<TlsStream<TcpStream>> {
    let trust = TrustAnchors::Bundle(cloud.registrar.cas.load().bundle());
    let (mut config, _) = tls::client(trust, None, fleet.hands.now()).unwrap();
    config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
    let link = TcpStream::connect(cloud.addr).await?;
    let name = ServerName::try_from("localhost").unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, link).await
}

/// Returns true if enrolment accepts a new connection.
async fn is_greeted(fleet: &Fleet, cloud: &Replica) -> bool {
    let Ok(mut link) = connect(fleet, cloud, &[wire::ALPN]).await else { return false };
    wire::read::<EnrolmentHello>(&mut link).await.is_ok()
}

async fn serves(fleet: &Fleet, cloud: &Replica, gateway: &str) {
    fleet.device(cloud, gateway).await;
}

#[tokio::test]
async fn garbage_is_answered_or_dropped_and_never_stops_the_server() {
    let fleet = Fleet::new().await;
    let cloud = fleet.replica("a").await;
    let rows: [(&str, &[u8]); 5] = [
        ("a frame too long", &[0xff, 0xff, 0xff, 0xff]),
        ("one byte too long", &[0, 1, 0, 1, 0]),
        ("a body that is no message", &[0, 0, 0, 3, 0xff, 0xff, 0xff]),
        ("an empty request", &[0, 0, 0, 0]),
        ("a request of the future", &[0, 0, 0, 4, 0xf2, 0x06, 0x01, 0x41]),
    ];
    for (row, bytes) in rows {
        let mut link = connect(&fleet, &cloud, &[wire::ALPN]).await.unwrap();
        let hello: EnrolmentHello = wire::read(&mut link).await.unwrap();
        assert_eq!(hello.version, 1);
        link.write_all(bytes).await.unwrap();
        let response: EnrolmentResponse = wire::read(&mut link).await.unwrap();
        let Some(EnrolmentResponseBody::Refused(refusal)) = response.answer else {
            panic!("{row}: {response:?}")
        };
        assert_eq!(refusal.reason(), EnrolmentCode::Malformed, "{row}");
    }
    // The connection ends in the middle of a frame.
    let mut link = connect(&fleet, &cloud, &[wire::ALPN]).await.unwrap();
    link.write_all(&[0, 0, 0, 200, 1, 2]).await.unwrap();
    drop(link);
    // Not TLS at all.
    let mut link = TcpStream::connect(cloud.addr).await.unwrap();
    link.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    let mut rest = Vec::new();
    let _ = link.read_to_end(&mut rest).await;
    // Another protocol, or none.
    assert!(connect(&fleet, &cloud, &[b"h2"]).await.is_err());
    let mut link = connect(&fleet, &cloud, &[]).await.unwrap();
    assert_eq!(link.read_to_end(&mut rest).await.unwrap_or_default(), 0);
    eventually("all are counted", || {
        let metrics = cloud.registrar.metrics();
        cloud.port.turned_away(RejectReason::Handshake) == 2
            && cloud.port.turned_away(RejectReason::Protocol) == 1
            && metrics.turned_away("exchange") == 1
            && metrics.turned_away("malformed") == 3
    })
    .await;
    serves(&fleet, &cloud, "G1").await;
}

#[tokio::test]
async fn the_silent_are_closed() {
    let mut fleet = Fleet::new().await;
    fleet.port_limits.handshake = Duration::from_millis(50);
    fleet.limits.exchange = Duration::from_millis(200);
    let cloud = fleet.replica("a").await;
    let mut rest = Vec::new();
    let mut silent = TcpStream::connect(cloud.addr).await.unwrap();
    assert_eq!(silent.read_to_end(&mut rest).await.unwrap_or_default(), 0);
    eventually("the handshake is given up", || cloud.port.turned_away(RejectReason::HandshakeTimeout) == 1)
        .await;
}

#[tokio::test]
async fn a_slow_talker_is_closed() {
    let mut fleet = Fleet::new().await;
    fleet.limits.exchange = Duration::from_millis(100);
    let cloud = fleet.replica("a").await;
    let mut link = connect(&fleet, &cloud, &[wire::ALPN]).await.unwrap();
    let _: EnrolmentHello = wire::read(&mut link).await.unwrap();
    let mut rest = Vec::new();
    let _ = link.read_to_end(&mut rest).await;
    eventually("the exchange is given up", || cloud.registrar.metrics().turned_away("exchange-timeout") == 1)
        .await;
}

#[tokio::test]
async fn many_connections_are_bounded_and_pass() {
    let mut fleet = Fleet::new().await;
    fleet.limits.connections_max = 2;
    let cloud = fleet.replica("a").await;
    let mut connections = Vec::new();
    for _ in 0..2 {
        let mut link = connect(&fleet, &cloud, &[wire::ALPN]).await.unwrap();
        let _: EnrolmentHello = wire::read(&mut link).await.unwrap();
        connections.push(link);
    }
    assert!(!is_greeted(&fleet, &cloud).await);
    eventually("it is counted", || cloud.registrar.metrics().turned_away("full") == 1).await;
    drop(connections);
    eventually("the connections are gone", || cloud.registrar.metrics().turned_away("exchange") == 2).await;
    // The permit is free a moment after the exchange was counted.
    loop {
        if is_greeted(&fleet, &cloud).await {
            break;
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn one_address_cannot_take_every_place() {
    let mut fleet = Fleet::new().await;
    fleet.limits.connections_per_address_max = 1;
    let cloud = fleet.replica("a").await;
    let mut link = connect(&fleet, &cloud, &[wire::ALPN]).await.unwrap();
    let _: EnrolmentHello = wire::read(&mut link).await.unwrap();
    assert!(!is_greeted(&fleet, &cloud).await);
    eventually("it is counted", || cloud.registrar.metrics().turned_away("full-address") == 1).await;
}

#[tokio::test]
async fn tries_are_limited_per_address_and_those_with_a_certificate_are_not() {
    let mut fleet = Fleet::new().await;
    fleet.limits.tries_burst = NonZeroU32::new(3).unwrap();
    fleet.limits.tries_per_second = NonZeroU32::new(1).unwrap();
    let cloud = fleet.replica("a").await;
    let mut device = fleet.device(&cloud, "G1").await;
    let mut token = fleet.token(&cloud, "G2").await;
    token.secret = causeway_channel::TokenSecret::generate();
    let key = PrivateKey::generate().unwrap();
    let mut limited = None;
    for _ in 0..20 {
        let EnrolError::Refused(refusal) = fleet.enrol(&cloud, &token, &key).await.unwrap_err() else {
            panic!()
        };
        match refusal.reason() {
            EnrolmentCode::TokenUnknown => {}
            EnrolmentCode::RateLimited => limited = Some(refusal),
            other => panic!("{other:?}"),
        }
    }
    let limited = limited.expect("twenty tries are more than three");
    assert!(limited.is_temporary() && limited.retry_after_seconds >= 1 && limited.hint.contains("try again"));
    assert!(cloud.registrar.metrics().turned_away("rate-address") > 0);
    for _ in 0..10 {
        device.renew(&fleet, &cloud).await.unwrap();
    }
}

#[test]
fn no_request_makes_the_registrar_panic() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (fleet, registrar, shown) = runtime.block_on(async {
        let fleet = Fleet::new().await;
        let cloud = fleet.replica("a").await;
        let device = fleet.device(&cloud, "G1").await;
        (fleet, cloud.registrar.clone(), device.issued.certificate)
    });
    let bytes = || proptest::collection::vec(any::<u8>(), 0..200);
    let ask = prop_oneof![
        (bytes(), bytes())
            .prop_map(|(secret, csr)| wire::EnrolmentRequestBody::Enrol(wire::EnrolMessage { secret, csr })),
        bytes().prop_map(|csr| wire::EnrolmentRequestBody::Renew(wire::RenewMessage { csr })),
        (bytes(), bytes()).prop_map(|(csr, certificate)| wire::EnrolmentRequestBody::Reenrol(
            wire::ReenrolMessage { csr, certificate }
        )),
        bytes().prop_map(|bundle| wire::EnrolmentRequestBody::Check(wire::CheckMessage { bundle })),
    ];
    let shows = any::<bool>();
    proptest!(|(ask in ask, time in any::<i64>(), shows in shows)| {
        let request = wire::EnrolmentRequest { time, ask: Some(ask.clone()) };
        let shown = shows.then_some(&shown);
        let answer = runtime.block_on(registrar.answer(request, None, shown, "test"));
        prop_assert!(answer.is_err() || matches!(ask, wire::EnrolmentRequestBody::Check(_)));
    });
    drop(fleet);
}
