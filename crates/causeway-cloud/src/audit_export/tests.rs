//! Exports to real receivers on loopback that are away, break off and come back, over restarts of the cloud: every record
//! arrives, and is there once when repeats are dropped.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::pki_types::PrivateKeyDer;
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use super::*;

/// Generous: the machine may run many tests at once.
const DEADLINE: Duration = Duration::from_secs(60);

/// The receiver accepts connections and drops them.
const AWAY: u8 = 0;
/// It takes a batch, or a part of it, and breaks off without a receipt.
const BREAKS_OFF: u8 = 1;
const HERE: u8 = 2;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Protocol {
    Webhook,
    Otlp,
    Syslog,
}

/// A collector, and the records that it has received.
struct Receiver {
    protocol: Protocol,
    mode: AtomicU8,
    connections: AtomicU64,
    /// Records of batches that had no receipt.
    unconfirmed: AtomicU64,
    records: std::sync::Mutex<Vec<Value>>,
    heads: std::sync::Mutex<Vec<String>>,
}

impl Receiver {
    async fn start(protocol: Protocol, tls: Option<TlsAcceptor>) -> (Arc<Receiver>, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let receiver = Arc::new(Receiver {
            protocol,
            mode: AtomicU8::new(AWAY),
            connections: AtomicU64::new(0),
            unconfirmed: AtomicU64::new(0),
            records: std::sync::Mutex::default(),
            heads: std::sync::Mutex::default(),
        });
        let running = receiver.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                running.connections.fetch_add(1, Ordering::SeqCst);
                if running.mode.load(Ordering::SeqCst) != AWAY {
                    tokio::spawn(running.clone().serve(stream, tls.clone()));
                }
            }
        });
        (receiver, address)
    }

    async fn serve(self: Arc<Receiver>, stream: TcpStream, tls: Option<TlsAcceptor>) {
        let served = match tls {
            Some(tls) => match tls.accept(stream).await {
                Ok(stream) => self.converse(stream).await,
                Err(error) => Err(error),
            },
            None => self.converse(stream).await,
        };
        if let Err(error) = served {
            eprintln!("receiver: {error}");
        }
    }

    async fn converse(&self, stream: impl AsyncRead + AsyncWrite + Unpin) -> io::Result<()> {
        match self.protocol {
            Protocol::Syslog => self.read_syslog(stream).await,
            Protocol::Webhook | Protocol::Otlp => self.answer_http(stream).await,
        }
    }

    async fn answer_http(&self, mut stream: impl AsyncRead + AsyncWrite + Unpin) -> io::Result<()> {
        let mut bytes = Vec::new();
        let body = loop {
            if stream.read_buf(&mut bytes).await? == 0 {
                return Ok(());
            }
            let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") else { continue };
            let head = String::from_utf8_lossy(&bytes[..end]).to_lowercase();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
            if bytes.len() >= end + 4 + length.parse::<usize>().unwrap() {
                self.heads.lock().unwrap().push(head);
                break bytes.split_off(end + 4);
            }
        };
        let body: Value = serde_json::from_slice(&body).unwrap();
        let records: Vec<Value> = match self.protocol {
            Protocol::Webhook => body["records"].as_array().unwrap().clone(),
            _ => {
                let logs = body["resourceLogs"][0]["scopeLogs"][0]["logRecords"].as_array().unwrap();
                logs.iter().map(|log| parse(log["body"]["stringValue"].as_str().unwrap())).collect()
            }
        };
        let is_confirmed = self.take(records);
        if is_confirmed {
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").await?;
        }
        stream.shutdown().await
    }

    async fn read_syslog(&self, mut stream: impl AsyncRead + AsyncWrite + Unpin) -> io::Result<()> {
        if self.mode.load(Ordering::SeqCst) == BREAKS_OFF {
            let mut part = [0; 100];
            stream.read_exact(&mut part).await?;
            self.unconfirmed.fetch_add(1, Ordering::SeqCst);
            return Ok(());
        }
        let mut text = String::new();
        stream.read_to_string(&mut text).await?;
        let (mut rest, mut records) = (text.as_str(), Vec::new());
        while let Some((length, after)) = rest.split_once(' ') {
            let (message, next) = after.split_at(length.parse().unwrap());
            assert!(message.starts_with("<1"), "{message}");
            records.push(parse(&message[message.find(" {").unwrap()..]));
            rest = next;
        }
        self.take(records);
        stream.shutdown().await
    }

    /// Returns whether the sender may know that the batch is here.
    fn take(&self, records: Vec<Value>) -> bool {
        let is_confirmed = self.mode.load(Ordering::SeqCst) == HERE;
        if !is_confirmed {
            self.unconfirmed.fetch_add(records.len() as u64, Ordering::SeqCst);
        }
        self.records.lock().unwrap().extend(records);
        is_confirmed
    }

    fn set(&self, mode: u8) {
        self.mode.store(mode, Ordering::SeqCst);
    }

    /// The different records by source and sequence, and the number of all.
    fn seen(&self) -> (BTreeSet<(String, u64)>, usize) {
        let records = self.records.lock().unwrap();
        let key = |record: &Value| {
            (record["source"].as_str().unwrap().to_owned(), record["sequence"].as_u64().unwrap())
        };
        (records.iter().map(key).collect(), records.len())
    }
}

fn parse(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

async fn wait_for(what: &str, condition: impl Fn() -> bool) {
    let end = Instant::now() + DEADLINE;
    while !condition() {
        assert!(Instant::now() < end, "in vain: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// A TLS server for 127.0.0.1, and the file that lets a client trust it.
fn certificate(folder: &TempDir) -> (TlsAcceptor, PathBuf) {
    let CertifiedKey { cert, signing_key } = generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let ca = folder.path().join("collector-ca.pem");
    std::fs::write(&ca, cert.pem()).unwrap();
    let key = PrivateKeyDer::try_from(signing_key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![cert.der().clone()], key)
        .unwrap();
    (TlsAcceptor::from(Arc::new(config)), ca)
}

struct Running {
    spool: Arc<ExportSpool>,
    stop: CancellationToken,
    task: tokio::task::JoinHandle<()>,
    metrics: Metrics,
}

fn start(folder: &Path, destination: &ExportDestination, bytes_max: u64) -> Running {
    let metrics = Metrics::new("test");
    let config = AuditExportConfig { bytes_max, destinations: vec![destination.clone()] };
    let export = AuditExport::open(folder, config, &metrics).unwrap().unwrap();
    let (spool, stop) = (export.spool().clone(), CancellationToken::new());
    let task = tokio::spawn(export.run(stop.clone()));
    Running { spool, stop, task, metrics }
}

impl Running {
    fn append(&self, from: u64, count: u64) {
        for number in from..from + count {
            self.spool.append(
                "traffic",
                format!("{{\"time\":\"2026-11-18T00:00:00Z\",\"number\":{number}}}\n").as_bytes(),
            );
        }
    }

    async fn end(self) {
        self.stop.cancel();
        self.task.await.unwrap();
    }

    fn shows(&self, line: &str) -> bool {
        self.metrics.encode().lines().any(|shown| shown == line)
    }
}

async fn check(protocol: Protocol) {
    let folder = tempfile::tempdir().unwrap();
    let (acceptor, ca) = certificate(&folder);
    let tls = (protocol != Protocol::Otlp).then_some(acceptor);
    let (receiver, address) = Receiver::start(protocol, tls).await;
    let token = folder.path().join("token");
    std::fs::write(&token, "secret\n").unwrap();
    let http = |scheme: &str| HttpTarget {
        url: format!("{scheme}://{address}/v1/logs?x=1").parse().unwrap(),
        token_file: Some(token.clone()),
        ca: Some(ca.clone()),
    };
    let destination = match protocol {
        Protocol::Webhook => ExportDestination::Webhook(http("https")),
        Protocol::Otlp => ExportDestination::Otlp(http("http")),
        Protocol::Syslog => {
            let tls = TlsFiles { ca: Some(ca.clone()), client: None };
            ExportDestination::Syslog(SyslogTarget {
                host: "127.0.0.1".to_owned(),
                port: address.port(),
                tls,
            })
        }
    };
    let name = destination.name();
    let spool = folder.path().join("export");

    let cloud = start(&spool, &destination, 64 << 20);
    cloud.append(0, 2500);
    wait_for("it tries", || receiver.connections.load(Ordering::SeqCst) >= 2).await;
    assert!(cloud.shows(&format!("causeway_audit_export_waiting{{destination=\"{name}\"}} 2500")));
    cloud.end().await;

    // A cloud that is started again goes on where it was; a batch without a receipt is sent again.
    receiver.set(BREAKS_OFF);
    let cloud = start(&spool, &destination, 64 << 20);
    cloud.append(2500, 10);
    wait_for("a batch breaks off", || receiver.unconfirmed.load(Ordering::SeqCst) > 0).await;
    receiver.set(HERE);
    wait_for("all are there", || receiver.seen().0.len() == 2510).await;
    wait_for("nothing waits", || {
        cloud.shows(&format!("causeway_audit_export_waiting{{destination=\"{name}\"}} 0"))
    })
    .await;
    assert!(cloud.shows(&format!("causeway_audit_export_records_total{{destination=\"{name}\"}} 2510")));
    assert!(cloud.shows(&format!("causeway_audit_export_lost_total{{destination=\"{name}\"}} 0")));
    cloud.end().await;

    let cloud = start(&spool, &destination, 64 << 20);
    cloud.append(2510, 1);
    wait_for("the last one is there", || receiver.seen().0.len() == 2511).await;
    let (records, all) = receiver.seen();
    let source = cloud.spool.source().to_owned();
    let expected: BTreeSet<(String, u64)> = (1..=2511).map(|sequence| (source.clone(), sequence)).collect();
    assert_eq!(records, expected);
    if protocol != Protocol::Syslog {
        assert!(all > 2511, "the batch without a receipt came twice");
        let heads = receiver.heads.lock().unwrap();
        assert!(heads[0].starts_with("post /v1/logs?x=1 http/1.1"), "{}", heads[0]);
        assert!(heads[0].contains("authorization: bearer secret"), "{}", heads[0]);
    }
    let numbers: BTreeSet<u64> =
        receiver.records.lock().unwrap().iter().map(|record| record["number"].as_u64().unwrap()).collect();
    assert_eq!(numbers, (0..2511).collect());
    cloud.end().await;
}

/// The backlog of an hour: ten records a second, a hundred in the long form. The cloud is started again in the middle of the hour. The
/// collector comes back while new records arrive, and breaks off once; after deduplication every record is there once, in the order of
/// its number.
#[tokio::test]
async fn a_collector_that_was_away_for_an_hour_has_every_record_once() {
    let is_long = std::env::var_os("CAUSEWAY_SOAK").is_some_and(|value| value == "1");
    let hour: u64 = 3600 * if is_long { 100 } else { 10 };
    let folder = tempfile::tempdir().unwrap();
    let (receiver, address) = Receiver::start(Protocol::Otlp, None).await;
    let url = format!("http://{address}/v1/logs").parse().unwrap();
    let destination = ExportDestination::Otlp(HttpTarget { url, token_file: None, ca: None });
    let cloud = start(&folder.path().join("export"), &destination, 1 << 30);
    cloud.append(0, hour / 2);
    wait_for("it tries", || receiver.connections.load(Ordering::SeqCst) >= 1).await;
    let first_source = cloud.spool.source().to_owned();
    cloud.end().await;
    let cloud = start(&folder.path().join("export"), &destination, 1 << 30);
    assert_eq!(cloud.spool.source(), first_source, "a restart begins no new sequence");
    cloud.append(hour / 2, hour - hour / 2);
    receiver.set(BREAKS_OFF);
    wait_for("a batch breaks off", || receiver.unconfirmed.load(Ordering::SeqCst) > 0).await;
    receiver.set(HERE);
    cloud.append(hour, 100);
    wait_for("nothing waits", || cloud.shows("causeway_audit_export_waiting{destination=\"otlp\"} 0")).await;
    assert!(cloud.shows("causeway_audit_export_lost_total{destination=\"otlp\"} 0"));
    let (records, all) = receiver.seen();
    let source = cloud.spool.source().to_owned();
    assert_eq!(records, (1..=hour + 100).map(|sequence| (source.clone(), sequence)).collect());
    println!("{} records, of which {} came twice", records.len(), all - records.len());
    cloud.end().await;
}

#[tokio::test]
async fn a_batch_is_repeated_as_it_was_although_records_came_meanwhile() {
    let folder = tempfile::tempdir().unwrap();
    let (receiver, address) = Receiver::start(Protocol::Webhook, None).await;
    receiver.set(BREAKS_OFF);
    let url = format!("http://{address}/").parse().unwrap();
    let destination = ExportDestination::Webhook(HttpTarget { url, token_file: None, ca: None });
    let cloud = start(&folder.path().join("export"), &destination, 1 << 20);
    cloud.append(0, 10);
    wait_for("the batch breaks off", || receiver.unconfirmed.load(Ordering::SeqCst) > 0).await;
    cloud.append(10, 10);
    receiver.set(HERE);
    wait_for("nothing waits", || cloud.shows("causeway_audit_export_waiting{destination=\"webhook\"} 0"))
        .await;
    assert_eq!(receiver.seen().0.len(), 20);
    let key = |head: &String| {
        head.lines().find_map(|line| line.strip_prefix("idempotency-key: ")).unwrap().to_owned()
    };
    let keys: Vec<String> = receiver.heads.lock().unwrap().iter().map(key).collect();
    assert!(keys.len() > 2 && keys[0].ends_with("-1-10"), "{keys:?}");
    assert_eq!(keys[0], keys[1], "a receiver recognises the repeat");
    cloud.end().await;
}

#[tokio::test]
async fn a_disk_that_refuses_records_is_no_broken_connection() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let limits = RotationLimits { file_bytes_max: 10, files_max: 2 };
    let mut sender = FileSender::open(&out, limits).unwrap();
    let batch = ExportBatch { first: 1, lines: vec!["{\"sequence\":1}".into()] };
    sender.send(&batch).await.unwrap();
    // The second batch needs another file, and the folder is gone.
    std::fs::remove_dir_all(&out).unwrap();
    let error = sender.send(&batch).await.unwrap_err();
    assert!(error.to_string().contains(out.to_str().unwrap()), "{error}");
}

#[tokio::test]
async fn a_webhook_that_was_away_has_every_record() {
    check(Protocol::Webhook).await;
}

#[tokio::test]
async fn an_otlp_collector_that_was_away_has_every_record() {
    check(Protocol::Otlp).await;
}

#[tokio::test]
async fn a_syslog_server_that_was_away_has_every_record() {
    check(Protocol::Syslog).await;
}

#[tokio::test]
async fn files_for_a_collector_hold_every_record() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let destination = ExportDestination::Files { folder: out.clone(), limits: RotationLimits::default() };
    let cloud = start(&folder.path().join("export"), &destination, 1 << 20);
    cloud.append(0, 1500);
    let lines = || std::fs::read_to_string(out.join("causeway-audit.jsonl")).unwrap_or_default();
    wait_for("all are there", || lines().lines().count() == 1500).await;
    assert_eq!(parse(lines().lines().last().unwrap())["sequence"], 1500);
    cloud.end().await;
}

#[tokio::test]
async fn records_that_the_bound_drops_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let (receiver, address) = Receiver::start(Protocol::Webhook, None).await;
    let url = format!("http://{address}/").parse().unwrap();
    let destination = ExportDestination::Webhook(HttpTarget { url, token_file: None, ca: None });
    let cloud = start(&folder.path().join("export"), &destination, 256 << 10);
    cloud.append(0, 10_000);
    receiver.set(HERE);
    wait_for("nothing waits", || cloud.shows("causeway_audit_export_waiting{destination=\"webhook\"} 0"))
        .await;
    let (records, _) = receiver.seen();
    let lost = 10_000 - records.len();
    assert!(lost > 1000, "{lost}");
    assert!(cloud.shows(&format!("causeway_audit_export_lost_total{{destination=\"webhook\"}} {lost}")));
    assert_eq!(records.last().unwrap().1, 10_000, "the newest are kept");
    cloud.end().await;
}
