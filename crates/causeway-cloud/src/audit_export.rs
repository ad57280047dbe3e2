//! Exports audit records to collectors, beside the journals in the data dir: files, a webhook, syslog over TLS, OTLP logs.
//!
//! The threads that write journals hand every line to `ExportSpool`, which numbers it and keeps it on disk within a bound. Each
//! destination has a cursor on disk and a task (`Exporter`): `pace` decides when to send, `spool` reads a batch, a sender delivers
//! it, and the cursor moves afterwards. A record is therefore delivered at least once, under the same source and sequence
//! number. A destination that is away for so long that the bound is reached loses the oldest records, which are counted.

mod cursor;
mod files;
mod http;
mod metrics;
mod otlp;
mod pace;
mod spool;
mod syslog;
mod tls;
mod webhook;

#[cfg(test)]
mod tests;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use causeway_daemon::Metrics;
use causeway_daemon::audit::LineTap;
use causeway_daemon::rotated::RotationLimits;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

pub use self::http::HttpTarget;
pub use spool::{ExportBatch, ExportSpool};
pub use syslog::SyslogTarget;
pub use tls::TlsFiles;

use cursor::ExportCursor;
use files::FileSender;
use metrics::ExportMetrics;
use otlp::OtlpSender;
use pace::{ExportPace, ExportStep};
use spool::SpoolTap;
use syslog::SyslogSender;
use webhook::WebhookSender;

/// A collector that takes longer is taken for one that does not answer.
const SEND_MAX: Duration = Duration::from_secs(30);

/// The destinations, and the bound of the records that wait for them on disk.
#[derive(Clone, Debug, Default)]
pub struct AuditExportConfig {
    pub bytes_max: u64,
    pub destinations: Vec<ExportDestination>,
}

#[derive(Clone, Debug)]
pub enum ExportDestination {
    Files { folder: PathBuf, limits: RotationLimits },
    Webhook(HttpTarget),
    Syslog(SyslogTarget),
    Otlp(HttpTarget),
}

impl ExportDestination {
    /// The name in metrics, log lines and the file of the cursor.
    pub fn name(&self) -> &'static str {
        match self {
            ExportDestination::Files { .. } => "files",
            ExportDestination::Webhook(_) => "webhook",
            ExportDestination::Syslog(_) => "syslog",
            ExportDestination::Otlp(_) => "otlp",
        }
    }
}

/// Why a batch was not delivered. It is sent again.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    #[error("cannot read {}", path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("{} holds no certificate or key that can be used", path.display())]
    Pem { path: PathBuf },
    #[error("the TLS settings cannot be used")]
    Tls(#[from] rustls::Error),
    #[error("{0} is no name or address of a host")]
    Host(String),
    #[error("the connection failed")]
    Io(#[from] io::Error),
    #[error("the request failed")]
    Http(#[from] hyper::Error),
    #[error("the request cannot be made")]
    Request(#[from] ::http::Error),
    #[error("the collector answered {status}")]
    Refused { status: u16 },
    #[error("no answer within {} seconds", SEND_MAX.as_secs())]
    Timeout,
}

enum ExportSender {
    Files(FileSender),
    Webhook(WebhookSender),
    Syslog(SyslogSender),
    Otlp(OtlpSender),
}

impl ExportSender {
    fn open(destination: ExportDestination, source: &str) -> io::Result<ExportSender> {
        Ok(match destination {
            ExportDestination::Files { folder, limits } => {
                ExportSender::Files(FileSender::open(&folder, limits)?)
            }
            ExportDestination::Webhook(target) => {
                ExportSender::Webhook(WebhookSender::new(target, source.to_owned()))
            }
            ExportDestination::Syslog(target) => ExportSender::Syslog(SyslogSender::new(target)),
            ExportDestination::Otlp(target) => ExportSender::Otlp(OtlpSender::new(target, source.to_owned())),
        })
    }

    /// Returns when the collector has the batch.
    async fn send(&mut self, batch: &ExportBatch) -> Result<(), ExportError> {
        match self {
            ExportSender::Files(sender) => sender.send(batch).await,
            ExportSender::Webhook(sender) => sender.send(batch).await,
            ExportSender::Syslog(sender) => sender.send(batch).await,
            ExportSender::Otlp(sender) => sender.send(batch).await,
        }
    }
}

/// The exporters of a cloud, opened and not yet running.
pub struct AuditExport {
    spool: Arc<ExportSpool>,
    exporters: Vec<Exporter>,
}

impl AuditExport {
    /// Opens the spool in `folder` and the cursors in it. None: no destination is configured.
    pub fn open(
        folder: &Path,
        config: AuditExportConfig,
        metrics: &Metrics,
    ) -> io::Result<Option<AuditExport>> {
        if config.destinations.is_empty() {
            return Ok(None);
        }
        let spool = Arc::new(ExportSpool::open(folder, config.bytes_max)?);
        let measured = ExportMetrics::new(spool.clone());
        let mut exporters = Vec::new();
        for destination in config.destinations {
            let name = destination.name();
            let cursor = ExportCursor::open(folder, name, spool.first())?;
            spool.keep_from(name, cursor.next());
            let sender = ExportSender::open(destination, spool.source())?;
            exporters.push(Exporter {
                name,
                cursor,
                sender,
                spool: spool.clone(),
                metrics: measured.clone(),
            });
        }
        metrics.register(|registry| measured.register(registry));
        Ok(Some(AuditExport { spool, exporters }))
    }

    #[cfg(test)]
    pub fn spool(&self) -> &Arc<ExportSpool> {
        &self.spool
    }

    /// The copy of a journal's lines, under its name.
    pub fn tap(&self, journal: &'static str) -> Box<dyn LineTap> {
        Box::new(SpoolTap { spool: self.spool.clone(), journal })
    }

    /// Delivers until told to stop. Records that wait then are sent after the next start.
    pub async fn run(self, stop: CancellationToken) {
        let mut running = JoinSet::new();
        for exporter in self.exporters {
            running.spawn(exporter.run(stop.clone()));
        }
        while running.join_next().await.is_some() {}
    }
}

/// Delivers records to one destination.
struct Exporter {
    name: &'static str,
    cursor: ExportCursor,
    sender: ExportSender,
    spool: Arc<ExportSpool>,
    metrics: ExportMetrics,
}

impl Exporter {
    async fn run(mut self, stop: CancellationToken) {
        let mut pace = ExportPace::default();
        let mut news = self.spool.news();
        loop {
            // Seen before the question, so that a record that comes in between is not missed.
            let next = *news.borrow_and_update();
            match pace.next(next.saturating_sub(self.cursor.next()), Instant::now()) {
                ExportStep::WaitForRecords => tokio::select! {
                    biased;
                    () = stop.cancelled() => return,
                    changed = news.changed() => if changed.is_err() {
                        return;
                    },
                },
                ExportStep::WaitUntil(time) => tokio::select! {
                    biased;
                    () = stop.cancelled() => return,
                    () = tokio::time::sleep_until(time.into()) => {}
                },
                ExportStep::Send => {
                    let sent = tokio::select! {
                        biased;
                        () = stop.cancelled() => return,
                        sent = self.send_next() => sent,
                    };
                    match sent {
                        Ok(()) => {
                            if pace.handle_sent() {
                                tracing::info!(destination = self.name, "audit export goes on");
                            }
                        }
                        Err(error) => {
                            self.metrics.failed(self.name);
                            if pace.handle_failed(Instant::now(), random_fraction()) {
                                let error = &error as &dyn std::error::Error;
                                tracing::warn!(
                                    destination = self.name,
                                    error,
                                    "audit records wait: the collector does not take them"
                                );
                            }
                        }
                    }
                }
            }
        }
    }

    async fn send_next(&mut self) -> Result<(), ExportError> {
        let (spool, from) = (self.spool.clone(), self.cursor.next());
        let read = tokio::task::spawn_blocking(move || spool.read(from));
        let batch = read.await.map_err(io::Error::other)??;
        let lost = batch.first - from;
        if lost > 0 {
            tracing::error!(
                destination = self.name,
                lost,
                "audit records were not delivered before the bound of the export was reached"
            );
            self.metrics.lost(self.name, lost);
            // Counted once, however often the batch behind them is sent.
            self.cursor.advance(batch.first)?;
        }
        if !batch.lines.is_empty() {
            tokio::time::timeout(SEND_MAX, self.sender.send(&batch))
                .await
                .map_err(|_| ExportError::Timeout)??;
        }
        self.metrics.sent(self.name, batch.lines.len() as u64);
        self.cursor.advance(batch.first + batch.lines.len() as u64)?;
        self.spool.keep_from(self.name, self.cursor.next());
        Ok(())
    }
}

/// Spreads retries of several clouds.
fn random_fraction() -> f64 {
    let mut bytes = [0; 4];
    // Without random numbers all retry at the same time, which is no harm here.
    let _ = aws_lc_rs::rand::fill(&mut bytes);
    f64::from(u32::from_be_bytes(bytes)) / f64::from(u32::MAX)
}
