//! Links over an in-memory pipe: the driver, and the halves that users hold.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, ReadBuf};
use tokio::time::timeout;

use super::*;
use crate::link::{ClosedBy, Link, Transport};

const SOON: Duration = Duration::from_secs(20);

fn meta() -> TcpPeer {
    TcpPeer { remote_address: ([127, 0, 0, 1], 1).into(), certificate: None }
}

fn pair() -> (Link, Link) {
    let (edge, cloud) = tokio::io::duplex(64 * 1024);
    let limits = LinkLimits::default();
    (
        over(edge, LinkSide::Dialled, &limits, meta()).into(),
        over(cloud, LinkSide::Accepted, &limits, meta()).into(),
    )
}

fn raw() -> (DuplexStream, Link) {
    let (edge, cloud) = tokio::io::duplex(1024 * 1024);
    (edge, over(cloud, LinkSide::Accepted, &LinkLimits::default(), meta()).into())
}

async fn soon<T>(future: impl Future<Output = T>) -> T {
    timeout(SOON, future).await.expect("it must not take that long")
}

#[tokio::test]
async fn megabytes_go_both_ways_at_once() {
    let (edge, cloud) = pair();
    let echo = tokio::spawn(async move {
        let (header, stream) = cloud.accept_stream().await.unwrap();
        assert_eq!(header.target, "echo");
        let (mut send, mut recv) = stream.split();
        tokio::io::copy(&mut recv, &mut send).await.unwrap();
        send.shutdown().await.unwrap();
        // The other end closes when it has received all bytes.
        cloud.closed().await
    });
    let stream = edge.open_stream(StreamHeader::new(StreamPurpose::Probe).target("echo")).await.unwrap();
    let (mut send, mut recv) = stream.split();
    let data: Vec<u8> = (0..5_000_000u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let expected = data.clone();
    let writer = tokio::spawn(async move {
        send.write_all(&data[..1_000_000]).await.unwrap();
        send.write_chunk(Bytes::from(data).slice(1_000_000..)).await.unwrap();
        send.shutdown().await.unwrap();
    });
    let mut echoed = Vec::new();
    soon(recv.read_to_end(&mut echoed)).await.unwrap();
    assert!(echoed == expected, "{} of {} bytes came back right", echoed.len(), expected.len());
    writer.await.unwrap();
    assert!(edge.rtt().is_some(), "the round trip was measured on the way");
    assert_eq!((edge.transport(), edge.stats().streams_open), (Transport::Tcp, 0));
    drop((edge, recv));
    assert_eq!(soon(echo).await.unwrap().reason.code, CloseCode::Done);
}

#[tokio::test]
async fn a_stream_that_nobody_reads_does_not_stall_the_others() {
    let (edge, cloud) = pair();
    let mut stuck = edge.open_stream(StreamHeader::new(StreamPurpose::Service)).await.unwrap();
    let (_, _unread) = soon(cloud.accept_stream()).await.unwrap();
    let filling = tokio::spawn(async move { while stuck.write_all(&[0; 10_000]).await.is_ok() {} });
    for _ in 0..50 {
        let mut stream = edge.open_stream(StreamHeader::new(StreamPurpose::Service)).await.unwrap();
        let (_, mut accepted) = soon(cloud.accept_stream()).await.unwrap();
        // As many bytes as are queued before a read.
        soon(stream.write_all(&[7; 40_000])).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut read = Vec::new();
        soon(accepted.read_to_end(&mut read)).await.unwrap();
        assert_eq!(read.len(), 40_000);
    }
    assert!(!filling.is_finished());
    drop(edge);
    soon(filling).await.unwrap();
}

#[tokio::test]
async fn reasons_reach_the_other_end() {
    let (edge, cloud) = pair();
    let mut stream = edge.open_stream(StreamHeader::new(StreamPurpose::Service)).await.unwrap();
    let (_, accepted) = soon(cloud.accept_stream()).await.unwrap();
    accepted.refuse(ResetCode::BackendDown);
    assert_eq!(soon(stream.send.stopped()).await, ResetCode::BackendDown);
    let reading = soon(stream.read_u8()).await.unwrap_err();
    assert_eq!(ResetCode::of(&reading), Some(ResetCode::BackendDown));
    let writing = stream.write_all(b"x").await.unwrap_err();
    assert_eq!(ResetCode::of(&writing), Some(ResetCode::BackendDown));

    cloud.close(CloseReason::new(CloseCode::Draining, "come back later"));
    let closed = soon(edge.closed()).await;
    assert_eq!(closed, LinkClosed::new(ClosedBy::Peer, CloseCode::Draining, "come back later"));
    assert_eq!(soon(cloud.closed()).await.by, ClosedBy::Us);
    assert!(matches!(soon(edge.open_stream(StreamHeader::default())).await, Err(StreamError::Closed(_))));
}

#[tokio::test]
async fn datagrams_of_the_link_are_dropped_and_counted() {
    let (mut edge, cloud) = raw();
    let mut bytes = Vec::new();
    frame::Frame::Datagram(b"packet").write(&mut bytes);
    frame::Frame::Datagram(&[1; frame::PAYLOAD_BYTES_MAX]).write(&mut bytes);
    frame::Frame::Open { stream: 1, credit: 0, header: &[] }.write(&mut bytes);
    edge.write_all(&bytes).await.unwrap();
    soon(cloud.accept_stream()).await.unwrap();
    assert_eq!(cloud.stats().datagrams_dropped, 2);
}

#[tokio::test]
async fn a_link_whose_connection_breaks_says_so() {
    let (edge, cloud) = raw();
    drop(edge);
    assert_eq!(soon(cloud.closed()).await.by, ClosedBy::Transport);
}

#[tokio::test]
async fn a_peer_that_talks_nonsense_is_told_so_and_let_go() {
    let (mut edge, cloud) = raw();
    edge.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    let closed = soon(cloud.closed()).await;
    assert_eq!((closed.by, closed.reason.code), (ClosedBy::Us, CloseCode::Malformed));
    let mut answer = Vec::new();
    soon(edge.read_to_end(&mut answer)).await.unwrap();
    assert!(String::from_utf8_lossy(&answer).contains("unknown kind"), "{answer:?}");
}

#[tokio::test]
async fn a_stream_with_a_bad_header_is_reset_and_the_next_is_served() {
    let (mut edge, cloud) = raw();
    let mut bytes = Vec::new();
    frame::Frame::Open { stream: 1, credit: 0, header: &[0xff] }.write(&mut bytes);
    frame::Frame::Open { stream: 3, credit: 0, header: &[] }.write(&mut bytes);
    edge.write_all(&bytes).await.unwrap();
    let (header, _stream) = soon(cloud.accept_stream()).await.unwrap();
    assert_eq!((header, cloud.stats().streams_malformed), (StreamHeader::default(), 1));
}

#[tokio::test]
async fn a_peer_that_never_answers_does_not_keep_a_closed_link_for_ever() {
    let (edge, cloud) = tokio::io::duplex(16);
    let link = over(cloud, LinkSide::Accepted, &LinkLimits::default(), meta());
    let shared = Arc::downgrade(link.shared());
    drop(link);
    // The other end does not read, so the close frame cannot be written.
    soon(async {
        while shared.strong_count() > 0 {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    })
    .await;
    drop(edge);
}

#[tokio::test]
async fn a_ping_measures_now() {
    let (edge, cloud) = tokio::io::duplex(1024);
    let limits = LinkLimits::default();
    let edge = over(edge, LinkSide::Dialled, &limits, meta());
    let _cloud = over(cloud, LinkSide::Accepted, &limits, meta());
    let before = edge.last_heard();
    soon(edge.ping()).await.unwrap();
    soon(edge.ping()).await.unwrap();
    assert!(edge.last_heard() > before);
}

/// A peer whose bytes never end and take a millisecond to handle.
struct SlowFlood {
    reads: Arc<AtomicUsize>,
}

impl AsyncRead for SlowFlood {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(1));
        // Empty frames of a kind that is passed over.
        while out.remaining() >= frame::HEAD_BYTES {
            out.put_slice(&[200, 0, 0, 0, 0, 0, 0, 0]);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for SlowFlood {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(data.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[tokio::test]
async fn a_flooded_link_yields_to_its_neighbours_after_one_slow_read() {
    let reads = Arc::new(AtomicUsize::new(0));
    let io = SlowFlood { reads: reads.clone() };
    let link = over(io, LinkSide::Accepted, &LinkLimits::default(), meta());
    // A neighbour on the same thread, which is always ready.
    let neighbour = tokio::spawn(async move {
        let mut is_turn = false;
        let mut turn = async || {
            let before = reads.load(Ordering::Relaxed);
            std::future::poll_fn(|context| {
                context.waker().wake_by_ref();
                is_turn = !is_turn;
                if is_turn { Poll::Pending } else { Poll::Ready(()) }
            })
            .await;
            reads.load(Ordering::Relaxed) - before
        };
        let open = [turn().await, turn().await, turn().await];
        // The peer keeps sending after our close, too.
        link.close(CloseReason::new(CloseCode::Limit, "enough"));
        (open, [turn().await, turn().await, turn().await])
    });
    // A closed link reads once more in a turn: what comes after the close is thrown away.
    assert_eq!(neighbour.await.unwrap(), ([1; 3], [2; 3]), "reads between two turns of a neighbour");
}
