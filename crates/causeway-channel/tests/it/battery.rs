//! Behaviour that every link has, over both transports.

use std::io::ErrorKind;
use std::time::Duration;

use bytes::Bytes;
use causeway_channel::link::{
    CloseCode, CloseReason, ClosedBy, Link, LinkLimits, ResetCode, Stream, StreamHeader, StreamPurpose,
    Transport,
};
use causeway_channel::port::PortLimits;
use causeway_channel::quic::QuicOptions;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;

use crate::stage::{DEADLINE, Pair, Stage, eventually, resident_bytes, within};

macro_rules! battery {
    ($module:ident, $transport:expr, [$($row:ident)*]) => {
        mod $module {
            use super::*;
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $row() {
                    super::$row($transport).await;
                }
            )*
        }
    };
}

macro_rules! over {
    ($module:ident, $transport:expr) => {
        battery!($module, $transport, [
            a_header_arrives
            ten_megabytes_come_back
            a_half_that_is_closed_leaves_the_other_open
            a_reset_arrives_with_its_code
            a_stop_arrives_with_its_code
            what_is_dropped_is_abandoned
            one_stuck_stream_leaves_ninety_nine_alone
            a_thousand_stuck_streams_are_bounded
            the_reason_of_a_close_arrives
            a_link_ends_with_its_last_handle
            streams_can_be_opened_from_both_ends
            the_certificate_is_the_peers
            whoever_is_heard_was_heard_just_now
        ]);
    };
}

over!(quic, Transport::Quic);
over!(tcp, Transport::Tcp);

async fn pair(transport: Transport) -> (Stage, Pair) {
    let mut stage = Stage::new().await;
    let pair = stage.pair(transport).await;
    (stage, pair)
}

/// A stream of the edge, and the cloud's end of it.
async fn stream(pair: &Pair) -> (Stream, Stream) {
    let opened = within(pair.edge.open_stream(StreamHeader::new(StreamPurpose::Probe))).await.unwrap();
    let (_, accepted) = within(pair.cloud.accept_stream()).await.unwrap();
    (opened, accepted)
}

async fn a_header_arrives(transport: Transport) {
    let (_stage, pair) = pair(transport).await;
    let header =
        StreamHeader::new(StreamPurpose::Service).to("oslo", "g7").target("camera").details(vec![7; 3000]);
    let mut opened = within(pair.edge.open_stream(header.clone())).await.unwrap();
    let (arrived, mut accepted) = within(pair.cloud.accept_stream()).await.unwrap();
    assert_eq!(arrived, header);
    opened.write_all(b"hello").await.unwrap();
    let mut bytes = [0; 5];
    within(accepted.read_exact(&mut bytes)).await.unwrap();
    assert_eq!(&bytes, b"hello", "what follows the header is the stream's own");
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|index| (index % 251) as u8).collect()
}

async fn echo(stream: Stream) {
    let (mut send, mut recv) = stream.split();
    while let Some(chunk) = recv.read_chunk(64 * 1024).await.unwrap() {
        send.write_chunk(chunk).await.unwrap();
    }
    send.shutdown().await.unwrap();
}

async fn ten_megabytes_come_back(transport: Transport) {
    let (_stage, pair) = pair(transport).await;
    let (opened, accepted) = stream(&pair).await;
    let echo = tokio::spawn(echo(accepted));
    let data = pattern(10 * 1024 * 1024);
    let (mut send, mut recv) = opened.split();
    let sent = data.clone();
    let sender = tokio::spawn(async move {
        send.write_all(&sent).await.unwrap();
        send.shutdown().await.unwrap();
    });
    let mut back = Vec::new();
    within(recv.read_to_end(&mut back)).await.unwrap();
    assert!(back == data, "{} of {} bytes", back.len(), data.len());
    within(sender).await.unwrap();
    within(echo).await.unwrap();
    let stats = pair.edge.stats();
    assert!(stats.sent_bytes > 10 << 20 && stats.received_bytes > 10 << 20, "{stats:?}");
    assert!(pair.edge.rtt().is_some_and(|rtt| rtt > Duration::ZERO));
}

async fn a_half_that_is_closed_leaves_the_other_open(transport: Transport) {
    let (_stage, pair) = pair(transport).await;
    let (mut opened, mut accepted) = stream(&pair).await;
    opened.write_all(b"question").await.unwrap();
    opened.shutdown().await.unwrap();
    let mut bytes = Vec::new();
    within(accepted.read_to_end(&mut bytes)).await.unwrap();
    assert_eq!(bytes, b"question");
    accepted.write_all(b"answer").await.unwrap();
    accepted.shutdown().await.unwrap();
    bytes.clear();
    within(opened.read_to_end(&mut bytes)).await.unwrap();
    assert_eq!(bytes, b"answer");
    drop((opened, accepted));
    eventually("both ends count no stream", || {
        pair.edge.stats().streams_open == 0 && pair.cloud.stats().streams_open == 0
    })
    .await;
}

async fn a_reset_arrives_with_its_code(transport: Transport) {
    let (_stage, pair) = pair(transport).await;
    for code in [ResetCode::NotAllowed, ResetCode::Other(70_000)] {
        let (mut opened, mut accepted) = stream(&pair).await;
        opened.send.reset(code);
        accepted.send.reset(code);
        for recv in [&mut opened.recv, &mut accepted.recv] {
            let error = within(recv.read_u8()).await.unwrap_err();
            assert_eq!((error.kind(), ResetCode::of(&error)), (ErrorKind::ConnectionReset, Some(code)));
        }
    }
}

async fn a_stop_arrives_with_its_code(transport: Transport) {
    let (_stage, pair) = pair(transport).await;
    let (mut opened, mut accepted) = stream(&pair).await;
    accepted.recv.stop(ResetCode::BackendDown);
    assert_eq!(within(opened.send.stopped()).await, ResetCode::BackendDown);
    let error = within(async {
        loop {
            if let Err(error) = opened.send.write_all(&[0; 1000]).await {
                return error;
            }
        }
    })
    .await;
    assert_eq!((error.kind(), ResetCode::of(&error)), (ErrorKind::BrokenPipe, Some(ResetCode::BackendDown)));
    // The other direction is unaffected.
    accepted.write_all(b"still here").await.unwrap();
    let mut bytes = [0; 10];
    within(opened.read_exact(&mut bytes)).await.unwrap();
}

async fn what_is_dropped_is_abandoned(transport: Transport) {
    let (_stage, pair) = pair(transport).await;
    let (opened, mut accepted) = stream(&pair).await;
    drop(opened);
    let error = within(accepted.recv.read_u8()).await.unwrap_err();
    assert_eq!(ResetCode::of(&error), Some(ResetCode::Abandoned));
    assert_eq!(within(accepted.send.stopped()).await, ResetCode::Abandoned);
}

/// Writes until the stream takes no more; `true` when it did not end by itself.
async fn fill(stream: &mut Stream) -> bool {
    let chunk = vec![1; 16 * 1024];
    loop {
        match tokio::time::timeout(Duration::from_millis(100), stream.write_all(&chunk)).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return false,
            Err(_) => return true,
        }
    }
}

async fn one_stuck_stream_leaves_ninety_nine_alone(transport: Transport) {
    let (_stage, pair) = pair(transport).await;
    let (mut stuck, _unread) = stream(&pair).await;
    assert!(fill(&mut stuck).await);
    let data = Bytes::from(pattern(200 * 1024));
    let mut others = JoinSet::new();
    for _ in 0..99 {
        let (opened, accepted) = stream(&pair).await;
        others.spawn(echo(accepted));
        let data = data.clone();
        others.spawn(async move {
            let (mut send, mut recv) = opened.split();
            let send = async {
                send.write_chunk(data.clone()).await.unwrap();
                send.shutdown().await.unwrap();
            };
            let mut back = Vec::new();
            let (_, read) = tokio::join!(send, recv.read_to_end(&mut back));
            read.unwrap();
            assert!(back == data);
        });
    }
    within(async { while others.join_next().await.transpose().unwrap().is_some() {} }).await;
    assert!(fill(&mut stuck).await, "it is stuck to the end, and not cut off");
}

async fn a_thousand_stuck_streams_are_bounded(transport: Transport) {
    const WINDOW: u32 = 32 * 1024;
    let limits = LinkLimits { stream_window_bytes: WINDOW, ..LinkLimits::default() };
    let quic = QuicOptions { limits, ..QuicOptions::default() };
    let mut stage = Stage::with(PortLimits { quic: quic.clone(), ..PortLimits::default() }).await;
    let pair = stage.pair_with(transport, quic).await;
    let before = resident_bytes();
    let mut stuck = Vec::new();
    for _ in 0..1000 {
        let (opened, accepted) = stream(&pair).await;
        stuck.push((opened, accepted));
    }
    let mut filling = JoinSet::new();
    let mut unread = Vec::new();
    for (mut opened, accepted) in stuck {
        unread.push(accepted);
        filling.spawn(async move {
            assert!(fill(&mut opened).await);
            opened
        });
    }
    let _opened = filling.join_all().await;
    let held = resident_bytes().saturating_sub(before);
    println!("1000 stuck streams with a window of {WINDOW} bytes hold {held} bytes at both ends");
    assert!(held < 4 * 1000 * WINDOW as usize, "{held} bytes");
    // Other streams are unharmed.
    let (mut opened, accepted) = stream(&pair).await;
    let echo = tokio::spawn(echo(accepted));
    opened.write_all(b"hello").await.unwrap();
    opened.shutdown().await.unwrap();
    let mut back = Vec::new();
    within(opened.read_to_end(&mut back)).await.unwrap();
    assert_eq!(back, b"hello");
    within(echo).await.unwrap();
}

async fn the_reason_of_a_close_arrives(transport: Transport) {
    let (_stage, pair) = pair(transport).await;
    let (mut opened, _accepted) = stream(&pair).await;
    let reason = CloseReason::new(CloseCode::Superseded, "a newer session, zweitens");
    pair.cloud.close(reason.clone());
    let closed = within(pair.edge.closed()).await;
    assert_eq!((closed.by, &closed.reason), (ClosedBy::Peer, &reason));
    let closed = within(pair.cloud.closed()).await;
    assert_eq!((closed.by, &closed.reason), (ClosedBy::Us, &reason));
    assert_eq!(within(pair.edge.accept_stream()).await.unwrap_err().reason, reason);
    assert!(within(pair.edge.open_stream(StreamHeader::new(StreamPurpose::Probe))).await.is_err());
    assert!(within(opened.read_u8()).await.is_err());
    assert_eq!(within(opened.send.stopped()).await, ResetCode::Abandoned);
}

async fn a_link_ends_with_its_last_handle(transport: Transport) {
    let (_stage, pair) = pair(transport).await;
    let Pair { edge, cloud } = pair;
    let other = edge.clone();
    drop(edge);
    let opened = within(other.open_stream(StreamHeader::new(StreamPurpose::Probe))).await.unwrap();
    drop(other);
    let closed = within(cloud.closed()).await;
    assert_eq!((closed.by, closed.reason.code), (ClosedBy::Peer, CloseCode::Done));
    drop(opened);
}

async fn streams_can_be_opened_from_both_ends(transport: Transport) {
    let (_stage, pair) = pair(transport).await;
    async fn check(from: &Link, to: &Link) {
        for number in 0..200 {
            let header = StreamHeader::new(StreamPurpose::Node).target(number.to_string());
            let mut opened = from.open_stream(header.clone()).await.unwrap();
            opened.shutdown().await.unwrap();
            let (arrived, mut accepted) = to.accept_stream().await.unwrap();
            assert_eq!(arrived, header);
            accepted.shutdown().await.unwrap();
            assert_eq!(accepted.recv.read_chunk(10).await.unwrap(), None);
            assert_eq!(opened.recv.read_chunk(10).await.unwrap(), None);
        }
    }
    let both = async { tokio::join!(check(&pair.edge, &pair.cloud), check(&pair.cloud, &pair.edge)) };
    tokio::time::timeout(DEADLINE, both).await.expect("it takes too long");
}

async fn the_certificate_is_the_peers(transport: Transport) {
    let (stage, pair) = pair(transport).await;
    let facts = causeway_channel::CertificateFacts::read(&pair.cloud.certificate().unwrap()).unwrap();
    assert_eq!(facts.peer.unwrap().to_string(), "tokyo/g1");
    assert!(pair.edge.certificate().is_some());
    assert_eq!(pair.edge.remote_address(), stage.address);
    assert_eq!((pair.edge.transport(), pair.cloud.transport()), (transport, transport));
}

async fn whoever_is_heard_was_heard_just_now(transport: Transport) {
    let (_stage, pair) = pair(transport).await;
    let (mut opened, mut accepted) = stream(&pair).await;
    let before = std::time::Instant::now();
    opened.write_all(b"ping").await.unwrap();
    let mut bytes = [0; 4];
    within(accepted.read_exact(&mut bytes)).await.unwrap();
    assert!(pair.cloud.last_heard() >= before, "bytes that were read");
    // The edge reads nothing: it only receives acknowledgements, or their equivalent of the transport.
    accepted.write_all(b"pong").await.unwrap();
    within(opened.read_exact(&mut bytes)).await.unwrap();
    assert!(pair.edge.last_heard() >= before);
}
