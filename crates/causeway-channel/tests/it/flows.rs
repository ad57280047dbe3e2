//! Datagrams of a stream: as QUIC datagrams over QUIC, on the stream over TCP, and under packet loss.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use causeway_channel::link::{
    CHANNEL_ALPN, DatagramFlow, DatagramPath, Link, LinkLimits, ResetCode, Stream, StreamHeader,
    StreamPurpose, Transport,
};
use causeway_channel::port::PortLimits;
use causeway_channel::quic::{LARGE_PACKET_BYTES, ORDINARY_PACKET_BYTES, QuicOptions};
use causeway_channel::tls::CLOUD_NAME;
use causeway_channel::wire::datagrams::{self, FramedDatagram};
use quinn::crypto::rustls::QuicClientConfig;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UdpSocket;
use tokio_util::task::AbortOnDropHandle;

use crate::stage::{DEADLINE, Pair, Stage, eventually, within};

/// Fits every path.
const SMALL: usize = 600;

fn datagram(mark: u8, bytes: usize) -> FramedDatagram {
    FramedDatagram::new(&vec![mark; bytes]).unwrap()
}

/// Two ends of a link whose first stream, the control stream, is open.
async fn pair(stage: &mut Stage, transport: Transport) -> (Pair, [Stream; 2]) {
    with_control(stage.pair(transport).await).await
}

async fn with_control(pair: Pair) -> (Pair, [Stream; 2]) {
    // Also when it asks for datagrams: the first stream has none.
    let header = StreamHeader { datagrams: true, ..StreamHeader::new(StreamPurpose::Control) };
    let opened = within(pair.edge.open_stream(header)).await.unwrap();
    let (_, accepted) = within(pair.cloud.accept_stream()).await.unwrap();
    assert!(!opened.has_datagrams() && !accepted.has_datagrams());
    (pair, [opened, accepted])
}

/// A flow that the edge has opened, and the cloud's end of it. `is_known`: the edge supports datagrams.
async fn flow(pair: &Pair, is_known: bool) -> (DatagramFlow, DatagramFlow) {
    let header = StreamHeader { datagrams: is_known, ..StreamHeader::new(StreamPurpose::Service) };
    let opened = within(pair.edge.open_stream(header)).await.unwrap();
    let (_, accepted) = within(pair.cloud.accept_stream()).await.unwrap();
    (opened.into(), accepted.into())
}

/// Sends from one to the other, and returns the path.
async fn cross(from: &mut DatagramFlow, to: &mut DatagramFlow, mark: u8, bytes: usize) -> DatagramPath {
    let way = within(from.send.send(datagram(mark, bytes))).await.unwrap();
    let heard = within(to.recv.recv()).await.unwrap().unwrap();
    assert_eq!(heard, datagram(mark, bytes));
    way
}

/// Runs until the opener has learned that the other end accepts datagrams: a QUIC datagram may be faster.
async fn until_beside(edge: &mut DatagramFlow, cloud: &mut DatagramFlow) {
    while cross(edge, cloud, 1, SMALL).await != DatagramPath::Beside {
        cross(cloud, edge, 1, SMALL).await;
    }
}

fn counted(link: &Link) -> (u64, u64) {
    let stats = link.stats();
    (stats.datagrams_sent, stats.datagrams_received)
}

async fn check(transport: Transport, is_known: bool, small: DatagramPath) {
    let mut stage = Stage::new().await;
    let (pair, _control) = pair(&mut stage, transport).await;
    let (mut edge, mut cloud) = flow(&pair, is_known).await;
    // The acceptor knows at once what the opener supports; the opener learns it with the first response.
    assert_eq!(cross(&mut edge, &mut cloud, 1, SMALL).await, DatagramPath::OnStream);
    assert_eq!(cross(&mut cloud, &mut edge, 2, SMALL).await, small);
    if small == DatagramPath::Beside {
        until_beside(&mut edge, &mut cloud).await;
    }
    for mark in 10..110 {
        assert_eq!(cross(&mut edge, &mut cloud, mark, SMALL).await, small);
        assert_eq!(cross(&mut cloud, &mut edge, mark, 0).await, small);
    }
    // Longer than any path carries.
    assert_eq!(cross(&mut edge, &mut cloud, 5, 65_507).await, DatagramPath::OnStream);
    assert_eq!(cross(&mut cloud, &mut edge, 6, 20_000).await, DatagramPath::OnStream);
    // A datagram is counted a moment after it was handed over.
    let counts = || (counted(&pair.edge).0, counted(&pair.cloud).1);
    eventually("all are counted", || counts().0 == counts().1).await;
    match small {
        DatagramPath::Beside => assert!(counts().0 >= 101, "{:?}", counts()),
        DatagramPath::OnStream => assert_eq!(counts(), (0, 0)),
    }
    // The stream ends the flow.
    cloud.send.reset(ResetCode::NotAllowed);
    let error = within(async {
        loop {
            if let Err(error) = edge.recv.recv().await {
                return error;
            }
        }
    })
    .await;
    assert_eq!(ResetCode::of(&error), Some(ResetCode::NotAllowed));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_quic_what_fits_goes_beside_the_stream() {
    check(Transport::Quic, true, DatagramPath::Beside).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_tcp_everything_goes_on_the_stream() {
    check(Transport::Tcp, true, DatagramPath::OnStream).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_does_not_know_of_it_gets_everything_on_the_stream() {
    check(Transport::Quic, false, DatagramPath::OnStream).await;
    check(Transport::Tcp, false, DatagramPath::OnStream).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_belongs_to_no_stream_is_dropped_and_counted() {
    let mut stage = Stage::new().await;
    let (pair, _control) = pair(&mut stage, Transport::Quic).await;
    let (mut edge, mut cloud) = flow(&pair, true).await;
    until_beside(&mut edge, &mut cloud).await;
    // The cloud has forgotten the stream; the edge, whose half is still open, goes on.
    drop(cloud);
    let (mut other, mut here) = flow(&pair, true).await;
    until_beside(&mut other, &mut here).await;
    for _ in 0..10 {
        assert_eq!(edge.send.send(datagram(4, SMALL)).await.unwrap(), DatagramPath::Beside);
    }
    eventually("they are counted", || pair.cloud.stats().datagrams_dropped == 10).await;
    assert_eq!(
        cross(&mut other, &mut here, 5, SMALL).await,
        DatagramPath::Beside,
        "the neighbour does not notice"
    );
}

/// Connects quinn itself to the port, as a gateway. Returns the end of the edge and the cloud's.
async fn bare_connection(stage: &mut Stage) -> (quinn::Connection, Link) {
    let tls = stage.authority.client(Some(stage.authority.gateway("g1")), CHANNEL_ALPN);
    let mut endpoint = quinn::Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
    let crypto = QuicClientConfig::try_from(tls).unwrap();
    endpoint.set_default_client_config(quinn::ClientConfig::new(Arc::new(crypto)));
    let edge = within(endpoint.connect(stage.address, CLOUD_NAME).unwrap()).await.unwrap();
    (edge, within(stage.links.recv()).await.unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn datagrams_of_the_link_itself_are_dropped_and_counted() {
    let mut stage = Stage::new().await;
    let (edge, cloud) = bare_connection(&mut stage).await;
    // An older edge could send them at any time, also before its first flow.
    let of_the_link = || datagrams::beside(datagrams::OF_THE_LINK, b"for the link");
    edge.send_datagram(of_the_link()).unwrap();
    let mut streams = Vec::new();
    for purpose in [StreamPurpose::Control, StreamPurpose::Service] {
        let (mut send, recv) = within(edge.open_bi()).await.unwrap();
        let header = StreamHeader { datagrams: true, ..StreamHeader::new(purpose) };
        send.write_all(&header.encode_prefixed().unwrap()).await.unwrap();
        streams.push((send, recv, within(cloud.accept_stream()).await.unwrap().1));
    }
    eventually("the early one is counted", || cloud.stats().datagrams_dropped == 1).await;
    edge.send_datagram(of_the_link()).unwrap();
    // A number of two bytes whose second byte is missing.
    edge.send_datagram(vec![0x40].into()).unwrap();
    eventually("all are counted", || cloud.stats().datagrams_dropped == 3).await;
    let (mut send, _recv, accepted) = streams.pop().unwrap();
    let mut flow = DatagramFlow::from(accepted);
    edge.send_datagram(datagrams::beside(send.id().into(), b"for the flow")).unwrap();
    assert_eq!(within(flow.recv.recv()).await.unwrap().unwrap().payload(), b"for the flow");
    // A datagram is counted a moment after it was handed over.
    eventually("it is counted", || cloud.stats().datagrams_received == 1).await;
    assert_eq!(cloud.stats().datagrams_dropped, 3);
    send.finish().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_nobody_reads_is_bounded_over_all_flows_of_a_link_together() {
    let limits = LinkLimits { datagram_buffer_bytes: 16 * 1024, ..LinkLimits::default() };
    let quic = QuicOptions { limits, ..QuicOptions::default() };
    let mut stage = Stage::with(PortLimits { quic, ..PortLimits::default() }).await;
    let (pair, _control) = pair(&mut stage, Transport::Quic).await;
    let mut flows = Vec::new();
    for _ in 0..8 {
        let (mut edge, mut cloud) = flow(&pair, true).await;
        until_beside(&mut edge, &mut cloud).await;
        flows.push((edge, cloud));
    }
    let before = pair.cloud.stats().datagrams_received;
    // Each flow alone could hold more than 200 of them.
    let held_max = 8 * 16 * 1024 / SMALL as u64;
    let deadline = Instant::now() + DEADLINE;
    while pair.cloud.stats().datagrams_dropped < 200 {
        assert!(Instant::now() < deadline, "nothing is dropped");
        for (edge, _) in &mut flows {
            edge.send.send(datagram(2, SMALL)).await.unwrap();
        }
        // A sender that never waits takes a core and the lock of the connection; on a loaded machine the link hears nothing then.
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let held = pair.cloud.stats().datagrams_received - before;
    assert!(held > 100 && held <= held_max, "{held} of at most {held_max}");
    // The end of a flow frees space, and so does a reader.
    flows.truncate(1);
    let (edge, cloud) = &mut flows[0];
    let mut reading = 0;
    while pair.cloud.stats().datagrams_received <= before + held + held_max {
        edge.send.send(datagram(3, SMALL)).await.unwrap();
        // Data on the stream behind them arrives in any case.
        while tokio::time::timeout(Duration::from_millis(1), cloud.recv.recv()).await.is_ok() {
            reading += 1;
        }
        assert!(Instant::now() < deadline, "no room was made: {reading} were read");
    }
}

/// Returns whether the longest datagram that goes beside the stream now has a length in the range.
async fn is_largest_in(
    range: &std::ops::Range<usize>,
    from: &mut DatagramFlow,
    to: &mut DatagramFlow,
) -> bool {
    cross(from, to, 1, range.start).await == DatagramPath::Beside
        && cross(from, to, 2, range.end).await == DatagramPath::OnStream
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inside_one_host_packets_become_large_and_not_for_a_peer_that_takes_none() {
    let mut stage = Stage::new().await;
    let check = async |stage: &mut Stage, packet_bytes_max, expected: [std::ops::Range<usize>; 2]| {
        let options = QuicOptions { packet_bytes_max, ..QuicOptions::default() };
        let (pair, _control) = with_control(stage.pair_with(Transport::Quic, options).await).await;
        let (mut edge, mut cloud) = flow(&pair, true).await;
        until_beside(&mut edge, &mut cloud).await;
        let [from_edge, from_cloud] = expected;
        let deadline = Instant::now() + DEADLINE;
        while !is_largest_in(&from_edge, &mut edge, &mut cloud).await
            || !is_largest_in(&from_cloud, &mut cloud, &mut edge).await
        {
            assert!(Instant::now() < deadline, "the largest is never found");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        // A megabyte of them and of their batches passes.
        let mut sending = pair.edge.open_stream(StreamHeader::new(StreamPurpose::Probe)).await.unwrap();
        let (_, mut receiving) = within(pair.cloud.accept_stream()).await.unwrap();
        let writing = tokio::spawn(async move {
            sending.write_all(&vec![7; 1 << 20]).await.unwrap();
            sending.shutdown().await.unwrap();
        });
        let mut received = Vec::new();
        within(receiving.read_to_end(&mut received)).await.unwrap();
        assert_eq!(received.len(), 1 << 20);
        writing.await.unwrap();
        assert!(is_largest_in(&from_edge, &mut edge, &mut cloud).await);
        assert!(is_largest_in(&from_cloud, &mut cloud, &mut edge).await);
    };
    check(&mut stage, LARGE_PACKET_BYTES, [6400..6500, 6400..6500]).await;
    // The cloud tries the largest first, and for a peer that takes less nothing else: it stays with what every path carries.
    check(&mut stage, ORDINARY_PACKET_BYTES, [1380..1452, 1130..1200]).await;
}

/// A path between the edge and the cloud that loses, towards the cloud, a given number of middle-sized
/// packets.
struct Lossy {
    address: SocketAddr,
    to_lose: Arc<AtomicUsize>,
    _carrying: AbortOnDropHandle<()>,
}

impl Lossy {
    async fn new(cloud: SocketAddr) -> Lossy {
        let (near, far) =
            (UdpSocket::bind("127.0.0.1:0").await.unwrap(), UdpSocket::bind("127.0.0.1:0").await.unwrap());
        far.connect(cloud).await.unwrap();
        let (address, to_lose) = (near.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
        let losing = to_lose.clone();
        let carrying = tokio::spawn(async move {
            let (mut up, mut down, mut edge) = (vec![0; 65_536], vec![0; 65_536], None);
            loop {
                tokio::select! {
                    received = near.recv_from(&mut up) => {
                        let (count, from) = received.unwrap();
                        edge = Some(from);
                        // Neither acknowledgements nor probes of the path.
                        let is_lost = (SMALL..1000).contains(&count)
                            && losing.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok();
                        if !is_lost {
                            let _ = far.send(&up[..count]).await;
                        }
                    }
                    received = far.recv(&mut down) => {
                        if let (Ok(count), Some(edge)) = (received, edge) {
                            let _ = near.send_to(&down[..count], edge).await;
                        }
                    }
                }
            }
        });
        Lossy { address, to_lose, _carrying: AbortOnDropHandle::new(carrying) }
    }

    async fn lose_one(&self, send: impl Future<Output = ()>) {
        self.to_lose.store(1, Ordering::SeqCst);
        send.await;
        eventually("it is lost", || self.to_lose.load(Ordering::SeqCst) == 0).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_datagram_holds_up_nobody_and_one_on_the_stream_everybody_behind_it() {
    let mut stage = Stage::new().await;
    let line = Lossy::new(stage.address).await;
    stage.address = line.address;
    let (pair, _control) = pair(&mut stage, Transport::Quic).await;
    let (mut edge, mut cloud) = flow(&pair, true).await;
    until_beside(&mut edge, &mut cloud).await;
    for mark in (2..42).step_by(2) {
        line.lose_one(async {
            assert_eq!(edge.send.send(datagram(mark, SMALL)).await.unwrap(), DatagramPath::Beside);
        })
        .await;
        // The next one is delivered: a lost datagram is neither waited for nor sent again.
        assert_eq!(cross(&mut edge, &mut cloud, mark + 1, SMALL).await, DatagramPath::Beside);
    }
    // So it was before, and is for a peer that knows nothing else.
    let (mut edge, mut cloud) = flow(&pair, false).await;
    line.lose_one(async {
        assert_eq!(edge.send.send(datagram(1, SMALL)).await.unwrap(), DatagramPath::OnStream);
    })
    .await;
    edge.send.send(datagram(2, SMALL)).await.unwrap();
    for mark in [1, 2] {
        assert_eq!(within(cloud.recv.recv()).await.unwrap().unwrap(), datagram(mark, SMALL));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_datagrams_does_not_silence_a_stream() {
    let mut stage = Stage::new().await;
    let (pair, _control) = pair(&mut stage, Transport::Quic).await;
    let (mut edge, mut cloud) = flow(&pair, true).await;
    until_beside(&mut edge, &mut cloud).await;
    let mut asking = pair.edge.open_stream(StreamHeader::new(StreamPurpose::Probe)).await.unwrap();
    let (_, mut answering) = within(pair.cloud.accept_stream()).await.unwrap();
    let flood = AbortOnDropHandle::new(tokio::spawn(async move {
        while edge.send.send(datagram(9, 1100)).await.is_ok() {
            tokio::task::consume_budget().await;
        }
    }));
    let drain = AbortOnDropHandle::new(tokio::spawn(async move { while cloud.recv.recv().await.is_ok() {} }));
    let mut word = [0; 4];
    for _ in 0..20 {
        asking.write_all(b"ping").await.unwrap();
        within(answering.read_exact(&mut word)).await.unwrap();
        answering.write_all(b"pong").await.unwrap();
        within(asking.read_exact(&mut word)).await.unwrap();
    }
    drop((flood, drain));
}
