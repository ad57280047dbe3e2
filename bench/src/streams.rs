//! Streams of one link, both ends in this process: the throughput of one, its cost, and many beside one that
//! is blocked.
//!
//! Over TCP, and over QUIC with each of its congestion controllers, without delay and with a round trip of 20 ms. Both
//! ends share the cores, so processor seconds per GB say more than MB/s.

mod delay;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bytes::Bytes;
use causeway_channel::dial::{DialConfig, DialTransports, LinkDialer};
use causeway_channel::link::{Link, StreamHeader, StreamPurpose};
use causeway_channel::port::{ChannelPort, IncomingLink, PortLimits};
use causeway_channel::quic::{
    CongestionControl, EndpointKeys, LARGE_PACKET_BYTES, ORDINARY_PACKET_BYTES, QuicOptions,
};
use causeway_channel::tls::TrustAnchors;
use causeway_channel::{ChannelEndpoint, Transport};
use causeway_cloud::identity::{IdentityConfig, Registrar};
use causeway_store::{Store, StoreSpec};
use tokio::io::AsyncWriteExt;
use tokio::task::JoinSet;

use crate::fleet::identity::FleetIdentity;

pub const USAGE: &str = "bench streams";

const DURATION: Duration = Duration::from_secs(3);
const PIECE_BYTES: usize = 64 * 1024;
const READ_BYTES: usize = 256 * 1024;
/// 16 MB within 20 ms would be 800 MB/s: no bound here.
const LARGE_WINDOW_BYTES: u32 = 16 << 20;
/// Streams beside the blocked one.
const OTHERS: usize = 99;
/// With and without in turn, so that a temporary disturbance of the machine affects both.
const ROUNDS: usize = 5;

pub async fn run() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let identity = FleetIdentity::make(folder.path(), 1).await?;
    let store = Store::open(StoreSpec::Sqlite { path: identity.data_dir.join("store.db") }).await?;
    let config = IdentityConfig::new(&identity.data_dir, Vec::new(), "https://127.0.0.1:1");
    let registrar = Registrar::open(store, config).await?;
    for delay in [Duration::ZERO, Duration::from_millis(20)] {
        for (transport, congestion, packet_bytes) in [
            (Transport::Tcp, CongestionControl::Cubic, 0),
            (Transport::Quic, CongestionControl::Cubic, ORDINARY_PACKET_BYTES),
            (Transport::Quic, CongestionControl::Bbr, ORDINARY_PACKET_BYTES),
            (Transport::Quic, CongestionControl::Bbr, LARGE_PACKET_BYTES),
        ] {
            // The relay is for UDP, and simulates a long-distance line.
            let is_near = transport == Transport::Tcp || packet_bytes == LARGE_PACKET_BYTES;
            if is_near && !delay.is_zero() {
                continue;
            }
            for _ in 0..2 {
                let pair =
                    Pair::make(&identity, &registrar, transport, congestion, packet_bytes, delay).await?;
                one(&pair, transport, congestion, packet_bytes, delay).await?;
            }
        }
    }
    for transport in [Transport::Tcp, Transport::Quic] {
        let (mut alone, mut beside) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            for (is_stuck, speeds) in [(false, &mut alone), (true, &mut beside)] {
                let QuicOptions { congestion, packet_bytes_max, .. } = QuicOptions::default();
                let pair = Pair::make(
                    &identity,
                    &registrar,
                    transport,
                    congestion,
                    packet_bytes_max,
                    Duration::ZERO,
                )
                .await?;
                speeds.push(many(&pair, is_stuck).await?);
            }
        }
        let (alone, beside) = (median(alone), median(beside));
        let part = 100.0 * beside / alone;
        println!(
            "{transport}: {OTHERS} streams {alone:.0} MB/s; beside one that is not read {beside:.0} MB/s, {part:.0} %"
        );
    }
    Ok(())
}

/// Both ends of a link, and the port behind it.
struct Pair {
    edge: Link,
    cloud: Link,
    _tasks: JoinSet<()>,
}

impl Pair {
    async fn make(
        identity: &FleetIdentity,
        registrar: &Arc<Registrar>,
        transport: Transport,
        congestion: CongestionControl,
        packet_bytes_max: u16,
        delay: Duration,
    ) -> Result<Pair> {
        let packet_bytes_max = packet_bytes_max.max(ORDINARY_PACKET_BYTES);
        let mut quic = QuicOptions { congestion, packet_bytes_max, ..QuicOptions::default() };
        if !delay.is_zero() {
            // The controllers are compared, not the window: by default a stream may have 1 MiB in flight.
            quic.limits.stream_window_bytes = LARGE_WINDOW_BYTES;
            quic.limits.send_window_bytes = LARGE_WINDOW_BYTES;
        }
        let limits = PortLimits { quic: quic.clone(), ..PortLimits::default() };
        let address: SocketAddr = "127.0.0.1:0".parse()?;
        let mut port =
            ChannelPort::bind(address, registrar.channel_tls(), EndpointKeys::generate(), limits).await?;
        let mut tasks = JoinSet::new();
        let address = match delay.is_zero() {
            true => port.local_addr(),
            false => delay::relay(port.local_addr(), delay / 2, &mut tasks).await?,
        };
        let (sender, mut links) = tokio::sync::mpsc::channel(1);
        tasks.spawn(async move {
            loop {
                if let IncomingLink::Channel(link, _) = port.accept().await {
                    link.admit();
                    let _ = sender.send(link).await;
                }
            }
        });
        let endpoint: ChannelEndpoint = address.to_string().parse()?;
        let trust = TrustAnchors::Bundle(identity.authorities.clone());
        let credentials = identity.credentials.first().context("the identity has no credentials")?.clone();
        let transports = match transport {
            Transport::Quic => DialTransports::QuicOnly,
            Transport::Tcp => DialTransports::TcpOnly,
        };
        let config = DialConfig { transports, quic, ..DialConfig::new(vec![endpoint], trust, credentials) };
        let edge = LinkDialer::new(config).dial().await?;
        let cloud = links.recv().await.context("the port is closed")?;
        Ok(Pair { edge, cloud, _tasks: tasks })
    }
}

async fn one(
    pair: &Pair,
    transport: Transport,
    congestion: CongestionControl,
    packet_bytes: u16,
    delay: Duration,
) -> Result<()> {
    let (cpu, begin) = (cpu_seconds()?, Instant::now());
    let bytes = carry(pair, 1, begin + DURATION).await?;
    let (seconds, cpu) = (begin.elapsed().as_secs_f64(), cpu_seconds()? - cpu);
    let how = match transport {
        Transport::Tcp => "the kernel's controller".to_owned(),
        Transport::Quic => format!("{congestion:?}, packets of {packet_bytes}"),
    };
    let (speed, cost) = (bytes / seconds / 1e6, cpu / (bytes / 1e9));
    println!(
        "{transport}, {how}, round trip {} ms: one stream {speed:.0} MB/s, {cost:.2} processor seconds per GB",
        delay.as_millis()
    );
    Ok(())
}

/// MB/s of all streams that are read.
async fn many(pair: &Pair, is_stuck: bool) -> Result<f64> {
    let _stuck = if is_stuck { Some(fill_unread(pair).await?) } else { None };
    let begin = Instant::now();
    let bytes = carry(pair, OTHERS, begin + DURATION).await?;
    Ok(bytes / begin.elapsed().as_secs_f64() / 1e6)
}

/// Returns the bytes that arrived over `streams` streams.
async fn carry(pair: &Pair, streams: usize, end: Instant) -> Result<f64> {
    let (mut writers, mut readers) = (JoinSet::new(), JoinSet::new());
    let data = Bytes::from(vec![7; PIECE_BYTES]);
    for _ in 0..streams {
        let mut stream = pair.edge.open_stream(StreamHeader::new(StreamPurpose::Probe)).await?;
        let (_, mut accepted) = pair.cloud.accept_stream().await?;
        let data = data.clone();
        writers.spawn(async move {
            while Instant::now() < end {
                stream.send.write_chunk(data.clone()).await?;
            }
            stream.shutdown().await
        });
        readers.spawn(async move {
            let mut bytes = 0;
            while let Ok(Some(chunk)) = accepted.recv.read_chunk(READ_BYTES).await {
                bytes += chunk.len();
            }
            bytes
        });
    }
    let bytes: usize = readers.join_all().await.into_iter().sum();
    for written in writers.join_all().await {
        written?;
    }
    Ok(bytes as f64)
}

/// A stream whose window is full, because it is not read.
async fn fill_unread(pair: &Pair) -> Result<impl Sized + use<>> {
    let mut stream = pair.edge.open_stream(StreamHeader::new(StreamPurpose::Probe)).await?;
    let (_, accepted) = pair.cloud.accept_stream().await?;
    let data = Bytes::from(vec![7; PIECE_BYTES]);
    let full = Duration::from_millis(200);
    while tokio::time::timeout(full, stream.send.write_chunk(data.clone())).await.is_ok() {}
    Ok((stream, accepted))
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

/// Processor time of this process, both ends: user and system. The kernel counts in hundredths.
pub fn cpu_seconds() -> Result<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let fields: Vec<&str> = stat.rsplit(')').next().context("no fields")?.split_whitespace().collect();
    let ticks = |index: usize| -> Result<f64> { Ok(fields.get(index).context("no such field")?.parse()?) };
    Ok((ticks(11)? + ticks(12)?) / 100.0)
}
