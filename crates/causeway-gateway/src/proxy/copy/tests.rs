//! Bytes through real sockets, under a limit.

use std::time::Instant;

use causeway_netmap::{
    GatewayEntry, Generation, NetmapEntry, NetmapView, PolicyEntry, PolicyLimits, PresenceEntry,
    ServiceProtocol,
};
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;

use super::*;
use crate::limits::{LimitTable, LimitedEnd};
use crate::policy::{Principal, may_use};

#[test]
fn a_batch_is_cut_where_it_is_asked_to_be() {
    for wanted in [1, 2, 3, 5, 6, 7, 99] {
        let (mut batch, mut part) = (CopyBatch::default(), CopyBatch::default());
        [&b"ab"[..], b"c", b"def"].into_iter().for_each(|chunk| batch.push(Bytes::from_static(chunk)));
        batch.move_to(&mut part, wanted);
        let (first, rest) = (part.chunks.concat(), batch.chunks.concat());
        assert_eq!((first.len(), rest.len()), (part.bytes, batch.bytes));
        assert_eq!(first, b"abcdef"[..wanted.min(6)]);
        assert_eq!([first, rest].concat(), b"abcdef");
    }
}

/// Two ends of one connection.
async fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap());
    let (near, far) = tokio::join!(near, listener.accept());
    (near.unwrap(), far.unwrap().0)
}

/// A meter whose bytes to the client are limited.
fn meter(bytes_per_second: u64) -> ByteMeter {
    let limits = PolicyLimits { bytes_per_second_out: Some(bytes_per_second), ..PolicyLimits::default() };
    let facts = [
        NetmapEntry::Gateway(GatewayEntry::named("oslo-1", "oslo")),
        NetmapEntry::Policy(PolicyEntry {
            name: "p".into(),
            servers: vec![],
            sites: vec!["oslo".into()],
            limits: Some(limits),
            http: vec![],
            ports: Vec::new(),
        }),
        NetmapEntry::Presence(PresenceEntry {
            service: "camera".into(),
            addresses: vec![],
            port: 80,
            protocol: ServiceProtocol::Tcp,
            brokers: 0,
            names: vec![],
            service_site: "berlin".into(),
            policies: vec!["p".into()],
        }),
    ];
    let view = NetmapView::of_entries(Generation { epoch: 1, revision: 1 }, &facts).unwrap();
    let who = Principal { site: "oslo".into(), server: None };
    let permit = may_use(&view, view.presences.get("camera").unwrap(), &who).unwrap();
    let meter = ByteMeter::new();
    let allowance = LimitTable::new(10).connect(LimitedEnd::Near, &permit, "camera", &who, Instant::now());
    meter.set_allowance(allowance.ok().unwrap());
    meter
}

#[tokio::test]
async fn a_limited_direction_keeps_its_rate_and_loses_nothing() {
    const RATE: u64 = 250_000;
    const BYTES: usize = 1_000_000;
    let ((client, near), (far, mut backend)) = tokio::join!(pair(), pair());
    let (mut near, mut far) = (SplitSocket::new(near), SplitSocket::new(far));
    let (mut near_side, mut far_side) = (near.side(), far.side());
    let meter = meter(RATE);
    let sent: Vec<u8> = (0..BYTES).map(|index| (index % 251) as u8).collect();
    let begun = Instant::now();
    let (mut reader, mut writer) = client.into_split();
    let asking = async {
        writer.write_all(&sent).await.unwrap();
        writer.shutdown().await.unwrap();
    };
    let answering = async {
        let mut asked = Vec::new();
        backend.read_to_end(&mut asked).await.unwrap();
        // The other direction is not held up.
        assert!(asked == sent && begun.elapsed() < Duration::from_secs(3));
        backend.write_all(&asked).await.unwrap();
        backend.shutdown().await.unwrap();
    };
    let reading = async {
        let mut received = Vec::new();
        reader.read_to_end(&mut received).await.unwrap();
        received
    };
    let crossing = cross(&mut near_side, &mut far_side, &meter, Duration::from_secs(60));
    let ((), (), received, ended) = tokio::join!(asking, answering, reading, crossing);
    assert!(received == sent && matches!(ended, CopyEnd::Done));
    assert_eq!((meter.sent(), meter.received()), (BYTES as u64, BYTES as u64));
    // Four seconds, less a tenth for the burst; ten percent is what a limit may be off.
    assert!(begun.elapsed() >= Duration::from_millis(3500), "{:?}", begun.elapsed());
}
