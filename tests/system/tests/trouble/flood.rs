//! Gateways that were taken over: twenty links that speak the wire format by hand and try to make the cloud hold memory.
//!
//! Certificates come from a real enrolment; some are revoked. The frames are written after `docs/channel.md`, not with the
//! code under test. Asserted: the resident memory of the real cloud process stays below 200 MB, and every round trip to
//! an honest edge is answered. A few seconds; a minute with CAUSEWAY_SOAK=1.

mod frames;
mod quic;
mod tcp;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use causeway_api::management::paths;
use causeway_channel::tls::{self, TrustAnchors};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde_json::json;
use testlab::causeway::wait_for;
use testlab::https::Client;

use crate::{Lab, authorities, call, edge_credentials, join_token, soak};

/// As issue 10 asks.
const RESIDENT_KIB_MAX: u64 = 200_000;
const LINKS: usize = 20;
/// One round trip has this long; a link that was called dead would not be back so soon.
const PROBE_SECONDS: u64 = 20;
const CHANNEL_ALPN: &[u8] = b"causeway/1";

/// The attack of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Attack {
    /// Opens streams and gives them up at once, without a word before. The finding of issue 10.
    BeforeHello,
    /// The same after a welcome; nothing is ever read.
    Deaf,
    /// The same after a welcome; answers are read.
    Attentive,
    /// Headers of full length that mean nothing, datagrams, pings, and frames that never end.
    Odds,
}

const ATTACKS: [Attack; 4] = [Attack::BeforeHello, Attack::Deaf, Attack::Attentive, Attack::Odds];

/// One gateway that was taken over.
struct Thief {
    address: SocketAddr,
    tls: rustls::ClientConfig,
    stop: Arc<AtomicBool>,
    counts: Arc<Counts>,
}

#[derive(Default)]
struct Counts {
    /// Links that were made.
    links: AtomicU64,
    /// Bytes that were sent over TCP, and streams opened over QUIC.
    bytes: AtomicU64,
    streams: AtomicU64,
}

impl Thief {
    fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Higher than that of any session before.
    fn epoch() -> u64 {
        SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_micros() as u64
    }
}

/// The settings of TLS for a certificate that an edge has left in its folder.
fn client_config(lab: &Lab, name: &str) -> rustls::ClientConfig {
    let credentials = edge_credentials(&lab.path(name));
    let credentials = tls::TlsCredentials { chain: credentials.chain, key: credentials.key };
    let bundle: Vec<CertificateDer<'static>> = authorities(&lab.admin)["authorities"]
        .as_array()
        .unwrap()
        .iter()
        .map(|authority| {
            CertificateDer::from_pem_slice(authority["certificate"].as_str().unwrap().as_bytes()).unwrap()
        })
        .collect();
    let (mut config, _) =
        tls::client(TrustAnchors::Bundle(bundle), Some(credentials), SystemTime::now()).unwrap();
    config.alpn_protocols = vec![CHANNEL_ALPN.to_vec()];
    config
}

/// `VmRSS` or `VmHWM` of a process.
fn resident_kib(pid: u32, field: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with(field)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Round trips to the honest edge, one after the other, until the end.
fn probe_until(admin: &Client, gateway: &str, end: Instant) -> Vec<Duration> {
    let mut took = Vec::new();
    while Instant::now() < end {
        let begun = Instant::now();
        let body = json!({"gateway": gateway, "bytes": 100, "seconds": PROBE_SECONDS});
        let answer = admin.post(paths::PROBE, &body).unwrap();
        assert_eq!(answer.code, 200, "round trip {} was not answered: {}", took.len(), answer.text());
        took.push(begun.elapsed());
        // A client that asks now and then, not a load of its own.
        std::thread::sleep(Duration::from_millis(20));
    }
    took.sort_unstable();
    took
}

fn is_connected(admin: &Client, name: &str) -> Option<()> {
    let status = admin.get(paths::STATUS).ok()?.success().ok()?;
    let gateways = status["gateways"].as_array()?;
    gateways.iter().any(|gateway| gateway["name"] == name && gateway["connected"] == true).then_some(())
}

fn enrolled(path: &Path) -> Option<()> {
    path.join("identity.pem").exists().then_some(())
}

#[test]
fn gateways_that_were_taken_over_cannot_make_the_cloud_hold_memory() {
    let lab = Lab::start();
    // One name for each link; every fourth is revoked.
    let names: Vec<String> = (0..LINKS).map(|number| format!("t{number}")).collect();
    let mut edges: Vec<_> =
        names.iter().map(|name| lab.edge(name, &["--join", &join_token(&lab.admin, name)])).collect();
    for (name, edge) in names.iter().zip(&mut edges) {
        wait_for("the edge is enrolled", || enrolled(&lab.path(name)))
            .unwrap_or_else(|error| panic!("{error}\n{}", edge.log()));
        edge.kill().unwrap();
    }
    let revoked = |number: usize| number % 4 == 3;
    for (_, name) in names.iter().enumerate().filter(|(number, _)| revoked(*number)) {
        call(&lab.admin, "revoke", &json!({"gateway": name}));
    }
    let honest = lab.join("honest", &join_token(&lab.admin, "honest"));
    wait_for("the honest edge is connected", || is_connected(&lab.admin, "honest"))
        .unwrap_or_else(|error| panic!("{error}\n{}", honest.log()));

    let pid = lab.cloud.process.pid();
    let before = resident_kib(pid, "VmRSS:");
    // The memory of the start and of the enrolments is not measured: the peak begins anew (proc_pid_clear_refs(5)).
    std::fs::write(format!("/proc/{pid}/clear_refs"), "5").unwrap();
    let quiet = probe_until(&lab.admin, "honest", Instant::now() + Duration::from_secs(1));
    let (stop, counts) = (Arc::new(AtomicBool::new(false)), Arc::new(Counts::default()));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    for (number, name) in names.iter().enumerate() {
        let tls = client_config(&lab, name);
        let thief = Thief { address: lab.cloud.channel, tls, stop: stop.clone(), counts: counts.clone() };
        // Twelve over TCP, eight over QUIC; among both every attack and revoked keys.
        let attack = ATTACKS[(number / 4 + number) % ATTACKS.len()];
        match number % 5 {
            0 | 2 | 4 => drop(runtime.spawn(tcp::run(thief, attack))),
            _ => drop(runtime.spawn(quic::run(thief, attack))),
        }
    }
    let seconds = if soak() { 60 } else { 4 };
    let took = probe_until(&lab.admin, "honest", Instant::now() + Duration::from_secs(seconds));
    let (during, most) = (resident_kib(pid, "VmRSS:"), resident_kib(pid, "VmHWM:"));
    stop.store(true, Ordering::Relaxed);
    runtime.shutdown_timeout(Duration::from_secs(5));
    let figure = |times: &[Duration]| (times[times.len() / 2], times[times.len() - 1]);
    println!(
        "{LINKS} links for {seconds} s: {} links made, {} MB sent over TCP, {} streams opened over QUIC",
        counts.links.load(Ordering::Relaxed),
        counts.bytes.load(Ordering::Relaxed) / 1_000_000,
        counts.streams.load(Ordering::Relaxed),
    );
    println!("the cloud: {before} KiB before, {during} KiB at the end, {most} KiB at most");
    println!("round trips through the API: {} before, median and maximum {:?}", quiet.len(), figure(&quiet));
    println!("round trips under attack: {}, median and maximum {:?}", took.len(), figure(&took));
    assert!(most < RESIDENT_KIB_MAX, "the cloud held {most} KiB");
    assert!(counts.bytes.load(Ordering::Relaxed) > 0 && counts.streams.load(Ordering::Relaxed) > 0);
    // The edge had one session all the time.
    assert_eq!(honest.log().matches("connected to the cloud").count(), 1, "{}", honest.log());
}
