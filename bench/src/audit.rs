//! The cost of the audit and of its export: records a second into the journal, and from there to each kind of collector.
//!
//! The collector is a process of its own on loopback (`collector`), so that the figures are those of the journal and the exporter alone:
//! processor time, bytes written to disk, and the time until the collector has the last record. The first round has no export; the
//! difference is its cost. `--away SECONDS` keeps the collector away at the beginning of a round, so that a backlog is delivered beside
//! new records. `--to otlp` measures one kind.

mod collector;

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use causeway_cloud::audit_export::{
    AuditExport, AuditExportConfig, ExportDestination, HttpTarget, SyslogTarget, TlsFiles,
};
use causeway_daemon::Metrics;
use causeway_daemon::audit::{AuditLimits, AuditLog};
use causeway_daemon::coalesce::CoalesceLimits;
use causeway_daemon::rotated::RotationLimits;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::results::{self, ResultLine};
use crate::streams::cpu_seconds;
pub use collector::{COLLECTOR, collect};

use collector::Collector;

pub const USAGE: &str =
    "bench audit [--rate N] [--seconds N] [--away SECONDS] [--to files|webhook|syslog|otlp]";

/// The kinds of collectors, in the order of their cost.
const DESTINATIONS: [&str; 4] = ["files", "webhook", "syslog", "otlp"];
/// Records are handed over in slices of this time, as connections end in clusters.
const SLICE: Duration = Duration::from_millis(10);
/// The last records must be in the files within this time after the end of the load.
const DELIVERY_MAX: Duration = Duration::from_secs(120);
const SPOOL_BYTES_MAX: u64 = 4 << 30;

struct Load {
    rate: u64,
    seconds: u64,
    away: u64,
    destinations: Vec<&'static str>,
}

/// The figures of one round.
struct Cost {
    processor_seconds: f64,
    written_bytes: u64,
    elapsed: Duration,
    /// From the end of the load to the last record at the collector.
    behind: Duration,
    dropped: u64,
}

pub async fn run(arguments: &[String]) -> Result<()> {
    let mut load = Load { rate: 10_000, seconds: 20, away: 0, destinations: DESTINATIONS.to_vec() };
    for pair in arguments.chunks(2) {
        let [name, value] = pair else { anyhow::bail!("usage: {USAGE}") };
        match name.as_str() {
            "--rate" => load.rate = value.parse()?,
            "--seconds" => load.seconds = value.parse()?,
            "--away" => load.away = value.parse()?,
            "--to" => {
                load.destinations.retain(|known| known == value);
                ensure!(!load.destinations.is_empty(), "{value} is no collector; usage: {USAGE}");
            }
            _ => anyhow::bail!("unknown argument {name}; usage: {USAGE}"),
        }
    }
    let Load { rate, seconds, away, .. } = load;
    println!("{rate} records a second for {seconds} s, the collector away for the first {away} s");
    let journal = round(&load, None).await?;
    print("journal alone", &journal, &load);
    for destination in load.destinations.clone() {
        let exported = round(&load, Some(destination)).await?;
        print(&format!("journal and {destination}"), &exported, &load);
        println!("  the export to {destination} costs {:.2} of a core", cores(&exported) - cores(&journal));
        results::append(&[
            ResultLine {
                command: "bench/run audit",
                figure: format!(
                    "audit: processor of journal and export ({destination}) at {rate} records a second, in cores"
                ),
                goal: "",
                result: cores(&exported),
            },
            ResultLine {
                command: "bench/run audit",
                figure: format!("audit: records lost ({destination}) at {rate} a second"),
                goal: "< 1",
                result: exported.dropped as f64,
            },
        ])?;
    }
    Ok(())
}

fn cores(cost: &Cost) -> f64 {
    cost.processor_seconds / cost.elapsed.as_secs_f64()
}

fn print(name: &str, cost: &Cost, load: &Load) {
    let records = (load.rate * load.seconds) as f64;
    println!(
        "{name}: {:.2} of a core, {:.1} µs a record, {:.0} bytes on disk a record, last record {:.2} s after the load, {} dropped",
        cores(cost),
        cost.processor_seconds / records * 1e6,
        cost.written_bytes as f64 / records,
        cost.behind.as_secs_f64(),
        cost.dropped,
    );
}

async fn round(load: &Load, destination: Option<&'static str>) -> Result<Cost> {
    let folder = tempfile::tempdir()?;
    let metrics = Metrics::new("bench");
    let stop = CancellationToken::new();
    let ca = folder.path().join("ca.pem");
    let collector = destination
        .filter(|name| *name != "files")
        .map(|name| Collector::start(name, load.away, &ca))
        .transpose()?;
    let target = destination.map(|name| {
        let address = collector.as_ref().map(|collector| collector.address);
        config(name, folder.path(), &ca, address)
    });
    let export =
        AuditExport::open(&folder.path().join("export"), target.transpose()?.unwrap_or_default(), &metrics)?;
    let limits = AuditLimits { file_bytes_max: 64 << 20, files_max: 100 };
    let tap = export.as_ref().map(|export| export.tap("traffic"));
    let log =
        AuditLog::open_tapped(&folder.path().join("audit"), "audit", limits, CoalesceLimits::default(), tap)?;
    let exporting = export.map(|export| tokio::spawn(export.run(stop.clone())));

    let before = usage()?;
    let begun = Instant::now();
    let writing = log.clone();
    let (rate, seconds) = (load.rate, load.seconds);
    tokio::task::spawn_blocking(move || write(&writing, rate, seconds)).await?;
    let written = Instant::now();
    log.flush();
    // Records that the journal dropped are counted in the figures, and never arrive.
    let kept = rate * seconds - log.dropped();
    match &collector {
        Some(collector) => collector.await_records(kept).await?,
        None if destination.is_some() => await_files(&folder.path().join("files"), kept).await?,
        None => {}
    }
    let behind = written.elapsed();
    let after = usage()?;
    let elapsed = begun.elapsed();
    stop.cancel();
    if let Some(exporting) = exporting {
        exporting.await?;
    }
    let dropped = log.dropped();
    log.close();
    Ok(Cost {
        processor_seconds: after.0 - before.0,
        written_bytes: after.1 - before.1,
        elapsed,
        behind,
        dropped,
    })
}

fn config(name: &str, folder: &Path, ca: &Path, address: Option<SocketAddr>) -> Result<AuditExportConfig> {
    let address = || address.context("the collector has no address");
    let http = || -> Result<HttpTarget> {
        let url = format!("http://{}/v1/logs", address()?).parse()?;
        Ok(HttpTarget { url, token_file: None, ca: None })
    };
    let destination = match name {
        "files" => {
            let limits = RotationLimits { file_bytes_max: 1 << 30, files_max: 10 };
            ExportDestination::Files { folder: folder.join("files"), limits }
        }
        "webhook" => ExportDestination::Webhook(http()?),
        "syslog" => {
            let tls = TlsFiles { ca: Some(ca.to_owned()), client: None };
            ExportDestination::Syslog(SyslogTarget {
                host: "127.0.0.1".to_owned(),
                port: address()?.port(),
                tls,
            })
        }
        _ => ExportDestination::Otlp(http()?),
    };
    Ok(AuditExportConfig { bytes_max: SPOOL_BYTES_MAX, destinations: vec![destination] })
}

/// Returns when the newest record of the files is the last one.
async fn await_files(folder: &Path, all: u64) -> Result<()> {
    let end = Instant::now() + DELIVERY_MAX;
    let mut found = 0;
    while found < all {
        ensure!(Instant::now() < end, "{found} of {all} records are in the files");
        tokio::time::sleep(Duration::from_millis(20)).await;
        found = last_sequence(&folder.join("causeway-audit.jsonl")).unwrap_or(0);
    }
    Ok(())
}

/// The sequence number in the last whole line of a file.
fn last_sequence(path: &Path) -> Option<u64> {
    use std::io::{Read, Seek, SeekFrom};
    const TAIL_BYTES: u64 = 4096;
    let mut file = std::fs::File::open(path).ok()?;
    let length = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES))).ok()?;
    let mut tail = String::new();
    file.read_to_string(&mut tail).ok()?;
    let (whole, _) = tail.rsplit_once('\n')?;
    let line: serde_json::Value = serde_json::from_str(whole.rsplit('\n').next()?).ok()?;
    line["sequence"].as_u64()
}

/// Hands over records at the rate; the fields are those of a proxied request.
fn write(log: &AuditLog, rate: u64, seconds: u64) {
    let begun = Instant::now();
    let (mut written, all) = (0, rate * seconds);
    while written < all {
        let due = (begun.elapsed().as_secs_f64() * rate as f64) as u64;
        for number in written..due.min(all) {
            log.record(&json!({
                "gateway": "oslo-1", "clientSite": "oslo", "subject": "forklift-7", "client": "10.0.0.7:41234",
                "service": "orders", "protocol": "http", "decision": "allow", "rule": "forklifts", "method": "GET",
                "path": format!("/orders/{number}"), "status": 200, "sentBytes": 312, "receivedBytes": 4096,
                "durationMs": 12, "end": "done",
            }));
        }
        written = due.min(all);
        std::thread::sleep(SLICE);
    }
}

/// Processor seconds of this process, and bytes that it has written to disk.
fn usage() -> Result<(f64, u64)> {
    let io = std::fs::read_to_string("/proc/self/io")?;
    let written = io.lines().find_map(|line| line.strip_prefix("write_bytes: "));
    Ok((cpu_seconds()?, written.context("no write_bytes in /proc/self/io")?.parse()?))
}
