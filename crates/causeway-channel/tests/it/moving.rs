//! Features of QUIC alone: migration to another address, and fast detection of a restarted cloud.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use causeway_channel::link::{CHANNEL_ALPN, CloseCode, ClosedBy, Link, StreamHeader, StreamPurpose};
use causeway_channel::port::{ChannelPort, IncomingLink, PortLimits};
use causeway_channel::quic::{EndpointKeys, QuicClient, QuicOptions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;

use crate::stage::{Authority, Stage, within};

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
