//! The transport that carries the streams of a service when a path is blocked, throttled or moved, and the time of the change.
//!
//! The service is at the edge behind the NAT and sends bytes without an end; its client is at the cloud. Each row prints what
//! carried what, and the times.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use testlab::causeway::wait_for;
use testlab::fleet::Proxy;
use testlab::net::{Fault, Host, Traffic};

use crate::nat_fleet::{EDGE, Fleet, NAT, PATIENCE};

const PORT: u16 = 7100;
/// Bytes that show that a download runs: more than the stream's window of 1 MiB and the buffers of the client's connection
/// hold, so they came over the path that there is now.
const PROGRESS: u64 = 8_000_000;

/// Sends zeros to every client until it has enough.
fn serve_zeros(host: &Host) {
    let listener = host.inside(|| Ok(TcpListener::bind(("127.0.0.1", PORT))?)).unwrap();
    std::thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || {
                let (mut client, zeros) = (client, [0; 16 * 1024]);
                while client.write_all(&zeros).is_ok() {}
            });
        }
    });
}

/// A download that goes on until it is dropped or its connection ends.
struct Download {
    bytes: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
    connection: TcpStream,
}

impl Download {
    fn start(client: &Host, service: SocketAddr) -> Option<Download> {
        let connect = || Ok(TcpStream::connect_timeout(&service, Duration::from_secs(2))?);
        let connection = client.inside(connect).ok()?;
        let (bytes, is_over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (mut reader, read, over) = (connection.try_clone().ok()?, bytes.clone(), is_over.clone());
        std::thread::spawn(move || {
            let mut buffer = [0; 16 * 1024];
            while let Ok(count @ 1..) = reader.read(&mut buffer) {
                read.fetch_add(count as u64, Ordering::Relaxed);
            }
            over.store(true, Ordering::Relaxed);
        });
        Some(Download { bytes, is_over, connection })
    }

    fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Waits for `PROGRESS` more bytes. None: the connection ended.
    fn await_progress(&self) -> Option<Duration> {
        let (begin, wanted) = (Instant::now(), self.bytes() + PROGRESS);
        let progressed = wait_for("the download goes on", || match self.bytes() >= wanted {
            true => Some(true),
            false => self.is_over.load(Ordering::Relaxed).then_some(false),
        });
        progressed.unwrap().then(|| begin.elapsed())
    }
}

impl Drop for Download {
    fn drop(&mut self) {
        let _ = self.connection.shutdown(std::net::Shutdown::Both);
    }
}

struct Carrying {
    fleet: Fleet,
    service: SocketAddr,
}

impl Carrying {
    /// `spoil` makes the path bad before the edge joins, and returns the proxy that is left to it, if any.
    fn start(
        test: &str,
        prefer: &str,
        spoil: impl FnOnce(&mut Fleet) -> Option<SocketAddr>,
    ) -> Option<Carrying> {
        let mut fleet = Fleet::start(test)?;
        serve_zeros(&fleet.net.host(EDGE).unwrap());
        let objects = format!(
            r#"---
{{apiVersion: causeway.io/v1, kind: ESite, metadata: {{name: {EDGE}}}}}
---
{{apiVersion: causeway.io/v1, kind: EGateway, metadata: {{name: {EDGE}}}, eSiteName: {EDGE}, prefer: {prefer}}}
---
{{apiVersion: causeway.io/v1, kind: EGateway, metadata: {{name: cloud}}, eSiteName: cloud, virtualPresenceIPcidr: 127.66.0.0/16}}
---
{{apiVersion: causeway.io/v1, kind: EService, metadata: {{name: zeros}}, ip: 127.0.0.1, port: {PORT}, protocol: TCP, eSiteName: {EDGE}}}
---
{{apiVersion: causeway.io/v1, kind: ServiceExpose, metadata: {{name: zeros}}, eServiceName: zeros, dnsName: zeros.test, eSites: [cloud], ePolicys: [open]}}
"#
        );
        fleet.cloud.apply(&objects).unwrap();
        match spoil(&mut fleet) {
            Some(proxy) => fleet.join(&[("HTTPS_PROXY", &format!("http://{proxy}"))]),
            None => fleet.join(&[]),
        };
        fleet.await_connected(PATIENCE);
        let address = wait_for("the service has an address", || {
            let list =
                fleet.cloud.call(|api| api.get("/apis/causeway.io/v1/virtualpresences")?.success()).ok()?;
            list["items"]
                .as_array()?
                .iter()
                .find_map(|item| item["virtualIp"].as_str()?.parse::<IpAddr>().ok())
        });
        Some(Carrying { service: SocketAddr::new(address.unwrap(), PORT), fleet })
    }

    /// The rows of `causeway status --json`: transport and open streams, and the reason.
    fn carried(&self) -> (Vec<(String, u64)>, String) {
        let gateway = self.fleet.gateway();
        let row = |row: &Value| {
            (row["transport"].as_str().unwrap_or_default().to_owned(), row["streams"].as_u64().unwrap_or(0))
        };
        let rows = gateway["carries"].as_array().map(|rows| rows.iter().map(row).collect());
        (rows.unwrap_or_default(), gateway["carriesReason"].as_str().unwrap_or_default().to_owned())
    }

    /// A download that runs. A service that was just made takes a moment to be reachable.
    fn download(&self) -> (Download, Duration) {
        let (begin, client) = (Instant::now(), self.fleet.net.host("cloud").unwrap());
        let running = wait_for("a download runs", || {
            let download = Download::start(&client, self.service)?;
            download.await_progress().map(|_| download)
        });
        (running.unwrap(), begin.elapsed())
    }

    /// Downloads one after the other until one is carried by a secondary TCP link, and the time that took.
    fn download_over_tcp(&self) -> (Download, Duration) {
        let (begin, client) = (Instant::now(), self.fleet.net.host("cloud").unwrap());
        let mut attempt = || {
            let download = Download::start(&client, self.service)?;
            // A connection that comes before the service is known there is reset, and the next one is tried.
            let has_begun = wait_for("the download begins", || match download.bytes() > 0 {
                true => Some(true),
                false => download.is_over.load(Ordering::Relaxed).then_some(false),
            });
            (has_begun.ok()? && self.is_on_secondary()).then_some(download)
        };
        // A path that is found to lose packets is evaluated again after a minute.
        let what = "a download takes the TCP link";
        let running = wait_for(what, &mut attempt).or_else(|_| wait_for(what, &mut attempt));
        let running = running.or_else(|_| wait_for(what, &mut attempt));
        (running.unwrap(), begin.elapsed())
    }

    fn is_on_secondary(&self) -> bool {
        matches!(&self.carried().0[..], [_, (transport, streams)] if transport == "tcp" && *streams > 0)
    }
}

fn skipped_without_proxy(test: &str) -> bool {
    let missing = Proxy::missing();
    if let Some(reason) = missing {
        println!("skipped: {test} {reason}");
    }
    missing.is_some()
}

#[test]
fn with_udp_blocked_from_the_start_tcp_carries_everything() {
    let test = "with_udp_blocked_from_the_start_tcp_carries_everything";
    let block = |fleet: &mut Fleet| {
        fleet.net.block(NAT, Traffic::Udp).unwrap();
        None
    };
    let Some(carrying) = Carrying::start(test, "auto", block) else { return };
    let (_download, took) = carrying.download();
    let (rows, _) = carrying.carried();
    println!("UDP blocked from the start: a download runs after {took:?}; carried by {rows:?}");
    assert!(matches!(&rows[..], [(transport, _)] if transport == "tcp"), "{rows:?}");
}

#[test]
fn with_udp_throttled_to_a_megabit_streams_take_tcp() {
    let test = "with_udp_throttled_to_a_megabit_streams_take_tcp";
    let Some(mut carrying) = Carrying::start(test, "auto", |_| None) else { return };
    carrying.fleet.net.impose(NAT, Fault::Throttle(Traffic::Udp, 125)).unwrap();
    let (download, took) = carrying.download_over_tcp();
    let speed = download.await_progress().map(|took| PROGRESS as f64 / took.as_secs_f64() / 1e6);
    let (rows, reason) = carrying.carried();
    println!(
        "UDP throttled to 1 Mb/s: on TCP after {took:?}, {speed:?} MB/s there; carried by {rows:?} ({reason})"
    );
    assert!(speed.is_some_and(|speed| speed > 0.125), "faster than UDP may be: {speed:?}");
}

#[test]
fn udp_that_is_blocked_during_a_download_costs_the_session_and_the_next_one_is_on_tcp() {
    let test = "udp_that_is_blocked_during_a_download_costs_the_session_and_the_next_one_is_on_tcp";
    let Some(mut carrying) = Carrying::start(test, "speed", |_| None) else { return };
    let (before, _) = carrying.download_over_tcp();
    carrying.fleet.net.block(NAT, Traffic::Udp).unwrap();
    let begin = Instant::now();
    carrying.fleet.await_transport("tcp", PATIENCE);
    let switched = begin.elapsed();
    let (_download, took) = carrying.download();
    let (rows, _) = carrying.carried();
    // The session was the QUIC link, and nothing outlives it.
    let is_over = wait_for("the old download ends", || before.is_over.load(Ordering::Relaxed).then_some(()));
    is_over.unwrap();
    println!(
        "UDP blocked during a download: session on TCP after {switched:?}, a download runs {took:?} later; carried by {rows:?}"
    );
    assert!(matches!(&rows[..], [(transport, _)] if transport == "tcp"), "{rows:?}");
}

#[test]
fn with_tcp_blocked_quic_carries_everything() {
    let test = "with_tcp_blocked_quic_carries_everything";
    let Some(mut carrying) = Carrying::start(test, "auto", |_| None) else { return };
    // An edge enrols over TCP, so it is blocked after that.
    carrying.fleet.net.block(NAT, Traffic::Tcp).unwrap();
    let (download, took) = carrying.download();
    let refused = wait_for("the TCP link is given up", || {
        let (_, reason) = carrying.carried();
        (reason == "QUIC: the TCP link failed").then_some(reason)
    });
    let (rows, reason) = carrying.carried();
    println!("TCP blocked: a download runs after {took:?}; carried by {rows:?} ({reason})");
    refused.unwrap();
    assert!(matches!(&rows[..], [(transport, _)] if transport == "quic"), "{rows:?}");
    assert!(download.await_progress().is_some(), "the attempts disturb no stream");
}

#[test]
fn with_only_a_proxy_open_tcp_carries_everything() {
    let test = "with_only_a_proxy_open_tcp_carries_everything";
    if skipped_without_proxy(test) {
        return;
    }
    let mut proxy = None;
    let spoil = |fleet: &mut Fleet| {
        fleet.net.block(NAT, Traffic::All).unwrap();
        let address = SocketAddr::new(fleet.net.gateway_ipv4(EDGE).unwrap().into(), 3128);
        proxy = Some(Proxy::start(&fleet.net.host(NAT).unwrap(), fleet.folder.path(), address).unwrap());
        Some(address)
    };
    let Some(carrying) = Carrying::start(test, "auto", spoil) else { return };
    let (_download, took) = carrying.download();
    let (rows, _) = carrying.carried();
    println!("only an HTTP proxy: a download runs after {took:?}; carried by {rows:?}");
    assert!(matches!(&rows[..], [(transport, _)] if transport == "tcp"), "{rows:?}");
    drop(carrying);
    drop(proxy);
}

/// Gives the edge another address while a download runs. Returns how long the download took to go on, if it did.
fn move_during(carrying: &mut Carrying, download: &Download, address: &str) -> Option<Duration> {
    carrying.fleet.net.readdress(EDGE, &[address]).unwrap();
    download.await_progress()
}

#[test]
fn with_survival_a_download_survives_a_new_address() {
    let test = "with_survival_a_download_survives_a_new_address";
    let Some(mut carrying) = Carrying::start(test, "survival", |_| None) else { return };
    let (download, _) = carrying.download();
    let went_on = move_during(&mut carrying, &download, "192.168.1.77");
    let (rows, reason) = carrying.carried();
    println!(
        "survival, a new address during a download: it went on after {went_on:?}; carried by {rows:?} ({reason})"
    );
    assert!(went_on.is_some(), "the download ended");
    assert!(matches!(&rows[..], [(transport, _)] if transport == "quic"), "{rows:?}");
}

#[test]
fn with_auto_a_download_that_began_after_a_move_survives_the_next() {
    let test = "with_auto_a_download_that_began_after_a_move_survives_the_next";
    let Some(mut carrying) = Carrying::start(test, "auto", |_| None) else { return };
    let (download, began) = carrying.download();
    let before = carrying.carried();
    carrying.fleet.net.readdress(EDGE, &["192.168.1.77"]).unwrap();
    let moved = wait_for("new streams take QUIC", || {
        let (_, reason) = carrying.carried();
        (reason == "QUIC: the address changed in the last ten minutes").then_some(())
    });
    moved.unwrap();
    drop(download);
    let (second, took) = carrying.download();
    let went_on = move_during(&mut carrying, &second, "192.168.1.78");
    let (rows, reason) = carrying.carried();
    println!(
        "auto: a download runs after {began:?}, carried by {before:?}; after a move a new download runs after {took:?}, and after the next move \
         it went on after {went_on:?}; carried by {rows:?} ({reason})"
    );
    assert!(went_on.is_some(), "the download ended");
}
