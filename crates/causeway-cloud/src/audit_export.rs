//! Exports audit records to collectors, beside the journals in the data dir: files, a webhook, syslog over TLS, OTLP logs.
//!
//! The threads that write journals hand every line to `ExportSpool`, which numbers it and keeps it on disk within a bound. Each
//! destination has a cursor on disk and a task (`Exporter`): `pace` decides when to send, `spool` reads a batch, a sender delivers
//! it, and the cursor moves afterwards. A record is therefore delivered at least once, under the same source and sequence
//! number. A destination that is away for so long that the bound is reached loses the oldest records, which are counted.

mod cursor;
mod files;
mod metrics;
mod otlp;
mod pace;
mod spool;
mod syslog;
mod webhook;

#[cfg(test)]
mod tests;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use causeway_daemon::Metrics;
use causeway_daemon::audit::LineTap;
use causeway_daemon::collector::CollectorError;
use causeway_daemon::rotated::RotationLimits;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

pub use causeway_daemon::collector::{HttpTarget, TlsFiles};
pub use spool::{ExportBatch, ExportSpool};
pub use syslog::SyslogTarget;

use cursor::ExportCursor;
use files::FileSender;
use metrics::ExportMetrics;
use otlp::OtlpSender;
use pace::{ExportPace, ExportStep};
use spool::{SpoolPosition, SpoolTap};
use syslog::SyslogSender;
use webhook::WebhookSender;

/// Folder of the spool, below the one of the journals.
pub(crate) const FOLDER: &str = "export";
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
            ExportSender::Files(sender) => return sender.send(batch).await,
            ExportSender::Webhook(sender) => sender.send(batch).await?,
            ExportSender::Syslog(sender) => sender.send(batch).await?,
            ExportSender::Otlp(sender) => sender.send(batch).await?,
        }
        Ok(())
    }
}

/// Why a batch was not delivered.
#[derive(Debug, thiserror::Error)]
enum ExportError {
    #[error(transparent)]
    Collector(#[from] CollectorError),
    #[error("cannot write to the folder {}", folder.display())]
    Files { folder: PathBuf, source: io::Error },
    #[error("cannot use the records that wait in the data dir")]
    Spool(#[source] io::Error),
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
                position: None,
                undelivered: None,
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
    /// The place of the cursor in the spool. None after a start.
    position: Option<SpoolPosition>,
    /// A batch that failed. It is repeated as it is, without records that came later, so that a receiver recognises it.
    undelivered: Option<(ExportBatch, SpoolPosition)>,
    spool: Arc<ExportSpool>,
    metrics: ExportMetrics,
}

impl Exporter {
    async fn run(mut self, stop: CancellationToken) {
        let mut pace = ExportPace::default();
        let mut appended = self.spool.appended();
        loop {
            // Seen before the question, so that a record that comes in between is not missed.
            let next = *appended.borrow_and_update();
            match pace.next(next.saturating_sub(self.cursor.next()), Instant::now()) {
                ExportStep::WaitForRecords => tokio::select! {
                    biased;
                    () = stop.cancelled() => return,
                    changed = appended.changed() => if changed.is_err() {
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
                                    "audit records wait: they cannot be delivered"
                                );
                            }
                        }
                    }
                }
            }
        }
    }

    async fn send_next(&mut self) -> Result<(), ExportError> {
        let (batch, position) = match self.undelivered.take() {
            Some(undelivered) => undelivered,
            None => self.read_next().await.map_err(ExportError::Spool)?,
        };
        if !batch.lines.is_empty() {
            let sent = tokio::time::timeout(SEND_MAX, self.sender.send(&batch)).await;
            let late = CollectorError::Timeout { seconds: SEND_MAX.as_secs() };
            if let Err(error) = sent.unwrap_or(Err(late.into())) {
                self.undelivered = Some((batch, position));
                return Err(error);
            }
        }
        self.position = Some(position);
        self.metrics.sent(self.name, batch.lines.len() as u64);
        self.cursor.advance(batch.first + batch.lines.len() as u64).map_err(ExportError::Spool)?;
        self.spool.keep_from(self.name, self.cursor.next());
        Ok(())
    }

    /// Reads the batch at the cursor, and counts the records that the bound has dropped in front of it.
    async fn read_next(&mut self) -> io::Result<(ExportBatch, SpoolPosition)> {
        let (spool, from, at) = (self.spool.clone(), self.cursor.next(), self.position);
        let read = tokio::task::spawn_blocking(move || spool.read(from, at));
        let (batch, position) = read.await.map_err(io::Error::other)??;
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
        Ok((batch, position))
    }
}

/// Spreads retries of several clouds.
fn random_fraction() -> f64 {
    let mut bytes = [0; 4];
    // Without random numbers all retry at the same time, which is no harm here.
    let _ = aws_lc_rs::rand::fill(&mut bytes);
    f64::from(u32::from_be_bytes(bytes)) / f64::from(u32::MAX)
}
