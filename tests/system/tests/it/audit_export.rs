//! The audit's way to a collector, from the binary: a collector that is away while the cloud is killed and restarted has every
//! record once in the end. `crates/causeway-cloud/src/audit_export/tests.rs` has the other protocols and the volume of an hour.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::Value;
use testlab::causeway::{Cloud, get, wait_for};

/// Connections are closed before a byte is read.
const AWAY: u8 = 0;
/// Batches are taken, and the connection is closed without an answer.
const BREAKS_OFF: u8 = 1;
const HERE: u8 = 2;
/// Between two restarts.
const SITES: u64 = 60;

/// A webhook, and the records that it was sent.
struct Webhook {
    address: SocketAddr,
    mode: AtomicU8,
    unanswered: AtomicU64,
    records: Mutex<Vec<Value>>,
}

impl Webhook {
    fn start() -> Arc<Webhook> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (mode, unanswered) = (AtomicU8::new(AWAY), AtomicU64::new(0));
        let webhook = Arc::new(Webhook { address, mode, unanswered, records: Mutex::default() });
        let running = webhook.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if running.mode.load(Ordering::SeqCst) != AWAY {
                    // A connection that breaks is the client's to repeat.
                    let _ = running.answer(&stream);
                }
            }
        });
        webhook
    }

    fn answer(&self, mut stream: &TcpStream) -> std::io::Result<()> {
        let mut reader = BufReader::new(stream);
        let (mut line, mut length) = (String::new(), 0);
        while reader.read_line(&mut line)? > 2 {
            if let Some(value) = line.to_lowercase().strip_prefix("content-length: ") {
                length = value.trim().parse().unwrap();
            }
            line.clear();
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        let body: Value = serde_json::from_slice(&body).unwrap();
        self.records.lock().unwrap().extend(body["records"].as_array().unwrap().iter().cloned());
        match self.mode.load(Ordering::SeqCst) {
            HERE => stream.write_all(b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n"),
            _ => {
                self.unanswered.fetch_add(1, Ordering::SeqCst);
                Ok(())
            }
        }
    }

    /// The different records by source and sequence, and the number of all.
    fn seen(&self) -> (BTreeSet<(String, u64)>, usize) {
        let records = self.records.lock().unwrap();
        let key = |record: &Value| {
            (record["source"].as_str().unwrap().into(), record["sequence"].as_u64().unwrap())
        };
        (records.iter().map(key).collect(), records.len())
    }

    /// The sites whose creation is told, once for each record that is left after deduplication.
    fn created(&self) -> Vec<String> {
        let mut seen = BTreeSet::new();
        let records = self.records.lock().unwrap();
        let mut names: Vec<String> = records
            .iter()
            .filter(|record| record["kind"] == "ESite" && seen.insert(record["sequence"].as_u64().unwrap()))
            .map(|record| record["name"].as_str().unwrap().to_owned())
            .filter(|name| name.starts_with("site-"))
            .collect();
        names.sort();
        names
    }
}

fn start(folder: &Path) -> Cloud {
    let config = folder.join("cloud.toml");
    Cloud::start_with(&folder.join("cloud"), &["--config", config.to_str().unwrap()]).unwrap()
}

fn make_sites(cloud: &Cloud, from: u64) {
    let site =
        |number| format!("{{apiVersion: causeway.io/v1, kind: ESite, metadata: {{name: site-{number:03}}}}}");
    let sites: Vec<String> = (from..from + SITES).map(site).collect();
    cloud.apply(&sites.join("\n---\n")).unwrap().success().unwrap();
}

fn waiting(cloud: &Cloud) -> Option<u64> {
    let metrics = get(cloud.admin, "/metrics").ok()?.1;
    let start = "causeway_audit_export_waiting{destination=\"webhook\"} ";
    metrics.lines().find_map(|line| line.strip_prefix(start))?.parse().ok()
}

#[test]
fn a_collector_that_was_away_over_two_restarts_has_every_record_once() {
    let folder = tempfile::tempdir().unwrap();
    let webhook = Webhook::start();
    let config = format!("[audit.export.webhook]\nurl = \"http://{}/audit\"\n", webhook.address);
    std::fs::write(folder.path().join("cloud.toml"), config).unwrap();
    let is_spooled = |cloud: &Cloud, least| {
        wait_for("the records wait", || waiting(cloud).filter(|count| *count >= least)).unwrap();
    };

    let mut cloud = start(folder.path());
    make_sites(&cloud, 0);
    is_spooled(&cloud, SITES);
    cloud.process.kill().unwrap();
    let mut cloud = start(folder.path());
    is_spooled(&cloud, SITES);
    make_sites(&cloud, SITES);
    is_spooled(&cloud, 2 * SITES);
    assert_eq!(cloud.process.terminate().unwrap().code(), Some(0));
    let cloud = start(folder.path());
    webhook.mode.store(BREAKS_OFF, Ordering::SeqCst);
    make_sites(&cloud, 2 * SITES);
    wait_for("a batch breaks off", || (webhook.unanswered.load(Ordering::SeqCst) > 0).then_some(())).unwrap();
    webhook.mode.store(HERE, Ordering::SeqCst);
    let expected: Vec<String> = (0..3 * SITES).map(|number| format!("site-{number:03}")).collect();
    wait_for("every record is at the collector", || {
        (webhook.created().len() >= expected.len() && waiting(&cloud) == Some(0)).then_some(())
    })
    .unwrap();

    assert_eq!(webhook.created(), expected);
    let (records, all) = webhook.seen();
    let source = records.first().unwrap().0.clone();
    let last = records.len() as u64;
    assert_eq!(records, (1..=last).map(|sequence| (source.clone(), sequence)).collect());
    assert!(all > records.len(), "the batch without an answer came again");
}
