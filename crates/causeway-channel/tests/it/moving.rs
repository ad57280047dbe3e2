//! Features of QUIC alone: migration to another address, the move to an I/O thread, and fast detection of a restarted cloud.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use causeway_channel::io_thread;
use causeway_channel::link::{
    CHANNEL_ALPN, CloseCode, ClosedBy, Link, LinkSide, StreamHeader, StreamPurpose, Transport,
};
use causeway_channel::port::{ChannelPort, IncomingLink, PortLimits};
use causeway_channel::quic::{EndpointKeys, QuicClient, QuicOptions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;

use crate::stage::{Authority, Stage, eventually, within};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn open_streams_survive_a_change_of_address() {
    let mut stage = Stage::new().await;
    let tls = stage.authority.client(Some(stage.authority.gateway("g1")), CHANNEL_ALPN);
    let client = QuicClient::bind(QuicOptions::default()).unwrap();
    let edge = within(client.connect(stage.address, tls)).await.unwrap();
    let cloud = within(stage.links.recv()).await.unwrap();
    let mut opened = edge.open_stream(StreamHeader::new(StreamPurpose::Probe)).await.unwrap();
    let (_, mut accepted) = within(cloud.accept_stream()).await.unwrap();
    let mut bytes = [0; 4];
    for _ in 0..3 {
        let before = cloud.remote_address();
        client.rebind().unwrap();
        opened.write_all(b"ping").await.unwrap();
        within(accepted.read_exact(&mut bytes)).await.unwrap();
        accepted.write_all(b"pong").await.unwrap();
        within(opened.read_exact(&mut bytes)).await.unwrap();
        assert_ne!(cloud.remote_address(), before, "it is seen elsewhere");
    }
}

/// Opens a stream from one end and sends a byte each way.
async fn exchange(from: &Link, to: &Link, purpose: StreamPurpose) {
    let mut opened = within(from.open_stream(StreamHeader::new(purpose))).await.unwrap();
    opened.write_all(b"a").await.unwrap();
    let (header, mut accepted) = within(to.accept_stream()).await.unwrap();
    assert_eq!(header.purpose(), Some(purpose));
    assert_eq!(within(accepted.read_u8()).await.unwrap(), b'a');
    accepted.write_all(b"b").await.unwrap();
    assert_eq!(within(opened.read_u8()).await.unwrap(), b'b');
}

/// Tasks on all I/O threads.
fn io_tasks() -> usize {
    io_thread::started().iter().map(|runtime| runtime.metrics().num_alive_tasks()).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_link_moves_to_an_io_thread_with_its_first_service_stream_and_not_before() {
    // Every thread has its own task, so all of them are started before tasks are counted.
    for _ in 0..std::thread::available_parallelism().unwrap().get() {
        io_thread::choose(LinkSide::Accepted).unwrap();
    }
    let mut stage = Stage::new().await;
    let pair = stage.pair(Transport::Quic).await;
    for purpose in [StreamPurpose::Control, StreamPurpose::Diagnose, StreamPurpose::Api] {
        exchange(&pair.edge, &pair.cloud, purpose).await;
        exchange(&pair.cloud, &pair.edge, purpose).await;
        assert!(pair.cloud.runtime().is_none(), "{purpose:?} moves an idle link");
    }
    let before = io_tasks();
    exchange(&pair.edge, &pair.cloud, StreamPurpose::Service).await;
    let runtime = pair.cloud.runtime().expect("a link with traffic has an I/O thread");
    assert!(runtime.spawn(async { io_thread::current() }).await.unwrap().is_some());
    // The task of quinn follows with its next packet.
    exchange(&pair.edge, &pair.cloud, StreamPurpose::Service).await;
    eventually("the connection is driven by the I/O thread", || io_tasks() > before).await;
    // It stays there, and streams of either end go on.
    for purpose in [StreamPurpose::Control, StreamPurpose::Service] {
        exchange(&pair.cloud, &pair.edge, purpose).await;
        assert_eq!(pair.cloud.runtime().map(|runtime| runtime.id()), Some(runtime.id()));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_stream_that_the_cloud_opens_moves_the_link_too() {
    let mut stage = Stage::new().await;
    let pair = stage.pair(Transport::Quic).await;
    exchange(&pair.cloud, &pair.edge, StreamPurpose::Service).await;
    assert!(pair.cloud.runtime().is_some());
}

/// A port in a runtime of its own, so that it can be ended as by kill -9: nothing is sent any more.
fn cloud(
    address: SocketAddr,
    tls: Arc<ArcSwap<rustls::ServerConfig>>,
    keys: EndpointKeys,
) -> (Runtime, SocketAddr, mpsc::Receiver<Link>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    let port = loop {
        match runtime.block_on(ChannelPort::bind(address, tls.clone(), keys.clone(), PortLimits::default())) {
            Ok(port) => break port,
            // The sockets of the one before are closed a moment after its end.
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let (sender, links) = mpsc::channel(10);
    let bound = port.local_addr();
    runtime.spawn(serve_unadmitted(port, sender));
    (runtime, bound, links)
}

/// Admits no link: an admitted one would move to an I/O thread, and that does not end with the runtime.
async fn serve_unadmitted(mut port: ChannelPort, links: mpsc::Sender<Link>) {
    loop {
        if let IncomingLink::Channel(link, _) = port.accept().await {
            let _ = links.send(link).await;
        }
    }
}

/// Returns the end of an edge's link when the cloud is killed and comes back with these keys.
fn end_of_link(first: EndpointKeys, second: EndpointKeys) -> Option<(ClosedBy, CloseCode, Duration)> {
    let authority = Authority::new();
    let (killed, address, mut links) = cloud("127.0.0.1:0".parse().unwrap(), authority.server(), first);
    let edges = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let tls = authority.client(Some(authority.gateway("g1")), CHANNEL_ALPN);
    let (link, ended) = edges.block_on(async {
        let client = QuicClient::bind(QuicOptions::default()).unwrap();
        let link = within(client.connect(address, tls)).await.unwrap();
        let remote = within(links.recv()).await.unwrap();
        let mut opened = link.open_stream(StreamHeader::new(StreamPurpose::Probe)).await.unwrap();
        let (_, mut accepted) = within(remote.accept_stream()).await.unwrap();
        // A round trip, so that the handshake is confirmed at both ends.
        opened.write_all(b"x").await.unwrap();
        within(accepted.read_u8()).await.unwrap();
        accepted.write_all(b"x").await.unwrap();
        within(opened.read_u8()).await.unwrap();
        (link, (opened, remote, accepted))
    });
    killed.shutdown_timeout(Duration::from_secs(10));
    let (mut opened, remote, accepted) = ended;
    drop((remote, accepted));
    let (back, ..) = cloud(address, authority.server(), second);
    let start = Instant::now();
    let closed = edges.block_on(async {
        // Stands for a ping of the session.
        let _ = opened.write_all(b"x").await;
        tokio::time::timeout(Duration::from_secs(5), link.closed()).await
    });
    back.shutdown_background();
    closed.ok().map(|closed| (closed.by, closed.reason.code, start.elapsed()))
}

#[test]
fn a_restarted_cloud_is_noticed_at_once_by_its_keys() {
    let keys = EndpointKeys::generate();
    let (by, code, after) = end_of_link(keys.clone(), keys).expect("the reset was not understood");
    assert_eq!((by, code), (ClosedBy::Transport, CloseCode::Dead));
    println!("the restart was noticed after {after:?}");
}

#[test]
fn a_cloud_with_other_keys_cannot_reset_links() {
    assert_eq!(end_of_link(EndpointKeys::generate(), EndpointKeys::generate()), None);
}
