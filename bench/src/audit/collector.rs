//! The collector of `audit`: a process that takes batches over HTTP (OTLP, webhook) or syslog over TLS, and prints how many distinct
//! records it has. It knows a record by its sequence number.
//!
//! The certificate for syslog is made anew for each process and written to the file that the caller names.

use std::collections::HashSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use rustls_pki_types::PrivateKeyDer;
use serde_json::Value;

/// The name of the collector among the parts, for the process that this one starts.
pub const COLLECTOR: &str = "audit-collector";
/// The last records must be there within this time after the end of the load.
const DELIVERY_MAX: Duration = Duration::from_secs(120);

/// The collector process; its standard output tells how many distinct records it has.
pub struct Collector {
    child: Child,
    pub address: SocketAddr,
    records: Arc<AtomicU64>,
}

impl Collector {
    /// `kind` is the name of a destination; the certificate of syslog is written to `ca`.
    pub fn start(kind: &str, away: u64, ca: &Path) -> Result<Collector> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args([COLLECTOR, kind, &away.to_string()]).arg(ca);
        let mut child = command.stdout(Stdio::piped()).spawn()?;
        let mut lines = BufReader::new(child.stdout.take().context("the collector has no output")?).lines();
        let address = lines.next().context("the collector ended")??.parse()?;
        let records = Arc::new(AtomicU64::new(0));
        let counted = records.clone();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                counted.store(line.parse().unwrap_or_default(), Ordering::SeqCst);
            }
        });
        Ok(Collector { child, address, records })
    }

    pub async fn await_records(&self, all: u64) -> Result<()> {
        let end = Instant::now() + DELIVERY_MAX;
        while self.records.load(Ordering::SeqCst) < all {
            ensure!(Instant::now() < end, "{} of {all} records arrived", self.records.load(Ordering::SeqCst));
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs the process: one batch for each connection.
pub fn collect(arguments: &[String]) -> Result<()> {
    let [kind, away, ca] = arguments else { anyhow::bail!("{COLLECTOR} KIND SECONDS FILE") };
    let tls = if kind == "syslog" { Some(certificate(&PathBuf::from(ca))?) } else { None };
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("{}", listener.local_addr()?);
    let back = Instant::now() + Duration::from_secs(away.parse()?);
    let mut seen = HashSet::new();
    for stream in listener.incoming() {
        let stream = stream?;
        // A collector that is away: the connection ends without an answer.
        if Instant::now() < back {
            continue;
        }
        let answered = match &tls {
            Some(tls) => read_syslog(stream, tls.clone(), &mut seen),
            None => answer(stream, &mut seen),
        };
        if answered.is_ok() {
            println!("{}", seen.len());
        }
    }
    Ok(())
}

fn certificate(ca: &Path) -> Result<Arc<ServerConfig>> {
    let CertifiedKey { cert, signing_key } = generate_simple_self_signed(["127.0.0.1".to_owned()])?;
    std::fs::write(ca, cert.pem())?;
    let key = PrivateKeyDer::try_from(signing_key.serialize_der()).map_err(anyhow::Error::msg)?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(vec![cert.der().clone()], key)?;
    Ok(Arc::new(config))
}

/// Reads to close_notify and answers with one.
fn read_syslog(stream: TcpStream, tls: Arc<ServerConfig>, seen: &mut HashSet<u64>) -> Result<()> {
    let mut stream = StreamOwned::new(ServerConnection::new(tls)?, stream);
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    for message in text.split(" sequence=\"").skip(1) {
        seen.extend(message.split('"').next().and_then(|number| number.parse::<u64>().ok()));
    }
    stream.conn.send_close_notify();
    stream.conn.write_tls(&mut stream.sock)?;
    Ok(())
}

fn answer(mut stream: TcpStream, seen: &mut HashSet<u64>) -> Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let (mut line, mut length) = (String::new(), 0);
    while reader.read_line(&mut line)? > 2 {
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse()?;
        }
        line.clear();
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let request: Value = serde_json::from_slice(&body)?;
    let records = request["records"].as_array().into_iter().flatten();
    seen.extend(records.filter_map(|record| record["sequence"].as_u64()));
    let records = request["resourceLogs"][0]["scopeLogs"][0]["logRecords"].as_array();
    for record in records.into_iter().flatten() {
        let attributes = record["attributes"].as_array().into_iter().flatten();
        let sequence = attributes.filter(|attribute| attribute["key"] == "sequence");
        seen.extend(
            sequence.filter_map(|attribute| attribute["value"]["intValue"].as_str()?.parse::<u64>().ok()),
        );
    }
    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}")?;
    Ok(())
}
