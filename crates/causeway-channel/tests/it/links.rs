//! One battery for every transport: what holds for a link holds whatever carries it.

use std::time::Duration;

use bytes::Bytes;
use causeway_channel::PeerId;
use causeway_channel::link::{
    CloseCode, CloseReason, ClosedBy, Link, Purpose, ResetCode, StreamHeader, Transport,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::house::{Cloud, House, soon};

/// An edge's end and the cloud's end of one link.
struct Pair {
    edge: Link,
    cloud: Link,
    _port: Cloud,
}

async fn pair(transport: Transport) -> Pair {
    let house = House::new();
    let mut port = house.cloud().await;
    let dialer = house.dialer(&port);
    let edge = match transport {
        Transport::Quic => dialer.dial_quic().await,
        Transport::Tcp => dialer.dial_tcp().await,
    }
    .unwrap();
    assert_eq!(edge.transport(), transport);
    let cloud = port.accept().await;
    assert_eq!(cloud.transport(), transport);
    Pair { edge, cloud, _port: port }
}

/// Runs a row over both transports.
macro_rules! over_both {
    ($($name:ident)*) => {
        mod quic { $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)] async fn $name() { super::$name(super::pair(super::Transport::Quic).await).await })* }
        mod tcp { $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)] async fn $name() { super::$name(super::pair(super::Transport::Tcp).await).await })* }
    };
}

over_both! {
    bytes_go_both_ways_and_each_direction_ends_on_its_own
    either_end_opens_streams_and_headers_arrive_whole
    reasons_of_a_stream_reach_the_other_end
    a_half_that_is_dropped_is_abandoned
    the_reason_of_a_close_reaches_the_other_end
    datagrams_pass
    one_stream_of_a_hundred_that_is_not_read_stalls_no_other
    the_peer_is_known_by_its_certificate
    a_link_is_closed_when_its_last_handle_goes
}

async fn bytes_go_both_ways_and_each_direction_ends_on_its_own(pair: Pair) {
    let Pair { edge, cloud, _port } = pair;
    let echo = tokio::spawn(async move {
        let (_, stream) = cloud.accept_stream().await.unwrap();
        let (mut send, mut recv) = stream.split();
        tokio::io::copy(&mut recv, &mut send).await.unwrap();
        // The peer has ended its direction; ours goes on until we end it.
        send.write_all(b"the end").await.unwrap();
        send.shutdown().await.unwrap();
        cloud
    });
    let stream = edge.open_stream(StreamHeader::new(Purpose::Probe)).await.unwrap();
    let (mut send, mut recv) = stream.split();
    let data: Vec<u8> = (0..3_000_000u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let expected = [&data[..], b"the end"].concat();
    let writer = tokio::spawn(async move {
        send.write_all(&data).await.unwrap();
        send.shutdown().await.unwrap();
    });
    let mut read = Vec::new();
    while let Some(chunk) = soon(recv.read_chunk(100_000)).await.unwrap() {
        read.extend_from_slice(&chunk);
    }
    assert!(read == expected, "{} of {} bytes came back right", read.len(), expected.len());
    soon(writer).await.unwrap();
    drop(soon(echo).await.unwrap());
}

async fn either_end_opens_streams_and_headers_arrive_whole(pair: Pair) {
    for (from, to) in [(&pair.edge, &pair.cloud), (&pair.cloud, &pair.edge)] {
        for number in 0..50 {
            let mut header =
                StreamHeader::new(Purpose::Service).to("oslo", "gw-2").target(format!("service-{number}"));
            header.bulk = number % 2 == 0;
            let mut opened = soon(from.open_stream(header.clone())).await.unwrap();
            let (arrived, mut accepted) = soon(to.accept_stream()).await.unwrap();
            assert_eq!(arrived, header);
            // Whoever was called may speak first.
            accepted.write_all(b"hello").await.unwrap();
            let mut hello = [0; 5];
            soon(opened.read_exact(&mut hello)).await.unwrap();
            assert_eq!(&hello, b"hello");
        }
    }
    let too_long = StreamHeader::new(Purpose::Service).details(vec![0; 5000]);
    assert!(soon(pair.edge.open_stream(too_long)).await.is_err());
}

async fn reasons_of_a_stream_reach_the_other_end(pair: Pair) {
    let mut stream = soon(pair.edge.open_stream(StreamHeader::new(Purpose::Service))).await.unwrap();
    let (_, accepted) = soon(pair.cloud.accept_stream()).await.unwrap();
    accepted.refuse(ResetCode::BackendDown);
    assert_eq!(soon(stream.send.stopped()).await, ResetCode::BackendDown);
    let reading = soon(stream.recv.read_chunk(1)).await.unwrap_err();
    assert_eq!(
        (reading.kind(), ResetCode::of(&reading)),
        (std::io::ErrorKind::ConnectionReset, Some(ResetCode::BackendDown))
    );
    let writing = soon(stream.send.write_all(b"more")).await.unwrap_err();
    assert_eq!(ResetCode::of(&writing), Some(ResetCode::BackendDown));
}

async fn a_half_that_is_dropped_is_abandoned(pair: Pair) {
    let mut stream = soon(pair.edge.open_stream(StreamHeader::new(Purpose::Service))).await.unwrap();
    stream.write_all(b"unfinished").await.unwrap();
    let (_, mut accepted) = soon(pair.cloud.accept_stream()).await.unwrap();
    drop(stream);
    let mut read = Vec::new();
    let error = soon(accepted.read_to_end(&mut read)).await.unwrap_err();
    assert_eq!(ResetCode::of(&error), Some(ResetCode::Abandoned));
    assert_eq!(soon(accepted.send.stopped()).await, ResetCode::Abandoned);
}

async fn the_reason_of_a_close_reaches_the_other_end(pair: Pair) {
    let _stream = soon(pair.edge.open_stream(StreamHeader::new(Purpose::Control))).await.unwrap();
    pair.cloud.close(CloseReason::new(CloseCode::Revoked, "its certificate was revoked"));
    let closed = soon(pair.edge.closed()).await;
    assert_eq!((closed.by, closed.reason.code), (ClosedBy::Peer, CloseCode::Revoked));
    assert_eq!(closed.reason.text, "its certificate was revoked");
    assert_eq!(soon(pair.cloud.closed()).await.by, ClosedBy::Us);
    assert!(soon(pair.edge.accept_stream()).await.is_err());
}

async fn datagrams_pass(pair: Pair) {
    // A datagram may be lost, on loopback too; so they are sent until one arrives.
    let arrived = soon(async {
        loop {
            pair.edge.send_datagram(Bytes::from_static(b"packet")).unwrap();
            let next = tokio::time::timeout(Duration::from_millis(200), pair.cloud.read_datagram()).await;
            if let Ok(datagram) = next {
                return datagram.unwrap();
            }
        }
    })
    .await;
    assert_eq!(&arrived[..], b"packet");
    assert!(pair.edge.datagram_bytes_max() >= 1200);
}

async fn one_stream_of_a_hundred_that_is_not_read_stalls_no_other(pair: Pair) {
    let Pair { edge, cloud, _port } = pair;
    let mut stuck =
        soon(edge.open_stream(StreamHeader::new(Purpose::Service).target("stuck"))).await.unwrap();
    let (_, _unread) = soon(cloud.accept_stream()).await.unwrap();
    let filling = tokio::spawn(async move { while stuck.write_all(&[0; 10_000]).await.is_ok() {} });
    let reading = tokio::spawn(async move {
        let mut readers = tokio::task::JoinSet::new();
        for _ in 0..99 {
            let (_, mut stream) = cloud.accept_stream().await.unwrap();
            readers.spawn(async move { tokio::io::copy(&mut stream, &mut tokio::io::sink()).await.unwrap() });
        }
        let read = readers.join_all().await;
        (read, cloud)
    });
    let mut writers = tokio::task::JoinSet::new();
    for _ in 0..99 {
        let mut stream = soon(edge.open_stream(StreamHeader::new(Purpose::Service))).await.unwrap();
        writers.spawn(async move {
            stream.write_all(&[7; 300_000]).await.unwrap();
            stream.shutdown().await.unwrap();
            // Not dropped before the peer has ended it too.
            let _ = stream.read_u8().await;
        });
    }
    let (read, cloud) = soon(reading).await.unwrap();
    assert!(read.iter().all(|bytes| *bytes == 300_000) && read.len() == 99, "{read:?}");
    assert!(!filling.is_finished());
    drop((edge, cloud));
    soon(filling).await.unwrap();
    writers.shutdown().await;
}

async fn the_peer_is_known_by_its_certificate(pair: Pair) {
    let gateway = causeway_channel::CertificateFacts::read(pair.cloud.certificate().unwrap()).unwrap();
    assert_eq!(gateway.peer, Some(PeerId::new("berlin", "gw-1").unwrap()));
    assert!(pair.edge.certificate().is_some());
    assert!(pair.edge.remote_address().ip().is_loopback() && pair.cloud.remote_address().ip().is_loopback());
}

async fn a_link_is_closed_when_its_last_handle_goes(pair: Pair) {
    let other = pair.edge.clone();
    let mut stream = soon(pair.edge.open_stream(StreamHeader::new(Purpose::Service))).await.unwrap();
    drop(pair.edge);
    let (_, mut accepted) = soon(pair.cloud.accept_stream()).await.unwrap();
    stream.write_all(b"x").await.unwrap();
    assert_eq!(soon(accepted.read_u8()).await.unwrap(), b'x');
    drop(other);
    let closed = soon(pair.cloud.closed()).await;
    assert_eq!((closed.by, closed.reason.code), (ClosedBy::Peer, CloseCode::Done));
    assert!(soon(stream.read_u8()).await.is_err());
}
