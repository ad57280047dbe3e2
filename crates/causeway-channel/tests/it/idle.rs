//! Memory of an idle link. A measurement, not a test: run it by name, with `--ignored`.
//!
//! The edges run in another process, so that only the cloud's end is counted.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};
use std::time::Duration;

use causeway_channel::dial::{DialConfig, DialTransports, LinkDialer};
use causeway_channel::link::{StreamHeader, StreamPurpose, Transport};
use causeway_channel::port::PortLimits;
use causeway_channel::quic::{ORDINARY_PACKET_BYTES, QuicOptions};
use causeway_channel::tls::TrustAnchors;

use crate::stage::{Authority, Stage, generous, resident_bytes, within};

const LINKS: usize = 1000;

/// No session pings here.
fn patient() -> QuicOptions {
    // Edges are elsewhere, behind Ethernet; that these are on the same host must not show.
    let packet_bytes_max = ORDINARY_PACKET_BYTES;
    QuicOptions { idle_max: Duration::from_secs(300), packet_bytes_max, ..QuicOptions::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
async fn memory_of_a_thousand_idle_links() {
    measure(Transport::Quic).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
async fn memory_of_a_thousand_idle_links_over_tcp() {
    measure(Transport::Tcp).await;
}

async fn measure(transport: Transport) {
    let mut stage = Stage::with(PortLimits { quic: patient(), ..generous() }).await;
    let folder = tempfile::tempdir().unwrap();
    stage.authority.save(folder.path());
    // Shared allocations of the first link are not counted.
    let warm = stage.pair(transport).await;
    let before = resident_bytes();
    let mut edges = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "idle::edges", "--ignored", "--nocapture"])
        .env("IDLE_ADDRESS", stage.address.to_string())
        .env("IDLE_FOLDER", folder.path())
        .env("IDLE_TRANSPORT", transport.as_str())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut links = Vec::new();
    for _ in 0..LINKS {
        let link = within(stage.links.recv()).await.unwrap();
        let (_, control) = within(link.accept_stream()).await.unwrap();
        links.push((link, control));
    }
    let mut ready = String::new();
    BufReader::new(edges.stderr.take().unwrap()).read_line(&mut ready).unwrap();
    let held = resident_bytes() - before;
    println!(
        "{LINKS} idle links over {transport} with a control stream each: {} bytes per link",
        held / LINKS
    );
    edges.stdin.take().unwrap().write_all(b"x").unwrap();
    edges.wait().unwrap();
    drop(warm);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the other process of the measurement"]
async fn edges() {
    let (Ok(address), Ok(folder)) = (std::env::var("IDLE_ADDRESS"), std::env::var("IDLE_FOLDER")) else {
        return;
    };
    let authority = Authority::load(folder.as_ref());
    let is_tcp = std::env::var("IDLE_TRANSPORT").is_ok_and(|name| name == Transport::Tcp.as_str());
    let mut config = DialConfig::new(
        vec![address.parse().unwrap()],
        TrustAnchors::Bundle(authority.bundle()),
        authority.gateway("g1"),
    );
    config.quic = patient();
    config.transports = if is_tcp { DialTransports::TcpOnly } else { DialTransports::QuicOnly };
    let dialer = LinkDialer::new(config);
    let mut links = Vec::new();
    for _ in 0..LINKS {
        let link = dialer.dial().await.unwrap();
        let control = link.open_stream(StreamHeader::new(StreamPurpose::Control)).await.unwrap();
        links.push((link, control));
    }
    eprintln!("ready");
    // The links go on in the other threads.
    let _ = tokio::task::spawn_blocking(|| std::io::stdin().read(&mut [0])).await;
}
